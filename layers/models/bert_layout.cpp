// Bert's Hugging Face style folder: config.json and model.safetensors.
#include <array>
#include <map>
#include <set>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/models/bert.hpp>
#include <regard/optim/data/json_file-inl.hpp>

namespace regard::layers {

namespace {

namespace fs = std::filesystem;
constexpr const char* op = "load_bert";

// Parts of our names and of theirs, `blocks.3.` and `encoder.layer.3.` before those of a layer.
constexpr std::array<std::pair<const char*, const char*>, 5> whole_parts = {{
    {"tokens", "embeddings.word_embeddings"},
    {"positions", "embeddings.position_embeddings"},
    {"types", "embeddings.token_type_embeddings"},
    {"norm", "embeddings.LayerNorm"},
    {"pooler", "pooler.dense"},
}};
constexpr std::array<std::pair<const char*, const char*>, 8> layer_parts = {{
    {"attention.query", "attention.self.query"},
    {"attention.key", "attention.self.key"},
    {"attention.value", "attention.self.value"},
    {"attention.output", "attention.output.dense"},
    {"norm1", "attention.output.LayerNorm"},
    {"feed_forward.up", "intermediate.dense"},
    {"feed_forward.down", "output.dense"},
    {"norm2", "output.LayerNorm"},
}};

// blocks.3.attention.query.weight -> encoder.layer.3.attention.self.query.weight
std::string their_name(const std::string& ours) {
  const size_t dot = ours.rfind('.');
  std::string part = ours.substr(0, dot), kind = ours.substr(dot);
  if (part.starts_with("blocks.")) {
    const size_t end = part.find('.', 7);
    const std::string number = part.substr(7, end - 7), rest = part.substr(end + 1);
    for (const auto& [our_part, their_part] : layer_parts)
      if (rest == our_part) return "encoder.layer." + number + "." + their_part + kind;
  }
  for (const auto& [our_part, their_part] : whole_parts)
    if (part == our_part) return their_part + kind;
  fail<ValueError>(op, "no name for ", ours);
}

constexpr std::array<std::pair<const char*, Activation>, 8> activations = {{
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_python", Activation::gelu},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
}};

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  for (const char* end : ends)
    if (name.ends_with(end)) return true;
  return false;
}

std::string modern(std::string name) {  // LayerNorm's parameters had other names once
  for (const auto& [old, now] :
       {std::pair{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}})
    if (name.ends_with(old)) return name.replace(name.size() - std::string_view(old).size(), std::string::npos, now);
  return name;
}

}  // namespace

BertOptions read_bert_config(const fs::path& path) {
  const JsonFile file = JsonFile::read(op, path);
  const auto type = file.get<std::string>(op, "model_type", "bert");
  check<FileError>(type == "bert", op, path.string(), ": 'model_type' is '", type, "'; read are models of type 'bert'");
  const auto position = file.get<std::string>(op, "position_embedding_type", "absolute");
  check<FileError>(position == "absolute", op, path.string(), ": 'position_embedding_type' is '", position,
                   "'; read is 'absolute' alone");
  for (const char* key : {"is_decoder", "add_cross_attention"})
    check<FileError>(!file.get<bool>(op, key, false), op, path.string(), ": '", key,
                     "' is true; read are encoders alone");

  BertOptions options;
  const auto size = [&](const char* key) {
    const auto value = file.require<int64_t>(op, key);
    check<FileError>(value > 0 && value < (int64_t{1} << 31), op, path.string(), ": '", key, "' is ", value);
    return value;
  };
  options.vocabulary = size("vocab_size");
  options.positions = size("max_position_embeddings");
  options.token_types = file.has("type_vocab_size") ? size("type_vocab_size") : options.token_types;
  options.width = size("hidden_size");
  options.heads = size("num_attention_heads");
  options.layers = size("num_hidden_layers");
  options.hidden = size("intermediate_size");
  check<FileError>(options.width % options.heads == 0, op, path.string(), ": 'hidden_size' ", options.width,
                   " is not divisible by 'num_attention_heads' ", options.heads);
  const auto share = [&](const char* key, double otherwise) {
    const double value = file.get<double>(op, key, otherwise);
    check<FileError>(value >= 0 && value < 1, op, path.string(), ": '", key, "' is ", value, ", outside [0, 1)");
    return value;
  };
  options.dropout = share("hidden_dropout_prob", options.dropout);
  options.attention_dropout = share("attention_probs_dropout_prob", options.attention_dropout);
  options.eps = file.get<double>(op, "layer_norm_eps", options.eps);
  check<FileError>(options.eps > 0, op, path.string(), ": 'layer_norm_eps' is ", options.eps);
  options.padding = file.get<int64_t>(op, "pad_token_id", file.json.contains("pad_token_id") ? -1 : 0);
  check<FileError>(options.padding >= -1 && options.padding < options.vocabulary, op, path.string(),
                   ": 'pad_token_id' is ", options.padding, ", outside 'vocab_size' ", options.vocabulary);
  const auto activation = file.get<std::string>(op, "hidden_act", "gelu");
  bool known = false;
  for (const auto& [name, value] : activations) {
    if (activation != name) continue;
    options.activation = value;
    known = true;
  }
  check<FileError>(known, op, path.string(), ": 'hidden_act' is '", activation,
                   "'; there are gelu, gelu_new, relu and silu");
  return options;
}

LoadedBert load_bert(const fs::path& folder) {
  const fs::path config = folder / "config.json", weights = folder / "model.safetensors";
  BertOptions options = read_bert_config(config);
  StateDict given = load_safetensors(weights);

  // Under the encoder's own names, without a prefix. Where there is one, what lacks it belongs to a head.
  bool prefixed = false;
  for (const auto& [name, tensor] : given) prefixed = prefixed || name.starts_with("bert.");
  std::map<std::string, std::pair<std::string, Tensor>> found;  // our form of the name -> as it is written, tensor
  std::vector<std::string> unused, unexpected;
  for (const auto& [name, tensor] : given) {
    const std::string plain = modern(prefixed && name.starts_with("bert.") ? name.substr(5) : name);
    const bool ours =
        (!prefixed || name.starts_with("bert.")) &&
        (plain.starts_with("embeddings.") || plain.starts_with("encoder.") || plain.starts_with("pooler."));
    if (ours && !ends_with_any(plain, {"embeddings.position_ids", "embeddings.token_type_ids"})) {
      check<FileError>(found.emplace(plain, std::pair{name, tensor}).second, op, weights.string(), ": '", plain,
                       "' is there under two names");
    } else {
      unused.push_back(name);
    }
  }
  options.pooler = found.contains("pooler.dense.weight");
  check<FileError>(!found.empty(), op, weights.string(), ": holds no tensor of a BERT encoder (",
                   given.empty() ? "it is empty" : "the first is '" + given.begin()->first + "'", ")");

  // Those whose shapes have every size of config.json, before a model of these sizes, which may be absurd, is made.
  const auto expect = [&](const char* name, const Shape& wanted, const char* keys) {
    const auto tensor = found.find(name);
    check<FileError>(tensor != found.end(), op, weights.string(), ": '", name, "' ", wanted, " is missing");
    check<FileError>(tensor->second.second.shape() == wanted, op, weights.string(), ": '", tensor->second.first,
                     "' is ", tensor->second.second.shape(), ", and ", config.string(), " wants ", wanted, " (", keys,
                     ")");
  };
  expect("embeddings.word_embeddings.weight", {options.vocabulary, options.width}, "'vocab_size', 'hidden_size'");
  expect("embeddings.position_embeddings.weight", {options.positions, options.width},
         "'max_position_embeddings', 'hidden_size'");
  expect("embeddings.token_type_embeddings.weight", {options.token_types, options.width},
         "'type_vocab_size', 'hidden_size'");
  expect("encoder.layer.0.intermediate.dense.weight", {options.hidden, options.width},
         "'intermediate_size', 'hidden_size'");
  const std::string last = "encoder.layer." + std::to_string(options.layers - 1) + ".output.dense.weight";
  check<FileError>(found.contains(last), op, weights.string(), ": '", last, "' is missing, and ", config.string(),
                   " has ", options.layers, " layers ('num_hidden_layers')");

  Bert model(options);
  StateDict state;
  for (const auto& [ours, parameter] : model.named_parameters()) {
    const std::string name = their_name(ours);
    const auto tensor = found.find(name);
    check<FileError>(tensor != found.end(), op, weights.string(), ": '", name, "' ", parameter.shape(), " is missing");
    const auto& [written, value] = tensor->second;
    check<FileError>(value.shape() == parameter.shape(), op, weights.string(), ": '", written, "' is ", value.shape(),
                     ", and ", config.string(), " wants ", parameter.shape());
    check<FileError>(is_floating(value.dtype()), op, weights.string(), ": '", written, "' is ", value.dtype(),
                     ", no floating numbers");
    state.emplace(ours, value);
    found.erase(tensor);
  }
  for (const auto& [name, tensor] : found)
    fail<FileError>(op, weights.string(), ": '", tensor.first, "' ", tensor.second.shape(), " has no place in the ",
                    options.layers, " layers that ", config.string(), " has");
  model.load_state_dict(state);
  return {std::move(model), std::move(unused)};
}

StateDict bert_state_to_hugging_face(const Bert& model) {
  StateDict state;
  for (const auto& [ours, tensor] : model.state_dict()) state.emplace(their_name(ours), tensor);
  return state;
}

void save_bert(const fs::path& folder, const Bert& model) {
  const BertOptions& options = model.options;
  const char* activation = "gelu";
  for (const auto& [name, value] : activations)
    if (value == options.activation) {
      activation = name;
      break;
    }
  nlohmann::ordered_json config = {
      {"architectures", {"BertModel"}},         {"model_type", "bert"},
      {"vocab_size", options.vocabulary},       {"max_position_embeddings", options.positions},
      {"type_vocab_size", options.token_types}, {"hidden_size", options.width},
      {"num_attention_heads", options.heads},   {"num_hidden_layers", options.layers},
      {"intermediate_size", options.hidden},    {"hidden_act", activation},
      {"hidden_dropout_prob", options.dropout}, {"attention_probs_dropout_prob", options.attention_dropout},
      {"layer_norm_eps", options.eps},          {"initializer_range", 0.02},
      {"position_embedding_type", "absolute"}};
  config["pad_token_id"] = options.padding >= 0 ? nlohmann::ordered_json(options.padding) : nullptr;
  save_safetensors(folder / "model.safetensors", bert_state_to_hugging_face(model), {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace regard::layers
