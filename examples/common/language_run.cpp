#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regard/examples/common/language_options.hpp>
#include <regard/examples/common/language_run.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/layers/models/gpt2_layout.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/byte_pairs.hpp>

namespace examples {
namespace {

namespace fs = std::filesystem;
namespace layers = regard::layers;
using Json = nlohmann::ordered_json;

const char* name_of(layers::Activation activation) { return layers::to_string(activation); }

layers::Activation activation_of(const std::string& name, const std::string& file) {
  using layers::Activation;
  for (Activation each : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
    if (name == name_of(each)) return each;
  throw std::runtime_error(file + ": activation is " + in_quotes(name) + ", which is none");
}

template <class OptionsType, class Visit>
void each_member(OptionsType& o, Visit visit) {
  visit("vocabulary", o.vocabulary);
  visit("context", o.context);
  visit("width", o.width);
  visit("heads", o.heads);
  visit("layers", o.layers);
  visit("hidden", o.hidden);
  visit("dropout", o.dropout);
  visit("key_value_heads", o.key_value_heads);
  visit("rotary_base", o.rotary_base);
  visit("tied", o.tied);
  visit("bias", o.bias);
  visit("eps", o.eps);
  visit("recompute", o.recompute);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot read: " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Json config_of(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json json = Json::parse(text_of(path), nullptr, false);
  if (!json.is_object()) throw std::runtime_error(path.string() + ": not JSON, or no object");
  return json;
}

LanguageModel of_run(const fs::path& run, const fs::path& checkpoint) {
  LanguageModel loaded{model_of_run(run), load_tokenizer(run), checkpoint.string()};
  regard::optim::TrainingState state{loaded.model};
  state.generator = nullptr;
  regard::optim::load_checkpoint(checkpoint, state);
  loaded.model.eval();
  return loaded;
}

}  // namespace

Json to_json(const layers::GPTOptions& options) {
  Json json;
  each_member(options, [&](const char* name, const auto& value) { json[name] = value; });
  json["positions"] = layers::to_string(options.positions);
  json["activation"] = name_of(options.activation);
  return json;
}

layers::GPTOptions gpt_options_from_json(const Json& json, const std::string& file) {
  layers::GPTOptions options;
  const auto read = [&](const char* name, auto& value) {
    if (!json.is_object() || !json.contains(name))
      throw std::runtime_error(file + ": the key model." + name + " is missing");
    try {
      json.at(name).get_to(value);
    } catch (const Json::exception&) {
      throw std::runtime_error(file + ": model." + name + " is " + json.at(name).dump() + ", which it cannot be");
    }
  };
  each_member(options, read);
  std::string positions, activation;
  read("positions", positions);
  read("activation", activation);
  try {
    options.positions = position_kind(positions);
  } catch (const UsageError&) {
    throw std::runtime_error(file + ": model.positions is " + in_quotes(positions) + ", which is none");
  }
  options.activation = activation_of(activation, file);
  return options;
}

void save_tokenizer(const fs::path& folder, const regard::data::Tokenizer& tokenizer) {
  write_file_atomically(folder / "tokenizer.json", tokenizer.to_json());
}

std::unique_ptr<regard::data::Tokenizer> load_tokenizer(const fs::path& folder) {
  const fs::path path = folder / "tokenizer.json";
  const std::string text = text_of(path);
  try {
    return regard::data::Tokenizer::from_json(text);
  } catch (const regard::Error& error) {
    throw regard::FileError(path.string() + ": " + error.what());
  }
}

std::unique_ptr<regard::data::Tokenizer> load_gpt2_tokenizer(const fs::path& folder) {
  const fs::path vocabulary = folder / "vocab.json", merges = folder / "merges.txt";
  if (!fs::exists(vocabulary) && !fs::exists(merges)) return nullptr;
  return std::make_unique<regard::data::BytePairTokenizer>(
      regard::data::BytePairTokenizer::read_gpt2(vocabulary, merges));
}

layers::GPT model_of_run(const fs::path& folder) {
  const Json config = config_of(folder);
  const std::string file = (folder / "config.json").string();
  if (!config.contains("model")) throw std::runtime_error(file + ": the key model is missing");
  const layers::GPTOptions options = gpt_options_from_json(config["model"], file);
  try {
    return layers::GPT(options);
  } catch (const regard::Error& error) {
    throw regard::FileError(file + ": " + error.what());
  }
}

LanguageModel load_language_model(const fs::path& folder, bool latest) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw UsageError("checkpoint", in_quotes(folder.string()) +
                                       (fs::exists(folder, error) ? " is no folder" : ": there is no such folder"));
  if (fs::exists(folder / "state.json", error)) {  // one checkpoint of a run
    const fs::path run = fs::absolute(folder).lexically_normal() / ".." / "..";
    return of_run(run.lexically_normal(), folder);
  }
  if (!fs::exists(folder / "config.json", error) && !error)
    throw UsageError("checkpoint", in_quotes(folder.string()) +
                                       " has no config.json: the folder of a run, or of a GPT-2 model, is needed");
  const Json config = config_of(folder);
  for (const char* key : {"task", "source_vocabulary"})  // runs of train_sequence and train_translation
    if (!config.contains("program") && !config.contains("model_type") && config.contains(key))
      throw UsageError("checkpoint", in_quotes(folder.string()) + " is not a run of train_language_model");
  if (!config.contains("program")) {
    LanguageModel loaded{layers::load_gpt2(folder), load_gpt2_tokenizer(folder), folder.string()};
    if (loaded.tokenizer != nullptr) {
      const auto& pairs = static_cast<const regard::data::BytePairTokenizer&>(*loaded.tokenizer);
      if (pairs.has_special("<|endoftext|>")) loaded.stop_token = pairs.special("<|endoftext|>");
    }
    return loaded;
  }
  if (config["program"] != "train_language_model")
    throw UsageError("checkpoint", in_quotes(folder.string()) + " is a run of " + config["program"].dump() +
                                       ", not of train_language_model");
  const regard::optim::Checkpoints checkpoints(folder / "checkpoints");
  auto chosen = latest ? checkpoints.latest() : checkpoints.best();
  if (!chosen) chosen = checkpoints.latest();
  if (!chosen) throw UsageError("checkpoint", in_quotes(folder.string()) + " has no checkpoint yet");
  return of_run(folder, chosen->path);
}

std::vector<int64_t> beginning(const regard::data::Tokenizer& tokenizer) {
  try {
    const std::vector<int64_t> tokens = tokenizer.encode("\n");
    if (!tokens.empty()) return tokens;
  } catch (const regard::ValueError&) {  // a text without line ends
  }
  return {0};
}

}  // namespace examples
