// Recomputation of a layer in backward: checkpoint(layer, x).
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/autograd/checkpoint.hpp>
#include <regard/layers/layer.hpp>

namespace regard {

namespace checkpoint_detail {

/// A layer that will be called again: where it is, and how it was.
class LayerCall {
 public:
  explicit LayerCall(const layers::Layer& layer);
  /// Throws a GraphError unless the layer is still there, and each layer inside in the mode it had.
  void check_unchanged() const;
  std::string name() const { return "checkpoint(" + place_ + ")"; }  ///< with the layer's path, or its type
  const Tensors& parameters() const { return parameters_; }
  void forget_parameters() { parameters_.clear(); }

 private:
  const layers::Layer* layer_;
  std::weak_ptr<const void> presence_;
  std::string place_;
  std::vector<bool> modes_;
  Tensors parameters_;
};

template <class T>
constexpr bool is_tensor = std::is_convertible_v<const T&, const Tensor&>;
template <class T>
constexpr bool is_tensors = std::is_same_v<T, Tensors>;

// An argument taken apart into tensors, which become inputs, and the rest, which is kept by value.
template <class T>
auto kept(const T& argument, Tensors& inputs) {
  if constexpr (is_tensor<T>) {
    inputs.push_back(static_cast<const Tensor&>(argument));
    return std::type_identity<Tensor>();
  } else if constexpr (is_tensors<T>) {
    inputs.insert(inputs.end(), argument.begin(), argument.end());
    return argument.size();
  } else {
    return argument;
  }
}
// And put together again.
template <class T, class Kept>
decltype(auto) given(const Kept& kept, const Tensors& inputs, size_t& next) {
  if constexpr (is_tensor<T>) {
    return static_cast<const Tensor&>(inputs[next++]);
  } else if constexpr (is_tensors<T>) {
    const auto begin = inputs.begin() + static_cast<std::ptrdiff_t>(next);
    next += kept;
    return Tensors(begin, begin + static_cast<std::ptrdiff_t>(kept));
  } else {
    return static_cast<const T&>(kept);
  }
}

inline Tensors as_list(Tensor y) { return {std::move(y)}; }
inline Tensors as_list(std::pair<Tensor, Tensor> y) { return {std::move(y.first), std::move(y.second)}; }
inline Tensors as_list(Tensors y) { return y; }

}  // namespace checkpoint_detail

/// layer(arguments...) without keeping its activations: backward() computes the layer once more. See
/// autograd/checkpoint.hpp for what holds: same values, same gradients, dropout included.
///
///     for (const Block& block : blocks) h = checkpoint(block, h);
///     h = checkpoint(block, h, AttentionMasks{.causal = true});
///
/// Gradients flow to the layer's parameters and to the arguments that are tensors (or lists of them); further
/// arguments, such as masks, are kept by value, and a tensor in them that needs a gradient is a GraphError in
/// backward(). The layer may return a Tensor, a pair of them, or Tensors. It is not copied: it must stay where it is
/// until backward() has run, in the same mode (train or eval); a layer that is gone, moved, or in another mode is a
/// GraphError.
template <std::derived_from<layers::Layer> L, class... Arguments>
requires std::is_invocable_v<const L&, const Arguments&...>
auto checkpoint(const L& layer, const Arguments&... arguments) {
  namespace detail = checkpoint_detail;
  using Result = std::decay_t<std::invoke_result_t<const L&, const Arguments&...>>;
  static_assert(std::is_same_v<Result, Tensor> || std::is_same_v<Result, Tensors> ||
                    std::is_same_v<Result, std::pair<Tensor, Tensor>>,
                "checkpoint: the layer must return a Tensor, a pair of Tensors, or Tensors");
  detail::LayerCall call(layer);
  const Tensors parameters = call.parameters();
  call.forget_parameters();
  Tensors inputs;
  // In braces: from left to right.
  std::tuple<decltype(detail::kept(arguments, inputs))...> kept{detail::kept(arguments, inputs)...};
  const L* at = &layer;
  const std::string name = call.name();
  std::function<Tensors(const Tensors&)> function = [at, call, kept](const Tensors& in) {
    call.check_unchanged();
    [[maybe_unused]] size_t next = 0;
    return [&]<size_t... I>(std::index_sequence<I...>) {
      std::tuple<decltype(detail::given<Arguments>(std::get<I>(kept), in, next))...> all{
          detail::given<Arguments>(std::get<I>(kept), in, next)...};
      return detail::as_list(std::apply(*at, all));
    }
    (std::index_sequence_for<Arguments...>());
  };
  Tensors outputs = checkpoint(std::move(function), inputs, parameters, {.generators = {}, .name = name.c_str()});
  if constexpr (std::is_same_v<Result, Tensor>)
    return std::move(outputs[0]);
  else if constexpr (std::is_same_v<Result, Tensors>)
    return outputs;
  else
    return Result(std::move(outputs[0]), std::move(outputs[1]));
}
/// A temporary layer would be gone before backward().
template <std::derived_from<layers::Layer> L, class... Arguments>
requires std::is_invocable_v<const L&, const Arguments&...>
void checkpoint(const L&& layer, const Arguments&... arguments) = delete;

}  // namespace regard
