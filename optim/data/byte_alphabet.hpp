// GPT-2's way to write bytes as visible characters, in which its files hold tokens: printable bytes of Latin-1 as they
// are, the others as the characters from U+0100 on (a space is Ġ). For byte_pairs.cpp and its trainer alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace regard::data {

/// The 256 bytes in the order of their characters: the order of GPT-2's first ids.
const std::array<unsigned char, 256>& bytes_in_alphabet_order();

std::string to_byte_alphabet(std::string_view bytes);
/// Nothing where a character of `written` stands for no byte.
std::optional<std::string> from_byte_alphabet(std::string_view written);

}  // namespace regard::data
