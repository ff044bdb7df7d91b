#include <regard/examples/common/utf8.hpp>
#include <regard/examples/common/vocabulary.hpp>
#include <set>
#include <stdexcept>

namespace examples {

Vocabulary::Vocabulary(const std::vector<std::string>& texts) {
  std::set<char32_t> seen;
  for (const std::string& text : texts)
    for (char32_t c : from_utf8(text)) seen.insert(c);
  characters_.assign(seen.begin(), seen.end());
  for (std::size_t i = 0; i < characters_.size(); ++i)
    tokens_[characters_[i]] = first_character + static_cast<int64_t>(i);
}

std::vector<int64_t> Vocabulary::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  for (char32_t c : from_utf8(text)) {
    const auto found = tokens_.find(c);
    if (found == tokens_.end())
      throw std::invalid_argument("Vocabulary: the character " + in_quotes(to_utf8(c)) + " is not among the task's");
    tokens.push_back(found->second);
  }
  return tokens;
}

std::string Vocabulary::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (int64_t token : tokens) {
    if (token == end) break;
    if (token != padding && token != start) text += label(token);
  }
  return text;
}

std::string Vocabulary::label(int64_t token) const {
  if (token < 0 || token >= size())
    throw std::out_of_range("Vocabulary: there is no token " + std::to_string(token) + "; they are 0 to " +
                            std::to_string(size() - 1));
  if (token == padding) return "<pad>";
  if (token == start) return "<start>";
  if (token == end) return "<end>";
  return to_utf8(characters_[static_cast<std::size_t>(token - first_character)]);
}

}  // namespace examples
