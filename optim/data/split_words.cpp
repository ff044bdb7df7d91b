// GPT-2's pattern for words, by hand: a regular expression would be slower by far, and knows no \p{L}.
#include <algorithm>

#include <regard/optim/data/byte_pairs.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

enum class Kind { end, space, letter, number, other };

struct Character {
  Kind kind;
  size_t length;
};

Character character_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {Kind::end, 0};
  char32_t c = 0;
  const size_t length = read_character(text, at, c);
  if (length == 0) return {Kind::other, 1};
  const Kind kind = is_letter(c)        ? Kind::letter
                    : is_number(c)      ? Kind::number
                    : is_white_space(c) ? Kind::space
                                        : Kind::other;
  return {kind, length};
}

// 's 't 're 've 'm 'll 'd
size_t contraction(std::string_view rest) {
  for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
    if (rest.starts_with(ending)) return ending.size();
  return 0;
}

// Where the run of characters of one kind ends; `last` is set to where its last character begins.
size_t end_of_run(std::string_view text, size_t at, Kind kind, size_t& last) {
  for (last = at;;) {
    const Character next = character_at(text, at);
    if (next.kind != kind) return at;
    last = at;
    at += next.length;
  }
}

size_t end_of_word(std::string_view text, size_t begin) {
  if (const size_t length = contraction(text.substr(begin)); length > 0) return begin + length;
  size_t last = 0;
  const Character first = character_at(text, begin);
  if (first.kind != Kind::space) return end_of_run(text, begin, first.kind, last);
  if (text[begin] == ' ') {  // a word has one space before it
    const Kind kind = character_at(text, begin + 1).kind;
    if (kind != Kind::space && kind != Kind::end) return end_of_run(text, begin + 1, kind, last);
  }
  // White space, but for its last character, which may belong to the next word.
  const size_t end = end_of_run(text, begin, Kind::space, last);
  return end == text.size() || last == begin ? end : last;
}

}  // namespace

void split_words(std::string_view text, const std::function<void(std::string_view)>& use) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = end_of_word(text, begin);
    use(text.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace regard::data
