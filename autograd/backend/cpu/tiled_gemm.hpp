// The matrix product of one piece on one thread: SIMD tiles of C in registers, panels of B packed for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/gemm_finish.hpp>

namespace regard::cpu_backend {

/// One product: C = alpha A B + beta D with m, n, k >= 1. D is mostly C itself; a bias is a D whose rows are all one
/// (row_stride 0), a residual another matrix. `finish`, unless null, is called on the blocks of C as they are done.
template <class T>
struct Product {
  int64_t m, n, k;
  T alpha;
  Matrix<const T> a, b;
  T beta;
  Matrix<const T> d;
  Matrix<T> c;
  const GemmFinish* finish;
};

/// The tile of the instruction set in use: pieces that are multiples of it leave no ragged edges inside.
struct TileSize {
  int64_t rows, columns;
};

/// The functions of an instruction set.
template <class T>
struct TiledGemm {
  TileSize tile;
  int64_t block_rows;  // of A at most, which the second-level cache holds beside what streams through it
  /// On the calling thread. Every element is summed in the order of k, in blocks that k alone decides: a piece of a
  /// product has the bits of the whole.
  void (*multiply)(const Product<T>& product);
  /// The way of dot products, where k runs along the vectors: the faster one for up to tiled_gemm_dot_rows rows where
  /// B lies by columns.
  void (*multiply_by_dots)(const Product<T>& product);

  // The parts of `multiply`, for a product whose packed operands several threads share.

  /// Packs A [rows, k] into packed_rows_size() elements, and says how it lies: `in_panels` for multiply_block() alone.
  Matrix<const T> (*pack_a)(int64_t rows, int64_t k, Matrix<const T> a, T* to);
  /// Packs B [k, columns] as panels of [k, tile.columns], one after the other.
  void (*pack_b)(int64_t k, int64_t columns, Matrix<const T> b, T* to);
  /// One block of k against packed panels.
  void (*multiply_block)(const Product<T>& product);
};
const TiledGemm<float>& tiled_gemm(float);
const TiledGemm<double>& tiled_gemm(double);

constexpr int64_t tiled_gemm_dot_rows = 12;

// In elements. A panel of B is used from the first-level cache or, streaming, from the second. Measured: longer blocks
// of k spare C a way to memory and back.
constexpr int64_t longest_k_block = 512;

// The column_stride of an A that is packed in panels: one for each tile, of the tile's rows, which lie together for
// each step of k. (How many rows a tile has follows from how many A has.)
constexpr int64_t in_panels = -1;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }

// `size` cut into the fewest parts of at most `longest`, as even as they go: the length of a part.
constexpr int64_t even_part(int64_t size, int64_t longest) { return divide_up(size, divide_up(size, longest)); }

// Rows that a tile uses at a time, and whose starts fall on the same few sets of the first-level cache, push each other
// out. `stride` is in elements.
template <class T>
constexpr bool rows_crowd(int64_t stride, int64_t rows) {
  constexpr int64_t way = 4096;
  const int64_t places = way / std::gcd(way, stride * static_cast<int64_t>(sizeof(T)));
  return rows > 5 * places;
}

template <class T>
bool must_pack_a(int64_t m, int64_t n, TileSize tile, const Matrix<const T>& a) {
  if (m == 1 || n <= 2 * tile.columns) return false;
  if (a.column_stride == 1) return rows_crowd<T>(a.row_stride, tile.rows);
  return a.row_stride != 1 || n > 4 * tile.columns;
}

// How far apart the rows of a packed A lie: whole cache lines, and they do not crowd.
template <class T>
constexpr int64_t packed_row(int64_t k) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t row = round_up(k, line);
  return rows_crowd<T>(row, 12) ? row + line : row;
}
template <class T>
constexpr int64_t packed_rows_size(int64_t rows, int64_t k) {
  return rows * packed_row<T>(k);
}
// A [rows, k] as it lies when it is packed at `to`: in panels if it lay by columns, by rows otherwise.
template <class T>
Matrix<const T> packed_rows(int64_t k, const Matrix<const T>& a, const T* to) {
  if (a.row_stride == 1 && a.column_stride != 1) return {to, 1, in_panels};
  return {to, packed_row<T>(k), 1};
}

}  // namespace regard::cpu_backend
