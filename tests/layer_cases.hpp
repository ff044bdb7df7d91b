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
};

std::vector<LayerCase> layer_cases();  ///< of the layers in layers/
std::vector<LayerCase> model_cases();  ///< of those in layers/models/

/// Parameters that start at 0 or 1 are moved away from it, so that a gradient that ignores them is found.
template <class L>
L stirred(L layer) {
  Generator generator(7);
  NoGrad no_grad;
  for (const Tensor& p : layer.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.2);
  return layer;
}

template <class L, class Call>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs, Call call) {
  L layer = stirred(given);
  return {std::move(name), std::move(variant),
          [=](const GradcheckOptions& options) { return gradcheck(layer, inputs, call, options); },
          [=](const GradcheckOptions& options) { return gradgradcheck(layer, inputs, call, options); }};
}
template <class L>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs) {
  return row(std::move(name), std::move(variant), std::move(given), std::move(inputs),
             [](auto& layer, const Tensors& in) { return layer(in[0]); });
}

}  // namespace regard::layer_cases
