#include <regard/layers/lora.hpp>

#include <algorithm>
#include <map>

#include <regard/autograd/ops.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/names.hpp>

namespace regard::layers {

namespace {

using Linears = std::vector<std::pair<std::string, Linear*>>;

// Every Linear inside, with its path from the model; the model itself has none.
Linears linears_of(const Layer& model) {
  Linears list;
  const size_t prefix = model.path().empty() ? 0 : model.path().size() + 1;
  Walk walk;
  walk.on_layer = [&](const std::string&, Layer& layer) {
    if (auto* linear = dynamic_cast<Linear*>(&layer))
      list.emplace_back(&layer == &model ? std::string() : layer.path().substr(prefix), linear);
  };
  walk.run(model);
  return list;
}

Linears adapted(const Layer& model) {
  Linears list = linears_of(model);
  std::erase_if(list, [](const auto& entry) { return !entry.second->lora; });
  return list;
}

bool matches(const std::string& pattern, const std::string& path) {
  return path.empty() ? pattern == "*" : name_matches(pattern, path);
}

std::string list_paths(const Linears& linears) {
  std::vector<std::string> names;
  for (const auto& [path, linear] : linears) names.push_back(path);
  return list_names(names);
}

LoraAdapter adapter_for(const Linear& linear, int64_t rank, double alpha, double dropout) {
  LoraAdapter adapter(linear.weight.size(1), linear.weight.size(0), rank, alpha, dropout);
  adapter.to(linear.weight.dtype());
  adapter.to(linear.weight.device());
  adapter.train(linear.is_training());
  return adapter;
}

// Freezes the model and puts the adapters in; nothing throws half-way.
Tensors put_in(Layer& model, std::vector<std::pair<Linear*, LoraAdapter>> adapters) {
  model.set_requires_grad(false);
  for (auto& [linear, adapter] : adapters) linear->lora.emplace(std::move(adapter));
  Tensors list;
  for (auto& [path, parameter] : lora_parameters(model))
    list.push_back(parameter.set_requires_grad());  // those of earlier adapters too
  return list;
}

std::string full_name(const std::string& path, const char* name) {
  return (path.empty() ? "lora." : path + ".lora.") + name;
}

}  // namespace

Tensors add_lora(Layer& model, const LoraOptions& options) {
  const char* op = "add_lora";
  const Linears linears = linears_of(model);
  check<ValueError>(!linears.empty(), op, model.describe(), " has no Linear layer inside");
  check<ValueError>(!options.names.empty(), op, "no names are given: {\"*\"} means every Linear layer");
  for (const std::string& pattern : options.names)
    check<ValueError>(
        std::any_of(linears.begin(), linears.end(), [&](const auto& entry) { return matches(pattern, entry.first); }),
        op, "'", pattern, "' names no Linear layer; there are ", list_paths(linears));
  std::vector<std::pair<Linear*, LoraAdapter>> adapters;
  for (const auto& [path, linear] : linears) {
    const std::string& name = path;
    if (std::none_of(options.names.begin(), options.names.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); }))
      continue;
    check<ValueError>(!linear->lora, op, "'", path, "' has an adapter already: merge_lora() or remove_lora() first");
    adapters.emplace_back(linear, adapter_for(*linear, options.rank, options.alpha, options.dropout));
  }
  return put_in(model, std::move(adapters));
}

std::vector<std::pair<std::string, Tensor>> lora_parameters(const Layer& model) {
  std::vector<std::pair<std::string, Tensor>> list;
  for (const auto& [path, linear] : adapted(model)) {
    // named_parameters() lists them, so that the engine knows that they are trained.
    for (auto& [name, parameter] : linear->lora->named_parameters())
      list.emplace_back(full_name(path, name.c_str()), std::move(parameter));
  }
  return list;
}

void merge_lora(Layer& model) {
  const Linears linears = adapted(model);
  check<ValueError>(!linears.empty(), "merge_lora", model.describe(), " has no adapters");
  NoGrad no_grad;
  Tensors merged;  // all memory is taken before anything is written
  for (const auto& [path, linear] : linears) merged.push_back(linear->weight.detach() + linear->lora->weight_change());
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i].second->weight.tensor().copy_(merged[i]);
    linears[i].second->lora.reset();
  }
}

void remove_lora(Layer& model) {
  const Linears linears = adapted(model);
  check<ValueError>(!linears.empty(), "remove_lora", model.describe(), " has no adapters");
  for (const auto& [path, linear] : linears) linear->lora.reset();
}

StateDict lora_state_dict(const Layer& model) {
  StateDict state;
  for (const auto& [path, linear] : adapted(model))
    for (auto& [name, tensor] : linear->lora->state_dict()) state.emplace(full_name(path, name.c_str()), tensor);
  return state;
}

void load_lora(Layer& model, const StateDict& state) {
  const char* op = "load_lora";
  check<ValueError>(!state.empty(), op, "the state is empty");
  const Linears linears = linears_of(model);
  const bool has_adapters = !adapted(model).empty();
  std::vector<std::string> missing, mismatched;
  std::map<std::string, bool> used;
  for (const auto& [name, tensor] : state) used[name] = false;
  std::vector<std::pair<Linear*, LoraAdapter>> adapters;
  for (const auto& [path, linear] : linears) {
    Tensor given[3];
    const char* const names[] = {"a", "b", "alpha"};
    int found = 0;
    for (int i = 0; i < 3; ++i) {
      auto at = state.find(full_name(path, names[i]));
      if (at == state.end() || !at->second.defined()) continue;
      given[i] = at->second;
      used[at->first] = true;
      ++found;
    }
    if (found == 0 && !(has_adapters && linear->lora)) continue;
    if (has_adapters && !linear->lora) {  // found, where no adapter is
      for (const char* name : names) used[full_name(path, name)] = !state.contains(full_name(path, name));
      continue;
    }
    for (int i = 0; i < 3; ++i)
      if (!given[i].defined()) missing.push_back(full_name(path, names[i]));
    if (found < 3) continue;
    const int64_t rank = given[0].dim() == 2 ? given[0].size(0) : 0;
    const int64_t out = linear->weight.size(0), in = linear->weight.size(1);
    const int64_t wanted = linear->lora ? linear->lora->rank() : rank;
    if (rank < 1 || rank != wanted || given[0].shape() != Shape{rank, in} || given[1].shape() != Shape{out, rank} ||
        given[2].numel() != 1 || !(given[2].item<double>() > 0)) {
      mismatched.push_back(full_name(path, "") + "a " + regard::to_string(given[0].shape()) + ", b " +
                           regard::to_string(given[1].shape()) + ", alpha " + regard::to_string(given[2].shape()) +
                           " given for " + linear->describe());
      continue;
    }
    if (!has_adapters) adapters.emplace_back(linear, adapter_for(*linear, rank, given[2].item<double>(), 0));
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, is_used] : used)
    if (!is_used) unexpected.push_back(name);
  std::string text;
  auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (!names.empty()) text += std::string("; ") + title + ": " + list_names(names);
  };
  list("missing", missing);
  list("unexpected", unexpected);
  list("of another shape", mismatched);
  check<ValueError>(text.empty(), op, "the state does not fit ", model.describe(), text, "; nothing was loaded");
  if (!has_adapters) put_in(model, std::move(adapters));
  NoGrad no_grad;
  for (const auto& [path, linear] : adapted(model))
    for (auto& [name, tensor] : linear->lora->state_dict()) {
      const Tensor& given = state.at(full_name(path, name.c_str()));
      tensor.copy_(given.detach().reshape(tensor.shape()).to(tensor.device()));
    }
}

}  // namespace regard::layers
