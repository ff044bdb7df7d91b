#include <regard/autograd/backend/cpu/tiled_gemm.hpp>

#include <algorithm>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/scratch.hpp>

// Highway compiles what stands between BEFORE and AFTER once for each instruction set, by including this file again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/tiled_gemm.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/tiled_gemm_pack-inl.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm_tile-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

// Block sizes in elements. A panel of B is used from the first-level cache or, streaming, from the second, which
// holds a block of A (360 KiB). Measured: longer blocks of k spare C a way to memory and back.
constexpr int64_t longest_k_block = 384;
template <class T>
constexpr int64_t rows_in_block = 960 / static_cast<int64_t>(sizeof(T));
constexpr int64_t columns_in_block = 1024;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `size` cut into the fewest parts of at most `longest`, as even as they go: the length of a part.
constexpr int64_t even_part(int64_t size, int64_t longest) { return divide_up(size, divide_up(size, longest)); }

// How the operands are brought before the tiles.
struct Plan {
  bool pack_a, pack_b;
};

template <class T>
Plan choose_plan(int64_t m, int64_t n, const Matrix<const T>& a, const Matrix<const T>& b) {
  constexpr int64_t bytes = static_cast<int64_t>(sizeof(T));
  Plan plan{false, true};
  // Rows whose starts fall on the same few sets of the first-level cache push each other out.
  const auto crowds = [](int64_t stride) { return stride * bytes % 2048 == 0; };
  const bool by_rows = a.column_stride == 1;
  if (m > 1 && n > 2 * panel_columns<T>()) {
    plan.pack_a = by_rows ? crowds(a.row_stride) : a.row_stride != 1 || n > 4 * panel_columns<T>();
  }
  if (b.column_stride == 1) plan.pack_b = m > tile_rows<T>;
  return plan;
}

template <class T>
void multiply_tiled(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta,
                    Matrix<T> c) {
  const int64_t lanes = hn::Lanes(Tag<T>());
  const int64_t panel = panel_columns<T>();
  const Plan plan = choose_plan(m, n, a, b);
  const int64_t k_block = even_part(k, longest_k_block);
  const int64_t m_block = even_part(m, rows_in_block<T>);
  const int64_t n_block = std::min(n, columns_in_block);
  const bool keep_b = m > m_block;  // every panel is used again for the next block of rows
  const int64_t panel_size = k_block * panel;
  T* packed_b = scratch<T>(Scratch::b, (keep_b ? divide_up(n_block, panel) : 1) * panel_size);
  T* packed_a = plan.pack_a ? scratch<T>(Scratch::a, m_block * k_block) : nullptr;

  for (int64_t j0 = 0; j0 < n; j0 += n_block) {
    const int64_t j_end = std::min(n, j0 + n_block);
    for (int64_t p0 = 0; p0 < k; p0 += k_block) {
      const int64_t depth = std::min(k_block, k - p0);
      Result<T> result{alpha, p0 == 0 ? beta : T(1), c.row_stride, c.column_stride};
      for (int64_t i0 = 0; i0 < m; i0 += m_block) {
        const int64_t height = std::min(m_block, m - i0);
        Matrix<const T> left = a.offset_by(i0 * a.row_stride + p0 * a.column_stride);
        if (plan.pack_a) left = pack_rows(height, depth, left, packed_a);
        T* kept = packed_b;
        for (int64_t j = j0; j < j_end;) {
          const int64_t rest = j_end - j;
          Matrix<const T> right = b.offset_by(p0 * b.row_stride + j * b.column_stride);
          int64_t vectors = rest > lanes ? 2 : 1;
          if (!plan.pack_b && height <= wide_rows && rest >= wide_vectors * lanes) vectors = wide_vectors;
          const int64_t columns = std::min(rest, vectors * lanes);
          if (plan.pack_b || columns < vectors * lanes) {
            if (i0 == 0 || !keep_b) pack_panel(depth, columns, vectors, right, kept);
            right = {kept, vectors * lanes, 1};
            if (keep_b) kept += panel_size;
          }
          multiply_panel(vectors, height, columns, depth, left, right, result,
                         c.data + i0 * c.row_stride + j * c.column_stride);
          j += columns;
        }
      }
    }
  }
}

// Few rows of A against columns of B that lie along k: dot products, k along the vectors.
template <class T>
void multiply_dots(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta,
                   Matrix<T> c) {
  if (a.column_stride != 1) {
    T* rows = scratch<T>(Scratch::a, m * k);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t p = 0; p < k; ++p) rows[i * k + p] = a.data[i * a.row_stride + p * a.column_stride];
    }
    a = {rows, k, 1};
  }
  const Result<T> result{alpha, beta, c.row_stride, c.column_stride};
  const auto some_rows = [&](auto columns, int64_t j) HWY_ATTR {
    constexpr int width = decltype(columns)::value;
    const Matrix<const T> right = b.offset_by(j * b.column_stride);
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) {
      dot_tile<4, width>(k, a.offset_by(i * a.row_stride), right, result,
                         &c.data[i * c.row_stride + j * c.column_stride]);
    }
    T* last = c.data + i * c.row_stride + j * c.column_stride;
    if (m - i == 3) dot_tile<3, width>(k, a.offset_by(i * a.row_stride), right, result, last);
    if (m - i == 2) dot_tile<2, width>(k, a.offset_by(i * a.row_stride), right, result, last);
    if (m - i == 1) dot_tile<1, width>(k, a.offset_by(i * a.row_stride), right, result, last);
  };
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) some_rows(std::integral_constant<int, 4>(), j);
  for (; j < n; ++j) some_rows(std::integral_constant<int, 1>(), j);
}

void multiply_f32(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b,
                  float beta, Matrix<float> c, bool dots) {
  dots ? multiply_dots(m, n, k, alpha, a, b, beta, c) : multiply_tiled(m, n, k, alpha, a, b, beta, c);
}
void multiply_f64(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                  double beta, Matrix<double> c, bool dots) {
  dots ? multiply_dots(m, n, k, alpha, a, b, beta, c) : multiply_tiled(m, n, k, alpha, a, b, beta, c);
}
TileSize tile_f32() { return {tile_rows<float>, panel_columns<float>()}; }
TileSize tile_f64() { return {tile_rows<double>, panel_columns<double>()}; }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);
HWY_EXPORT(tile_f32);
HWY_EXPORT(tile_f64);

void tiled_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
                Matrix<float> c, bool dots) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(m, n, k, alpha, a, b, beta, c, dots);
}
void tiled_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                double beta, Matrix<double> c, bool dots) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(m, n, k, alpha, a, b, beta, c, dots);
}

TileSize tiled_gemm_tile(int64_t element_bytes) {
  return element_bytes == 4 ? HWY_DYNAMIC_DISPATCH(tile_f32)() : HWY_DYNAMIC_DISPATCH(tile_f64)();
}

}  // namespace regard::cpu_backend
#endif
