#include <regard/optim/data/byte_alphabet.hpp>

#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int, 0x144> bytes{};  // by character; -1: none
  std::array<unsigned char, 256> in_order{};

  Alphabet() {
    char32_t next = 0x100;
    bytes.fill(-1);
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
      characters[byte] = visible ? byte : next++;
      bytes[characters[byte]] = static_cast<int>(byte);
    }
    size_t count = 0;
    for (int byte : bytes)
      if (byte >= 0) in_order[count++] = static_cast<unsigned char>(byte);
  }
};

const Alphabet& alphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

const std::array<unsigned char, 256>& bytes_in_alphabet_order() { return alphabet().in_order; }

std::string to_byte_alphabet(std::string_view bytes) {
  std::string written;
  for (char c : bytes) written += to_utf8(alphabet().characters[static_cast<unsigned char>(c)]);
  return written;
}

std::optional<std::string> from_byte_alphabet(std::string_view written) {
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    char32_t c = 0;
    const size_t length = read_character(written, at, c);
    if (length == 0 || c >= alphabet().bytes.size() || alphabet().bytes[c] < 0) return std::nullopt;
    bytes += static_cast<char>(static_cast<unsigned char>(alphabet().bytes[c]));
    at += length;
  }
  return bytes;
}

}  // namespace regard::data
