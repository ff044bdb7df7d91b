// TransformerEncoderLayer and TransformerDecoderLayer against PyTorch's: output and every gradient.
#include <regard/tests/reference/reference_layers.hpp>

#include <regard/layers/transformer.hpp>

namespace reference_transformer_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

layers::TransformerLayerOptions options(const Json& json) {
  layers::TransformerLayerOptions result;
  result.hidden = json.at("hidden").get<int64_t>();
  result.activation =
      json.at("activation").get<std::string>() == "gelu" ? layers::Activation::gelu : layers::Activation::relu;
  result.norm_first = json.at("norm_first").get<bool>();
  return result;
}

layers::AttentionMasks self_masks(const Json& json, DType floating) {
  layers::AttentionMasks result;
  result.mask = reference::optional_tensor(json, "mask", floating);
  result.key_mask = reference::optional_tensor(json, "key_mask", floating);
  result.causal = json.at("causal").get<bool>();
  return result;
}

template <class L, class Call>
void run(const Json& json, DType floating, Call call) {
  L layer(json.at("width").get<int64_t>(), json.at("heads").get<int64_t>(), options(json));
  reference::load_parameters(layer, json.at("parameters"), floating);
  Tensors in = reference::leaves(json.at("inputs"), floating);
  Tensor output = call(layer, in);
  reference::check("output", output, json.at("output"), floating);
  output.backward(reference::tensor(json.at("grad_output"), floating));
  reference::check_input_gradients(in, json.at("input_grads"), floating);
  reference::check_parameter_gradients(layer, json.at("parameter_grads"), floating);
}

}  // namespace

TEST_CASE("PyTorch's values: TransformerEncoderLayer") {
  int ran = 0;
  reference::for_each_case("transformer", [&](const Json& json, DType floating) {
    if (json.at("kind") != "encoder") return;
    ++ran;
    run<layers::TransformerEncoderLayer>(json, floating, [&](const auto& layer, const Tensors& in) {
      return layer(in.at(0), self_masks(json, floating));
    });
  });
  CHECK(ran > 0);
}

TEST_CASE("PyTorch's values: TransformerDecoderLayer") {
  int ran = 0;
  reference::for_each_case("transformer", [&](const Json& json, DType floating) {
    if (json.at("kind") != "decoder") return;
    ++ran;
    run<layers::TransformerDecoderLayer>(json, floating, [&](const auto& layer, const Tensors& in) {
      layers::DecoderMasks masks;
      masks.self = self_masks(json, floating);
      masks.cross.key_mask = reference::optional_tensor(json, "memory_key_mask", floating);
      return layer(in.at(0), in.at(1), masks);
    });
  });
  CHECK(ran > 0);
}

}  // namespace reference_transformer_test
