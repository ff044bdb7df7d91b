#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace examples {

/// What a text is made of: its characters (Unicode code points), or the words between its spaces.
enum class SymbolUnit { characters, words };

/// The symbols of a text, in order. Words are parted by spaces and tabs, however many. Throws Utf8Error.
std::vector<std::string> symbols_of(std::string_view text, SymbolUnit unit);

/// The tokens of a language: its symbols, in the order of their bytes, after three that are no symbols.
class SymbolVocabulary {
 public:
  static constexpr int64_t padding = 0;  // fills a row up to the length of its batch
  static constexpr int64_t start = 1;    // comes before a text that is to be said
  static constexpr int64_t end = 2;      // comes after it
  static constexpr int64_t first_symbol = 3;

  SymbolVocabulary() = default;
  /// All symbols of `texts`. Throws Utf8Error.
  SymbolVocabulary(SymbolUnit unit, const std::vector<std::string>& texts);

  SymbolUnit unit() const { return unit_; }
  int64_t size() const { return first_symbol + static_cast<int64_t>(symbols_.size()); }

  /// The tokens of a text, without start and end. A symbol that is not in the vocabulary is read as the small form of
  /// its ASCII letters where that is. Throws std::invalid_argument naming a symbol that is not there, and Utf8Error.
  std::vector<int64_t> encode(std::string_view text) const;

  /// The text of tokens up to the first end token: words with a space between, characters without. Padding and start
  /// tokens show as their labels. Throws std::out_of_range for a number that is no token.
  std::string decode(const std::vector<int64_t>& tokens) const;

  /// What to show for a token: its symbol, or "<pad>", "<start>", "<end>". Throws std::out_of_range.
  std::string label(int64_t token) const;

  nlohmann::ordered_json to_json() const;
  /// What to_json() gave. Throws std::invalid_argument, or the JSON library's error, where it is something else.
  static SymbolVocabulary from_json(const nlohmann::ordered_json& json);

 private:
  void number_symbols();

  SymbolUnit unit_ = SymbolUnit::characters;
  std::vector<std::string> symbols_;
  std::unordered_map<std::string, int64_t> tokens_;
};

}  // namespace examples
