// Sums, means, extremes, any and all, over any dimensions of any strides.
#include <limits>
#include <type_traits>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/reduce_tensor.hpp>

namespace regard::cuda_backend {
namespace {

/// Sums of floating numbers are kept in f64, as on the CPU: f32 may overflow on the way to a result that does not. A
/// number's conversion and addition take less than its way from memory. Integers wrap around where they overflow.
/// T: what numbers are; Out: the elements of y.
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
      y[to.at[0]] = convert<Out>(divisor == 1 ? total : total / divisor);
    else
      y[to.at[0]] = static_cast<Out>(total);
  }
};

template <class E, bool maximum>
struct Extreme {
  using T = Number<E>;
  using Accumulator = T;
  E* y;

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
  __device__ void write(int64_t, const Offsets<3>& to, T best) const { y[to.at[0]] = element<E>(best); }
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

template <class E>
void reduce_as(ReduceOp op, const Tensor& y, const Tensor& a) {
  using T = Number<E>;
  constexpr bool floating = std::is_floating_point_v<T>;
  using Total = std::conditional_t<floating, E, int64_t>;
  const auto run = [&](const char* name, const auto& how) { reduce_tensor<E>(name, how, y, {}, a); };
  switch (op) {
    case ReduceOp::sum:
      if constexpr (std::is_same_v<E, float>) {  // partial sums of 16-bit numbers
        if (y.dtype() == DType::bf16) return run("sum", Sum<T, bfloat16, false>{device_pointer<bfloat16>(y)});
        if (y.dtype() == DType::f16) return run("sum", Sum<T, float16, false>{device_pointer<float16>(y)});
      }
      return run("sum", Sum<T, Total, false>{device_pointer<Total>(y)});
    case ReduceOp::mean:
      if constexpr (floating) {
        const int64_t outputs = y.numel();
        const double divisor = outputs == 0 ? 1 : static_cast<double>(a.numel() / outputs);
        return run("mean", Sum<T, E, false>{device_pointer<E>(y), divisor});
      }
      break;
    case ReduceOp::sum_of_squares:
      if constexpr (floating) {
        if (y.dtype() == DType::f64) return run("sum_of_squares", Sum<T, double, true>{device_pointer<double>(y)});
        return run("sum_of_squares", Sum<T, E, true>{device_pointer<E>(y)});
      }
      break;
    case ReduceOp::max:
      if constexpr (std::is_same_v<E, bool>)
        return run("max", Truth<T, false>{device_pointer<bool>(y)});
      else
        return run("max", Extreme<E, true>{device_pointer<E>(y)});
    case ReduceOp::min:
      if constexpr (std::is_same_v<E, bool>)
        return run("min", Truth<T, true>{device_pointer<bool>(y)});
      else
        return run("min", Extreme<E, false>{device_pointer<E>(y)});
    case ReduceOp::any:
      return run("any", Truth<T, false>{device_pointer<bool>(y)});
    case ReduceOp::all:
      return run("all", Truth<T, true>{device_pointer<bool>(y)});
  }
  fail<DTypeError>("reduce", "no such reduction of ", a.dtype(), "; convert with to(DType::f32)");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& y, const Tensor& a) {
  visit_dtype(a.dtype(), [&]<class E>(E) { reduce_as<E>(op, y, a); });
}

}  // namespace regard::cuda_backend
