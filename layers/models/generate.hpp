// Sampling, and texts that a GPT writes token by token.
#pragma once

#include <functional>
#include <vector>

#include <regard/autograd/random.hpp>
#include <regard/layers/models/gpt.hpp>

namespace regard::layers {

/// Which tokens may come next, and how likely. Applied in this order: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 1;  ///< scores are divided by it: below 1 bolder, above 1 wilder; 0: always the likeliest token
  int64_t top_k = 0;       ///< only this many tokens, the likeliest; 0: all
  double top_p = 1;        ///< only the likeliest tokens that together first reach this probability (Holtzman et al.,
                           ///< "The curious case of neural text degeneration", 2020); 1: all
};

/// A token and its probability.
struct Candidate {
  int64_t token;
  double probability;
};

/// The tokens that may come next by their scores [vocabulary] (logits), likeliest first (of equals the smaller id),
/// with probabilities that sum to 1, in f64. At temperature 0 one token. A ValueError for an option out of range, or
/// for scores that are not finite (-inf alone is allowed: a token that never comes).
std::vector<Candidate> candidates(const Tensor& scores, const SamplingOptions& options = {});

/// Draws one of candidates(). Takes one number from the generator, at temperature 0 none.
int64_t sample(const Tensor& scores, const SamplingOptions& options = {}, Generator& generator = default_generator());

struct GenerateOptions {
  int64_t length = 100;  ///< tokens to write, at most
  SamplingOptions sampling = {};
  Generator* generator = nullptr;  ///< default_generator() when null
  int64_t stop_token = -1;         ///< ends the text, and is its last token; -1: none
  bool cache = true;               ///< keep keys and values; false computes the window again for each token
  std::function<bool(int64_t token)> on_token = {};  ///< called with each token as it comes; false ends the text
};

/// Where the window begins that a model of this context reads behind `count` tokens: at 0 while all fit; then half a
/// context is forgotten at a time, so that the window holds more than half a context and at most all of it. It depends
/// on the number of tokens alone.
int64_t window_start(int64_t count, int64_t context);

/// Continues `prompt` (at least one token) token by token, and returns what was written, without the prompt. The model
/// reads the tokens behind window_start(), at positions from 0 on: when its context is full, the older half is
/// forgotten and the rest read again, once in half a context of tokens. Until then a token costs one step with the
/// cache. With and without cache the scores are equal up to rounding. The model must be in evaluation mode if it drops
/// (ValueError); nothing is recorded.
std::vector<int64_t> generate(const GPT& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options = {});

}  // namespace regard::layers
