// Gradient checks of layers: of the inputs and of every parameter.
#pragma once

#include <concepts>
#include <type_traits>

#include <regard/autograd/gradcheck.hpp>
#include <regard/layers/layer.hpp>

namespace regard {

namespace gradcheck_detail {

/// A copy of a layer in f64 and inputs to match, ready to be checked.
template <class L>
struct LayerSubject {
  L layer;
  Tensors inputs;
  NamedTensors parameters;

  LayerSubject(const L& original, const Tensors& given) : layer(original) {
    layer.to(DType::f64);
    parameters = layer.named_parameters();
    for (const Tensor& x : given)
      inputs.push_back(x.defined() && is_floating(x.dtype()) ? x.detach().to(DType::f64).detach().set_requires_grad()
                                                             : x);
  }
};

/// Calls a layer with one to four tensors.
template <class L>
Tensors call_layer(L& layer, const Tensors& in) {
  using T = const Tensor&;
  switch (in.size()) {
    case 1:
      if constexpr (std::is_invocable_v<L&, T>) return as_tensors(layer(in[0]));
      break;
    case 2:
      if constexpr (std::is_invocable_v<L&, T, T>) return as_tensors(layer(in[0], in[1]));
      break;
    case 3:
      if constexpr (std::is_invocable_v<L&, T, T, T>) return as_tensors(layer(in[0], in[1], in[2]));
      break;
    case 4:
      if constexpr (std::is_invocable_v<L&, T, T, T, T>) return as_tensors(layer(in[0], in[1], in[2], in[3]));
      break;
    default:
      break;
  }
  fail<ValueError>("gradcheck", layer.describe(), " cannot be called with ", in.size(),
                   " tensors: pass a function that calls it, gradcheck(layer, inputs, "
                   "[](auto& layer, const Tensors& in) { ... })");
}

template <class C, class L>
concept LayerCall = std::is_invocable_v<C&, L&, const Tensors&>;

}  // namespace gradcheck_detail

/// Checks the gradients of layer(inputs...), one to four tensors, with respect to every floating input and every
/// parameter, which the report names by path (`encoder.blocks.2.attention.query.weight`). Works on a copy of the layer
/// in f64 and the same mode, with floating inputs in f64; integer and boolean inputs are passed as they are, and frozen
/// parameters are left out. The layer and its gradients stay as they are. See gradcheck() of functions for what is
/// compared and what it costs: full mode calls a layer twice for each element of inputs and parameters; fast mode is
/// for layers of more than some thousand. A layer that drops must be set to eval() (else ValueError).
template <std::derived_from<layers::Layer> L>
GradcheckReport gradcheck(const L& layer, const Tensors& inputs, const GradcheckOptions& options = {}) {
  gradcheck_detail::LayerSubject<L> subject(layer, inputs);
  auto call = [&](const Tensors& in) { return gradcheck_detail::call_layer(subject.layer, in); };
  return gradcheck_detail::first_order(call, subject.inputs, subject.parameters, options);
}

/// The same for a call of your own: `[&](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); }`.
template <std::derived_from<layers::Layer> L, gradcheck_detail::LayerCall<L> C>
GradcheckReport gradcheck(const L& layer, const Tensors& inputs, C&& call, const GradcheckOptions& options = {}) {
  gradcheck_detail::LayerSubject<L> subject(layer, inputs);
  auto f = [&](const Tensors& in) { return gradcheck_detail::as_tensors(call(subject.layer, in)); };
  return gradcheck_detail::first_order(f, subject.inputs, subject.parameters, options);
}

/// Checks a layer's second derivatives, as gradgradcheck() of functions does, with respect to inputs and parameters.
template <std::derived_from<layers::Layer> L>
GradcheckReport gradgradcheck(const L& layer, const Tensors& inputs, const GradcheckOptions& options = {}) {
  gradcheck_detail::LayerSubject<L> subject(layer, inputs);
  auto call = [&](const Tensors& in) { return gradcheck_detail::call_layer(subject.layer, in); };
  return gradcheck_detail::second_order(call, subject.inputs, subject.parameters, options);
}

template <std::derived_from<layers::Layer> L, gradcheck_detail::LayerCall<L> C>
GradcheckReport gradgradcheck(const L& layer, const Tensors& inputs, C&& call, const GradcheckOptions& options = {}) {
  gradcheck_detail::LayerSubject<L> subject(layer, inputs);
  auto f = [&](const Tensors& in) { return gradcheck_detail::as_tensors(call(subject.layer, in)); };
  return gradcheck_detail::second_order(f, subject.inputs, subject.parameters, options);
}

}  // namespace regard
