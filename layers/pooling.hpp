// Pooling: one vector for a row of tokens, and images at a smaller size.
#pragma once

#include <regard/layers/attention.hpp>

namespace regard::layers {

/// Tokens x [N, T, width] -> their mean [N, width]. With a mask [N, T] (boolean or integer, non-zero counts) the mean
/// of the tokens it marks: what is in the others changes no bit and gets no gradient. A row without any gives zeros.
struct MeanPooling : Layer {
  Tensor operator()(const Tensor& x, const Tensor& mask = {}) const;
  void members(Members&) override {}
};

/// x [N, T, width] -> its first token [N, width]: what a ClassToken, or BERT's [CLS], became.
struct FirstTokenPooling : Layer {
  Tensor operator()(const Tensor& x) const;
  void members(Members&) override {}
};

/// x [N, T, width] -> [N, width]: attention of one trained query over the tokens. The mask [N, T] says which ones it
/// may attend to. Parameters query [width], uniform in +-1 / sqrt(width) at first, and those of `attention`. Lee et
/// al., "Set Transformer", 2019 (pooling by multi-head attention, with one seed).
struct AttentionPooling : Layer {
  Parameter query;
  MultiHeadAttention attention;

  AttentionPooling(int64_t width, int64_t num_heads, const MultiHeadAttentionOptions& options = {});
  Tensor operator()(const Tensor& x, const Tensor& mask = {}) const;
  /// The same output, and the weights [N, H, T]: how much each token counted.
  std::pair<Tensor, Tensor> forward_with_weights(const Tensor& x, const Tensor& mask = {}) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  Tensor queries(const Tensor& x) const;
};

/// Images [N, C, H, W] -> [N, C, (H - kernel) / stride + 1, (W - kernel) / stride + 1], rounded down: the mean of each
/// kernel x kernel window. `stride` 0: as the kernel, windows side by side. PyTorch's AvgPool2d without padding.
struct AvgPool2d : Layer {
  int64_t kernel, stride;

  explicit AvgPool2d(int64_t kernel, int64_t stride = 0);
  Tensor operator()(const Tensor& images) const;
  void members(Members&) override {}
  std::string describe() const override;
};

/// The same with each window's largest number; its gradient goes to the first of equals, row by row.
struct MaxPool2d : Layer {
  int64_t kernel, stride;

  explicit MaxPool2d(int64_t kernel, int64_t stride = 0);
  Tensor operator()(const Tensor& images) const;
  void members(Members&) override {}
  std::string describe() const override;
};

}  // namespace regard::layers
