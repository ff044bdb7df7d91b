#include <regard/layers/activation.hpp>

namespace regard::layers {

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return relu(x);
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu(x, GeluApproximation::tanh);
    case Activation::silu:
      return silu(x);
  }
  return x;
}

const char* to_string(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
  }
  return "?";
}

}  // namespace regard::layers
