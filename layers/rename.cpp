#include <regard/layers/rename.hpp>

#include <algorithm>
#include <optional>

#include <regard/autograd/ops.hpp>

namespace regard::layers {

namespace {

constexpr const char* op = "rename";

/// A pattern: text between wildcards. texts has one more than wildcards.
struct Pattern {
  std::vector<std::string> texts{""};
  std::vector<bool> crosses_dots;

  explicit Pattern(const std::string& pattern) {
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] != '*') {
        texts.back() += pattern[i];
        continue;
      }
      const bool twice = i + 1 < pattern.size() && pattern[i + 1] == '*';
      crosses_dots.push_back(twice);
      texts.emplace_back();
      if (twice) ++i;
    }
  }

  /// What each wildcard stands for, from the `wildcard`-th on, where the rest of `name` begins at `at`.
  bool match(const std::string& name, size_t at, size_t wildcard, std::vector<std::string>& found) const {
    if (name.compare(at, texts[wildcard].size(), texts[wildcard]) != 0) return false;
    at += texts[wildcard].size();
    if (wildcard == crosses_dots.size()) return at == name.size();
    for (size_t end = crosses_dots[wildcard] ? at : at + 1; end <= name.size(); ++end) {
      if (!crosses_dots[wildcard] && name[end - 1] == '.') return false;
      found.push_back(name.substr(at, end - at));
      if (match(name, end, wildcard + 1, found)) return true;
      found.pop_back();
    }
    return false;
  }
  std::string filled(const std::vector<std::string>& with) const {
    std::string name = texts[0];
    for (size_t i = 0; i < crosses_dots.size(); ++i) name += with[i] + texts[i + 1];
    return name;
  }
};

std::string described(const RenameRule& rule, size_t index) {
  std::string text = "rule " + std::to_string(index + 1) + ", '" + rule.from + "'";
  if (rule.drop) return text + " dropped";
  if (!rule.to.empty()) text += " -> '" + rule.to + "'";
  return rule.transpose ? text + " transposed" : text;
}

struct Compiled {
  std::string text;
  Pattern from, to;
  const RenameRule* rule;
};

Compiled compiled(const RenameRule& rule, size_t index) {
  Compiled result{described(rule, index), Pattern(rule.from), Pattern(rule.to), &rule};
  check<ValueError>(!rule.from.empty(), op, result.text, ": an empty pattern matches no name");
  check<ValueError>(!rule.drop || (rule.to.empty() && !rule.transpose), op, result.text,
                    ": what is dropped is neither renamed to '", rule.to, "' nor transposed");
  check<ValueError>(result.to.crosses_dots.size() <= result.from.crosses_dots.size(), op, result.text, ": '", rule.to,
                    "' has ", result.to.crosses_dots.size(), " wildcards and '", rule.from, "' ",
                    result.from.crosses_dots.size());
  return result;
}

}  // namespace

StateDict rename(const StateDict& state, const std::vector<RenameRule>& rules) {
  std::vector<Compiled> all;
  for (size_t i = 0; i < rules.size(); ++i) all.push_back(compiled(rules[i], i));
  StateDict result;
  std::map<std::string, std::string> origins;  // new name -> where it is from, for messages
  for (const auto& [name, tensor] : state) {
    check_defined(op, name.c_str(), tensor);
    std::vector<std::string> found;
    const auto by = std::find_if(all.begin(), all.end(), [&](const Compiled& rule) {
      found.clear();
      return rule.from.match(name, 0, 0, found);
    });
    const bool matched = by != all.end();
    if (matched && by->rule->drop) continue;
    const std::string to = matched && !by->rule->to.empty() ? by->to.filled(found) : name;
    const std::string origin = "'" + name + "' (" + (matched ? by->text : "no rule") + ")";
    check<ValueError>(!to.empty(), op, origin, " would have an empty name");
    Tensor value = tensor;
    if (matched && by->rule->transpose) {
      check<ShapeError>(tensor.dim() == 2, op, origin, " is ", tensor.shape(), ": only a matrix can be transposed");
      value = tensor.detach().t();
    }
    const auto [there, is_new] = origins.emplace(to, origin);
    check<ValueError>(is_new, op, there->second, " and ", origin, " would both be named '", to, "'");
    result[to] = value;
  }
  return result;
}

}  // namespace regard::layers
