// Reductions with more to keep than a number: where the extreme is, variance, log-sum-exp.
#include <algorithm>
#include <limits>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/reduce_tensor.hpp>

namespace regard::cuda_backend {
namespace {

template <class T>
struct Place {
  T value;
  int64_t index;
};

/// The first of the extremes; a NaN is one. y is the index.
template <class E, bool maximum>
struct ExtremeAt {
  using T = Number<E>;
  using Accumulator = Place<T>;
  int64_t* indices;
  E* values;  // may be null

  __device__ Place<T> start() const {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::is_floating_point_v<T>)
      return {maximum ? -Limits::infinity() : Limits::infinity(), INT64_MAX};
    else
      return {maximum ? Limits::lowest() : Limits::max(), INT64_MAX};
  }
  __device__ ExtremeAt at(int64_t) const { return *this; }
  __device__ void add(Place<T>& best, T x, int64_t i) const { best = (*this)(best, {x, i}); }
  __device__ Place<T> operator()(Place<T> a, Place<T> b) const {
    if (is_nan(a.value) != is_nan(b.value)) return is_nan(a.value) ? a : b;
    if (maximum ? a.value > b.value : a.value < b.value) return a;
    if (maximum ? b.value > a.value : b.value < a.value) return b;
    return a.index < b.index ? a : b;
  }
  __device__ void write(int64_t, const Offsets<3>& to, Place<T> best) const {
    indices[to.at[0]] = best.index;
    if (values) values[to.at[1]] = element<E>(best.value);
  }
};

template <class T>
void extreme_as(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a) {
  auto* to = device_pointer<int64_t>(indices);
  auto* value_to = device_pointer<T>(values);
  if (maximum)
    reduce_tensor<T>("max", ExtremeAt<T, true>{to, value_to}, indices, values, a);
  else
    reduce_tensor<T>("min", ExtremeAt<T, false>{to, value_to}, indices, values, a);
}

/// The first pass: means in f64, for the second, and as elements where they are asked for.
template <class E>
struct Mean {
  using Accumulator = double;
  double* means;  // [outputs]
  E* rounded;     // may be null
  double count;

  __device__ double start() const { return 0; }
  __device__ Mean at(int64_t) const { return *this; }
  __device__ void add(double& total, Number<E> x, int64_t) const { total += static_cast<double>(x); }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ void write(int64_t output, const Offsets<3>& to, double total) const {
    means[output] = total / count;
    if (rounded) rounded[to.at[1]] = convert<E>(total / count);
  }
};

template <class E>
struct Variance {
  using Accumulator = double;
  E* y;
  const double* means;
  double divisor;
  double mean = 0;

  __device__ double start() const { return 0; }
  __device__ Variance at(int64_t output) const { return {y, means, divisor, means[output]}; }
  __device__ void add(double& total, Number<E> x, int64_t) const {
    const double deviation = static_cast<double>(x) - mean;
    total += deviation * deviation;
  }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ void write(int64_t, const Offsets<3>& to, double total) const {
    y[to.at[0]] = convert<E>(total / divisor);
  }
};

template <class T>
struct Exponentials {
  T largest;
  T sum;  // of exp(x - largest); NaN where there is one in the input
};

template <class E>
struct LogSumExp {
  using T = Number<E>;
  using Accumulator = Exponentials<T>;
  E* y;

  // x - x would be NaN for infinities.
  __device__ static T power(T x, T largest) { return x == largest ? T(1) : exp(x - largest); }

  __device__ Exponentials<T> start() const { return {-infinity<T>(), 0}; }
  __device__ LogSumExp at(int64_t) const { return *this; }
  __device__ void add(Exponentials<T>& total, T x, int64_t) const {
    if (x > total.largest)
      total = {x, total.sum * exp(total.largest - x) + 1};
    else
      total.sum += power(x, total.largest);
  }
  __device__ Exponentials<T> operator()(Exponentials<T> a, Exponentials<T> b) const {
    const T largest = b.largest > a.largest ? b.largest : a.largest;
    return {largest, a.sum * power(a.largest, largest) + b.sum * power(b.largest, largest)};
  }
  __device__ void write(int64_t, const Offsets<3>& to, Exponentials<T> total) const {
    const bool finite = fabs(total.largest) < infinity<T>();
    T result = total.largest;  // all -inf, or an inf: that is the result
    if (finite || is_nan(total.sum))
      result = static_cast<T>(static_cast<double>(total.largest) + log(static_cast<double>(total.sum)));
    y[to.at[0]] = element<E>(result);
  }
};

}  // namespace

void extreme(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a, int64_t) {
  visit_dtype(a.dtype(), [&]<class T>(T) { extreme_as<T>(maximum, values, indices, a); });
}

void variance(const Tensor& y, const Tensor& mean, const Tensor& a, int64_t correction) {
  const int64_t outputs = y.numel();
  if (outputs == 0) return;
  const int64_t count = a.numel() / outputs;
  const auto divisor = static_cast<double>(std::max<int64_t>(0, count - correction));
  const Scratch scratch(outputs * static_cast<int64_t>(sizeof(double)), y.device());
  auto* means = scratch.as<double>();
  visit_floating(a.dtype(), [&]<class T>(T) {
    reduce_tensor<T>("var", Mean<T>{means, device_pointer<T>(mean), static_cast<double>(count)}, y, mean, a);
    reduce_tensor<T>("var", Variance<T>{device_pointer<T>(y), means, divisor}, y, {}, a);
  });
}

void logsumexp(const Tensor& y, const Tensor& a) {
  visit_floating(a.dtype(),
                 [&]<class T>(T) { reduce_tensor<T>("logsumexp", LogSumExp<T>{device_pointer<T>(y)}, y, {}, a); });
}

}  // namespace regard::cuda_backend
