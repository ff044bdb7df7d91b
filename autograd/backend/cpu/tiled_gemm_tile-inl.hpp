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

template <class T>
struct Result {
  T alpha, beta;
  int64_t row_stride, column_stride;
};

// c[0, columns) = alpha * product + beta * c, with the same arithmetic for whole vectors, tails and strided rows.
template <class T, class V>
HWY_INLINE void write(V product, const Result<T>& result, T* c, int64_t columns) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d);
  V value = hn::Mul(hn::Set(d, result.alpha), product);
  if (result.column_stride == 1) {
    if (columns >= lanes) {
      if (result.beta != 0) value = hn::MulAdd(hn::Set(d, result.beta), hn::LoadU(d, c), value);
      hn::StoreU(value, d, c);
      return;
    }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    // Elsewhere a masked store writes back what it read, past the row's end.
    const auto mask = hn::FirstN(d, static_cast<size_t>(columns));
    if (result.beta != 0) value = hn::MulAdd(hn::Set(d, result.beta), hn::MaskedLoad(mask, d, c), value);
    hn::BlendedStore(value, mask, d, c);
    return;
#endif
  }
  HWY_ALIGN T buffer[most_lanes<T>] = {};
  const int64_t written = std::min(columns, lanes);
  if (result.beta != 0) {
    for (int64_t j = 0; j < written; ++j) buffer[j] = c[j * result.column_stride];
    value = hn::MulAdd(hn::Set(d, result.beta), hn::Load(d, buffer), value);
  }
  hn::Store(value, d, buffer);
  for (int64_t j = 0; j < written; ++j) c[j * result.column_stride] = buffer[j];
}

template <class T>
using TileFunction = void (*)(int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, const Result<T>& result,
                              T* c, int64_t columns);

// `rows` rows of C by `vectors` vectors of columns; a row of B has that many whole vectors.
template <class T, int rows, int vectors>
void tile(int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, const Result<T>& result, T* c,
          int64_t columns) {
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
      const T* to = c + i * result.row_stride;
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
  if (result.column_stride == 1 && columns >= vectors * lanes) {
    const V alpha = hn::Set(d, result.alpha), beta = hn::Set(d, result.beta);
    const bool add = result.beta != 0;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i, c += result.row_stride) {
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[i][v] = hn::Mul(alpha, sums[i][v]);
      if (add) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sums[i][v] = hn::MulAdd(beta, hn::LoadU(d, c + v * lanes), sums[i][v]);
      }
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) hn::StoreU(sums[i][v], d, c + v * lanes);
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      if (v == 0 || v * lanes < columns) {
        write<T>(sums[i][v], result, c + i * result.row_stride + v * lanes * result.column_stride, columns - v * lanes);
      }
    }
  }
}

template <class T, int vectors, int... rows>
constexpr auto make_tiles(std::integer_sequence<int, rows...>) {
  struct Tiles {
    TileFunction<T> by_rows[sizeof...(rows)];
  };
  return Tiles{{&tile<T, rows + 1, vectors>...}};
}

// All rows of A by a panel of B; the last rows are shared out so that no tile is much shorter than the others.
template <class T>
void multiply_panel(int64_t vectors, int64_t rows, int64_t columns, int64_t k, Matrix<const T> a, Matrix<const T> b,
                    const Result<T>& result, T* c) {
  static constexpr auto one = make_tiles<T, 1>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto two = make_tiles<T, 2>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto wide = make_tiles<T, wide_vectors>(std::make_integer_sequence<int, wide_rows>());
  const TileFunction<T>* tiles = vectors == 1 ? one.by_rows : vectors == 2 ? two.by_rows : wide.by_rows;
  const int64_t longest = vectors > 2 ? wide_rows : tile_rows<T>;
  int64_t left = (rows + longest - 1) / longest;
  for (; left > 0; --left) {
    const int64_t height = (rows + left - 1) / left;
    tiles[height - 1](k, a, b.data, b.row_stride, result, c, columns);
    rows -= height;
    a.data += height * a.row_stride;
    c += height * result.row_stride;
  }
}

// `rows` rows of A by `columns` columns of B, both along k.
template <int rows, int columns, class T>
HWY_INLINE void dot_tile(int64_t k, Matrix<const T> a, Matrix<const T> b, const Result<T>& result, T* c) {
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
      T& element = c[i * result.row_stride + j * result.column_stride];
      element = result.beta == 0 ? value : result.beta * element + value;
    }
  }
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
