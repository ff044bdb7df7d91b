#include <regard/autograd/backend/cpu/tiled_gemm.hpp>

#include <algorithm>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/scratch.hpp>
#include <type_traits>

// Highway compiles what stands between BEFORE and AFTER once for each instruction set, by including this file again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/tiled_gemm.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/tiled_gemm_pack-inl.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm_tile-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

constexpr int64_t columns_in_block = 1024;
constexpr int64_t panels_to_finish = 4;  // together, so that a row of them is worth a call

// The blocks of C that are done, from column to column.
template <class T>
struct Finisher {
  const GemmFinish* finish;
  Matrix<T> c;
  int64_t rows, begin = 0;

  HWY_INLINE void up_to(int64_t end, int64_t least) {
    if (finish == nullptr || end - begin < least || end == begin) return;
    (*finish)(rows, end - begin, c.data + begin * c.column_stride, c.row_stride, c.column_stride);
    begin = end;
  }
};

template <class T>
void multiply_tiled(const Product<T>& product) {
  const auto [m, n, k, alpha, a, b, beta, d, c, finish] = product;
  const int64_t lanes = hn::Lanes(Tag<T>());
  const int64_t panel = panel_columns<T>();
  const bool pack_a = must_pack_a(m, n, TileSize{tile_rows<T>, panel}, a),
             pack_b = b.column_stride != 1 || m > tile_rows<T>;
  const int64_t k_block = even_part(k, longest_k_block);
  const int64_t m_block = even_part(m, block_rows<T>);
  const int64_t n_block = std::min(n, columns_in_block);
  const bool keep_b = m > m_block;  // every panel is used again for the next block of rows
  const int64_t panel_size = k_block * panel;
  T* packed_b = scratch<T>(Scratch::b, (keep_b ? divide_up(n_block, panel) : 1) * panel_size);
  T* packed_a = pack_a ? scratch<T>(Scratch::a, packed_rows_size<T>(m_block, k_block)) : nullptr;

  for (int64_t j0 = 0; j0 < n; j0 += n_block) {
    const int64_t j_end = std::min(n, j0 + n_block);
    for (int64_t p0 = 0; p0 < k; p0 += k_block) {
      const int64_t depth = std::min(k_block, k - p0);
      const auto result = p0 == 0 ? Result<T>::make(alpha, beta, d, c) : Result<T>::make(alpha, 1, c, c);
      for (int64_t i0 = 0; i0 < m; i0 += m_block) {
        const int64_t height = std::min(m_block, m - i0);
        Matrix<const T> left = a.offset_by(i0 * a.row_stride + p0 * a.column_stride);
        if (pack_a) left = pack_rows(height, depth, left, packed_a);
        Finisher<T> finisher{p0 + depth == k ? finish : nullptr, c.offset_by(i0 * c.row_stride), height, j0};
        T* kept = packed_b;
        for (int64_t j = j0; j < j_end;) {
          const int64_t rest = j_end - j;
          Matrix<const T> right = b.offset_by(p0 * b.row_stride + j * b.column_stride);
          int64_t vectors = rest > lanes ? 2 : 1;
          if (!pack_b && height <= wide_rows && rest >= wide_vectors * lanes) vectors = wide_vectors;
          const int64_t columns = std::min(rest, vectors * lanes);
          if (pack_b || columns < vectors * lanes) {
            if (i0 == 0 || !keep_b) pack_panel(depth, columns, vectors, right, kept);
            right = {kept, vectors * lanes, 1};
            if (keep_b) kept += panel_size;
          }
          multiply_panel(vectors, height, columns, depth, left, right, result, i0, j);
          j += columns;
          finisher.up_to(j, panels_to_finish * panel);
        }
        finisher.up_to(j_end, 0);
      }
    }
  }
}

// One block of k against panels that are packed, all of them full but the last.
template <class T>
void multiply_block(const Product<T>& product) {
  const auto [m, n, k, alpha, a, b, beta, d, c, finish] = product;
  const int64_t lanes = hn::Lanes(Tag<T>()), panel = panel_columns<T>();
  const auto result = Result<T>::make(alpha, beta, d, c);
  Finisher<T> finisher{finish, c, m};
  const T* right = b.data;
  for (int64_t j = 0; j < n; right += k * panel) {
    const int64_t columns = std::min(panel, n - j);
    multiply_panel<T>(columns > lanes ? 2 : 1, m, columns, k, a, {right, panel, 1}, result, 0, j);
    j += columns;
    finisher.up_to(j, panels_to_finish * panel);
  }
  finisher.up_to(n, 0);
}

template <class T>
void pack_panels(int64_t k, int64_t columns, Matrix<const T> b, T* to) {
  const int64_t panel = panel_columns<T>();
  for (int64_t j = 0; j < columns; j += panel, to += k * panel) {
    pack_panel(k, std::min(panel, columns - j), 2, b.offset_by(j * b.column_stride), to);
  }
}

// Few rows of A against columns of B that lie along k: dot products, k along the vectors.
template <class T>
void multiply_dots(const Product<T>& product) {
  const auto [m, n, k, alpha, given, b, beta, d, c, finish] = product;
  Matrix<const T> a = given;
  if (a.column_stride != 1) {
    T* rows = scratch<T>(Scratch::a, m * k);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t p = 0; p < k; ++p) rows[i * k + p] = a.data[i * a.row_stride + p * a.column_stride];
    }
    a = {rows, k, 1};
  }
  const auto result = Result<T>::make(alpha, beta, d, c);
  const auto some_rows = [&, rows = m, depth = k](auto columns, int64_t j) HWY_ATTR {
    constexpr int width = decltype(columns)::value;
    const Matrix<const T> right = product.b.offset_by(j * product.b.column_stride);
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) dot_tile<4, width>(depth, a.offset_by(i * a.row_stride), right, result, i, j);
    if (rows - i == 3) dot_tile<3, width>(depth, a.offset_by(i * a.row_stride), right, result, i, j);
    if (rows - i == 2) dot_tile<2, width>(depth, a.offset_by(i * a.row_stride), right, result, i, j);
    if (rows - i == 1) dot_tile<1, width>(depth, a.offset_by(i * a.row_stride), right, result, i, j);
  };
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) some_rows(std::integral_constant<int, 4>(), j);
  for (; j < n; ++j) some_rows(std::integral_constant<int, 1>(), j);
  if (finish != nullptr) (*finish)(m, n, c.data, c.row_stride, c.column_stride);
}

template <class T>
const TiledGemm<T>& functions() {
  static const TiledGemm<T> table{{tile_rows<T>, panel_columns<T>()},
                                  block_rows<T>,
                                  multiply_tiled<T>,
                                  multiply_dots<T>,
                                  pack_rows<T>,
                                  pack_panels<T>,
                                  multiply_block<T>};
  return table;
}
const TiledGemm<float>& functions_f32() { return functions<float>(); }
const TiledGemm<double>& functions_f64() { return functions<double>(); }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(functions_f32);
HWY_EXPORT(functions_f64);

const TiledGemm<float>& tiled_gemm(float) { return HWY_DYNAMIC_DISPATCH(functions_f32)(); }
const TiledGemm<double>& tiled_gemm(double) { return HWY_DYNAMIC_DISPATCH(functions_f64)(); }

}  // namespace regard::cpu_backend
#endif
