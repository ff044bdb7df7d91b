// BERT and sentence vectors against transformers' values, and what is said of folders that do not fit.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/gradcheck.hpp>
#include <regard/layers/models/sentence_encoder.hpp>

#include "reference/reference.hpp"
#include "test_folder.hpp"

namespace bert_test {

using namespace regard;
using namespace regard::layers;
namespace fs = std::filesystem;

namespace {

const fs::path tiny = fs::path(REGARD_TEST_DATA_DIR) / "bert";

// A copy of the tiny model's folder.
struct Folder : test::Folder {
  Folder() { fs::copy(tiny, path, fs::copy_options::recursive); }
  nlohmann::json json(const std::string& name) const {
    std::ifstream file(path / name);
    return nlohmann::json::parse(file);
  }
  void edit(const std::string& name, const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json value = json(name);
    change(value);
    std::ofstream(path / name) << value.dump();
  }
  void edit_weights(const std::function<void(StateDict&)>& change) const {
    StateDict state = load_safetensors(path / "model.safetensors");
    change(state);
    save_safetensors(path / "model.safetensors", state);
  }
};

reference::Json case_of(const std::string& name) {
  for (const auto& one : reference::load("bert"))
    if (one.at("name") == name) return one;
  FAIL("no case " << name);
  return {};
}

/// The largest difference relative to the whole, as "equal to 1e-5" means it.
double relative_difference(const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape() == want.shape());
  return ((got.to(DType::f64) - want).norm() / want.norm()).item<double>();
}

std::string load_error(const Folder& folder) {
  try {
    SentenceEncoder::from_folder(folder.path);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> sentences() { return case_of("sentences").at("texts").get<std::vector<std::string>>(); }

}  // namespace

TEST_CASE("bert: hidden states, pooler and gradients are transformers'") {
  for (const auto& one : reference::load("bert")) {
    if (!one.contains("changes")) continue;
    INFO(one.at("name"));
    Folder folder;
    folder.edit("config.json", [&](nlohmann::json& config) { config.update(one.at("changes")); });
    Bert model = load_bert(folder.path).model;
    model.eval();
    const Tensor ids = reference::tensor(one.at("ids")), mask = reference::tensor(one.at("mask")),
                 types = reference::tensor(one.at("types"));
    const Tensor wanted = reference::tensor(one.at("hidden"));
    const Tensor counted = (mask != 0).unsqueeze(-1).to(DType::f64);  // what stands behind a text means nothing
    CHECK(relative_difference(model(ids, mask, types).to(DType::f64) * counted, wanted * counted) < 1e-6);
    model.to(DType::f64);
    const Tensor hidden = model(ids, mask, types);
    CHECK(relative_difference(hidden * counted, wanted * counted) < 1e-12);
    CHECK(relative_difference(model.pool(hidden), reference::tensor(one.at("pooled"))) < 1e-12);
    hidden.backward(reference::tensor(one.at("grad_output")));
    CHECK(relative_difference(model.blocks[0].attention.query.weight.grad(), reference::tensor(one.at("query_grad"))) <
          1e-10);
    CHECK(model.tokens.weight.grad()[0].norm().item<double>() == 0);  // of padding
  }
}

TEST_CASE("bert: sentence vectors are the reference's to 1e-5, however they are put into batches") {
  const reference::Json one = case_of("sentences");
  const auto texts = sentences();
  for (const auto& [key, pooling] :
       {std::pair{"mean", Pooling::mean}, {"cls", Pooling::first}, {"max", Pooling::max}}) {
    INFO(key);
    Folder folder;
    folder.edit("1_Pooling/config.json", [&](nlohmann::json& config) {
      for (const char* mode : {"mean", "cls", "max"})
        config[std::string("pooling_mode_") + mode + (std::string(mode) == "cls" ? "_token" : "_tokens")] =
            std::string(mode) == key;
    });
    const auto encoder = SentenceEncoder::from_folder(folder.path);
    CHECK(encoder.options.pooling == pooling);
    CHECK(encoder.options.longest == 24);  // of sentence_bert_config.json
    CHECK_FALSE(encoder.is_training());
    const Tensor wanted = reference::tensor(one.at(key));
    for (int64_t batch : {1, 2, 100}) {
      int64_t truncated = -1;
      const Tensor vectors = encoder.encode(texts, batch, &truncated);
      CHECK(truncated == one.at("truncated"));
      for (int64_t i = 0; i < wanted.size(0); ++i) CHECK(relative_difference(vectors[i], wanted[i]) < 2e-6);
    }
  }
}

TEST_CASE("bert: vectors are normalised where modules.json says so, or is not there") {
  const reference::Json one = case_of("sentences");
  Folder folder;
  folder.edit("modules.json", [](nlohmann::json& modules) { modules.erase(2); });
  CHECK(relative_difference(SentenceEncoder::from_folder(folder.path).encode(sentences()),
                            reference::tensor(one.at("mean, not normalised"))) < 2e-6);
  for (const char* name : {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"})
    fs::remove(folder.path / name);
  const auto plain = SentenceEncoder::from_folder(folder.path);
  CHECK(plain.options.longest == 32);  // the model's positions
  const std::vector<std::string> texts = sentences();
  CHECK(relative_difference(plain.encode({texts[0], texts[1]}), reference::tensor(one.at("mean")).slice(0, 0, 2)) <
        2e-6);
}

TEST_CASE("bert: weights may have a prefix, old names, heads beside them, no pooler, and be stored in f16") {
  const auto vectors = [](const Folder& folder) {
    return SentenceEncoder::from_folder(folder.path).encode(sentences());
  };
  Folder folder;
  const Tensor wanted = vectors(folder);
  folder.edit_weights([](StateDict& state) {
    StateDict renamed;
    for (const auto& [name, tensor] : state) {
      std::string old = "bert." + name;
      for (const auto& [now, before] :
           {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}})
        if (const size_t at = old.find(now); at != std::string::npos) old = old.substr(0, at) + before;
      if (name.find("pooler") == std::string::npos) renamed[old] = tensor;
    }
    renamed["cls.predictions.bias"] = ones({3});
    renamed["classifier.weight"] = ones({2, 16});
    state = renamed;
  });
  CHECK(equal(vectors(folder), wanted));
  const LoadedBert loaded = load_bert(folder.path);
  CHECK_FALSE(loaded.model.pooler.has_value());
  CHECK(loaded.unused ==
        std::vector<std::string>{"bert.embeddings.position_ids", "classifier.weight", "cls.predictions.bias"});
  CHECK_THROWS_AS(loaded.model.pool(ones({1, 2, 16})), ValueError);

  folder.edit_weights([](StateDict& state) {
    for (auto& [name, tensor] : state)
      if (is_floating(tensor.dtype())) tensor = tensor.to(DType::f16);
  });
  CHECK(relative_difference(vectors(folder), wanted.to(DType::f64)) < 1e-2);
}

TEST_CASE("bert: what is saved is what was loaded") {
  Folder folder;
  auto encoder = SentenceEncoder::from_folder(folder.path);
  encoder.options.pooling = Pooling::max;
  encoder.options.normalise = false;
  const fs::path copy = folder.path / "deep" / "copy";
  encoder.save(copy);
  const auto again = SentenceEncoder::from_folder(copy);
  CHECK(again.options.pooling == Pooling::max);
  CHECK_FALSE(again.options.normalise);
  CHECK(again.options.longest == 24);
  CHECK(again.bert.options.padding == 0);
  CHECK(equal(again.encode(sentences()), encoder.encode(sentences())));
  StateDict original = load_safetensors(tiny / "model.safetensors"),
            saved = load_safetensors(copy / "model.safetensors");
  original.erase("embeddings.position_ids");
  REQUIRE(saved.size() == original.size());
  for (const auto& [name, tensor] : original) {
    INFO(name);
    REQUIRE(saved.contains(name));
    CHECK(equal(saved.at(name), tensor));
  }
}

TEST_CASE("bert: configuration and weights that do not fit are told by file, key and shapes") {
  const auto config = [](const std::string& key, nlohmann::json value) {
    Folder folder;
    folder.edit("config.json", [&](nlohmann::json& json) { json[key] = std::move(value); });
    return load_error(folder);
  };
  const auto weights = [](const std::function<void(StateDict&)>& change) {
    Folder folder;
    folder.edit_weights(change);
    return load_error(folder);
  };
  using Catch::Contains;
  CHECK_THAT(config("vocab_size", 999), Contains("model.safetensors") &&
                                            Contains("embeddings.word_embeddings.weight") && Contains("[999, 16]") &&
                                            Contains("'vocab_size'"));
  CHECK_THAT(config("vocab_size", int64_t{1} << 40), Contains("config.json") && Contains("'vocab_size'"));
  CHECK_THAT(config("hidden_size", 8), Contains(", 8]") && Contains(", 16]"));
  CHECK_THAT(config("intermediate_size", 1000000000), Contains("[24, 16]") && Contains("[1000000000, 16]"));
  CHECK_THAT(config("max_position_embeddings", 31), Contains("[31, 16]") && Contains("[32, 16]"));
  CHECK_THAT(config("type_vocab_size", 3), Contains("[3, 16]") && Contains("[2, 16]"));
  CHECK_THAT(config("num_hidden_layers", 3), Contains("encoder.layer.2.output.dense.weight") && Contains("3 layers"));
  CHECK_THAT(config("num_hidden_layers", 1), Contains("encoder.layer.1.") && Contains("no place"));
  CHECK_THAT(config("num_attention_heads", 3), Contains("'num_attention_heads' 3"));
  CHECK_THAT(config("model_type", "roberta"), Contains("roberta"));
  CHECK_THAT(config("hidden_act", "mish"), Contains("mish"));
  CHECK_THAT(config("position_embedding_type", "relative_key"), Contains("relative_key"));
  CHECK_THAT(config("hidden_size", "wide"), Contains("'hidden_size'") && Contains("an integer"));
  CHECK_THAT(config("hidden_dropout_prob", 1.5), Contains("'hidden_dropout_prob'"));
  CHECK_THAT(config("pad_token_id", 5000), Contains("'pad_token_id'"));
  CHECK_THAT(weights([](StateDict& s) { s.erase("encoder.layer.1.attention.self.key.bias"); }),
             Contains("encoder.layer.1.attention.self.key.bias") && Contains("missing"));
  CHECK_THAT(weights([](StateDict& s) {
               s["encoder.layer.0.attention.self.key.weight"] = ones({16, 15});
             }),
             Contains("[16, 15]") && Contains("[16, 16]") && Contains("config.json"));
  CHECK_THAT(weights([](StateDict& s) { s["embeddings.extra.weight"] = ones({2}); }), Contains("embeddings.extra"));
  CHECK_THAT(weights([](StateDict& s) { s["embeddings.LayerNorm.gamma"] = ones({16}); }), Contains("two names"));
  CHECK_THAT(weights([](StateDict& s) {
               s = {{"transformer.wte.weight", ones({2, 2})}};
             }),
             Contains("no tensor of a BERT encoder") && Contains("transformer.wte.weight"));
  const auto removed = [](const char* name) {
    Folder folder;
    fs::remove(folder.path / name);
    return load_error(folder);
  };
  for (const char* name : {"config.json", "model.safetensors", "vocab.txt"}) CHECK_THAT(removed(name), Contains(name));
  CHECK_THROWS_WITH(SentenceEncoder::from_folder("/no/such/folder"), Contains("/no/such/folder"));
  Folder folder;
  folder.edit("1_Pooling/config.json", [](nlohmann::json& json) { json["pooling_mode_cls_token"] = true; });
  CHECK_THAT(load_error(folder), Contains("1_Pooling") && Contains("more than one"));
  Folder words;
  std::ofstream(words.path / "vocab.txt", std::ios::app) << "one more\n";
  CHECK_THAT(load_error(words), Contains("'vocab_size'"));
  Folder dense;
  dense.edit("modules.json", [](nlohmann::json& json) { json[2]["type"] = "sentence_transformers.models.Dense"; });
  CHECK_THAT(load_error(dense), Contains("modules.json") && Contains("Dense"));
  Folder unpooled;  // how to pool is not guessed
  fs::remove(unpooled.path / "1_Pooling/config.json");
  CHECK_THAT(load_error(unpooled), Contains("1_Pooling") && Contains("is missing") && Contains("modules.json"));
}

TEST_CASE("bert: inputs that do not fit are refused, and padding changes nothing") {
  Bert model = load_bert(tiny).model;
  model.eval();
  CHECK_THROWS_WITH(model(zeros({1, 33}, DType::i64)), Catch::Contains("33 tokens") && Catch::Contains("32"));
  CHECK_THROWS_AS(model(zeros({3}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model(zeros({1, 3}, DType::i64), ones({1, 4})), ShapeError);
  CHECK_THROWS_AS(model(zeros({1, 3}, DType::i64), {}, zeros({1, 2}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(model(full({1, 3}, int64_t{100000})), IndexError);
  CHECK_THROWS_AS(Bert(BertOptions{.vocabulary = 0}), ValueError);
  NoGrad no_grad;
  const Tensor ids = from_vector<int64_t>({7, 8, 9, 50, 60}, {1, 5});
  const Tensor mask = from_vector<int64_t>({1, 1, 1, 0, 0}, {1, 5});
  const Tensor three = model(ids.slice(1, 0, 3)), five = model(ids, mask).slice(1, 0, 3);
  CHECK(allclose(three, five, 1e-5, 1e-6));
}

TEST_CASE("bert: gradients of a small one with its pooling") {
  manual_seed(5);
  BertOptions options;
  options.vocabulary = 7;
  options.positions = 4;
  options.width = 4;
  options.heads = 2;
  options.layers = 1;
  options.hidden = 6;
  options.padding = -1;
  Bert model(options);
  {
    NoGrad no_grad;
    Generator generator(9);
    for (const Tensor& p : model.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.3);
  }
  model.eval();
  const Tensor ids = from_vector<int64_t>({1, 2, 3, 4, 5, 0}, {2, 3}),
               types = from_vector<int64_t>({0, 1, 1, 0, 0, 1}, {2, 3});
  const Tensor mask = from_vector<int64_t>({1, 1, 1, 1, 1, 0}, {2, 3});
  for (Pooling pooling : {Pooling::mean, Pooling::first}) {
    const auto report = gradcheck(model, {ids, types}, [&](auto& bert, const Tensors& in) {
      const Tensor x = bert(in[0], mask, in[1]);
      return cat({normalise_rows(pool_tokens(x, mask, pooling)), bert.pool(x)}, 1);
    });
    INFO(report.to_string());
    CHECK(report.passed());
  }
}

TEST_CASE("bert: pooling of rows without a token, and of a vector of zeros, stays finite") {
  const Tensor x = randn({2, 3, 4}).set_requires_grad();
  const Tensor mask = from_vector<int64_t>({1, 0, 1, 0, 0, 0}, {2, 3});
  for (Pooling pooling : {Pooling::mean, Pooling::first, Pooling::max}) {
    const Tensor vectors = normalise_rows(pool_tokens(x, mask, pooling));
    x.zero_grad();
    vectors.sum().backward();
    CHECK(isfinite(vectors).all().item<bool>());
    CHECK(isfinite(x.grad()).all().item<bool>());
  }
  CHECK(equal(pool_tokens(x, mask, Pooling::mean)[1], zeros({4})));
  CHECK_THROWS_AS(pool_tokens(x, ones({2, 4}), Pooling::mean), ShapeError);
}

TEST_CASE("bert: dropout is drawn in training mode only, where BERT has it") {
  BertOptions options;
  options.vocabulary = 9;
  options.width = 8;
  options.heads = 2;
  options.layers = 1;
  options.hidden = 8;
  Bert model(options);
  const Tensor ids = from_vector<int64_t>({1, 2, 3}, {1, 3});
  manual_seed(1);
  const Tensor first = model(ids);
  CHECK_FALSE(equal(first, model(ids)));
  CHECK(model.blocks[0].feed_forward.drop.p == 0);
  model.eval();
  CHECK(equal(model(ids), model(ids)));
}

}  // namespace bert_test
