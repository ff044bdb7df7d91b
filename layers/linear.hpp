// Linear: an affine map of the last dimension.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// x [..., in] -> [..., out]: x weight^T + bias. Parameters weight [out, in] and bias [out], uniform in
/// +-1 / sqrt(in) at first, as PyTorch's.
struct Linear : Layer {
  Parameter weight;
  Parameter bias;  ///< undefined without a bias

  Linear(int64_t in, int64_t out, bool with_bias = true);
  Tensor operator()(const Tensor& x) const;
  void members(Members& m) override;
  std::string describe() const override;
};

}  // namespace regard::layers
