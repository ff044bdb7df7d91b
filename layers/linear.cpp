#include <regard/layers/linear.hpp>

#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  check<ValueError>(in > 0 && out > 0, "Linear", "widths ", in, " and ", out, " must be positive");
  double bound = 1 / std::sqrt(static_cast<double>(in));
  weight = Parameter(empty({out, in}));
  init::uniform_(weight, -bound, bound);
  if (with_bias) {
    bias = Parameter(empty({out}));
    init::uniform_(bias, -bound, bound);
  }
}

Tensor Linear::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return linear(x, weight, bias);
}

void Linear::members(Members& m) {
  m("weight", weight);
  m("bias", bias);
}

std::string Linear::describe() const {
  return "Linear(" + std::to_string(weight.size(1)) + ", " + std::to_string(weight.size(0)) +
         (bias.defined() ? ")" : ", no bias)");
}

}  // namespace regard::layers
