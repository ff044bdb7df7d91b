#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace examples {

/// The tokens of a task: one a character (a Unicode code point), after three that are no characters. Characters are
/// numbered in the order of their code points, whatever the order of the texts.
class Vocabulary {
 public:
  static constexpr int64_t padding = 0;  // fills a row up to the length of its batch
  static constexpr int64_t start = 1;    // comes before an answer
  static constexpr int64_t end = 2;      // comes after it
  static constexpr int64_t first_character = 3;

  Vocabulary() = default;
  /// The vocabulary of all characters of `texts`. Throws Utf8Error.
  explicit Vocabulary(const std::vector<std::string>& texts);

  int64_t size() const { return first_character + static_cast<int64_t>(characters_.size()); }

  /// The tokens of a text, without start and end. Throws std::invalid_argument naming a character that is not in the
  /// vocabulary, and Utf8Error.
  std::vector<int64_t> encode(std::string_view text) const;

  /// The text of tokens: characters up to the first end token; padding and start add nothing. A model's answer is
  /// right where its text is the output's. Throws std::out_of_range for a number that is no token.
  std::string decode(const std::vector<int64_t>& tokens) const;

  /// What to show for a token: its character, or "<pad>", "<start>", "<end>". Throws std::out_of_range.
  std::string label(int64_t token) const;

  const std::u32string& characters() const { return characters_; }

 private:
  std::u32string characters_;
  std::unordered_map<char32_t, int64_t> tokens_;
};

}  // namespace examples
