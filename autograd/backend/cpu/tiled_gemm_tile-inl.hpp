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

// What a compiler may not move loads across: it would keep too much in registers at a time.
HWY_INLINE void keep_apart() { asm volatile("" ::: "memory"); }
// What a compiler takes for changed: it adds such a number where it is used, and keeps no sums of it in registers.
HWY_INLINE void forget(int64_t& number) { asm volatile("" : "+r"(number)); }

// sum += left * right, in the order in which it is written and with `sum` in one register all the time. From
// hn::MulAdd() compilers make another order, for which the 16 registers of AVX2 are too few, and read B again for every
// row.
template <class V>
HWY_INLINE void add_product(V left, V right, V& sum) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  auto raw = sum.raw;
  if constexpr (sizeof(hn::TFromV<V>) == 4) {
    asm volatile("vfmadd231ps %2, %1, %0" : "+v"(raw) : "v"(left.raw), "v"(right.raw));
  } else {
    asm volatile("vfmadd231pd %2, %1, %0" : "+v"(raw) : "v"(left.raw), "v"(right.raw));
  }
  sum.raw = raw;
#else
  sum = hn::MulAdd(left, right, sum);
#endif
}

// Adds one step of k: `element` gives A's element of a row.
template <class T, int rows, int vectors, class V, class Element>
HWY_INLINE void add_step(const T* b, V (&sums)[rows][vectors], const Element& element) {
  const Tag<T> d;
  V right[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) right[v] = hn::LoadU(d, b + v * static_cast<int64_t>(hn::Lanes(d)));
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    const V left = hn::Set(d, element(i));
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) add_product(left, right[v], sums[i][v]);
  }
}

// Some steps, where all distances within them are known here: fewer instructions beside the arithmetic. For tiles that
// are most of a product on current processors: it makes many functions longer.
constexpr int at_once = 4;
template <class T, int rows, int vectors>
constexpr bool some_at_once = vectors == 2 && 2 * rows >= tile_rows<T> && (!HWY_ARCH_X86 || HWY_TARGET <= HWY_AVX2);

template <class T, int rows, int vectors, bool panel, int groups, class V>
HWY_INLINE void add_steps(const T* (&left)[groups], int64_t& stride, const T*& b, V (&sums)[rows][vectors]) {
  const int64_t width = vectors * static_cast<int64_t>(hn::Lanes(Tag<T>()));
#pragma GCC unroll 4
  for (int u = 0; u < at_once; ++u) {
    forget(stride);
    add_step<T, rows, vectors>(b + u * width, sums, [&](int i) HWY_ATTR {
      return panel ? left[0][u * rows + i] : left[i / 3][i % 3 * stride + u];
    });
    keep_apart();
  }
  b += at_once * width;
#pragma GCC unroll 4
  for (int g = 0; g < groups; ++g) left[g] += panel ? at_once * rows : at_once;
}

// `rows` rows of C by `vectors` vectors of columns; a row of B has that many whole vectors. `panel` says that A lies
// as pack_rows() leaves what lay by columns.
template <class T, int rows, int vectors, bool panel>
HWY_INLINE void tile(int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, const Result<T>& result,
                     int64_t columns) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const int64_t lanes = hn::Lanes(d);
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  V sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    // C arrives while the sums are made; a row of it may begin amid a cache line.
    if (rows > 1) {
      const T* to = result.c.data + i * result.c.row_stride;
      for (int64_t j = 0; j < vectors * lanes; j += std::max(line, lanes)) hwy::Prefetch(to + j);
      if (reinterpret_cast<uintptr_t>(to) % 64 != 0) hwy::Prefetch(to + vectors * lanes - 1);
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[i][v] = hn::Zero(d);
  }
  constexpr int groups = (rows + 2) / 3;  // one pointer for three rows of A: processors multiply a stride by 1 and 2
  const T* left[groups];
  for (int g = 0; g < groups; ++g) left[g] = a.data + 3 * g * a.row_stride;
  int64_t stride = a.row_stride;

  int64_t p = 0;
  if (some_at_once<T, rows, vectors> && b_row_stride == vectors * lanes && (panel || a.column_stride == 1)) {
    if (panel) {
      for (; p + at_once <= k; p += at_once) {
        for (int64_t j = 0; j < at_once * rows; j += line) hwy::Prefetch(left[0] + 4 * line + j);
        add_steps<T, rows, vectors, panel>(left, stride, b, sums);
      }
    } else {
      // The next tile's rows, a cache line of each.
      for (; p + line <= k; p += line) {
        if (rows > 1) {
#pragma GCC unroll 16
          for (int i = 0; i < rows; ++i) hwy::Prefetch(left[i / 3] + (i % 3 + rows) * stride);
        }
        for (int64_t u = 0; u < line; u += at_once) add_steps<T, rows, vectors, panel>(left, stride, b, sums);
      }
      for (; p + at_once <= k; p += at_once) add_steps<T, rows, vectors, panel>(left, stride, b, sums);
    }
  }
  for (; p < k; ++p, b += b_row_stride) {
    add_step<T, rows, vectors>(b, sums,
                               [&](int i) HWY_ATTR { return panel ? left[0][i] : left[i / 3][i % 3 * stride]; });
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) left[g] += panel ? rows : a.column_stride;
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

template <class T>
using TilesFunction = void (*)(int64_t count, int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride,
                               Result<T> result, int64_t columns);

// `count` tiles, one below the other.
template <class T, int rows, int vectors>
void tiles(int64_t count, int64_t k, Matrix<const T> a, const T* b, int64_t b_row_stride, Result<T> result,
           int64_t columns) {
  const bool panels = a.column_stride == in_panels;
  if (panels) a.column_stride = rows;
  for (; count > 0; --count) {
    if (some_at_once<T, rows, vectors> && panels) {
      tile<T, rows, vectors, some_at_once<T, rows, vectors>>(k, a, b, b_row_stride, result, columns);
    } else {
      tile<T, rows, vectors, false>(k, a, b, b_row_stride, result, columns);
    }
    a.data += rows * (panels ? k : a.row_stride);
    result = result.from(rows, 0);
  }
}

template <class T, int vectors, int... rows>
constexpr auto make_tiles(std::integer_sequence<int, rows...>) {
  struct Tiles {
    TilesFunction<T> by_rows[sizeof...(rows)];
  };
  return Tiles{{&tiles<T, rows + 1, vectors>...}};
}

// All rows of A by a panel of B, which gives C from row i and column j on.
template <class T>
void multiply_panel(int64_t vectors, int64_t rows, int64_t columns, int64_t k, Matrix<const T> a, Matrix<const T> b,
                    const Result<T>& result, int64_t i, int64_t j) {
  static constexpr auto one = make_tiles<T, 1>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto two = make_tiles<T, 2>(std::make_integer_sequence<int, tile_rows<T>>());
  static constexpr auto wide = make_tiles<T, wide_vectors>(std::make_integer_sequence<int, wide_rows>());
  const TilesFunction<T>* by_rows = vectors == 1 ? one.by_rows : vectors == 2 ? two.by_rows : wide.by_rows;
  const TileShares shares(rows, vectors > 2 ? wide_rows : tile_rows<T>);
  const auto [count, height, full] = shares;
  by_rows[height - 1](full, k, a, b.data, b.row_stride, result.from(i, j), columns);
  if (full == count) return;
  const int64_t done = full * height;
  a.data += done * (a.column_stride == in_panels ? k : a.row_stride);
  by_rows[height - 2](count - full, k, a, b.data, b.row_stride, result.from(i + done, j), columns);
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
