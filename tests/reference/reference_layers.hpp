// What the layers' reference tests share: parameters by name, gradients by name.
#pragma once

#include <regard/tests/reference/reference.hpp>

#include <regard/layers/attention.hpp>
#include <regard/layers/layer.hpp>

namespace reference {

/// Casts the layer and gives it the file's parameters, by name; names and shapes must fit exactly.
inline void load_parameters(regard::layers::Layer& layer, const Json& parameters, DType floating) {
  layer.to(floating);
  regard::StateDict state;
  for (const auto& [name, value] : parameters.items()) state[name] = tensor(value, floating);
  layer.load_state_dict(state);
}

/// Each parameter's gradient against the file's, which must name the same parameters.
inline void check_parameter_gradients(const regard::layers::Layer& layer, const Json& gradients, DType floating) {
  auto parameters = layer.named_parameters();
  CHECK(parameters.size() == gradients.size());
  for (const auto& [name, parameter] : parameters)
    check("gradient of " + name, parameter.grad(), gradients.at(name), floating);
}

inline void check_input_gradients(const Tensors& inputs, const Json& gradients, DType floating) {
  REQUIRE(inputs.size() == gradients.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    check("gradient of input " + std::to_string(i), inputs[i].grad(), gradients[i], floating);
}

/// The file's inputs as leaves that need gradients.
inline Tensors leaves(const Json& inputs, DType floating) {
  Tensors result;
  for (const Json& input : inputs) result.push_back(tensor(input, floating).set_requires_grad());
  return result;
}

/// The tensor called `name`, undefined where the case has none.
inline Tensor optional_tensor(const Json& json, const char* name, DType floating) {
  return json.contains(name) ? tensor(json[name], floating) : Tensor();
}

/// Runs `body(case, floating)` over a file's cases in double and single precision; what one throws fails it alone.
template <class Body>
void for_each_case(const std::string& file, Body body) {
  for (const Json& json : load(file)) {
    for (DType floating : {DType::f64, DType::f32}) {
      INFO(json.at("name").get<std::string>() << (floating == DType::f64 ? ", f64" : ", f32"));
      try {
        body(json, floating);
      } catch (const std::exception& error) {
        FAIL_CHECK("threw: " << error.what());
      }
    }
  }
}

}  // namespace reference
