// MultiHeadAttention.
#pragma once

#include <array>
#include <optional>

#include <regard/autograd/ops.hpp>
#include <regard/layers/key_value_cache.hpp>
#include <regard/layers/linear.hpp>

namespace regard::layers {

struct MultiHeadAttentionOptions {
  double dropout = 0;               ///< of the attention weights, in training mode
  bool bias = true;                 ///< in all four projections
  int64_t key_width = 0;            ///< width of keys; 0: embed_dim
  int64_t value_width = 0;          ///< width of values; 0: embed_dim
  int64_t key_value_heads = 0;      ///< heads of keys and values, each shared by as many query heads; 0: num_heads
  bool rotary = false;              ///< queries and keys are turned by their positions: see rotary_positions()
  double rotary_base = 10000;       ///< of the rotary positions' wave lengths
  bool alibi = false;               ///< scores fall with distance: see alibi_slopes()
  bool rotary_interleaved = false;  ///< neighbours are turned together, not the halves of a head
  int64_t rotary_width = 0;         ///< how much of a head is turned; 0: all of it
};

/// What a call of attention may look at. See AttentionOptions in ops.hpp for the meaning of each mask.
struct AttentionMasks {
  Tensor mask = {};      ///< [L, S], or 4-D broadcastable to [N, H, L, S]
  Tensor key_mask = {};  ///< [N, S], true may attend: marks the padding
  bool causal = false;
};

/// Multi-head attention of queries [N, L, embed_dim] over keys [N, S, key_width] and values [N, S, value_width]:
/// [N, L, embed_dim]. Without batch, [L, embed_dim] and so on, too. Parameters query, key, value, output, each a
/// Linear; head h uses the h-th part, of width embed_dim / num_heads, of the projections. Vaswani et al., "Attention
/// is all you need", 2017.
///
/// With fewer key_value_heads, query head h uses keys and values of head h / (num_heads / key_value_heads): Ainslie et
/// al., "GQA", 2023; with one, Shazeer, "Fast transformer decoding", 2019.
///
/// Positions of `rotary` and `alibi`: key j stands at j, and query i at i + S - L, so that the last query and the last
/// key stand together, as causal order has it.
struct MultiHeadAttention : Layer {
  Linear query, key, value, output;
  int64_t num_heads;
  int64_t key_value_heads;
  double dropout;
  std::optional<RotaryOptions> rotary;
  Tensor alibi;  ///< slopes [num_heads], f64; undefined: none

  MultiHeadAttention(int64_t embed_dim, int64_t num_heads, const MultiHeadAttentionOptions& options = {});

  /// Self-attention.
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const { return (*this)(x, x, x, masks); }
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionMasks& masks = {}) const;
  /// Self-attention of the next L tokens, x [N, L, embed_dim], over those that the cache holds and themselves, in
  /// causal order whatever the masks say: what a call without a cache gives for these tokens, to rounding. Afterwards
  /// the cache holds L more. Masks are over all S = held + L keys: key_mask [N, S] marks, for example, padding on the
  /// left. For use under NoGrad, in evaluation.
  Tensor operator()(const Tensor& x, KeyValueCache& cache, const AttentionMasks& masks = {}) const;
  /// Attention of queries [N, L, embed_dim] over a memory [N, S, width] whose keys and values are projected once: the
  /// first call of a cache fills it, and later ones read it and need no memory. For use under NoGrad. Not for layers
  /// with rotary or alibi positions, which are those of one sequence.
  Tensor attend_cached(const Tensor& query, KeyValueCache& cache, const Tensor& memory = {},
                       const AttentionMasks& masks = {}) const;
  /// The same output, and the weights [N, H, L, S], before dropout: each row sums to 1, or to 0 where there is
  /// nothing to attend to.
  std::pair<Tensor, Tensor> forward_with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 const AttentionMasks& masks = {}) const;
  void members(Members& m) override;
  std::string describe() const override;

 protected:
  void moved_to(Device device) override;

 private:
  std::pair<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks, bool with_weights) const;
  std::array<Tensor, 3> project(const Tensor& x, const Tensor& keys, const Tensor& values) const;
  Tensor split_heads(const Tensor& projected, int64_t heads) const;
  Tensor merge_heads(const Tensor& context, bool batched) const;
  AttentionOptions options(const Tensor& query, const AttentionMasks& masks) const;
};

}  // namespace regard::layers
