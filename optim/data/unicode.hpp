// UTF-8 and the classes of characters that tokenizers ask for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace regard::data {

/// Reads the character that begins at byte `at` of `text`. Returns its length in bytes, 1 to 4, or 0 where no character
/// begins: a broken or cut-off one, an overlong form, a surrogate, a value above U+10FFFF.
size_t read_character(std::string_view text, size_t at, char32_t& code_point);

/// A code point as UTF-8; a value that is none becomes U+FFFD.
std::string to_utf8(char32_t code_point);

/// The byte, from 0, at which the first broken character begins; text.size() where there is none.
size_t find_invalid_utf8(std::string_view text);

/// How many bytes at the end of `text` are the beginning of a character that further bytes may complete: 0 to 3.
size_t unfinished_character(std::string_view text);

/// `text` with U+FFFD in place of what is not UTF-8: one for each broken character, as Python's errors="replace" does.
std::string replace_invalid_utf8(std::string_view text);

/// The general category L: letters. Categories are those of utf8proc (2.8, which Debian 12 has, knows Unicode 15); a
/// character that its Unicode has not assigned is neither a letter nor a number.
bool is_letter(char32_t code_point);
/// The general category N: digits and other numbers.
bool is_number(char32_t code_point);
/// The property White_Space.
bool is_white_space(char32_t code_point);

/// `text` in single quotes for one line of an error message: control characters and broken bytes as \xNN, cut with
/// an ellipsis after 60 characters.
std::string in_quotes(std::string_view text);

}  // namespace regard::data
