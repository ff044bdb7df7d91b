// Ten training steps of a small causal language model against PyTorch's, from the same weights on the same batches.
#include <regard/tests/reference/reference_layers.hpp>

#include <regard/layers/embedding.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>

namespace reference_loss_curve_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using reference::Json;

namespace {

struct LanguageModel : layers::Layer {
  layers::Embedding tokens;
  layers::LearnedPositionalEncoding positions;
  std::vector<layers::TransformerEncoderLayer> blocks;
  layers::LayerNorm norm;
  layers::Linear head;

  LanguageModel(int64_t vocabulary, int64_t length, int64_t width, int64_t heads, int64_t hidden, int64_t block_count)
      : tokens(vocabulary, width), positions(length, width), norm(width), head(width, vocabulary) {
    for (int64_t i = 0; i < block_count; ++i)
      blocks.emplace_back(width, heads, layers::TransformerLayerOptions{.hidden = hidden});
  }
  Tensor operator()(const Tensor& ids) const {  // [B, T] -> [B, T, vocabulary]
    Tensor x = positions(tokens(ids));
    for (const auto& block : blocks) x = block(x, {.causal = true});
    return head(norm(x));
  }
  void members(layers::Members& m) override {
    m("tokens", tokens);
    m("positions", positions);
    m("blocks", blocks);
    m("norm", norm);
    m("head", head);
  }
};

}  // namespace

TEST_CASE("PyTorch's values: the loss curve of a small transformer") {
  reference::for_each_case("loss_curve", [](const Json& json, DType floating) {
    auto size = [&](const char* name) { return json.at(name).get<int64_t>(); };
    LanguageModel model(size("vocabulary"), size("length"), size("width"), size("heads"), size("hidden"),
                        size("blocks"));
    reference::load_parameters(model, json.at("parameters"), floating);
    optim::AdamW optimizer(model.parameters(),
                           {.lr = json.at("lr").get<double>(), .weight_decay = json.at("weight_decay").get<double>()});
    const Json& inputs = json.at("inputs");
    const char* name = floating == DType::f64 ? "f64" : "f32";
    std::vector<double> losses = reference::numbers(json.at("losses").at(name));
    std::vector<double> norms = reference::numbers(json.at("grad_norms").at(name));
    // The same start gives the same curve: nearly to the last digit in double precision.
    double tolerance = floating == DType::f64 ? 1e-9 : 1e-4;
    REQUIRE(losses.size() == inputs.size());
    for (size_t step = 0; step < inputs.size(); ++step) {
      INFO("step " << step);
      Tensor targets = reference::tensor(json.at("targets").at(step));
      Tensor loss =
          cross_entropy(model(reference::tensor(inputs[step])).view({-1, size("vocabulary")}), targets.view({-1}));
      optimizer.zero_grad();
      loss.backward();
      double norm = optim::clip_grad_norm(model.parameters(), json.at("clip").get<double>());
      optimizer.step();
      CHECK(loss.item<double>() == Approx(losses[step]).epsilon(tolerance).margin(0));
      CHECK(norm == Approx(norms[step]).epsilon(tolerance).margin(0));
    }
    for (const auto& [path, parameter] : model.named_parameters()) {
      // A key's bias shifts all scores of a query alike, so its gradient is zero but for rounding, which Adam divides
      // by its own size: in single precision it wanders as it likes.
      if (floating == DType::f32 && path.ends_with("attention.key.bias")) continue;
      INFO(path);
      double length = regard::norm(parameter.detach()).item<double>();
      CHECK(length == Approx(json.at("parameter_norms_after").at(path).get<double>()).epsilon(tolerance));
    }
  });
}

}  // namespace reference_loss_curve_test
