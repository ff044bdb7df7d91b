#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/small_gemm.hpp>

// Highway compiles what stands between BEFORE and AFTER once for each instruction set, by including this file again.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/small_gemm.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The vectors are no wider than small_gemm_columns, so that rounding a row of B up to whole vectors stays in bounds.
template <class T>
using Tag = hn::CappedTag<T, small_gemm_columns>;

template <class T>
struct Result {
  T alpha, beta;
  T* data;
  int64_t column_stride;
};

// c[0, columns) = alpha * product + beta * c, with the same arithmetic for whole vectors, tails and strided rows.
template <class T, class V>
HWY_INLINE void write(V product, const Result<T>& result, T* c, int64_t columns) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d);
  V value = hn::Mul(hn::Set(d, result.alpha), product);
  if (columns >= lanes && result.column_stride == 1) {
    if (result.beta != 0) value = hn::MulAdd(hn::Set(d, result.beta), hn::LoadU(d, c), value);
    hn::StoreU(value, d, c);
    return;
  }
  HWY_ALIGN T buffer[small_gemm_columns] = {};
  const int64_t written = columns < lanes ? columns : lanes;
  if (result.beta != 0) {
    for (int64_t j = 0; j < written; ++j) buffer[j] = c[j * result.column_stride];
    value = hn::MulAdd(hn::Set(d, result.beta), hn::Load(d, buffer), value);
  }
  hn::Store(value, d, buffer);
  for (int64_t j = 0; j < written; ++j) c[j * result.column_stride] = buffer[j];
}

// `rows` (1 to 4) rows of C by one or two vectors of columns. B is packed: row p at b + p * width.
template <int rows, bool two, class T>
HWY_INLINE void tile(int64_t k, Matrix<const T> a, const T* b, int64_t width, const Result<T>& result, T* c,
                     int64_t row_stride, int64_t columns) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto c00 = zero, c01 = zero, c10 = zero, c11 = zero, c20 = zero, c21 = zero, c30 = zero, c31 = zero;
  const T* row = a.data;
  for (int64_t p = 0; p < k; ++p, row += a.column_stride, b += width) {
    const auto b0 = hn::Load(d, b);
    const auto b1 = two ? hn::Load(d, b + lanes) : zero;
    const auto a0 = hn::Set(d, row[0]);
    c00 = hn::MulAdd(a0, b0, c00);
    if constexpr (two) c01 = hn::MulAdd(a0, b1, c01);
    if constexpr (rows > 1) {
      const auto a1 = hn::Set(d, row[a.row_stride]);
      c10 = hn::MulAdd(a1, b0, c10);
      if constexpr (two) c11 = hn::MulAdd(a1, b1, c11);
    }
    if constexpr (rows > 2) {
      const auto a2 = hn::Set(d, row[2 * a.row_stride]);
      c20 = hn::MulAdd(a2, b0, c20);
      if constexpr (two) c21 = hn::MulAdd(a2, b1, c21);
    }
    if constexpr (rows > 3) {
      const auto a3 = hn::Set(d, row[3 * a.row_stride]);
      c30 = hn::MulAdd(a3, b0, c30);
      if constexpr (two) c31 = hn::MulAdd(a3, b1, c31);
    }
  }
  const auto write_row = [&](auto first, auto second, T* to) HWY_ATTR {
    write<T>(first, result, to, columns);
    if constexpr (two) write<T>(second, result, to + lanes * result.column_stride, columns - lanes);
  };
  write_row(c00, c01, c);
  if constexpr (rows > 1) write_row(c10, c11, c + row_stride);
  if constexpr (rows > 2) write_row(c20, c21, c + 2 * row_stride);
  if constexpr (rows > 3) write_row(c30, c31, c + 3 * row_stride);
}

template <bool two, class T>
HWY_INLINE void panel(int64_t m, int64_t k, Matrix<const T> a, const T* b, int64_t width, const Result<T>& result,
                      int64_t row_stride, int64_t columns) {
  T* c = result.data;
  for (; m >= 4; m -= 4, a.data += 4 * a.row_stride, c += 4 * row_stride) {
    tile<4, two>(k, a, b, width, result, c, row_stride, columns);
  }
  if (m == 3) tile<3, two>(k, a, b, width, result, c, row_stride, columns);
  if (m == 2) tile<2, two>(k, a, b, width, result, c, row_stride, columns);
  if (m == 1) tile<1, two>(k, a, b, width, result, c, row_stride, columns);
}

template <class T>
HWY_INLINE void multiply(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta,
                         Matrix<T> c) {
  const int64_t lanes = hn::Lanes(Tag<T>());
  const int64_t width = (n + lanes - 1) / lanes * lanes;
  HWY_ALIGN T packed[small_gemm_capacity];  // [k, width], zeros past column n
  for (int64_t p = 0; p < k; ++p) {
    const T* from = b.data + p * b.row_stride;
    T* to = packed + p * width;
    if (b.column_stride == 1) {
      for (int64_t j = 0; j < n; ++j) to[j] = from[j];
    } else {
      for (int64_t j = 0; j < n; ++j) to[j] = from[j * b.column_stride];
    }
    for (int64_t j = n; j < width; ++j) to[j] = 0;
  }
  int64_t j = 0;
  for (; n - j > lanes; j += 2 * lanes) {
    panel<true>(m, k, a, packed + j, width, Result<T>{alpha, beta, c.data + j * c.column_stride, c.column_stride},
                c.row_stride, n - j);
  }
  if (j < n) {
    panel<false>(m, k, a, packed + j, width, Result<T>{alpha, beta, c.data + j * c.column_stride, c.column_stride},
                 c.row_stride, n - j);
  }
}

void multiply_f32(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b,
                  float beta, Matrix<float> c) {
  multiply(m, n, k, alpha, a, b, beta, c);
}
void multiply_f64(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                  double beta, Matrix<double> c) {
  multiply(m, n, k, alpha, a, b, beta, c);
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);

void small_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
                Matrix<float> c) {
  HWY_DYNAMIC_DISPATCH(multiply_f32)(m, n, k, alpha, a, b, beta, c);
}
void small_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                double beta, Matrix<double> c) {
  HWY_DYNAMIC_DISPATCH(multiply_f64)(m, n, k, alpha, a, b, beta, c);
}

}  // namespace regard::cpu_backend
#endif
