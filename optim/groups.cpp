#include <regard/optim/groups.hpp>

#include <algorithm>
#include <set>

#include <regard/layers/embedding.hpp>
#include <regard/layers/names.hpp>
#include <regard/layers/positions.hpp>

namespace regard::optim {

bool ParameterFilter::matches(const std::string& name, const Tensor& parameter) const {
  if (predicate_) return predicate_(name, parameter);
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const std::string& pattern) { return layers::name_matches(pattern, name); });
}

NamedParameters embedding_parameters(const layers::Layer& model) {
  std::set<const TensorImpl*> tables;
  layers::Walk walk;
  walk.on_layer = [&](const std::string&, layers::Layer& layer) {
    if (const auto* table = dynamic_cast<const layers::Embedding*>(&layer))
      tables.insert(table->weight.tensor().impl());
    else if (const auto* positions = dynamic_cast<const layers::LearnedPositionalEncoding*>(&layer))
      tables.insert(positions->weight.tensor().impl());
  };
  walk.run(model);
  NamedParameters found = model.named_parameters();
  std::erase_if(found, [&](const auto& entry) { return !tables.contains(entry.second.impl()); });
  return found;
}

namespace groups_detail {

namespace {

const char* const kOp = "parameter_groups";

std::vector<std::string> names_of(const NamedParameters& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters) names.push_back(name);
  return names;
}

void check_pattern(const char* op, const std::string& pattern, const NamedParameters& parameters) {
  bool fits = std::any_of(parameters.begin(), parameters.end(),
                          [&](const auto& entry) { return layers::name_matches(pattern, entry.first); });
  check<ValueError>(fits, op, "the pattern '", pattern, "' fits no parameter; there are ",
                    fits ? "" : layers::list_names(names_of(parameters)));
}

}  // namespace

std::vector<Tensors> sort_out(const NamedParameters& parameters, const std::vector<ParameterFilter>& filters) {
  check<ValueError>(!parameters.empty(), kOp, "no parameters are given");
  check<ValueError>(!filters.empty(), kOp, "no rules are given: {\"*\", options} takes every parameter");
  std::vector<Tensors> sorted(filters.size());
  std::vector<bool> matched(filters.size());
  std::vector<std::string> left;
  std::set<const TensorImpl*> seen;
  for (const auto& [name, parameter] : parameters) {
    check_defined(kOp, name.c_str(), parameter);
    const bool fresh = seen.insert(parameter.impl()).second;
    bool taken = false;
    for (size_t i = 0; i < filters.size(); ++i) {
      if (!filters[i].matches(name, parameter)) continue;
      matched[i] = true;
      if (fresh && !taken) sorted[i].push_back(parameter);
      taken = true;
    }
    if (!taken && fresh) left.push_back(name);
  }
  for (size_t i = 0; i < filters.size(); ++i) {
    for (const std::string& pattern : filters[i].patterns()) check_pattern(kOp, pattern, parameters);
    check<ValueError>(matched[i], kOp, "the function of rule ", i, " fits no parameter; there are ",
                      matched[i] ? "" : layers::list_names(names_of(parameters)));
  }
  check<ValueError>(left.empty(), kOp, "no rule takes ", left.empty() ? "" : layers::list_names(left),
                    ": add a last rule {\"*\", options} for the rest");
  return sorted;
}

Halves split(const layers::Layer& model, bool embeddings, const std::vector<std::string>& no_decay) {
  const NamedParameters parameters = model.named_parameters();
  check<ValueError>(!parameters.empty(), "decay_groups", model.describe(), " has no parameters");
  for (const std::string& pattern : no_decay) check_pattern("decay_groups", pattern, parameters);
  std::set<const TensorImpl*> excepted;
  if (!embeddings)
    for (const auto& [name, table] : embedding_parameters(model)) excepted.insert(table.impl());
  Halves halves;
  for (const auto& [name, parameter] : parameters) {
    const std::string& full = name;
    const bool named = std::any_of(no_decay.begin(), no_decay.end(),
                                   [&](const std::string& pattern) { return layers::name_matches(pattern, full); });
    const bool decays = parameter.dim() >= 2 && !excepted.contains(parameter.impl()) && !named;
    (decays ? halves.decayed : halves.rest).push_back(parameter);
  }
  return halves;
}

}  // namespace groups_detail

}  // namespace regard::optim
