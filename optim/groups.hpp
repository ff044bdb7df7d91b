// Parameter groups by rule: which parameters of a model get which options.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <regard/layers/layer.hpp>
#include <regard/optim/optimizer.hpp>

namespace regard::optim {

using NamedParameters = std::vector<std::pair<std::string, Tensor>>;

/// Which parameters a rule takes: those whose names fit a pattern (`"*.bias"`, see layers/names.hpp), one of several
/// patterns, or those for which a function `(name, parameter) -> bool` holds.
class ParameterFilter {
 public:
  using Predicate = std::function<bool(const std::string& name, const Tensor& parameter)>;
  ParameterFilter(const char* pattern) : patterns_{pattern} {}             // NOLINT
  ParameterFilter(std::string pattern) : patterns_{std::move(pattern)} {}  // NOLINT
  ParameterFilter(std::initializer_list<const char*> patterns)
      : patterns_(patterns.begin(), patterns.end()) {}                                    // NOLINT
  ParameterFilter(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}  // NOLINT
  template <class F>
  requires std::is_invocable_r_v<bool, F&, const std::string&, const Tensor&> ParameterFilter(F predicate)
      : predicate_(std::move(predicate)) {}  // NOLINT

  bool matches(const std::string& name, const Tensor& parameter) const;
  const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  std::vector<std::string> patterns_;
  Predicate predicate_;
};

/// A rule: these parameters get these options.
template <class Options>
struct GroupRule {
  ParameterFilter filter;
  Options options = {};
};

namespace groups_detail {
/// For each filter the parameters that it is the first to match; checked as parameter_groups() says.
std::vector<Tensors> sort_out(const NamedParameters& parameters, const std::vector<ParameterFilter>& filters);
/// Those that decay, and those that do not.
struct Halves {
  Tensors decayed, rest;
};
Halves split(const layers::Layer& model, bool embeddings, const std::vector<std::string>& no_decay);
}  // namespace groups_detail

/// The parameters in groups, one a rule; each parameter goes to the first rule that takes it, and a tied one, by its
/// first name, to one group.
///
///     AdamW optimizer(parameter_groups<AdamWOptions>(model.named_parameters(), {
///         {"head.*", {.lr = 1e-3}},
///         {[](const std::string&, const Tensor& p) { return p.dim() < 2; }, {.lr = 1e-4, .weight_decay = 0}},
///         {"*", {.lr = 1e-4}},
///     }));
///
/// A ValueError, which lists names, where a pattern or function fits no parameter at all, or a parameter no rule: `"*"`
/// as the last one takes the rest. A rule whose parameters all went to earlier ones makes no group. Frozen parameters
/// are in the groups too: an optimizer passes over what has no gradient.
template <class Options>
std::vector<ParameterGroup<Options>> parameter_groups(const NamedParameters& parameters,
                                                      const std::vector<GroupRule<Options>>& rules) {
  std::vector<ParameterFilter> filters;
  for (const auto& rule : rules) filters.push_back(rule.filter);
  std::vector<Tensors> sorted = groups_detail::sort_out(parameters, filters);
  std::vector<ParameterGroup<Options>> groups;
  for (size_t i = 0; i < rules.size(); ++i)
    if (!sorted[i].empty()) groups.push_back({std::move(sorted[i]), rules[i].options});
  return groups;
}
template <class Options>
std::vector<ParameterGroup<Options>> parameter_groups(const layers::Layer& model,
                                                      const std::vector<GroupRule<Options>>& rules) {
  return parameter_groups(model.named_parameters(), rules);
}

struct DecayRules {
  bool embeddings = false;                 ///< whether Embedding and LearnedPositionalEncoding tables decay
  std::vector<std::string> no_decay = {};  ///< patterns of further parameters that do not
};

/// Two groups with the same options, but for weight decay: matrices (two dimensions or more) decay; biases and
/// norms' weights (fewer), embeddings unless asked for, and what `no_decay` names do not. A tied matrix counts as the
/// embedding it is. A group without parameters is left out.
///
///     AdamW optimizer(decay_groups(model, AdamWOptions{.lr = 3e-4, .weight_decay = 0.1}));
template <class Options>
std::vector<ParameterGroup<Options>> decay_groups(const layers::Layer& model, const Options& options,
                                                  const DecayRules& rules = {}) {
  auto [decayed, rest] = groups_detail::split(model, rules.embeddings, rules.no_decay);
  std::vector<ParameterGroup<Options>> groups;
  if (!decayed.empty()) groups.push_back({std::move(decayed), options});
  if (!rest.empty()) {
    groups.push_back({std::move(rest), options});
    groups.back().options.weight_decay = 0;
  }
  return groups;
}

/// The names and parameters of Embedding and LearnedPositionalEncoding tables in a model.
NamedParameters embedding_parameters(const layers::Layer& model);

}  // namespace regard::optim
