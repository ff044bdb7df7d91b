// Activations as layers, and the enum by which other layers name one.
#pragma once

#include <regard/autograd/ops.hpp>
#include <regard/layers/layer.hpp>

namespace regard::layers {

using regard::activate;
using regard::Activation;

const char* to_string(Activation activation);

struct ReLU : Layer {
  Tensor operator()(const Tensor& x) const { return relu(x); }
  void members(Members&) override {}
};
struct GELU : Layer {
  GeluApproximation approximation;
  explicit GELU(GeluApproximation approximate = GeluApproximation::none) : approximation(approximate) {}
  Tensor operator()(const Tensor& x) const { return gelu(x, approximation); }
  void members(Members&) override {}
};
struct SiLU : Layer {
  Tensor operator()(const Tensor& x) const { return silu(x); }
  void members(Members&) override {}
};
struct Tanh : Layer {
  Tensor operator()(const Tensor& x) const { return regard::tanh(x); }
  void members(Members&) override {}
};
struct Sigmoid : Layer {
  Tensor operator()(const Tensor& x) const { return sigmoid(x); }
  void members(Members&) override {}
};

}  // namespace regard::layers
