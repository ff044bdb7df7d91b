// TransformerEncoderLayer and TransformerDecoderLayer.
#pragma once

#include <regard/layers/attention.hpp>
#include <regard/layers/feed_forward.hpp>
#include <regard/layers/norm.hpp>

namespace regard::layers {

struct TransformerLayerOptions {
  int64_t hidden = 0;  ///< width inside the feed-forward network; 0: four times the width
  double dropout = 0;  ///< of attention weights, inside the feed-forward network, and of each branch's result
  Activation activation = Activation::gelu;
  bool norm_first = true;  ///< pre-norm, x + f(norm(x)); false: post-norm, norm(x + f(x)), as in the paper
  bool bias = true;
  double eps = 1e-5;            ///< of the layer norms
  int64_t key_value_heads = 0;  ///< of each attention; 0: num_heads. See MultiHeadAttentionOptions for these four
  bool rotary = false;          ///< of self-attention, and so are the next two
  double rotary_base = 10000;
  bool alibi = false;
};

/// One block of an encoder (or, called with {.causal = true}, of a decoder-only model): self-attention, then a
/// feed-forward network, each with a residual connection and a layer norm. x [N, T, width] -> the same shape.
/// Parameters norm1, attention, norm2, feed_forward. Vaswani et al., 2017; pre-norm: Xiong et al., 2020.
struct TransformerEncoderLayer : Layer {
  LayerNorm norm1;
  MultiHeadAttention attention;
  LayerNorm norm2;
  FeedForward feed_forward;
  Dropout drop;
  bool norm_first;

  TransformerEncoderLayer(int64_t width, int64_t num_heads, const TransformerLayerOptions& options = {});
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const;
  /// The next T tokens of a sequence whose earlier ones the cache holds, in causal order: see MultiHeadAttention.
  Tensor operator()(const Tensor& x, KeyValueCache& cache, const AttentionMasks& masks = {}) const;
  /// The same output, and the attention weights [N, H, T, T].
  std::pair<Tensor, Tensor> forward_with_weights(const Tensor& x, const AttentionMasks& masks = {}) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  Tensor finish(const Tensor& x, Tensor attended) const;
  Tensor add_branch(const Tensor& y, const Tensor& in) const;  // y + drop(feed_forward(in))
};

/// Masks of a decoder layer's two attentions.
struct DecoderMasks {
  AttentionMasks self = {.mask = {}, .key_mask = {}, .causal = true};  ///< of the targets among themselves
  AttentionMasks cross = {};                                           ///< of the targets over the memory
};

/// What a decoder layer keeps of the targets that were read, and of the memory.
struct DecoderCache {
  KeyValueCache self, cross;

  DecoderCache() = default;
  explicit DecoderCache(int64_t capacity) : self(capacity) {}  ///< of targets; 0: any number
  /// Both as KeyValueCache::reorder() does it.
  void reorder(const Tensor& rows);
  /// Forgets all targets from `length` on.
  void truncate(int64_t length) { self.truncate(length); }
  void clear();
};

/// One block of an encoder-decoder's decoder: self-attention (causal unless told otherwise), attention over the
/// encoder's output `memory` [N, S, width], then a feed-forward network. Parameters norm1, attention, norm2,
/// cross_attention, norm3, feed_forward.
struct TransformerDecoderLayer : Layer {
  LayerNorm norm1;
  MultiHeadAttention attention;
  LayerNorm norm2;
  MultiHeadAttention cross_attention;
  LayerNorm norm3;
  FeedForward feed_forward;
  Dropout drop;
  bool norm_first;

  TransformerDecoderLayer(int64_t width, int64_t num_heads, const TransformerLayerOptions& options = {});
  Tensor operator()(const Tensor& x, const Tensor& memory, const DecoderMasks& masks = {}) const;
  /// The next T targets, over those that the cache holds and themselves, in causal order. The first call's memory is
  /// projected and kept; later calls read that, and their memory may be undefined. For use under NoGrad.
  Tensor operator()(const Tensor& x, const Tensor& memory, DecoderCache& cache, const DecoderMasks& masks = {}) const;
  /// The same output as without a cache, and the weights of the attention over the memory, [N, H, T, S].
  std::pair<Tensor, Tensor> forward_with_weights(const Tensor& x, const Tensor& memory,
                                                 const DecoderMasks& masks = {}) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  template <class Self, class Cross>
  Tensor run(const Tensor& x, const Self& attend, const Cross& cross) const;
  Tensor add_branch(const Tensor& y, const Tensor& in) const;  // y + drop(feed_forward(in))
};

}  // namespace regard::layers
