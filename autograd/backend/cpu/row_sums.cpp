#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/row_sums.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/row_sums.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

// `count` elements as f64.
HWY_INLINE hn::Vec<Tag<double>> load_double(const double* from, int64_t count) {
  return load(Tag<double>(), from, count);
}
HWY_INLINE hn::Vec<Tag<double>> load_double(const float* from, int64_t count) {
  const Tag<double> d;
  return hn::PromoteTo(d, load(hn::Rebind<float, Tag<double>>(), from, count));
}

template <class T>
double sum(const T* row, int64_t n) {
  return sum_row<double>(n, [=](int64_t i, int64_t count) HWY_ATTR { return load_double(row + i, count); });
}
template <class T>
double sum_of_squares(const T* row, int64_t n) {
  return sum_row<double>(n, [=](int64_t i, int64_t count) HWY_ATTR {
    const auto x = load_double(row + i, count);
    return hn::Mul(x, x);
  });
}
template <class T>
double squared_deviations(const T* row, int64_t n, double mean) {
  return sum_row<double>(n, [=](int64_t i, int64_t count) HWY_ATTR {
    const auto x = hn::Sub(load_double(row + i, count), hn::Set(Tag<double>(), mean));
    return hn::Mul(x, x);
  });
}
template <class T>
double sum_exp(const T* row, int64_t n, double shift) {
  const Tag<T> d;
  return sum_row<T>(n, [=](int64_t i, int64_t count) HWY_ATTR {
    return exp_of(d, hn::Sub(load(d, row + i, count), hn::Set(d, static_cast<T>(shift))));
  });
}

template <bool squares, class T>
HWY_INLINE void add_columns(double* totals, const T* first, int64_t stride, int64_t rows, int64_t columns) {
  const Tag<double> d;
  for (; rows > 0; rows -= 8, first += 8 * stride) {
    const int64_t height = rows < 8 ? rows : 8;
    each_vector<double>(columns, [=](int64_t i, int64_t count) HWY_ATTR {
      auto total = load(d, totals + i, count);
      const T* at = first + i;
      for (int64_t r = 0; r < height; ++r, at += stride) {
        const auto x = load_double(at, count);
        total = hn::Add(total, squares ? hn::Mul(x, x) : x);
      }
      store(total, d, totals + i, count);
    });
  }
}

double sum_f32(const float* row, int64_t n) { return sum(row, n); }
double sum_f64(const double* row, int64_t n) { return sum(row, n); }
double squares_f32(const float* row, int64_t n) { return sum_of_squares(row, n); }
double squares_f64(const double* row, int64_t n) { return sum_of_squares(row, n); }
double deviations_f32(const float* row, int64_t n, double mean) { return squared_deviations(row, n, mean); }
double deviations_f64(const double* row, int64_t n, double mean) { return squared_deviations(row, n, mean); }
float max_f32(const float* row, int64_t n) { return max_row(row, n); }
double max_f64(const double* row, int64_t n) { return max_row(row, n); }
double sum_exp_f32(const float* row, int64_t n, double shift) { return sum_exp(row, n, shift); }
double sum_exp_f64(const double* row, int64_t n, double shift) { return sum_exp(row, n, shift); }
void columns_f32(double* totals, const float* first, int64_t stride, int64_t rows, int64_t columns) {
  add_columns<false>(totals, first, stride, rows, columns);
}
void columns_f64(double* totals, const double* first, int64_t stride, int64_t rows, int64_t columns) {
  add_columns<false>(totals, first, stride, rows, columns);
}
void column_squares_f32(double* totals, const float* first, int64_t stride, int64_t rows, int64_t columns) {
  add_columns<true>(totals, first, stride, rows, columns);
}
void column_squares_f64(double* totals, const double* first, int64_t stride, int64_t rows, int64_t columns) {
  add_columns<true>(totals, first, stride, rows, columns);
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(sum_f32);
HWY_EXPORT(sum_f64);
HWY_EXPORT(squares_f32);
HWY_EXPORT(squares_f64);
HWY_EXPORT(deviations_f32);
HWY_EXPORT(deviations_f64);
HWY_EXPORT(max_f32);
HWY_EXPORT(max_f64);
HWY_EXPORT(sum_exp_f32);
HWY_EXPORT(sum_exp_f64);
HWY_EXPORT(columns_f32);
HWY_EXPORT(columns_f64);
HWY_EXPORT(column_squares_f32);
HWY_EXPORT(column_squares_f64);

double row_sum(const float* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(sum_f32)(row, n); }
double row_sum(const double* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(sum_f64)(row, n); }
double row_sum_of_squares(const float* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(squares_f32)(row, n); }
double row_sum_of_squares(const double* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(squares_f64)(row, n); }
double row_squared_deviations(const float* row, int64_t n, double mean) {
  return HWY_DYNAMIC_DISPATCH(deviations_f32)(row, n, mean);
}
double row_squared_deviations(const double* row, int64_t n, double mean) {
  return HWY_DYNAMIC_DISPATCH(deviations_f64)(row, n, mean);
}
float row_max(const float* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(max_f32)(row, n); }
double row_max(const double* row, int64_t n) { return HWY_DYNAMIC_DISPATCH(max_f64)(row, n); }
double row_sum_exp(const float* row, int64_t n, double shift) {
  return HWY_DYNAMIC_DISPATCH(sum_exp_f32)(row, n, shift);
}
double row_sum_exp(const double* row, int64_t n, double shift) {
  return HWY_DYNAMIC_DISPATCH(sum_exp_f64)(row, n, shift);
}
void add_column_sums(double* totals, const float* first, int64_t stride, int64_t rows, int64_t columns, bool squares) {
  if (squares)
    HWY_DYNAMIC_DISPATCH(column_squares_f32)(totals, first, stride, rows, columns);
  else
    HWY_DYNAMIC_DISPATCH(columns_f32)(totals, first, stride, rows, columns);
}
void add_column_sums(double* totals, const double* first, int64_t stride, int64_t rows, int64_t columns, bool squares) {
  if (squares)
    HWY_DYNAMIC_DISPATCH(column_squares_f64)(totals, first, stride, rows, columns);
  else
    HWY_DYNAMIC_DISPATCH(columns_f64)(totals, first, stride, rows, columns);
}

}  // namespace regard::cpu_backend
#endif
