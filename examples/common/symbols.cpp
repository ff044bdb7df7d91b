#include <regard/examples/common/symbols.hpp>
#include <regard/examples/common/utf8.hpp>
#include <set>
#include <stdexcept>

namespace examples {
namespace {

std::string with_small_letters(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

std::vector<std::string> symbols_of(std::string_view text, SymbolUnit unit) {
  const std::u32string characters = from_utf8(text);
  std::vector<std::string> symbols;
  if (unit == SymbolUnit::characters) {
    for (char32_t c : characters) symbols.push_back(to_utf8(c));
    return symbols;
  }
  bool inside = false;
  for (char c : text) {
    const bool space = c == ' ' || c == '\t';
    if (!space && !inside) symbols.emplace_back();
    if (!space) symbols.back() += c;
    inside = !space;
  }
  return symbols;
}

SymbolVocabulary::SymbolVocabulary(SymbolUnit unit, const std::vector<std::string>& texts) : unit_(unit) {
  std::set<std::string> seen;
  for (const std::string& text : texts)
    for (std::string& symbol : symbols_of(text, unit)) seen.insert(std::move(symbol));
  symbols_.assign(seen.begin(), seen.end());
  number_symbols();
}

void SymbolVocabulary::number_symbols() {
  for (std::size_t i = 0; i < symbols_.size(); ++i) tokens_[symbols_[i]] = first_symbol + static_cast<int64_t>(i);
}

std::vector<int64_t> SymbolVocabulary::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  for (const std::string& symbol : symbols_of(text, unit_)) {
    auto found = tokens_.find(symbol);
    if (found == tokens_.end()) found = tokens_.find(with_small_letters(symbol));
    if (found == tokens_.end())
      throw std::invalid_argument("the " + std::string(unit_ == SymbolUnit::words ? "word " : "character ") +
                                  in_quotes(symbol) + " is not in the model's vocabulary");
    tokens.push_back(found->second);
  }
  return tokens;
}

std::string SymbolVocabulary::decode(const std::vector<int64_t>& tokens) const {
  std::string text;
  for (int64_t token : tokens) {
    if (token == end) break;
    if (unit_ == SymbolUnit::words && !text.empty()) text += ' ';
    text += label(token);
  }
  return text;
}

std::string SymbolVocabulary::label(int64_t token) const {
  if (token < 0 || token >= size())
    throw std::out_of_range("SymbolVocabulary: there is no token " + std::to_string(token) + "; they are 0 to " +
                            std::to_string(size() - 1));
  if (token == padding) return "<pad>";
  if (token == start) return "<start>";
  if (token == end) return "<end>";
  return symbols_[static_cast<std::size_t>(token - first_symbol)];
}

nlohmann::ordered_json SymbolVocabulary::to_json() const {
  return {{"unit", unit_ == SymbolUnit::words ? "words" : "characters"}, {"symbols", symbols_}};
}

SymbolVocabulary SymbolVocabulary::from_json(const nlohmann::ordered_json& json) {
  SymbolVocabulary result;
  const auto unit = json.at("unit").get<std::string>();
  if (unit != "words" && unit != "characters")
    throw std::invalid_argument("a vocabulary's unit is characters or words, not " + in_quotes(unit));
  result.unit_ = unit == "words" ? SymbolUnit::words : SymbolUnit::characters;
  result.symbols_ = json.at("symbols").get<std::vector<std::string>>();
  result.number_symbols();
  if (result.tokens_.size() != result.symbols_.size())
    throw std::invalid_argument("a vocabulary holds the same symbol twice");
  return result;
}

}  // namespace examples
