// Sums, means, extremes, any and all, over any dimensions of any strides.
#include <limits>
#include <type_traits>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/reduce_tensor.hpp>

namespace regard::cuda_backend {
namespace {

/// Sums of floating numbers are kept in f64, as on the CPU: f32 may overflow on the way to a result that does not. A
/// number's conversion and addition take less than its way from memory. Integers wrap around where they overflow.
template <class T, class Out, bool squares>
struct Sum {
  using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;
  Out* y;
  double divisor = 1;  // more where a mean is wanted

  __device__ Accumulator start() const { return 0; }
  __device__ Sum at(int64_t) const { return *this; }
  __device__ void add(Accumulator& total, T x, int64_t) const {
    const auto value = static_cast<Accumulator>(x);
    total += squares ? value * value : value;
  }
  __device__ Accumulator operator()(Accumulator a, Accumulator b) const { return a + b; }
  __device__ void write(int64_t, const Offsets<3>& to, Accumulator total) const {
    if constexpr (std::is_floating_point_v<T>)
      y[to.at[0]] = static_cast<Out>(divisor == 1 ? total : total / divisor);
    else
      y[to.at[0]] = static_cast<Out>(total);
  }
};

template <class T, bool maximum>
struct Extreme {
  using Accumulator = T;
  T* y;

  __device__ T start() const {
    if constexpr (std::is_floating_point_v<T>)
      return maximum ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
    else
      return maximum ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
  }
  __device__ Extreme at(int64_t) const { return *this; }
  __device__ void add(T& best, T x, int64_t) const { best = (*this)(best, x); }
  // A NaN wins, and stays.
  __device__ T operator()(T a, T b) const { return (maximum ? b > a : b < a) || is_nan(b) ? b : a; }
  __device__ void write(int64_t, const Offsets<3>& to, T best) const { y[to.at[0]] = best; }
};

template <class T, bool all>
struct Truth {
  using Accumulator = int;
  bool* y;

  __device__ int start() const { return all; }
  __device__ Truth at(int64_t) const { return *this; }
  __device__ void add(int& truth, T x, int64_t) const { truth = (*this)(truth, x != T{0}); }
  __device__ int operator()(int a, int b) const { return all ? a & b : a | b; }
  __device__ void write(int64_t, const Offsets<3>& to, int truth) const { y[to.at[0]] = truth != 0; }
};

template <class T>
void reduce_as(ReduceOp op, const Tensor& y, const Tensor& a) {
  constexpr bool floating = std::is_floating_point_v<T>;
  using Total = std::conditional_t<floating, T, int64_t>;
  const auto run = [&](const char* name, const auto& how) { reduce_tensor<T>(name, how, y, {}, a); };
  switch (op) {
    case ReduceOp::sum:
      return run("sum", Sum<T, Total, false>{device_pointer<Total>(y)});
    case ReduceOp::mean:
      if constexpr (floating) {
        const int64_t outputs = y.numel();
        const double divisor = outputs == 0 ? 1 : static_cast<double>(a.numel() / outputs);
        return run("mean", Sum<T, T, false>{device_pointer<T>(y), divisor});
      }
      break;
    case ReduceOp::sum_of_squares:
      if constexpr (floating) {
        if (y.dtype() == DType::f64) return run("sum_of_squares", Sum<T, double, true>{device_pointer<double>(y)});
        return run("sum_of_squares", Sum<T, T, true>{device_pointer<T>(y)});
      }
      break;
    case ReduceOp::max:
      if constexpr (std::is_same_v<T, bool>)
        return run("max", Truth<T, false>{device_pointer<bool>(y)});
      else
        return run("max", Extreme<T, true>{device_pointer<T>(y)});
    case ReduceOp::min:
      if constexpr (std::is_same_v<T, bool>)
        return run("min", Truth<T, true>{device_pointer<bool>(y)});
      else
        return run("min", Extreme<T, false>{device_pointer<T>(y)});
    case ReduceOp::any:
      return run("any", Truth<T, false>{device_pointer<bool>(y)});
    case ReduceOp::all:
      return run("all", Truth<T, true>{device_pointer<bool>(y)});
  }
  fail<DTypeError>("reduce", "no such reduction of ", a.dtype(), "; convert with to(DType::f32)");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& y, const Tensor& a) {
  switch (a.dtype()) {
    case DType::f32:
      return reduce_as<float>(op, y, a);
    case DType::f64:
      return reduce_as<double>(op, y, a);
    case DType::i64:
      return reduce_as<int64_t>(op, y, a);
    case DType::boolean:
      return reduce_as<bool>(op, y, a);
    case DType::bf16:
    case DType::f16:
      break;
  }
  fail<DTypeError>("reduce", a.dtype(), " is for storage alone; convert with to(DType::f32)");
}

}  // namespace regard::cuda_backend
