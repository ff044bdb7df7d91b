#include <regard/optim/data/basic_words.hpp>

#include <utf8proc.h>

#include <algorithm>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  const utf8proc_category_t type = category(c);
  return type == UTF8PROC_CATEGORY_CC || type == UTF8PROC_CATEGORY_CF || type == UTF8PROC_CATEGORY_CO;
}

// Every mark of ASCII that is no letter or digit counts, "$" and "^" too.
bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const utf8proc_category_t type = category(c);
  return type >= UTF8PROC_CATEGORY_PC && type <= UTF8PROC_CATEGORY_PO;
}

// The blocks that BERT splits at. The reference begins the one from 2B820 to 2CEAF at 2B920, and so do we.
bool is_chinese(char32_t c) {
  if (c < 0x3400) return false;
  return (c >= 0x4E00 && c <= 0x9FFF) || c <= 0x4DBF || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::u32string decode(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const size_t length = read_character(text, at, c);
    check<ValueError>(length > 0, "word_piece", "the text is not UTF-8: its byte ", at + 1, " (",
                      static_cast<int>(static_cast<unsigned char>(text[at])), ") begins no character");
    result.push_back(c);
    at += length;
  }
  return result;
}

std::u32string decomposed(const std::u32string& text) {
  std::string bytes;
  for (char32_t c : text) bytes += to_utf8(c);
  std::u32string result(text.size() * 4 + 16, U'\0');
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  const auto run = [&] {
    return utf8proc_decompose(
        reinterpret_cast<const utf8proc_uint8_t*>(bytes.data()), static_cast<utf8proc_ssize_t>(bytes.size()),
        reinterpret_cast<utf8proc_int32_t*>(result.data()), static_cast<utf8proc_ssize_t>(result.size()), options);
  };
  utf8proc_ssize_t length = run();
  if (length > static_cast<utf8proc_ssize_t>(result.size())) {  // it says how many there are
    result.resize(static_cast<size_t>(length));
    length = run();
  }
  check<ValueError>(length >= 0, "word_piece", "the text cannot be decomposed: ", utf8proc_errmsg(length));
  result.resize(static_cast<size_t>(length));
  return result;
}

std::u32string lowered(const std::u32string& text) {
  std::u32string lower;
  lower.reserve(text.size());
  for (char32_t c : text) {
    if (c < 0x80) {
      lower += c >= 'A' && c <= 'Z' ? c + 32 : c;
    } else if (c == 0x130) {  // the one character whose lower case is two: a capital I with a dot
      lower += U"i\u0307";
    } else {
      lower += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    }
  }
  return lower;
}

std::u32string normalised(std::string_view bytes, const BasicWordsOptions& options) {
  std::u32string text;
  bool ascii = true;
  for (char32_t c : decode(bytes)) {
    if (options.clean_text) {
      if (c == 0 || c == 0xFFFD || is_control(c)) continue;
      if (is_white_space(c)) c = ' ';
    }
    ascii = ascii && c < 0x80;
    if (options.split_chinese && is_chinese(c)) {
      text += U' ';
      text += c;
      text += U' ';
    } else {
      text += c;
    }
  }
  if (options.strip_accents && !ascii) {
    text = decomposed(text);
    std::erase_if(text, [](char32_t c) { return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_MN; });
  }
  return options.lower_case ? lowered(text) : text;
}

}  // namespace

std::vector<std::string> basic_words(std::string_view text, const BasicWordsOptions& options) {
  std::vector<std::string> words;
  bool inside = false;
  for (char32_t c : normalised(text, options)) {
    if (is_white_space(c)) {
      inside = false;
      continue;
    }
    const bool punctuation = is_punctuation(c);
    if (punctuation || !inside) words.emplace_back();
    words.back() += to_utf8(c);
    inside = !punctuation;
  }
  return words;
}

std::string lower_case(std::string_view text) {
  std::string result;
  for (char32_t c : lowered(decode(text))) result += to_utf8(c);
  return result;
}

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

}  // namespace regard::data
