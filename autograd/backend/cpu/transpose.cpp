#include <regard/autograd/backend/cpu/transpose.hpp>

#include <cstring>

#include <regard/autograd/backend/cpu/highway_targets.hpp>
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/transpose.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
template <class Word>
void transpose_words(Word* to, int64_t to_stride, const Word* from, int64_t from_stride, int64_t rows,
                     int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}
#else
// 4 x 4 words of 4 bytes: four loads, eight shuffles, four stores.
HWY_INLINE void block(uint32_t* to, int64_t to_stride, const uint32_t* from, int64_t from_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> wide;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride), r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, to + 3 * to_stride);
}
HWY_INLINE void block(uint64_t* to, int64_t to_stride, const uint64_t* from, int64_t from_stride) {
  const hn::FixedTag<uint64_t, 2> d;
  for (int64_t i = 0; i < 4; i += 2)
    for (int64_t j = 0; j < 4; j += 2) {
      const auto r0 = hn::LoadU(d, from + j * from_stride + i), r1 = hn::LoadU(d, from + (j + 1) * from_stride + i);
      hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to + i * to_stride + j);
      hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + (i + 1) * to_stride + j);
    }
}

// Square tiles of whole cache lines go through a buffer: each line is read once and written once, whatever the strides
// (rows a power of two apart fall on the same lines of the cache, which would not hold them for a second use).
template <class Word>
void transpose_words(Word* to, int64_t to_stride, const Word* from, int64_t from_stride, int64_t rows,
                     int64_t columns) {
  constexpr int64_t tile = 64 / sizeof(Word);
  HWY_ALIGN Word buffer[tile * tile];
  for (int64_t i = 0; i < rows; i += tile) {
    for (int64_t j = 0; j < columns; j += tile) {
      const int64_t height = rows - i < tile ? rows - i : tile, width = columns - j < tile ? columns - j : tile;
      const Word* source = from + j * from_stride + i;
      Word* target = to + i * to_stride + j;
      if (height == tile && width == tile) {
        for (int64_t k = 0; k < tile; ++k) std::memcpy(buffer + k * tile, source + k * from_stride, 64);
        for (int64_t k = 0; k < tile; k += 4)
          for (int64_t l = 0; l < tile; l += 4)
            block(target + k * to_stride + l, to_stride, buffer + l * tile + k, tile);
      } else {
        for (int64_t k = 0; k < height; ++k)
          for (int64_t l = 0; l < width; ++l) target[k * to_stride + l] = source[l * from_stride + k];
      }
    }
  }
}
#endif

void transpose_32(uint32_t* to, int64_t to_stride, const uint32_t* from, int64_t from_stride, int64_t rows,
                  int64_t columns) {
  transpose_words(to, to_stride, from, from_stride, rows, columns);
}
void transpose_64(uint64_t* to, int64_t to_stride, const uint64_t* from, int64_t from_stride, int64_t rows,
                  int64_t columns) {
  transpose_words(to, to_stride, from, from_stride, rows, columns);
}

}  // namespace
}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(transpose_32);
HWY_EXPORT(transpose_64);

void transpose(uint32_t* to, int64_t to_stride, const uint32_t* from, int64_t from_stride, int64_t rows,
               int64_t columns) {
  HWY_DYNAMIC_DISPATCH(transpose_32)(to, to_stride, from, from_stride, rows, columns);
}
void transpose(uint64_t* to, int64_t to_stride, const uint64_t* from, int64_t from_stride, int64_t rows,
               int64_t columns) {
  HWY_DYNAMIC_DISPATCH(transpose_64)(to, to_stride, from, from_stride, rows, columns);
}

}  // namespace regard::cpu_backend
#endif
