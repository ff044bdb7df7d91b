// GPT: a decoder-only transformer, as language models are.
#pragma once

#include <optional>
#include <vector>

#include <regard/layers/embedding.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::layers {

/// How a model is told the order of its tokens.
enum class PositionKind : uint8_t {
  learned,  ///< a trained vector a position, added to the token's: no sequence can be longer than the table
  rotary,   ///< queries and keys turned by their positions (Su et al., "RoFormer", 2021)
  alibi,    ///< scores fall with distance (Press, Smith, Lewis, "Train short, test long", 2022)
};
const char* to_string(PositionKind kind);

struct GPTOptions {
  int64_t vocabulary = 0;  ///< tokens there are: ids are in [0, vocabulary)
  int64_t context = 0;     ///< tokens a sequence has at most (learned), or has in training and in generate() (others)
  int64_t width = 128;
  int64_t heads = 4;
  int64_t layers = 4;
  int64_t hidden = 0;           ///< width inside the feed-forward networks; 0: four times the width
  double dropout = 0;           ///< of the embeddings, of attention weights and of each branch, in training mode
  int64_t key_value_heads = 0;  ///< grouped-query attention: fewer heads of keys and values; 0: as many as heads
  PositionKind positions = PositionKind::learned;
  double rotary_base = 10000;
  bool tied = true;  ///< scores are products with the token embedding; false: a head with a weight of its own
  Activation activation = Activation::gelu_tanh;
  bool bias = true;  ///< in linear layers (never in the head) and layer norms
  double eps = 1e-5;
  bool recompute = false;  ///< compute each block again in backward: see layers/checkpoint.hpp
};

/// A GPT: token embedding and positions, pre-norm blocks with causal attention, a last layer norm, and a score for
/// every token to be the next. Tied, `tokens.weight` is one parameter in two places: counted, stepped and saved once.
/// Weights start as GPT-2's: N(0, 0.02^2), those that write into the residual stream divided by sqrt(2 layers);
/// biases zero. Radford et al., "Language models are unsupervised multitask learners", 2019.
struct GPT : Layer {
  GPTOptions options;
  Embedding tokens;
  std::optional<LearnedPositionalEncoding> positions;  ///< with learned positions only
  Dropout drop;
  std::vector<TransformerEncoderLayer> blocks;
  LayerNorm norm;
  std::optional<Linear> head;  ///< untied only

  /// A ValueError names the option that is out of range.
  explicit GPT(const GPTOptions& options);

  /// ids [N, T] or [T] (i64) -> scores (logits) [N, T, vocabulary] or [T, vocabulary]. A ShapeError for more tokens
  /// than learned positions, an IndexError for an id that is no token.
  Tensor operator()(const Tensor& ids) const { return scores(features(ids)); }
  /// The same for the next T tokens [N, T] of sequences whose earlier ones are in `caches`, one cache a block; they
  /// then hold these, too. For use under NoGrad, in evaluation mode. Equal to the whole sequence's scores up to
  /// rounding.
  Tensor operator()(const Tensor& ids, std::vector<KeyValueCache>& caches) const {
    return scores(features(ids, caches));
  }
  /// An empty cache for each block. With learned positions each has room for `context` tokens; others grow.
  std::vector<KeyValueCache> caches() const;

  /// What the head reads: [N, T, width], after the last norm.
  Tensor features(const Tensor& ids) const;
  Tensor features(const Tensor& ids, std::vector<KeyValueCache>& caches) const;
  /// The head: [..., width] -> [..., vocabulary].
  Tensor scores(const Tensor& features) const;

  /// The mean cross-entropy, in nats, of `targets` [N, T]: the tokens that follow those of `ids` [N, T].
  Tensor loss(const Tensor& ids, const Tensor& targets) const;

  void members(Members& m) override;
  std::string describe() const override;

 private:
  Tensor embed(const Tensor& ids, int64_t offset) const;
};

}  // namespace regard::layers
