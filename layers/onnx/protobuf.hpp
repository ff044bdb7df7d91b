// The wire format of protocol buffers, as far as ONNX files need it: numbers, and bytes with their length. A dependency
// on protobuf itself would cost every user of the library more than these lines.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace regard::onnx {

/// Writes the fields of one message; a message inside is the bytes of another. See "Encoding" in the documentation of
/// protocol buffers.
class MessageWriter {
 public:
  /// int32, int64, enum, bool: seven bits a byte, the lowest first; negative numbers take ten bytes.
  MessageWriter& number(uint32_t field, int64_t value) {
    tag(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  /// string, bytes, or a message.
  MessageWriter& bytes(uint32_t field, std::string_view value) {
    length(field, value.size());
    text_ += value;
    return *this;
  }
  MessageWriter& message(uint32_t field, const MessageWriter& value) { return bytes(field, value.text_); }
  /// float: four bytes, little-endian.
  MessageWriter& real(uint32_t field, float value) {
    tag(field, 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) text_ += static_cast<char>(bits >> shift & 0xFF);
    return *this;
  }
  /// Begins a field of bytes whose contents the caller writes behind this message's.
  MessageWriter& length(uint32_t field, uint64_t size) {
    tag(field, 2);
    varint(size);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void tag(uint32_t field, uint32_t wire_type) { varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }

  std::string text_;
};

}  // namespace regard::onnx
