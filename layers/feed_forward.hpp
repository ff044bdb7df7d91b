// FeedForward: the two-layer network of a transformer block.
#pragma once

#include <regard/layers/activation.hpp>
#include <regard/layers/dropout.hpp>
#include <regard/layers/linear.hpp>

namespace regard::layers {

struct FeedForwardOptions {
  Activation activation = Activation::gelu;
  double dropout = 0;  ///< between the two, in training mode
  bool bias = true;
};

/// x [..., width] -> down(dropout(activation(up(x)))), up to `hidden` and back. Parameters up, down.
struct FeedForward : Layer {
  Linear up, down;
  Dropout drop;
  Activation activation;

  FeedForward(int64_t width, int64_t hidden, const FeedForwardOptions& options = {});
  Tensor operator()(const Tensor& x) const;
  /// residual + (*this)(x): the residual of a transformer block.
  Tensor add_to(const Tensor& residual, const Tensor& x) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  Tensor run(const Tensor& x, const Tensor& residual) const;
};

}  // namespace regard::layers
