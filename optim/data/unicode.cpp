#include <regard/optim/data/unicode.hpp>

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>

namespace regard::data {

namespace {

constexpr char32_t replacement = 0xFFFD;

bool is_code_point(char32_t c) { return c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF); }

unsigned char byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

size_t announced_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
}

// How many bytes from `at` on could begin a character: the announced length where all of it is good.
size_t good_bytes(std::string_view text, size_t at) {
  const unsigned char first = byte_at(text, at);
  const size_t length = announced_length(first);
  if (length == 0) return 0;
  size_t good = 1;
  for (; good < length && at + good < text.size(); ++good) {
    const unsigned char next = byte_at(text, at + good);
    // The second byte also tells overlong forms, surrogates and what is beyond U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (good == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (next < low || next > high) break;
  }
  return good;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

}  // namespace

size_t read_character(std::string_view text, size_t at, char32_t& code_point) {
  const unsigned char first = byte_at(text, at);
  if (first < 0x80) {
    code_point = first;
    return 1;
  }
  const size_t length = announced_length(first);
  if (length == 0 || good_bytes(text, at) != length) return 0;
  char32_t value = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte_at(text, at + i) & 0x3FU);
  code_point = value;
  return length;
}

std::string to_utf8(char32_t c) {
  if (!is_code_point(c)) c = replacement;
  const auto tail = [&](int shift) { return static_cast<char>(0x80U | ((c >> shift) & 0x3FU)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0U | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0U | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0U | (c >> 18)), tail(12), tail(6), tail(0)};
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    char32_t code_point = 0;
    const size_t length = read_character(text, at, code_point);
    if (length == 0) return at;
    at += length;
  }
  return text.size();
}

size_t unfinished_character(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if ((byte_at(text, at) & 0xC0U) == 0x80) continue;  // not the first byte of a character
    return announced_length(byte_at(text, at)) > back && good_bytes(text, at) == back ? back : 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t code_point = 0;
    size_t length = read_character(text, at, code_point);
    if (length == 0) {
      result += to_utf8(replacement);
      length = std::max<size_t>(1, good_bytes(text, at));  // the beginning of a broken character counts as one
    } else {
      result += text.substr(at, length);
    }
    at += length;
  }
  return result;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
  const utf8proc_category_t type = category(c);
  return type >= UTF8PROC_CATEGORY_LU && type <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= U'0' && c <= U'9';
  const utf8proc_category_t type = category(c);
  return type >= UTF8PROC_CATEGORY_ND && type <= UTF8PROC_CATEGORY_NO;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == U' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  int characters = 0;
  for (size_t at = 0; at < text.size(); ++characters) {
    if (characters == 60) {
      result += "…";
      break;
    }
    char32_t c = 0;
    size_t length = read_character(text, at, c);
    if (length == 0 || c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      length = length == 0 ? 1 : length;
      for (size_t i = at; i < at + length; ++i) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(byte_at(text, i)));
        result += escaped;
      }
    } else {
      result += text.substr(at, length);
    }
    at += length;
  }
  return result + "'";
}

}  // namespace regard::data
