#include <regard/examples/common/utf8.hpp>

namespace examples {

Utf8Error::Utf8Error(std::size_t at)
    : std::runtime_error("invalid UTF-8 at byte " + std::to_string(at + 1)), position(at) {}

std::u32string from_utf8(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    char32_t code_point = 0;
    const std::size_t length = regard::data::read_character(text, at, code_point);
    if (length == 0) throw Utf8Error(at);
    result.push_back(code_point);
    at += length;
  }
  return result;
}

std::u32string from_utf8_lossy(std::string_view text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    char32_t code_point = 0;
    const std::size_t length = regard::data::read_character(text, at, code_point);
    result.push_back(length == 0 ? U'\uFFFD' : code_point);
    at += length == 0 ? 1 : length;
  }
  return result;
}

std::string to_utf8(std::u32string_view text) {
  std::string result;
  for (char32_t c : text) result += to_utf8(c);
  return result;
}

}  // namespace examples
