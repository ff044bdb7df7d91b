// MultiHeadAttention.
#pragma once

#include <regard/layers/linear.hpp>

namespace regard::layers {

struct MultiHeadAttentionOptions {
  double dropout = 0;       ///< of the attention weights, in training mode
  bool bias = true;         ///< in all four projections
  int64_t key_width = 0;    ///< width of keys; 0: embed_dim
  int64_t value_width = 0;  ///< width of values; 0: embed_dim
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
struct MultiHeadAttention : Layer {
  Linear query, key, value, output;
  int64_t num_heads;
  double dropout;

  MultiHeadAttention(int64_t embed_dim, int64_t num_heads, const MultiHeadAttentionOptions& options = {});

  /// Self-attention.
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const { return (*this)(x, x, x, masks); }
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionMasks& masks = {}) const;
  /// The same output, and the weights [N, H, L, S], before dropout: each row sums to 1, or to 0 where there is
  /// nothing to attend to.
  std::pair<Tensor, Tensor> forward_with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 const AttentionMasks& masks = {}) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  std::pair<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks, bool with_weights) const;
};

}  // namespace regard::layers
