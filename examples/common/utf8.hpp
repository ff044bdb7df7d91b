// UTF-8 texts as code points; the library's own functions for one character, and for quoting, are taken as they are.
#pragma once

#include <cstddef>
#include <regard/optim/data/unicode.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace examples {

/// Text that is not UTF-8; `position` is the byte, from 0, at which the first broken character begins.
struct Utf8Error : std::runtime_error {
  explicit Utf8Error(std::size_t at);
  std::size_t position;
};

/// The code points of `text`. Throws Utf8Error at overlong forms, surrogates, values above U+10FFFF and characters
/// that are cut off: strict, so that decoding and encoding again always gives the same bytes.
std::u32string from_utf8(std::string_view text);

/// As from_utf8, with U+FFFD in place of every byte that belongs to no character. For text that is only shown.
std::u32string from_utf8_lossy(std::string_view text);

/// One code point as UTF-8 (one that is none becomes U+FFFD), and a text of them.
using regard::data::to_utf8;
std::string to_utf8(std::u32string_view text);

using regard::data::in_quotes;

}  // namespace examples
