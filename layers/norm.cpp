#include <regard/layers/norm.hpp>

#include <regard/autograd/ops.hpp>

namespace regard::layers {

LayerNorm::LayerNorm(int64_t width, double epsilon, bool with_bias) : eps(epsilon) {
  check<ValueError>(width > 0, "LayerNorm", "width ", width, " must be positive");
  weight = Parameter(ones({width}));
  if (with_bias) bias = Parameter(zeros({width}));
}

Tensor LayerNorm::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return layer_norm(x, weight.shape(), weight, bias, eps);
}

void LayerNorm::members(Members& m) {
  m("weight", weight);
  m("bias", bias);
}

std::string LayerNorm::describe() const { return "LayerNorm(" + std::to_string(weight.numel()) + ")"; }

RMSNorm::RMSNorm(int64_t width, double epsilon) : eps(epsilon) {
  check<ValueError>(width > 0, "RMSNorm", "width ", width, " must be positive");
  weight = Parameter(ones({width}));
}

Tensor RMSNorm::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return rms_norm(x, weight.shape(), weight, eps);
}

std::string RMSNorm::describe() const { return "RMSNorm(" + std::to_string(weight.numel()) + ")"; }

}  // namespace regard::layers
