// EncoderDecoder against PyTorch's torch.nn.Transformer, whose state dict it takes: memory, logits, every gradient.
#include <regard/tests/reference/reference_layers.hpp>

#include <regard/layers/from_torch.hpp>
#include <regard/layers/models/encoder_decoder.hpp>
#include <regard/layers/rename.hpp>

namespace reference_encoder_decoder_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

layers::EncoderDecoderOptions options(const Json& json) {
  layers::EncoderDecoderOptions result;
  result.source_vocabulary = json.at("source_vocabulary").get<int64_t>();
  result.target_vocabulary = json.at("target_vocabulary").get<int64_t>();
  result.max_source = result.max_target = 8;
  result.width = json.at("width").get<int64_t>();
  result.heads = json.at("heads").get<int64_t>();
  result.hidden = json.at("hidden").get<int64_t>();
  result.encoder_layers = result.decoder_layers = 2;
  result.activation = json.at("activation") == "gelu" ? layers::Activation::gelu : layers::Activation::relu;
  result.norm_first = json.at("norm_first").get<bool>();
  result.learned_positions = json.at("learned_positions").get<bool>();
  result.share_embeddings = json.at("share_embeddings").get<bool>();
  result.tie_output = json.at("tie_output").get<bool>();
  return result;
}

/// The file's parameters or gradients under the model's names.
StateDict named(const layers::EncoderDecoder& model, const Json& json, DType floating) {
  StateDict state;
  for (const auto& [name, value] : json.items()) state[name] = reference::tensor(value, floating);
  return layers::from_torch(model,
                            layers::rename(state, {{.from = "transformer.encoder.layers.**", .to = "encoder.**"},
                                                   {.from = "transformer.decoder.layers.**", .to = "decoder.**"},
                                                   {.from = "transformer.encoder.norm.*", .to = "encoder_norm.*"},
                                                   {.from = "transformer.decoder.norm.*", .to = "decoder_norm.*"}}));
}

}  // namespace

TEST_CASE("PyTorch's values: EncoderDecoder") {
  int ran = 0;
  reference::for_each_case("encoder_decoder", [&](const Json& json, DType floating) {
    ++ran;
    layers::EncoderDecoder model(options(json));
    model.to(floating);
    const StateDict state = named(model, json.at("parameters"), floating);
    if (model.positions) CHECK(allclose(model.positions->table, state.at("positions.table"), 1e-6, 1e-7));
    CHECK(model.load_state_dict(state).complete());

    const Tensor source = reference::tensor(json.at("source"), floating);
    const Tensor mask = reference::tensor(json.at("source_mask"), floating);
    const Tensor target = reference::tensor(json.at("target"), floating);
    const Tensor memory = model.encode(source, mask).masked_fill(mask.logical_not().unsqueeze(-1), 0);
    reference::check("memory", memory, json.at("memory"), floating);
    const Tensor logits = model(source, target, mask);
    reference::check("logits", logits, json.at("logits"), floating);
    logits.backward(reference::tensor(json.at("grad_logits"), floating));
    const StateDict gradients = named(model, json.at("parameter_grads"), DType::f64);
    const auto parameters = model.named_parameters();
    CHECK(parameters.size() == gradients.size());
    for (const auto& [name, parameter] : parameters) {
      INFO(name);
      REQUIRE(gradients.contains(name));
      CHECK(allclose(parameter.grad().to(DType::f64), gradients.at(name), floating == DType::f64 ? 1e-9 : 1e-4,
                     floating == DType::f64 ? 1e-11 : 1e-5));
    }

    // Token by token with caches, and the two rows the other way round.
    model.eval();
    auto decoding = model.start(source, mask);
    decoding.reorder({1, 0});
    Tensors steps;
    for (int64_t at = 0; at < target.size(1); ++at)
      steps.push_back(model.step(target.flip(0).narrow(1, at, 1), decoding));
    reference::check("logits by steps", cat(steps, 1).flip(0), json.at("logits"), floating);
  });
  CHECK(ran == 6);
}

}  // namespace reference_encoder_decoder_test
