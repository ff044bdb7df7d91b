// Vector loops along one row, for the kernels of softmax, normalisation, losses and sums. Included once for each
// instruction set by the files that Highway compiles several times.
#if defined(REGARD_CPU_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef REGARD_CPU_ROWS_INL
#undef REGARD_CPU_ROWS_INL
#else
#define REGARD_CPU_ROWS_INL
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
#include <limits>

#include <regard/autograd/backend/cpu/simd_math-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

// `count` elements, and `fill` in the lanes past them. Never reads past the row.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load(D d, const T* from, int64_t count, T fill = 0) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (count >= lanes) return hn::LoadU(d, from);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const auto inside = hn::FirstN(d, static_cast<size_t>(count));
  const auto value = hn::MaskedLoad(inside, d, from);
  return fill == 0 ? value : hn::IfThenElse(inside, value, hn::Set(d, fill));
#else
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  for (int64_t i = 0; i < lanes; ++i) buffer[i] = i < count ? from[i] : fill;
  return hn::Load(d, buffer);
#endif
}

// The first `count` lanes. Never writes past the row.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store(hn::Vec<D> value, D d, T* to, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  if (count >= lanes) {
    hn::StoreU(value, d, to);
    return;
  }
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(count)), d, to);
#else
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(value, d, buffer);
  for (int64_t i = 0; i < count; ++i) to[i] = buffer[i];
#endif
}

// Calls f(i, count) for vectors at i = 0, lanes, ...; count is below the number of lanes in the last one only.
template <class T, class F>
HWY_INLINE void each_vector(int64_t n, F f) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag<T>()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

// The sum of the vectors f(i, count) over a row: in T over 128 vectors, four at a time, then in f64. Lanes past
// `count` count for nothing.
template <class T, class F>
HWY_INLINE double sum_row(int64_t n, F f) {
  const Tag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t rest = n % lanes;
  const int64_t whole = n - rest;
  auto sum0 = hn::Zero(d);
  if (rest != 0) sum0 = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(rest)), f(whole, rest));
  double total = 0;
  int64_t i = 0;
  do {
    const int64_t end = whole - i < 128 * lanes ? whole : i + 128 * lanes;
    auto sum1 = hn::Zero(d), sum2 = sum1, sum3 = sum1;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      sum0 = hn::Add(sum0, f(i, lanes));
      sum1 = hn::Add(sum1, f(i + lanes, lanes));
      sum2 = hn::Add(sum2, f(i + 2 * lanes, lanes));
      sum3 = hn::Add(sum3, f(i + 3 * lanes, lanes));
    }
    for (; i < end; i += lanes) sum0 = hn::Add(sum0, f(i, lanes));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)))));
    sum0 = hn::Zero(d);
  } while (i < whole);
  return total;
}

// Two sums in one pass: f(i, count, first, second) sets both vectors.
template <class T, class F>
HWY_INLINE void sum_row_twice(int64_t n, double& first_total, double& second_total, F f) {
  const Tag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t rest = n % lanes;
  const int64_t whole = n - rest;
  auto a0 = hn::Zero(d), b0 = a0;
  auto a = a0, b = a0;
  if (rest != 0) {
    f(whole, rest, a, b);
    const auto inside = hn::FirstN(d, static_cast<size_t>(rest));
    a0 = hn::IfThenElseZero(inside, a);
    b0 = hn::IfThenElseZero(inside, b);
  }
  first_total = second_total = 0;
  int64_t i = 0;
  do {
    const int64_t end = whole - i < 128 * lanes ? whole : i + 128 * lanes;
    auto a1 = hn::Zero(d), b1 = a1;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      f(i, lanes, a, b);
      a0 = hn::Add(a0, a);
      b0 = hn::Add(b0, b);
      f(i + lanes, lanes, a, b);
      a1 = hn::Add(a1, a);
      b1 = hn::Add(b1, b);
    }
    for (; i < end; i += lanes) {
      f(i, lanes, a, b);
      a0 = hn::Add(a0, a);
      b0 = hn::Add(b0, b);
    }
    first_total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a0, a1))));
    second_total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(b0, b1))));
    a0 = b0 = hn::Zero(d);
  } while (i < whole);
}

// The largest element, -inf for an empty row. A NaN may or may not show in it.
template <class T>
HWY_INLINE T max_row(const T* row, int64_t n) {
  const Tag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  auto max0 = hn::Set(d, lowest), max1 = max0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    max0 = hn::Max(max0, hn::LoadU(d, row + i));
    max1 = hn::Max(max1, hn::LoadU(d, row + i + lanes));
  }
  for (; i < n; i += lanes) max0 = hn::Max(max0, load(d, row + i, n - i, lowest));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
}

// e^x; for f64 below 706 alone. -inf gives 0; NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4)
    return simd_exp(d, x);
  else
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// x - shift, where shift stands as the sum of two numbers of x's precision: the difference of numbers close to one
// another keeps all its digits.
template <class T>
struct Shift {
  T high, low;
  explicit HWY_INLINE Shift(double value)
      : high(static_cast<T>(value)), low(static_cast<T>(value - static_cast<double>(high))) {}
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE V subtract(D d, V x, Shift<hn::TFromD<D>> shift) {
  return hn::Sub(hn::Sub(x, hn::Set(d, shift.high)), hn::Set(d, shift.low));
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // REGARD_CPU_ROWS_INL
