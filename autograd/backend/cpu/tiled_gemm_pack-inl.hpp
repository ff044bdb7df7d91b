// Packing for tiled_gemm.cpp, once for each instruction set.
#if defined(REGARD_TILED_GEMM_PACK_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_TILED_GEMM_PACK_INL_HPP
#undef REGARD_TILED_GEMM_PACK_INL_HPP
#else
#define REGARD_TILED_GEMM_PACK_INL_HPP
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 64 bytes a vector, so that arrays for one have a fixed size.
template <class T>
constexpr int64_t most_lanes = 64 / static_cast<int64_t>(sizeof(T));
template <class T>
using Tag = hn::CappedTag<T, static_cast<size_t>(most_lanes<T>)>;
constexpr int wide_vectors = 4;

// A tile is tile_rows rows by two vectors: 24 sums, 2 vectors of B and an element of A in 32 registers, or 12 in 16.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
template <class T>
constexpr int tile_rows = 6;
#else
template <class T>
constexpr int tile_rows = 12;
#endif
// With a block of k they are 480 KiB, or 240 where processors that have no longer vectors have half the cache.
template <class T>
constexpr int64_t block_rows = 20 * tile_rows<T> * 4 / static_cast<int64_t>(sizeof(T));

// `rows` rows shared out between as few tiles as there can be, so that none is much shorter than the others: the first
// `full` tiles have `height` rows, the rest one less.
struct TileShares {
  int64_t count, height, full;
  HWY_INLINE TileShares(int64_t rows, int64_t longest)
      : count((rows + longest - 1) / longest), height((rows + count - 1) / count), full(rows - (height - 1) * count) {}
  HWY_INLINE int64_t height_of(int64_t tile) const { return tile < full ? height : height - 1; }
};

// Rows lie far apart, where the processor's own prefetching begins anew with each.
constexpr int64_t rows_ahead = 8, columns_ahead = 8;

// The first `count` (1 to a whole vector) elements at `from`, which are all that is read; zeros after them.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_first(D d, const T* from, int64_t count) {
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, from);
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN T buffer[most_lanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  return hn::Load(d, buffer);
#else
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(count)), d, from);
#endif
}

#if HWY_TARGET != HWY_SCALAR
// One vector of 128-bit blocks, block i from where columns[i * (elements of a block)] points, moved on by `offset`.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* const* columns, int64_t offset) {
  if constexpr (hn::MaxLanes(D()) * sizeof(T) <= 16) {
    return hn::LoadU(d, columns[0] + offset);
  } else {
    const hn::Half<D> half;
    const auto lower = load_blocks(half, columns, offset);
    return hn::Combine(d, load_blocks(half, columns + hn::Lanes(half), offset), lower);
  }
}

#endif

// `lanes` columns that lie along k, into rows of the panel: blocks of 4 x 4 (f64: 2 x 2) are transposed in registers.
template <class T>
HWY_INLINE void pack_columns(int64_t k, const T* const* columns, T* to, int64_t width) {
  const Tag<T> d;
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int64_t block = 16 / static_cast<int64_t>(sizeof(T));
  for (; p + block <= k; p += block, to += block * width) {
    const auto v0 = load_blocks(d, columns, p);
    const auto v1 = load_blocks(d, columns + 1, p);
    if constexpr (block == 2) {
      hn::Store(hn::InterleaveLower(d, v0, v1), d, to);
      hn::Store(hn::InterleaveUpper(d, v0, v1), d, to + width);
    } else {
      const auto v2 = load_blocks(d, columns + 2, p);
      const auto v3 = load_blocks(d, columns + 3, p);
      const hn::Repartition<uint64_t, Tag<T>> pairs;
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + width);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * width);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * width);
    }
  }
#endif
  for (; p < k; ++p, to += width) {
    for (size_t j = 0; j < hn::Lanes(d); ++j) to[j] = columns[j][p];
  }
}

// B [k, columns] into a panel [k, vectors * lanes]. What stands past the last column is never used.
template <class T>
void pack_panel(int64_t k, int64_t columns, int64_t vectors, Matrix<const T> b, T* to) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d), width = vectors * lanes;
  if (b.column_stride == 1) {
    const T* from = b.data;
    if (columns == 2 * lanes) {
      for (int64_t p = 0; p < k; ++p, from += b.row_stride, to += width) {
        hwy::Prefetch(from + rows_ahead * b.row_stride);
        hwy::Prefetch(from + rows_ahead * b.row_stride + lanes);
        const auto first = hn::LoadU(d, from), second = hn::LoadU(d, from + lanes);
        hn::Store(first, d, to);
        hn::Store(second, d, to + lanes);
      }
      return;
    }
    for (int64_t p = 0; p < k; ++p, from += b.row_stride, to += width) {
      for (int64_t j = 0; j < columns; j += lanes) hn::Store(load_first(d, from + j, columns - j), d, to + j);
    }
  } else if (b.row_stride == 1) {
    const T* starts[wide_vectors * most_lanes<T>];
    for (int64_t j = 0; j < width; ++j) starts[j] = b.data + std::min(j, columns - 1) * b.column_stride;
    for (int64_t j = 0; j < columns; j += lanes) pack_columns(k, starts + j, to + j, width);
  } else {
    for (int64_t p = 0; p < k; ++p, to += width) {
      const T* from = b.data + p * b.row_stride;
      for (int64_t j = 0; j < width; ++j) to[j] = from[std::min(j, columns - 1) * b.column_stride];
    }
  }
}

// `next` is how far on the row lies that is worth fetching meanwhile.
template <class T>
HWY_INLINE void copy(const T* from, int64_t count, T* to, int64_t next) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hwy::Prefetch(from + next + i);
    hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  }
  for (; i < count; ++i) to[i] = from[i];
}

// Columns [rows, k] of A, which lie along the rows, as panels of tile_rows<T> rows or one less.
template <class T>
void pack_row_panels(int64_t rows, int64_t k, Matrix<const T> a, T* to) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d), stride = a.column_stride;
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  const TileShares shares(rows, tile_rows<T>);
  // Whole vectors read and write past the panel's rows: what comes next in A, and what the panel's next steps
  // overwrite. Not in its last steps, whose next is the beginning of another panel.
  const int64_t shortest = shares.height_of(shares.count - 1);
  const int64_t whole = stride >= shares.height + lanes ? k - divide_up(lanes, shortest) : 0;
  for (int64_t p = 0; p < k; ++p) {
    const T* from = a.data + p * stride;
    for (int64_t i = 0; i < rows; i += line) hwy::Prefetch(from + columns_ahead * stride + i);
    int64_t i = 0;
    for (int64_t t = 0; t < shares.count; ++t) {
      const int64_t height = shares.height_of(t);
      T* panel = to + i * k + p * height;
      if (p < whole) {
        for (int64_t r = 0; r < height; r += lanes) hn::StoreU(hn::LoadU(d, from + i + r), d, panel + r);
      } else {
        for (int64_t r = 0; r < height; ++r) panel[r] = from[i + r];
      }
      i += height;
    }
  }
}

// A [rows, k], close together. Returns how it lies there.
template <class T>
Matrix<const T> pack_rows(int64_t rows, int64_t k, Matrix<const T> a, T* to) {
  const Matrix<const T> packed = packed_rows(k, a, to);
  const int64_t row = packed.row_stride;
  if (packed.column_stride == in_panels) {
    pack_row_panels(rows, k, a, to);
  } else if (a.column_stride == 1) {
    for (int64_t i = 0; i < rows; ++i) copy(a.data + i * a.row_stride, k, to + i * row, 4 * a.row_stride);
  } else {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t p = 0; p < k; ++p) to[i * row + p] = a.data[i * a.row_stride + p * a.column_stride];
    }
  }
  return packed;
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
