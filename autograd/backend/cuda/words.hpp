// Elements that are moved without being looked at: as unsigned words of their size, or of more bytes where all that is
// moved is aligned for it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/dtype.hpp>

namespace regard::cuda_backend {

/// Calls f with a value of the word of `bytes` bytes: 1, 2, 4, 8 or 16.
template <class F>
void visit_bytes(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(uint4{});
  }
}

/// The same with a word as large as an element: one kernel for all dtypes of a size.
template <class F>
void visit_word(DType dtype, F&& f) {
  switch (element_size(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

/// Elements that a thread takes at once where memory is dense: 16 bytes of f32 and of the 16-bit types, 32 of the
/// others.
template <class T>
inline constexpr int line_width = sizeof(T) == 2 ? 8 : 4;

/// Neighbouring elements that are moved at once, aligned to as much as a GPU moves at once.
template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Line {
  T at[width];
};
template <int width, class T>
__device__ Line<T, width> load_line(const T* from) {
  return *reinterpret_cast<const Line<T, width>*>(from);
}
template <class T, int width>
__device__ void store_line(T* to, const Line<T, width>& line) {
  *reinterpret_cast<Line<T, width>*>(to) = line;
}

/// The largest power of two, up to 16, that divides all bytes and addresses it has met: a word that may be moved there.
class Alignment {
 public:
  Alignment& meet(int64_t bytes) {
    bits_ |= static_cast<uint64_t>(bytes);
    return *this;
  }
  Alignment& meet(const void* address) {
    bits_ |= reinterpret_cast<uintptr_t>(address);
    return *this;
  }
  int64_t bytes() const { return static_cast<int64_t>(bits_ & (~bits_ + 1)); }

 private:
  uint64_t bits_ = 16;
};

}  // namespace regard::cuda_backend
