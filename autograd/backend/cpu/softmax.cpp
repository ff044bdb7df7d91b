// Softmax, its logarithm, and their gradients, row by row.
#include <cmath>

#include <regard/autograd/backend/cpu/each_row.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/softmax.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

template <class T>
HWY_INLINE bool nothing_but_minus_infinity(const T* row, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (row[i] != -std::numeric_limits<T>::infinity()) return false;
  return true;
}

// y = exp(a - max) / sum. y may be a.
template <class T>
void softmax_rows(int64_t rows, int64_t n, T* y, const T* a, bool empty_rows_zero) {
  const Tag<T> d;
  for (int64_t row = 0; row < rows; ++row, y += n, a += n) {
    const T largest = max_row(a, n);
    if (empty_rows_zero && largest == -std::numeric_limits<T>::infinity() && nothing_but_minus_infinity(a, n)) {
      for (int64_t i = 0; i < n; ++i) y[i] = 0;
      continue;
    }
    const auto shift = hn::Set(d, largest);
    const double sum = sum_row<T>(n, [=](int64_t i, int64_t count) HWY_ATTR {
      const auto power = exp_of(d, hn::Sub(load(d, a + i, count), shift));
      store(power, d, y + i, count);
      return power;
    });
    const auto factor = hn::Set(d, static_cast<T>(1 / sum));
    each_vector<T>(
        n, [=](int64_t i, int64_t count) HWY_ATTR { store(hn::Mul(load(d, y + i, count), factor), d, y + i, count); });
  }
}

// da = y (dy - sum(y dy)). Where y is 0 the products are 0 by selection: what is masked may have any dy, also one that
// left the range of T.
template <class T>
void softmax_grad_rows(int64_t rows, int64_t n, T* da, const T* y, const T* dy) {
  const Tag<T> d;
  const auto times = [=](auto a, auto b) HWY_ATTR { return hn::IfThenZeroElse(hn::Eq(a, hn::Zero(d)), hn::Mul(a, b)); };
  for (int64_t row = 0; row < rows; ++row, da += n, y += n, dy += n) {
    const double sum = sum_row<T>(
        n, [=](int64_t i, int64_t count) HWY_ATTR { return times(load(d, y + i, count), load(d, dy + i, count)); });
    const auto mean = hn::Set(d, static_cast<T>(sum));
    each_vector<T>(n, [=](int64_t i, int64_t count) HWY_ATTR {
      store(times(load(d, y + i, count), hn::Sub(load(d, dy + i, count), mean)), d, da + i, count);
    });
  }
}

// y = (a - max) - log(sum(exp(a - max)))
template <class T>
void log_softmax_rows(int64_t rows, int64_t n, T* y, const T* a) {
  const Tag<T> d;
  for (int64_t row = 0; row < rows; ++row, y += n, a += n) {
    const auto shift = hn::Set(d, max_row(a, n));
    const double sum = sum_row<T>(
        n, [=](int64_t i, int64_t count) HWY_ATTR { return exp_of(d, hn::Sub(load(d, a + i, count), shift)); });
    const auto log_sum = hn::Set(d, static_cast<T>(std::log(sum)));
    each_vector<T>(n, [=](int64_t i, int64_t count) HWY_ATTR {
      store(hn::Sub(hn::Sub(load(d, a + i, count), shift), log_sum), d, y + i, count);
    });
  }
}

// da = dy - exp(y) sum(dy)
template <class T>
void log_softmax_grad_rows(int64_t rows, int64_t n, T* da, const T* y, const T* dy) {
  const Tag<T> d;
  for (int64_t row = 0; row < rows; ++row, da += n, y += n, dy += n) {
    const double sum = sum_row<T>(n, [=](int64_t i, int64_t count) HWY_ATTR { return load(d, dy + i, count); });
    const auto total = hn::Set(d, static_cast<T>(sum));
    each_vector<T>(n, [=](int64_t i, int64_t count) HWY_ATTR {
      const auto share = hn::Mul(exp_of(d, load(d, y + i, count)), total);
      store(hn::Sub(load(d, dy + i, count), share), d, da + i, count);
    });
  }
}

void softmax_f32(int64_t rows, int64_t n, float* y, const float* a, bool zero) { softmax_rows(rows, n, y, a, zero); }
void softmax_f64(int64_t rows, int64_t n, double* y, const double* a, bool zero) { softmax_rows(rows, n, y, a, zero); }
void softmax_grad_f32(int64_t rows, int64_t n, float* da, const float* y, const float* dy) {
  softmax_grad_rows(rows, n, da, y, dy);
}
void softmax_grad_f64(int64_t rows, int64_t n, double* da, const double* y, const double* dy) {
  softmax_grad_rows(rows, n, da, y, dy);
}
void log_softmax_f32(int64_t rows, int64_t n, float* y, const float* a) { log_softmax_rows(rows, n, y, a); }
void log_softmax_f64(int64_t rows, int64_t n, double* y, const double* a) { log_softmax_rows(rows, n, y, a); }
void log_softmax_grad_f32(int64_t rows, int64_t n, float* da, const float* y, const float* dy) {
  log_softmax_grad_rows(rows, n, da, y, dy);
}
void log_softmax_grad_f64(int64_t rows, int64_t n, double* da, const double* y, const double* dy) {
  log_softmax_grad_rows(rows, n, da, y, dy);
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_f64);
HWY_EXPORT(softmax_grad_f32);
HWY_EXPORT(softmax_grad_f64);
HWY_EXPORT(log_softmax_f32);
HWY_EXPORT(log_softmax_f64);
HWY_EXPORT(log_softmax_grad_f32);
HWY_EXPORT(log_softmax_grad_f64);

namespace {
int64_t row_length(const Tensor& x, int64_t dim) { return x.dim() == 0 ? 1 : x.shape()[dim]; }
}  // namespace

void softmax(const Tensor& y, const Tensor& a, int64_t dim, bool empty_rows_zero) {
  const int64_t n = row_length(a, dim);
  if (a.dtype() == DType::f64)
    each_row<double, 1>(y, {&a}, dim, [=](int64_t rows, double* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(softmax_f64)(rows, n, out, in[0], empty_rows_zero);
    });
  else
    each_row<float, 1>(y, {&a}, dim, [=](int64_t rows, float* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(softmax_f32)(rows, n, out, in[0], empty_rows_zero);
    });
}

void softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim) {
  const int64_t n = row_length(y, dim);
  if (y.dtype() == DType::f64)
    each_row<double, 2>(da, {&y, &dy}, dim, [=](int64_t rows, double* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(softmax_grad_f64)(rows, n, out, in[0], in[1]);
    });
  else
    each_row<float, 2>(da, {&y, &dy}, dim, [=](int64_t rows, float* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(softmax_grad_f32)(rows, n, out, in[0], in[1]);
    });
}

void log_softmax(const Tensor& y, const Tensor& a, int64_t dim) {
  const int64_t n = row_length(a, dim);
  if (a.dtype() == DType::f64)
    each_row<double, 1>(y, {&a}, dim, [=](int64_t rows, double* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(log_softmax_f64)(rows, n, out, in[0]);
    });
  else
    each_row<float, 1>(y, {&a}, dim, [=](int64_t rows, float* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(log_softmax_f32)(rows, n, out, in[0]);
    });
}

void log_softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim) {
  const int64_t n = row_length(y, dim);
  if (y.dtype() == DType::f64)
    each_row<double, 2>(da, {&y, &dy}, dim, [=](int64_t rows, double* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(log_softmax_grad_f64)(rows, n, out, in[0], in[1]);
    });
  else
    each_row<float, 2>(da, {&y, &dy}, dim, [=](int64_t rows, float* out, const auto& in) {
      HWY_DYNAMIC_DISPATCH(log_softmax_grad_f32)(rows, n, out, in[0], in[1]);
    });
}

}  // namespace regard::cpu_backend
#endif
