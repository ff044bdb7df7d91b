#include <regard/layers/models/gpt2_layout.hpp>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>

#include <regard/autograd/file.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/lora.hpp>

namespace regard::layers {

namespace {

namespace fs = std::filesystem;

// One tensor of GPT-2's layout and the parameters of a GPT that it holds: one, or three side by side.
struct Entry {
  std::string theirs;  // without `transformer.`
  std::vector<std::string> ours;
  bool transposed = false;  // a Conv1D's weight is [in, out]
};

std::vector<Entry> entries(const GPTOptions& options) {
  std::vector<Entry> list = {{"wte.weight", {"tokens.weight"}}, {"wpe.weight", {"positions.weight"}}};
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string their = "h." + std::to_string(i) + ".", our = "blocks." + std::to_string(i) + ".";
    for (const char* kind : {"weight", "bias"}) {
      const std::string dot_kind = std::string(".") + kind;
      const bool weight = std::string(kind) == "weight";
      const auto name = [&](const char* layer) { return our + layer + dot_kind; };
      list.push_back({their + "ln_1" + dot_kind, {name("norm1")}});
      list.push_back({their + "attn.c_attn" + dot_kind,
                      {name("attention.query"), name("attention.key"), name("attention.value")},
                      weight});
      list.push_back({their + "attn.c_proj" + dot_kind, {name("attention.output")}, weight});
      list.push_back({their + "ln_2" + dot_kind, {name("norm2")}});
      list.push_back({their + "mlp.c_fc" + dot_kind, {name("feed_forward.up")}, weight});
      list.push_back({their + "mlp.c_proj" + dot_kind, {name("feed_forward.down")}, weight});
    }
  }
  list.push_back({"ln_f.weight", {"norm.weight"}});
  list.push_back({"ln_f.bias", {"norm.bias"}});
  if (!options.tied) list.push_back({"lm_head.weight", {"head.weight"}});
  return list;
}

std::string with_prefix(const std::string& name) { return name == "lm_head.weight" ? name : "transformer." + name; }

// Causal masks that older versions saved beside the weights.
bool is_mask_buffer(const std::string& name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

Shape their_shape(const Entry& entry, const StateDict& ours) {
  const Tensor& first = ours.at(entry.ours.front());
  const auto parts = static_cast<int64_t>(entry.ours.size());
  if (entry.transposed) return {first.size(1), first.size(0) * parts};
  return first.dim() == 1 ? Shape{first.size(0) * parts} : first.shape();
}

struct Given {
  std::string name;  // as it was given
  Tensor tensor;
};

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

// The parameters of `model` in `weights`, or, in `wrong`, what does not fit.
StateDict renamed(const GPT& model, const StateDict& weights, std::string& wrong) {
  std::map<std::string, Given> given;  // without prefix
  std::vector<std::string> missing, unexpected, misshapen;
  for (const auto& [name, tensor] : weights) {
    const std::string plain = name.starts_with("transformer.") ? name.substr(12) : name;
    if (is_mask_buffer(plain)) continue;
    if (!given.try_emplace(plain, Given{name, tensor}).second) unexpected.push_back(name + " (there twice)");
  }
  const StateDict own = model.state_dict();
  StateDict result;
  for (const Entry& entry : entries(model.options)) {
    const auto found = given.find(entry.theirs);
    if (found == given.end()) {
      missing.push_back(with_prefix(entry.theirs));
      continue;
    }
    const Given theirs = found->second;
    given.erase(found);
    const Shape wanted = their_shape(entry, own);
    if (!theirs.tensor.defined() || theirs.tensor.shape() != wanted || !is_floating(theirs.tensor.dtype())) {
      const std::string what = theirs.tensor.defined()
                                   ? to_string(theirs.tensor.shape()) + " " + to_string(theirs.tensor.dtype())
                                   : "nothing";
      misshapen.push_back(theirs.name + " is " + what + " where the configuration wants " + to_string(wanted));
      continue;
    }
    Tensor value = theirs.tensor.detach();
    if (entry.transposed) value = value.t();
    const Tensors parts = chunk(value, static_cast<int64_t>(entry.ours.size()), 0);
    for (size_t i = 0; i < parts.size(); ++i) result[entry.ours[i]] = parts[i];
  }
  const auto head = given.find("lm_head.weight");  // left over: the head is tied
  if (head != given.end() && result.contains("tokens.weight")) {
    if (!equal(head->second.tensor, result["tokens.weight"]))
      misshapen.push_back(
          "lm_head.weight differs from wte.weight where the configuration ties them "
          "(tie_word_embeddings)");
    given.erase(head);
  }
  for (const auto& [name, left] : given) unexpected.push_back(left.name);

  std::ostringstream text;
  const char* separator = "";
  for (const auto& [title, names] : {std::pair("", misshapen), {"missing: ", missing}, {"unexpected: ", unexpected}}) {
    if (names.empty()) continue;
    text << separator << title << listed(names);
    separator = "; ";
  }
  wrong = text.str();
  return result;
}

template <class E>
void load(GPT& model, const StateDict& weights, const std::string& source) {
  gpt2_config(model.options);  // a model that has no such layout is told apart
  NoGrad no_grad;
  std::string wrong;
  const StateDict state = renamed(model, weights, wrong);
  check<E>(wrong.empty(), "gpt2", source, ": ", wrong);
  model.load_state_dict(state);
}

std::string text_of(const fs::path& path) {
  const InputFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

// The tensors of the files that an index lists, each of which must hold what the index says.
StateDict load_shards(const fs::path& index) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text_of(index));
  } catch (const nlohmann::json::parse_error& error) {
    fail<FileError>("gpt2", index.string(), ": not JSON (at byte ", error.byte, ")");
  }
  const bool object = json.is_object() && json.contains("weight_map") && json["weight_map"].is_object();
  check<FileError>(object, "gpt2", index.string(), ": an object weight_map is expected");
  std::map<std::string, std::set<std::string>> names_of;  // by file
  for (const auto& [name, file] : json["weight_map"].items()) {
    const bool plain = file.is_string() && fs::path(file.get<std::string>()).filename() == file.get<std::string>();
    check<FileError>(plain, "gpt2", index.string(), ": ", name, " is in ", file.dump(),
                     ": the name of a file of this folder is expected");
    names_of[file.get<std::string>()].insert(name);
  }
  StateDict all;
  for (const auto& [file, names] : names_of) {
    const fs::path path = index.parent_path() / file;
    StateDict part = load_safetensors(path);
    for (const std::string& name : names)
      check<FileError>(part.contains(name), "gpt2", path.string(), ": ", name, " is missing, which ",
                       index.filename().string(), " says is there");
    for (auto& [name, tensor] : part)
      check<FileError>(all.emplace(name, std::move(tensor)).second, "gpt2", path.string(), ": ", name,
                       " is in another file of the folder, too");
  }
  return all;
}

}  // namespace

StateDict to_gpt2(const GPT& model) {
  gpt2_config(model.options);
  check<ValueError>(lora_state_dict(model).empty(), "gpt2",
                    "GPT-2's layout has no place for the model's adapters: merge_lora() them into its weights first");
  NoGrad no_grad;
  const StateDict own = model.state_dict();
  StateDict result;
  for (const Entry& entry : entries(model.options)) {
    Tensors parts;
    for (const std::string& name : entry.ours) parts.push_back(own.at(name));
    const Tensor whole = cat(parts, 0);  // memory of its own
    result[with_prefix(entry.theirs)] = entry.transposed ? whole.t().contiguous() : whole;
  }
  return result;
}

void from_gpt2(GPT& model, const StateDict& weights, const std::string& source) {
  load<ValueError>(model, weights, source);
}

GPT load_gpt2(const fs::path& folder) {
  std::error_code error;
  const bool is_folder = fs::is_directory(folder, error);
  const bool unknown = error && error != std::errc::no_such_file_or_directory;
  check<FileError>(is_folder, "gpt2", folder.string(), ": ", unknown ? error.message() : "no such folder");
  const fs::path config = folder / "config.json", single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  const GPTOptions options = gpt2_options(text_of(config), config.string());
  const bool sharded = !fs::exists(single, error) && fs::exists(index, error);
  check<FileError>(sharded || !fs::exists(folder / "pytorch_model.bin", error) || fs::exists(single, error), "gpt2",
                   folder.string(),
                   ": there is pytorch_model.bin but no model.safetensors, which alone can be read; "
                   "transformers writes it with save_pretrained()");
  const fs::path source = sharded ? index : single;
  const StateDict weights = sharded ? load_shards(index) : load_safetensors(single);
  // Before the memory of such a model is asked for.
  check<FileError>(options.layers <= std::ssize(weights), "gpt2", config.string(), ": n_layer is ", options.layers,
                   ", and ", source.string(), " has ", weights.size(), " tensors only");
  GPT model(options);
  load<FileError>(model, weights, source.string());
  model.eval();
  return model;
}

void save_gpt2(const fs::path& folder, const GPT& model) {
  const std::string config = gpt2_config(model.options);
  const StateDict weights = to_gpt2(model);  // before anything is written
  std::error_code error;
  fs::create_directories(folder, error);
  check<FileError>(fs::is_directory(folder), "gpt2", folder.string(),
                   ": cannot make the folder: ", error ? error.message() : "a file is in its place");
  save_safetensors(folder / "model.safetensors", weights, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", config);
}

}  // namespace regard::layers
