// LayerNorm and RMSNorm.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, of size `width`. Parameters weight
/// (ones) and bias (zeros), [width]. Ba, Kiros, Hinton, "Layer normalization", 2016.
struct LayerNorm : Layer {
  Parameter weight;
  Parameter bias;  ///< undefined without a bias
  double eps;

  explicit LayerNorm(int64_t width, double eps = 1e-5, bool with_bias = true);
  Tensor operator()(const Tensor& x) const;
  void members(Members& m) override;
  std::string describe() const override;
};

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension. Parameter weight (ones), [width]. Zhang and Sennrich,
/// "Root mean square layer normalization", 2019.
struct RMSNorm : Layer {
  Parameter weight;
  double eps;

  explicit RMSNorm(int64_t width, double eps = 1e-6);
  Tensor operator()(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight); }
  std::string describe() const override;
};

}  // namespace regard::layers
