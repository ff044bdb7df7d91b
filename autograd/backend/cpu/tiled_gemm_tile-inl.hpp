// The tiles of C in registers for tiled_gemm.cpp, once for each instruction set.
#if defined(REGARD_TILED_GEMM_TILE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_TILED_GEMM_TILE_INL_HPP
#undef REGARD_TILED_GEMM_TILE_INL_HPP
#else
#define REGARD_TILED_GEMM_TILE_INL_HPP
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm_pack-inl.hpp>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile is tile_rows rows by two vectors: 24 sums, 2 vectors of B and an element of A in 32 registers, or 12 in 16.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
template <class T>
constexpr int tile_rows = 6;
#else
template <class T>
constexpr int tile_rows = 12;
#endif
constexpr int wide_rows = 3;  // up to so many rows take wide_vectors vectors at a time

template <class T>
int64_t panel_columns() {
  return 2 * static_cast<int64_t>(hn::Lanes(Tag<T>()));
}

// Where a product goes: c = alpha * product + beta * d.
template <class T>
struct Result {
  T alpha, beta;
  Matrix<T> c;
  Matrix<const T> d;

  static HWY_INLINE Result make(T alpha, T beta, Matrix<const T> d, Matrix<T> c) { return {alpha, beta, c, d}; }
  static HWY_INLINE Result make(T alpha, T beta, Matrix<T> d, Matrix<T> c) {
    return {alpha, beta, c, {d.data, d.row_stride, d.column_stride}};
  }
  HWY_INLINE Result from(int64_t i, int64_t j) const {
    return {alpha, beta, c.offset_by(i * c.row_stride + j * c.column_stride),
            d.offset_by(i * d.row_stride + j * d.column_stride)};
  }
};

// c[0, columns) = alpha * product + beta * d, with the same arithmetic for whole vectors, tails and strided rows.
template <class T, class V>
HWY_INLINE void write(V product, const Result<T>& result, T* c, const T* d, int64_t columns) {
  const Tag<T> tag;
  const int64_t lanes = hn::Lanes(tag), written = std::min(columns, lanes);
  V value = hn::Mul(hn::Set(tag, result.alpha), product);
  if (result.beta != 0) {
    V added;
    if (result.d.column_stride == 1) {
      added = load_first(tag, d, written);
    } else {
      HWY_ALIGN T buffer[most_lanes<T>] = {};
      for (int64_t j = 0; j < written; ++j) buffer[j] = d[j * result.d.column_stride];
      added = hn::Load(tag, buffer);
    }
    value = hn::MulAdd(hn::Set(tag, result.beta), added, value);
  }
  if (result.c.column_stride == 1) {
    if (columns >= lanes) {
      hn::StoreU(value, tag, c);
      return;
    }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    // Elsewhere a masked store writes back what it read, past the row's end.
    hn::BlendedStore(value, hn::FirstN(tag, static_cast<size_t>(columns)), tag, c);
    return;
#endif
  }
  HWY_ALIGN T buffer[most_lanes<T>] = {};
  hn::Store(value, tag, buffer);
  for (int64_t j = 0; j < written; ++j) c[j * result.c.column_stride] = buffer[j];
}

template <class T>
HWY_NOINLINE void write_rows(int64_t rows, int64_t columns, int64_t width, const T* sums, const Result<T>& result) {
  const Tag<T> tag;
  const int64_t lanes = hn::Lanes(tag);
  for (int64_t i = 0; i < rows; ++i, sums += width) {
    const Result<T> row = result.from(i, 0);
    for (int64_t j = 0; j < columns; j += lanes) {
      write<T>(hn::Load(tag, sums + j), row, row.c.data + j * row.c.column_stride, row.d.data + j * row.d.column_stride,
               columns - j);
    }
  }
}

template <class T>
using TileFunction = void (*)(int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, const Result<T>& result,
                              int64_t columns);

// `rows` rows of C by `vectors` vectors of columns; a row of B has that many whole vectors.
template <class T, int rows, int vectors>
void tile(int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, const Result<T>& result, int64_t columns) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const int64_t lanes = hn::Lanes(d);
  constexpr int groups = (rows + 2) / 3;  // one pointer for three rows of A: processors multiply a stride by 1 and 2
  const T* left[groups];
  for (int g = 0; g < groups; ++g) left[g] = a.data + 3 * g * a.row_stride;
  V sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    // C arrives while the sums are made; a row of it may begin amid a cache line.
    if (rows > 1) {
      const T* to = result.c.data + i * result.c.row_stride;
      for (int v = 0; v < vectors; ++v) hwy::Prefetch(to + v * lanes);
      hwy::Prefetch(to + vectors * lanes - 1);
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[i][v] = hn::Zero(d);
  }
  for (int64_t p = 0; p < k; ++p, b += b_row_stride) {
    V right[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) right[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const V element = hn::Set(d, left[i / 3][i % 3 * a.row_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[i][v] = hn::MulAdd(element, right[v], sums[i][v]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) left[g] += a.column_stride;
  }
  const bool add = result.beta != 0;
  if (result.c.column_stride == 1 && (!add || result.d.column_stride == 1) && columns >= vectors * lanes) {
    T* c = result.c.data;
    const T* added = result.d.data;
    const V alpha = hn::Set(d, result.alpha), beta = hn::Set(d, result.beta);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i, c += result.c.row_stride, added += result.d.row_stride) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[i][v] = hn::Mul(alpha, sums[i][v]);
      if (add) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sums[i][v] = hn::MulAdd(beta, hn::LoadU(d, added + v * lanes), sums[i][v]);
      }
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) hn::StoreU(sums[i][v], d, c + v * lanes);
    }
    return;
  }
  // By way of memory, and in a function of its own: the many tiles stay small.
  HWY_ALIGN T buffer[rows * vectors * most_lanes<T>];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) hn::Store(sums[i][v], d, buffer + (i * vectors + v) * lanes);
  }
  write_rows(rows, std::min<int64_t>(columns, vectors * lanes), vectors * lanes, buffer, result);
}

template <class T, int vectors, int... rows>
constexpr auto make_tiles(std::integer_sequence<int, rows...>) {
  struct Tiles {
    TileFunction<T> by_rows[sizeof...(rows)];
  };
  return Tiles{{&tile<T, rows + 1, vectors>...}};
}

// All rows of A by a panel of B, which gives C from row i and column j on; the last rows are shared out so that no tile
// is much shorter than the others.
template <class T>
void multiply_panel(int64_t vectors, int64_t rows, int64_t columns, int64_t k, Matrix<const T> a, Matrix<const T> b,
                    const Result<T>& result, int64_t i, int64_t j) {
  static constexpr auto one = make_tiles<T, 1>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto two = make_tiles<T, 2>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto wide = make_tiles<T, wide_vectors>(std::make_integer_sequence<int, wide_rows>());
  const TileFunction<T>* tiles = vectors == 1 ? one.by_rows : vectors == 2 ? two.by_rows : wide.by_rows;
  const int64_t longest = vectors > 2 ? wide_rows : tile_rows<T>;
  int64_t left = (rows + longest - 1) / longest;
  for (; left > 0; --left) {
    const int64_t height = (rows + left - 1) / left;
    tiles[height - 1](k, a, b.data, b.row_stride, result.from(i, j), columns);
    rows -= height;
    i += height;
    a.data += height * a.row_stride;
  }
}

// `rows` rows of A by `columns` columns of B, both along k.
template <int rows, int columns, class T>
HWY_INLINE void dot_tile(int64_t k, Matrix<const T> a, Matrix<const T> b, const Result<T>& result, int64_t row,
                         int64_t column) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const int64_t lanes = hn::Lanes(d);
  V sums[rows][columns];
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) sums[i][j] = hn::Zero(d);
  }
  const auto step = [&](auto load, int64_t p) HWY_ATTR {
    V left[rows];
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) left[i] = load(a.data + i * a.row_stride + p);
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      const V right = load(b.data + j * b.column_stride + p);
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) sums[i][j] = hn::MulAdd(left[i], right, sums[i][j]);
    }
  };
  int64_t p = 0;
  for (; p + lanes <= k; p += lanes) step([&](const T* from) HWY_ATTR { return hn::LoadU(d, from); }, p);
  if (p < k) step([&](const T* from) HWY_ATTR { return load_first(d, from, k - p); }, p);
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) {
      const T value = result.alpha * hn::GetLane(hn::SumOfLanes(d, sums[i][j]));
      const Result<T> to = result.from(row + i, column + j);
      *to.c.data = result.beta == 0 ? value : result.beta * *to.d.data + value;
    }
  }
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
