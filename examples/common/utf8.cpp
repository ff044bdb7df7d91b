#include <cstdint>
#include <cstdio>
#include <regard/examples/common/utf8.hpp>

namespace examples {
namespace {

constexpr char32_t replacement = 0xFFFD;

bool is_code_point(char32_t c) { return c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF); }

// Reads one character at `at`. Returns its length in bytes, or 0 where no valid character begins.
std::size_t read_character(std::string_view text, std::size_t at, char32_t& code_point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) {
    code_point = first;
    return 1;
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  char32_t value = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    value = (value << 6) | (byte(at + i) & 0x3Fu);
  }
  const char32_t smallest = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;  // below it: an overlong form
  if (value < smallest || !is_code_point(value)) return 0;
  code_point = value;
  return length;
}

}  // namespace

Utf8Error::Utf8Error(std::size_t at)
    : std::runtime_error("invalid UTF-8 at byte " + std::to_string(at + 1)), position(at) {}

std::u32string from_utf8(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    char32_t code_point = 0;
    const std::size_t length = read_character(text, at, code_point);
    if (length == 0) throw Utf8Error(at);
    result.push_back(code_point);
    at += length;
  }
  return result;
}

std::u32string from_utf8_lossy(std::string_view text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    char32_t code_point = replacement;
    const std::size_t length = read_character(text, at, code_point);
    result.push_back(length == 0 ? replacement : code_point);
    at += length == 0 ? 1 : length;
  }
  return result;
}

std::string to_utf8(char32_t c) {
  if (!is_code_point(c)) c = replacement;
  const auto tail = [&](int shift) { return static_cast<char>(0x80u | ((c >> shift) & 0x3Fu)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0u | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0u | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0u | (c >> 18)), tail(12), tail(6), tail(0)};
}

std::string to_utf8(std::u32string_view text) {
  std::string result;
  for (char32_t c : text) result += to_utf8(c);
  return result;
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  int characters = 0;
  for (std::size_t at = 0; at < text.size(); ++characters) {
    if (characters == 60) {
      result += "…";
      break;
    }
    char32_t code_point = 0;
    std::size_t length = read_character(text, at, code_point);
    if (length == 0 || code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) {
      length = length == 0 ? 1 : length;
      for (std::size_t i = at; i < at + length; ++i) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(text[i]));
        result += escaped;
      }
    } else {
      result += text.substr(at, length);
    }
    at += length;
  }
  return result + "'";
}

}  // namespace examples
