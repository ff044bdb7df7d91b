// State dicts of PyTorch: read under Regard's names, outputs and gradients compared with PyTorch's, and written back.
#include <regard/tests/reference/reference_layers.hpp>

#include <unistd.h>

#include <filesystem>

#include <regard/regard.hpp>

namespace from_torch_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using namespace regard::layers;
using Catch::Matchers::Contains;
using reference::Json;

namespace {

TransformerLayerOptions options(bool norm_first) {
  return {.hidden = 6, .activation = Activation::relu, .norm_first = norm_first};
}

/// torch.nn.TransformerEncoder's and TransformerDecoder's members.
struct Encoder : Layer {
  std::vector<TransformerEncoderLayer> layers;
  LayerNorm norm{4};
  Encoder(size_t count, bool norm_first) : layers(count, TransformerEncoderLayer(4, 2, options(norm_first))) {}
  Tensor operator()(Tensor x) const {
    for (const auto& layer : layers) x = layer(x);
    return norm(x);
  }
  void members(Members& m) override {
    m("layers", layers);
    m("norm", norm);
  }
};
struct Decoder : Layer {
  std::vector<TransformerDecoderLayer> layers;
  LayerNorm norm{4};
  Decoder(size_t count, bool norm_first) : layers(count, TransformerDecoderLayer(4, 2, options(norm_first))) {}
  Tensor operator()(Tensor x, const Tensor& memory, const DecoderMasks& masks) const {
    for (const auto& layer : layers) x = layer(x, memory, masks);
    return norm(x);
  }
  void members(Members& m) override {
    m("layers", layers);
    m("norm", norm);
  }
};
struct Transformer : Layer {
  Encoder encoder{1, false};
  Decoder decoder{2, false};
  Tensor operator()(const Tensor& source, const Tensor& target) const { return decoder(target, encoder(source), {}); }
  void members(Members& m) override {
    m("encoder", encoder);
    m("decoder", decoder);
  }
};
struct Model : Layer {
  Embedding embed{7, 4};
  std::vector<TransformerEncoderLayer> blocks =
      std::vector<TransformerEncoderLayer>(2, TransformerEncoderLayer(4, 2, options(true)));
  MultiHeadAttention pool{4, 2};
  Linear head{4, 3};
  Tensor operator()(const Tensor& ids) const {
    Tensor x = embed(ids);
    for (const auto& block : blocks) x = block(x);
    return head(pool(x.narrow(1, 0, 1), x, x));
  }
  void members(Members& m) override {
    m("embed", embed);
    m("blocks", blocks);
    m("pool", pool);
    m("head", head);
  }
};

void compare(const std::string& what, const Tensor& got, const Json& want, DType floating) {
  std::string wrong = reference::difference(
      got, want, floating, floating == DType::f64 ? reference::Tolerance{1e-12} : reference::Tolerance{1e-5, true});
  INFO(what << " " << wrong);
  CHECK(wrong.empty());
}

StateDict state_of(const Json& json, DType floating) {
  StateDict state;
  for (const auto& [name, value] : json.items()) state[name] = reference::tensor(value, floating);
  return state;
}

/// Reads the case's state dict, compares output and gradients, and writes both back under PyTorch's names.
template <class L, class Call>
void run(const Json& json, DType floating, L layer, Call call) {
  layer.to(floating);
  const StateDict state = state_of(json.at("state"), floating);
  const LoadReport report = layer.load_state_dict(from_torch(layer, state));
  CHECK(report.complete());
  Tensors in;
  for (const Json& input : json.at("inputs")) {
    in.push_back(reference::tensor(input, floating));
    if (is_floating(in.back().dtype())) in.back().set_requires_grad();
  }
  Tensor output = call(layer, in);
  compare("output", output, json.at("output"), floating);
  output.backward(reference::tensor(json.at("grad_output"), floating));
  for (size_t i = 0; i < in.size(); ++i)
    if (!json.at("input_grads").at(i).is_null())
      compare("gradient of input " + std::to_string(i), in[i].grad(), json.at("input_grads").at(i), floating);

  StateDict gradients;
  for (const auto& [name, parameter] : layer.named_parameters()) gradients[name] = parameter.grad();
  const StateDict theirs = to_torch(layer, gradients);
  CHECK(theirs.size() == json.at("parameter_grads").size());
  for (const auto& [name, gradient] : theirs)
    compare("gradient of " + name, gradient, json.at("parameter_grads").at(name), floating);

  const StateDict back = to_torch(layer);
  CHECK(back.size() == state.size());
  for (const auto& [name, tensor] : state) {
    INFO(name);
    REQUIRE(back.contains(name));
    CHECK(equal(back.at(name), tensor));
  }
  // Its own names are left alone.
  CHECK(layer.load_state_dict(from_torch(layer, layer.state_dict())).complete());
}

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("from_torch: PyTorch's modules with their state dicts give PyTorch's outputs and gradients") {
  std::map<std::string, int> ran;
  reference::for_each_case("torch_models", [&](const Json& json, DType floating) {
    const auto kind = json.at("kind").get<std::string>();
    ++ran[kind];
    const bool norm_first = json.value("norm_first", false);
    const auto one = [](const auto& layer, const Tensors& in) { return layer(in.at(0)); };
    if (kind == "attention")
      run(json, floating,
          MultiHeadAttention(4, 2,
                             {.bias = json.at("bias").get<bool>(),
                              .key_width = json.value("kdim", int64_t{0}),
                              .value_width = json.value("vdim", int64_t{0})}),
          [](const auto& layer, const Tensors& in) {
            return in.size() == 1 ? layer(in[0]) : layer(in.at(0), in.at(1), in.at(2));
          });
    if (kind == "encoder layer") run(json, floating, TransformerEncoderLayer(4, 2, options(norm_first)), one);
    if (kind == "decoder layer")
      run(json, floating, TransformerDecoderLayer(4, 2, options(norm_first)), [](const auto& layer, const Tensors& in) {
        return layer(in.at(0), in.at(1), {.self = {}});  // not causal
      });
    if (kind == "encoder") run(json, floating, Encoder(2, true), one);
    if (kind == "decoder")
      run(json, floating, Decoder(2, false),
          [](const auto& layer, const Tensors& in) { return layer(in.at(0), in.at(1), {.self = {}}); });
    if (kind == "transformer")
      run(json, floating, Transformer(),
          [](const auto& layer, const Tensors& in) { return layer(in.at(0), in.at(1)); });
    if (kind == "model") run(json, floating, Model(), one);
  });
  CHECK(ran == std::map<std::string, int>{{"attention", 6},
                                          {"encoder layer", 4},
                                          {"decoder layer", 4},
                                          {"encoder", 2},
                                          {"decoder", 2},
                                          {"transformer", 2},
                                          {"model", 2}});
}

TEST_CASE("from_torch: paths are those of the model that is given, wherever it stands") {
  Model model;
  model.parameters();  // writes paths
  MultiHeadAttention& pool = model.pool;
  StateDict theirs = to_torch(pool);
  CHECK(theirs.size() == 4);
  CHECK(theirs.contains("in_proj_weight"));
  CHECK(pool.load_state_dict(from_torch(pool, theirs)).complete());
  theirs = to_torch(model.blocks[1]);
  CHECK(theirs.contains("self_attn.out_proj.weight"));
  CHECK(theirs.contains("linear2.bias"));
}

TEST_CASE("from_torch: half-precision files are read into models of f32") {
  manual_seed(3);
  const auto path = std::filesystem::temp_directory_path() / ("regard-from-torch-" + std::to_string(::getpid()));
  for (DType dtype : {DType::f16, DType::bf16, DType::f64}) {
    INFO(dtype);
    Model model, other;
    StateDict half;
    for (const auto& [name, tensor] : to_torch(model)) half[name] = tensor.to(dtype);
    save_safetensors(path, half);
    const StateDict read = load_safetensors(path);
    CHECK(read.at("pool.in_proj_weight").dtype() == dtype);
    CHECK(other.load_state_dict(from_torch(other, read)).complete());
    const StateDict right = model.state_dict();
    for (const auto& [name, tensor] : other.state_dict()) {
      INFO(name);
      CHECK(tensor.dtype() == DType::f32);
      CHECK(equal(tensor, right.at(name).to(dtype).to(DType::f32)));
    }
  }
  std::filesystem::remove(path);
}

TEST_CASE("from_torch and to_torch say what does not fit, and change nothing") {
  Model model;
  StateDict theirs = to_torch(model);
  CHECK_THAT(message_of([&] { model.load_state_dict(theirs); }), Contains("unexpected: blocks.0.linear1.bias") &&
                                                                     Contains("missing: blocks.0.attention.key.bias") &&
                                                                     Contains("from_torch(model, state)"));
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    StateDict state = theirs;
    state[name] = tensor;
    return message_of([&] { from_torch(model, state); });
  };
  CHECK_THAT(with("pool.in_proj_weight", randn({9, 4})),
             Contains("'pool.in_proj_weight' is [9, 4]") && Contains("12 rows: 4 + 4 + 4"));
  CHECK_THAT(with("pool.bias_k", randn({1, 1, 4})), Contains("'pool.bias_k'") && Contains("add_bias_kv"));
  CHECK_THAT(with("pool.query.weight", randn({4, 4})),
             Contains("'pool.in_proj_weight' and 'pool.query.weight' would both be 'pool.query.weight'"));
  CHECK_THAT(with("blocks.1.attention.output.bias", randn({4})),
             Contains("would both be 'blocks.1.attention.output.bias'"));
  CHECK_THAT(with("head.bias", Tensor()), Contains("head.bias"));

  // What is missing is left to load_state_dict, which lists it by name.
  StateDict partial = theirs;
  partial.erase("blocks.0.self_attn.in_proj_bias");
  partial["surplus"] = zeros({1});
  LoadReport report = model.load_state_dict(from_torch(model, partial), {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"blocks.0.attention.key.bias", "blocks.0.attention.query.bias",
                                                   "blocks.0.attention.value.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"surplus"});

  StateDict own = model.state_dict();
  own.erase("pool.key.weight");
  CHECK_THAT(message_of([&] { to_torch(model, own); }),
             Contains("'pool.in_proj_weight' packs query, key and value") && Contains("has no 'pool.key.weight'"));
  TransformerEncoderLayer grouped(4, 2, {.key_value_heads = 1});
  CHECK_THAT(message_of([&] { to_torch(grouped); }),
             Contains("1 of keys and values") && Contains("torch.nn.MultiheadAttention"));
}

}  // namespace from_torch_test
