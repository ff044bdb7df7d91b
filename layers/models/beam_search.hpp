// Beam search and greedy search: the likeliest sequences of a model that says one token after another.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard::layers {

/// One step of a model for R sequences at once: scores (logits) of each token to be the next, [R, V], f32 or f64.
///
/// `tokens[r]` is the token that sequence r has just got, and `rows[r]` the place among the sequences of the call
/// before of the one that it continues: a model that keeps keys and values must bring them into that order first,
/// `cache.reorder(from_vector(rows))`. In the first call there is one sequence a source, `rows` is 0, 1, ..., and the
/// tokens are the start token. R changes from call to call, since sequences that ended are not asked for again.
using SearchStep = std::function<Tensor(const std::vector<int64_t>& rows, const std::vector<int64_t>& tokens)>;

struct SearchOptions {
  int64_t start = 1;         ///< the token that every sequence begins with
  int64_t end = 2;           ///< the token that ends one
  int64_t max_length = 128;  ///< tokens said at most, with the end token
  /// The rest is beam search's. Sequences kept at a time for each source; 1 gives the same as greedy search.
  int64_t beam = 4;
  int64_t n_best = 1;         ///< hypotheses returned for each source, at most `beam`
  double length_penalty = 0;  ///< alpha of Wu et al.; 0: none. Not negative
};

/// A sequence that a search came to.
struct Hypothesis {
  std::vector<int64_t> tokens;  ///< without start and end
  double log_probability = 0;   ///< the sum over its tokens, the end token with them, in nats
  double score = 0;             ///< log_probability / ((5 + n) / 6)^alpha for n tokens, the end token with them
  bool ended = false;           ///< false: it was cut off at max_length
};

/// The `n_best` best hypotheses of each source, best first: those that ended before those that were cut off, then by
/// score. Fewer where there are not so many. All sources are searched at once.
///
/// At each step the most probable continuations of all that a source has going are kept, `beam` of them less those
/// that have ended already; one that says the end token is complete. A source is done when nothing is going on, or
/// when nothing that is could still get among its n best. Among equals the earlier sequence and the lower token comes
/// first. The score's length normalisation is that of Wu et al., "Google's neural machine translation system", 2016,
/// equation 14, without coverage. Nothing is recorded for gradients. A ValueError for an option outside its range and
/// for a logit that is NaN or infinite (minus infinity excludes a token), a ShapeError for logits of another shape.
std::vector<std::vector<Hypothesis>> beam_search(const SearchStep& step, int64_t sources,
                                                 const SearchOptions& options = {});

/// Takes the token with the highest score at each step (the first of equals), until it is the end token: one hypothesis
/// a source, the same as beam_search() finds with a beam of 1.
std::vector<Hypothesis> greedy_search(const SearchStep& step, int64_t sources, const SearchOptions& options = {});

}  // namespace regard::layers
