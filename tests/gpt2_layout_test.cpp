// GPT-2's layout against transformers' GPT2LMHeadModel on tiny random models, both ways, and what it says about files
// that do not fit.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regard/layers/models/gpt2_layout.hpp>
#include <regard/regard.hpp>
#include <regard/tests/reference/reference.hpp>

#include "test_folder.hpp"

namespace gpt2_layout_test {

using namespace regard;
using Catch::Contains;
using layers::GPT;
namespace fs = std::filesystem;

namespace {

fs::path reference_folder(const std::string& name) { return fs::path(REGARD_TEST_DATA_DIR) / "gpt2" / name; }

struct Folder : test::Folder {
  // A copy of the reference folder, with one change to the configuration.
  fs::path changed(const std::string& name, const std::string& key, const nlohmann::json& value) const {
    fs::remove_all(path / name);
    fs::copy(reference_folder(name), path / name);
    auto config = nlohmann::json::parse(test::read_raw(path / name / "config.json"));
    config[key] = value;
    std::ofstream(path / name / "config.json") << config.dump();
    return path / name;
  }
};

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

}  // namespace

TEST_CASE("transformers' values: GPT-2 in its own files, whole and in parts") {
  int cases = 0;
  for (const auto& json : reference::load("gpt2")) {
    const auto name = json.at("name").get<std::string>();
    INFO(name);
    ++cases;
    GPT model = layers::load_gpt2(reference_folder(name));
    CHECK_FALSE(model.is_training());
    CHECK(model.options.tied == (name == "tied"));
    NoGrad no_grad;
    const Tensor ids = reference::tensor(json.at("ids"));
    reference::check("logits", model(ids), json.at("logits"), DType::f32);
    GPT exact = model;
    exact.to(DType::f64);
    reference::check("logits", exact(ids), json.at("logits"), DType::f64);
    // Token by token from the cache.
    std::vector<layers::KeyValueCache> caches = model.caches();
    Tensors pieces;
    for (int64_t t = 0; t < ids.size(1); ++t) pieces.push_back(model(ids.slice(1, t, t + 1), caches));
    reference::check("cached logits", cat(pieces, 1), json.at("logits"), DType::f32);
  }
  CHECK(cases == 2);
}

TEST_CASE("GPT-2's layout: what is saved has the reference's names, shapes and values, and is read again") {
  Folder folder;
  for (const char* name : {"tied", "untied"}) {
    INFO(name);
    const GPT model = layers::load_gpt2(reference_folder(name));
    layers::save_gpt2(folder.path / "saved" / name, model);
    StateDict reference;
    for (const auto& file : fs::directory_iterator(reference_folder(name)))
      if (file.path().extension() == ".safetensors") reference.merge(load_safetensors(file.path()));
    const SafetensorsFile saved = load_safetensors_file(folder.path / "saved" / name / "model.safetensors");
    CHECK(saved.metadata.at("format") == "pt");  // transformers asks for it
    REQUIRE(saved.tensors.size() == reference.size());
    for (const auto& [key, tensor] : reference) {
      INFO(key);
      REQUIRE(saved.tensors.contains(key));
      CHECK(equal(saved.tensors.at(key), tensor.to(DType::f32)));
    }
    const auto ours = nlohmann::json::parse(test::read_raw(folder.path / "saved" / name / "config.json"));
    const auto theirs = nlohmann::json::parse(test::read_raw(reference_folder(name) / "config.json"));
    for (const auto& [key, value] : ours.items()) {
      INFO(key);
      CHECK(theirs.at(key) == value);
    }
    const GPT again = layers::load_gpt2(folder.path / "saved" / name);
    for (const auto& [key, tensor] : model.state_dict()) CHECK(equal(tensor, again.state_dict().at(key)));
  }
}

TEST_CASE("GPT-2's layout: names without prefix, mask buffers and a tied head's copy are taken") {
  const GPT model = layers::load_gpt2(reference_folder("tied"));
  StateDict plain;
  for (const auto& [name, tensor] : layers::to_gpt2(model))
    plain[name.substr(std::string("transformer.").size())] = tensor;
  plain["h.0.attn.bias"] = tril(ones({1, 1, 8, 8}));
  plain["h.1.attn.masked_bias"] = full({}, -1e4F);
  plain["lm_head.weight"] = plain.at("wte.weight").clone();
  GPT other(model.options);
  layers::from_gpt2(other, plain);
  for (const auto& [key, tensor] : model.state_dict()) CHECK(equal(tensor, other.state_dict().at(key)));

  plain["lm_head.weight"] = plain.at("wte.weight") + 1;
  GPT third(model.options);
  CHECK_THROWS_WITH(layers::from_gpt2(third, plain, "here"), Contains("here") && Contains("lm_head.weight differs"));
}

TEST_CASE("GPT-2's layout: weights that do not fit change nothing, and are named") {
  const GPT model = layers::load_gpt2(reference_folder("tied"));
  StateDict weights = layers::to_gpt2(model);
  weights.erase("transformer.h.1.mlp.c_fc.bias");
  weights["transformer.h.0.attn.c_attn.weight"] = zeros({24, 8});  // Linear's way around
  weights["transformer.h.7.ln_1.weight"] = zeros({8});
  GPT other(model.options);
  const Tensor before = other.tokens.weight.tensor().detach().clone();
  CHECK_THROWS_AS(layers::from_gpt2(other, weights), ValueError);
  CHECK_THROWS_WITH(layers::from_gpt2(other, weights), Contains("transformer.h.0.attn.c_attn.weight is [24, 8]") &&
                                                           Contains("wants [8, 24]") &&
                                                           Contains("missing: transformer.h.1.mlp.c_fc.bias") &&
                                                           Contains("unexpected: transformer.h.7.ln_1.weight"));
  CHECK(equal(before, other.tokens.weight.tensor().detach()));
}

TEST_CASE("GPT-2's layout: a configuration that does not fit its weights, or GPT, is told with file and key") {
  Folder folder;
  const auto said = [&](const std::string& key, const nlohmann::json& value, const std::string& name = "tied") {
    const fs::path path = folder.changed(name, key, value);
    std::string message = message_of<FileError>([&] { layers::load_gpt2(path); });
    CHECK_THAT(message, Contains(path.string()));
    CHECK_THAT(message, !Contains("\n"));
    return message;
  };
  CHECK_THAT(said("n_embd", 12), Contains("model.safetensors") && Contains("transformer.wte.weight is [13, 8]") &&
                                     Contains("wants [13, 12]") && Contains("more"));
  CHECK_THAT(said("vocab_size", 14), Contains("transformer.wte.weight is [13, 8]") && Contains("[14, 8]"));
  CHECK_THAT(said("n_positions", 9), Contains("transformer.wpe.weight is [8, 8]") && Contains("[9, 8]"));
  CHECK_THAT(said("n_layer", 3), Contains("missing: transformer.h.2."));
  CHECK_THAT(said("n_layer", 1), Contains("unexpected: transformer.h.1."));
  CHECK_THAT(said("n_layer", 1000000000), Contains("config.json: n_layer is 1000000000"));
  CHECK_THAT(said("n_inner", 33), Contains("c_fc.weight is [8, 32]") && Contains("[8, 33]"));
  CHECK_THAT(said("tie_word_embeddings", false), Contains("missing: lm_head.weight"));
  CHECK_THAT(said("tie_word_embeddings", true, "untied"), Contains("lm_head.weight differs from wte.weight"));
  CHECK_THAT(said("n_head", 3), Contains("config.json") && Contains("n_embd 8") && Contains("n_head 3"));
  CHECK_THAT(said("n_head", "two"), Contains("n_head is \"two\""));
  CHECK_THAT(said("n_head", nullptr), Contains("n_head is missing"));
  CHECK_THAT(said("vocab_size", -1), Contains("vocab_size is -1"));
  CHECK_THAT(said("model_type", "llama"), Contains("model_type is \"llama\""));
  CHECK_THAT(said("activation_function", "mish"), Contains("activation_function is \"mish\""));
  CHECK_THAT(said("scale_attn_by_inverse_layer_idx", true), Contains("scale_attn_by_inverse_layer_idx"));
  CHECK_THAT(said("scale_attn_weights", false), Contains("scale_attn_weights"));
  CHECK_THAT(said("layer_norm_epsilon", 0), Contains("layer_norm_epsilon"));
}

TEST_CASE("GPT-2's layout: missing, broken and foreign files are told") {
  Folder folder;
  const auto said = [&](const fs::path& path) { return message_of<FileError>([&] { layers::load_gpt2(path); }); };
  CHECK_THAT(said(folder.path / "nowhere"), Contains("nowhere") && Contains("no such folder"));
  CHECK_THAT(said(folder.path), Contains("config.json"));
  const fs::path whole = folder.changed("tied", "n_ctx", 8);
  CHECK_NOTHROW(layers::load_gpt2(whole));
  fs::resize_file(whole / "model.safetensors", 5000);
  CHECK_THAT(said(whole), Contains("model.safetensors"));
  fs::remove(whole / "model.safetensors");
  CHECK_THAT(said(whole), Contains("model.safetensors"));
  std::ofstream(whole / "pytorch_model.bin") << "x";
  CHECK_THAT(said(whole), Contains("pytorch_model.bin"));
  std::ofstream(whole / "config.json") << "{\"n_embd\": ";
  CHECK_THAT(said(whole), Contains("config.json") && Contains("not JSON"));

  const fs::path parts = folder.changed("untied", "n_ctx", 8);
  const std::string index = test::read_raw(parts / "model.safetensors.index.json");
  fs::remove(parts / "model-00002-of-00002.safetensors");
  CHECK_THAT(said(parts), Contains("model-00002-of-00002.safetensors"));
  fs::copy(parts / "model-00001-of-00002.safetensors", parts / "model-00002-of-00002.safetensors");
  CHECK_THAT(said(parts), Contains("model-00002-of-00002.safetensors") && Contains("is missing"));
  std::ofstream(parts / "model.safetensors.index.json") << R"({"weight_map": {"a": "../model.safetensors"}})";
  CHECK_THAT(said(parts), Contains("index.json") && Contains("../model.safetensors"));
  std::ofstream(parts / "model.safetensors.index.json") << "[]";
  CHECK_THAT(said(parts), Contains("weight_map"));
}

TEST_CASE("GPT-2's layout: what it has no place for") {
  const auto said = [](auto change) {
    layers::GPTOptions options{.vocabulary = 5, .context = 4, .width = 8, .heads = 4, .layers = 1};
    change(options);
    const GPT model(options);
    return message_of<ValueError>([&] { layers::to_gpt2(model); });
  };
  CHECK_THAT(said([](auto& o) { o.positions = layers::PositionKind::rotary; }), Contains("rotary"));
  CHECK_THAT(said([](auto& o) { o.positions = layers::PositionKind::alibi; }), Contains("alibi"));
  CHECK_THAT(said([](auto& o) { o.key_value_heads = 2; }), Contains("heads of keys and values"));
  CHECK_THAT(said([](auto& o) { o.bias = false; }), Contains("biases"));

  // Adapters would be lost without a word.
  Folder folder;
  GPT model({.vocabulary = 5, .context = 4, .width = 8, .heads = 4, .layers = 1});
  layers::add_lora(model, {.rank = 2, .names = {"query"}});
  for (const auto& [name, parameter] : layers::lora_parameters(model)) layers::init::normal_(parameter, 0, 1);
  CHECK_THAT(message_of<ValueError>([&] { layers::to_gpt2(model); }), Contains("merge_lora()"));
  CHECK_THROWS_AS(layers::save_gpt2(folder.path / "new", model), ValueError);
  CHECK_FALSE(fs::exists(folder.path / "new"));
  const Tensor ids = from_vector<int64_t>({1, 4, 2}, {1, 3}), wanted = model(ids).detach();
  layers::merge_lora(model);
  layers::save_gpt2(folder.path / "new", model);
  CHECK(allclose(layers::load_gpt2(folder.path / "new")(ids), wanted, 1e-5, 1e-6));
}

}  // namespace gpt2_layout_test
