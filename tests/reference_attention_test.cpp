// MultiHeadAttention against PyTorch's, with each kind of mask: output, weights and every gradient.
#include <regard/tests/reference/reference_layers.hpp>

namespace reference_attention_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

layers::MultiHeadAttention make(const Json& json, DType floating) {
  layers::MultiHeadAttentionOptions options;
  options.bias = json.at("bias").get<bool>();
  options.key_width = json.value("kdim", int64_t{0});
  options.value_width = json.value("vdim", int64_t{0});
  layers::MultiHeadAttention attention(json.at("width").get<int64_t>(), json.at("heads").get<int64_t>(), options);
  reference::load_parameters(attention, json.at("parameters"), floating);
  return attention;
}

layers::AttentionMasks masks(const Json& json, DType floating) {
  layers::AttentionMasks result;
  result.mask = reference::optional_tensor(json, "mask", floating);
  result.key_mask = reference::optional_tensor(json, "key_mask", floating);
  result.causal = json.at("causal").get<bool>();
  return result;
}

void check_gradients(const layers::MultiHeadAttention& attention, const Tensors& inputs, const Tensor& output,
                     const Json& json, DType floating) {
  output.backward(reference::tensor(json.at("grad_output"), floating));
  reference::check_input_gradients(inputs, json.at("input_grads"), floating);
  reference::check_parameter_gradients(attention, json.at("parameter_grads"), floating);
}

}  // namespace

TEST_CASE("PyTorch's values: MultiHeadAttention") {
  reference::for_each_case("attention", [](const Json& json, DType floating) {
    layers::MultiHeadAttention attention = make(json, floating);
    Tensors in = reference::leaves(json.at("inputs"), floating);
    bool self = in.size() == 1;
    Tensor output =
        self ? attention(in[0], masks(json, floating)) : attention(in.at(0), in.at(1), in.at(2), masks(json, floating));
    reference::check("output", output, json.at("output"), floating);
    check_gradients(attention, in, output, json, floating);
  });
}

TEST_CASE("PyTorch's values: MultiHeadAttention with its weights on request") {
  reference::for_each_case("attention", [](const Json& json, DType floating) {
    layers::MultiHeadAttention attention = make(json, floating);
    Tensors in = reference::leaves(json.at("inputs"), floating);
    bool self = in.size() == 1;
    auto [output, weights] =
        attention.forward_with_weights(in[0], in.at(self ? 0 : 1), in.at(self ? 0 : 2), masks(json, floating));
    reference::check("output", output, json.at("output"), floating);
    reference::check("weights", weights, json.at("weights"), floating);
    check_gradients(attention, in, output, json, floating);
  });
}

TEST_CASE("PyTorch's values: attention's polarity is one for the function and the layer") {
  // With identity projections and no bias the layer is the function: the same mask object in both.
  Tensor mask = from_vector<int64_t>({1, 0, 1, 1, 1, 0, 0, 1, 1}, {3, 3});
  layers::MultiHeadAttention attention(2, 1, {.bias = false});
  attention.to(DType::f64);
  for (auto& [name, parameter] : attention.named_parameters()) {
    NoGrad no_grad;
    parameter.copy_(eye(2, DType::f64));
  }
  Tensor x = from_vector<double>({0.5, -1, 2, 0.25, -0.75, 1}, {1, 3, 2});
  Tensor function = scaled_dot_product_attention(x, x, x, {.mask = mask});
  CHECK(allclose(attention(x, {.mask = mask}), function, 1e-12, 1e-12));
  CHECK_FALSE(allclose(attention(x, {.mask = mask == 0}), function, 1e-3, 1e-3));
}

}  // namespace reference_attention_test
