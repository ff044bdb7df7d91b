// Dropout.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// In training mode zeroes each element with probability p and scales the rest by 1 / (1 - p); in evaluation mode
/// returns its input. Draws from the default generator. Srivastava et al., 2014.
struct Dropout : Layer {
  double p;

  explicit Dropout(double p = 0.5);
  Tensor operator()(const Tensor& x) const;
  /// Whether it changes what it is given.
  bool active() const { return p > 0 && is_training(); }
  void members(Members&) override {}
  std::string describe() const override;
};

}  // namespace regard::layers
