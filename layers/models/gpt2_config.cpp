// config.json of GPT-2 and GPTOptions, both ways.
#include <nlohmann/json.hpp>

#include <regard/autograd/error.hpp>
#include <regard/layers/models/gpt2_layout.hpp>

namespace regard::layers {

namespace {

using Json = nlohmann::ordered_json;

// Reads keys of one configuration; every mistake names file and key.
class Reader {
 public:
  Reader(const std::string& text, const std::string& file) : file_(file) {
    try {
      json_ = Json::parse(text);
    } catch (const Json::parse_error& error) {
      fail<FileError>("gpt2", file_, ": not JSON (at byte ", error.byte, ")");
    }
    check<FileError>(json_.is_object(), "gpt2", file_, ": an object is expected, with keys such as n_embd");
  }

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  int64_t positive(const char* key) const {
    check<FileError>(has(key), "gpt2", file_, ": the key ", key, " is missing");
    const Json& value = json_[key];
    check<FileError>(value.is_number_integer() && value.get<int64_t>() > 0, "gpt2", file_, ": ", key, " is ",
                     value.dump(), ": a positive whole number is expected");
    return value.get<int64_t>();
  }
  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    check<FileError>(json_[key].is_number(), "gpt2", file_, ": ", key, " is ", json_[key].dump(),
                     ": a number is expected");
    return json_[key].get<double>();
  }
  bool truth(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    check<FileError>(json_[key].is_boolean(), "gpt2", file_, ": ", key, " is ", json_[key].dump(),
                     ": true or false is expected");
    return json_[key].get<bool>();
  }
  std::string text(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    check<FileError>(json_[key].is_string(), "gpt2", file_, ": ", key, " is ", json_[key].dump(),
                     ": a text is expected");
    return json_[key].get<std::string>();
  }
  /// What this model does in one way only.
  void only(const char* key, bool wanted) const {
    check<FileError>(truth(key, wanted) == wanted, "gpt2", file_, ": ", key, " is ", !wanted ? "true" : "false",
                     ", which GPT does not do");
  }

 private:
  std::string file_;
  Json json_;
};

}  // namespace

GPTOptions gpt2_options(const std::string& config, const std::string& file) {
  const Reader reader(config, file);
  const std::string type = reader.text("model_type", "gpt2");
  check<FileError>(type == "gpt2", "gpt2", file, ": model_type is \"", type, "\": \"gpt2\" is expected");
  reader.only("scale_attn_weights", true);
  reader.only("scale_attn_by_inverse_layer_idx", false);
  reader.only("add_cross_attention", false);

  GPTOptions options;
  options.vocabulary = reader.positive("vocab_size");
  options.context = reader.positive("n_positions");
  options.width = reader.positive("n_embd");
  options.heads = reader.positive("n_head");
  options.layers = reader.positive("n_layer");
  options.hidden = reader.has("n_inner") ? reader.positive("n_inner") : 0;
  options.eps = reader.number("layer_norm_epsilon", 1e-5);
  options.dropout = reader.number("resid_pdrop", 0.1);
  options.tied = reader.truth("tie_word_embeddings", true);
  check<FileError>(options.width % options.heads == 0, "gpt2", file, ": n_embd ", options.width,
                   " is not divisible by n_head ", options.heads);
  check<FileError>(options.eps > 0, "gpt2", file, ": layer_norm_epsilon is ", options.eps, ": it must be positive");
  check<FileError>(options.dropout >= 0 && options.dropout < 1, "gpt2", file, ": resid_pdrop is ", options.dropout,
                   ": it must be in [0, 1)");

  const std::string activation = reader.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu_fast")
    options.activation = Activation::gelu_tanh;
  else if (activation == "gelu")
    options.activation = Activation::gelu;
  else if (activation == "relu")
    options.activation = Activation::relu;
  else if (activation == "silu" || activation == "swish")
    options.activation = Activation::silu;
  else
    fail<FileError>("gpt2", file, ": activation_function is \"", activation,
                    "\": gelu_new, gelu, relu or silu is expected");
  return options;
}

std::string gpt2_config(const GPTOptions& options) {
  check<ValueError>(options.positions == PositionKind::learned, "gpt2", "GPT-2's layout has learned positions, not ",
                    to_string(options.positions));
  check<ValueError>(options.key_value_heads == 0 || options.key_value_heads == options.heads, "gpt2",
                    "GPT-2's layout has as many heads of keys and values as of queries, ", options.heads, ", not ",
                    options.key_value_heads);
  check<ValueError>(options.bias, "gpt2", "GPT-2's layout has biases, which this model lacks");
  const char* activation = "gelu_new";
  if (options.activation == Activation::gelu) activation = "gelu";
  if (options.activation == Activation::relu) activation = "relu";
  if (options.activation == Activation::silu) activation = "silu";

  Json config = {{"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"}};
  config["activation_function"] = activation;
  config["attn_pdrop"] = options.dropout;
  config["embd_pdrop"] = options.dropout;
  config["resid_pdrop"] = options.dropout;
  config["layer_norm_epsilon"] = options.eps;
  config["n_embd"] = options.width;
  config["n_head"] = options.heads;
  config["n_inner"] = options.hidden == 0 ? Json(nullptr) : Json(options.hidden);
  config["n_layer"] = options.layers;
  config["n_positions"] = options.context;
  config["tie_word_embeddings"] = options.tied;
  config["vocab_size"] = options.vocabulary;
  // GPT-2's own marks are 50256; a model of another vocabulary has none unless its user says so.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  return config.dump(2) + "\n";
}

}  // namespace regard::layers
