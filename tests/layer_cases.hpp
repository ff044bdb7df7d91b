// The tables of gradient checks: of layers in layers_test.cpp, of models in models_test.cpp; coverage_test.cpp looks
// for every layer in them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/gradcheck.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>
#include <regard/layers/gradcheck.hpp>

namespace regard::layer_cases {

struct LayerCase {
  std::string layer;  ///< the struct's name
  std::string variant;
  std::function<GradcheckReport(const GradcheckOptions&)> first;   ///< gradcheck of inputs and parameters
  std::function<GradcheckReport(const GradcheckOptions&)> second;  ///< gradgradcheck
  /// Outputs, and the gradients of inputs and parameters of a weighted sum of them, in f64, computed on a device and
  /// brought to the CPU.
  std::function<Tensors(Device)> computed;
};

std::vector<LayerCase> layer_cases();  ///< of the layers in layers/
std::vector<LayerCase> model_cases();  ///< of those in layers/models/

/// A tensor that a row holds, on the device where its inputs are.
inline Tensor beside(const Tensor& x, const Tensors& inputs) { return x.to(inputs[0].device()); }

/// Parameters that start at 0 or 1 are moved away from it, so that a gradient that ignores them is found.
template <class L>
L stirred(L layer) {
  Generator generator(7);
  NoGrad no_grad;
  for (const Tensor& p : layer.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.2);
  return layer;
}

inline Tensors listed(const Tensor& x) { return {x}; }
inline Tensors listed(const Tensors& x) { return x; }
inline Tensors listed(const std::pair<Tensor, Tensor>& x) { return {x.first, x.second}; }

template <class L, class Call>
Tensors computed(const L& given, const Tensors& inputs, const Call& call, Device device) {
  L layer = given;
  layer.to(DType::f64);
  layer.to(device);
  Tensors in, leaves = layer.parameters();
  for (const Tensor& x : inputs) {
    in.push_back(x.to(device).detach());
    if (is_floating(x.dtype())) leaves.push_back(in.back().set_requires_grad());
  }
  Tensors result = listed(call(layer, in)), outputs;
  GradOptions options{.grad_outputs = {}, .allow_unused = true};
  Generator generator(29);
  for (const Tensor& y : result) {
    const Tensor weights = randn(y.shape(), DType::f64, generator).to(device);
    if (!y.requires_grad()) continue;
    outputs.push_back(y);
    options.grad_outputs.push_back(weights);
  }
  std::erase_if(leaves, [](const Tensor& leaf) { return !leaf.requires_grad(); });
  if (!outputs.empty() && !leaves.empty())
    for (const Tensor& g : grad(outputs, leaves, options)) result.push_back(g);
  for (Tensor& x : result)
    if (x.defined()) x = x.detach().to(cpu());
  return result;
}

template <class L, class Call>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs, Call call) {
  L layer = stirred(given);
  return {std::move(name), std::move(variant),
          [=](const GradcheckOptions& options) { return gradcheck(layer, inputs, call, options); },
          [=](const GradcheckOptions& options) { return gradgradcheck(layer, inputs, call, options); },
          [=](Device device) { return computed(layer, inputs, call, device); }};
}
template <class L>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs) {
  return row(std::move(name), std::move(variant), std::move(given), std::move(inputs),
             [](auto& layer, const Tensors& in) { return layer(in[0]); });
}

}  // namespace regard::layer_cases
