// Functions of one tensor without vectors: integers, logic, and f64 through the standard library.
#include <cmath>
#include <numbers>

#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cpu/elementwise.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {
namespace {

// clang-format off
struct Negate { int64_t operator()(int64_t x) const { return static_cast<int64_t>(-static_cast<uint64_t>(x)); } };
struct Absolute { int64_t operator()(int64_t x) const { return x < 0 ? Negate()(x) : x; } };
struct Sign { int64_t operator()(int64_t x) const { return (x > 0) - (x < 0); } };
struct Not { template <class T> bool operator()(T x) const { return !convert<bool>(x); } };
struct IsFinite { template <class T> bool operator()(T x) const { return std::isfinite(x); } };
struct Sin { template <class T> T operator()(T x) const { return std::sin(x); } };
struct Cos { template <class T> T operator()(T x) const { return std::cos(x); } };
struct Exp { double operator()(double x) const { return std::exp(x); } };
struct Log { double operator()(double x) const { return std::log(x); } };
struct Tanh { double operator()(double x) const { return std::tanh(x); } };
struct Erf { double operator()(double x) const { return std::erf(x); } };
// clang-format on
struct Sigmoid {
  double operator()(double x) const {
    const double e = std::exp(-std::abs(x));
    return (x < 0 ? e : 1) / (1 + e);
  }
};
// The limit at minus infinity is 0, where a product would give NaN.
double times_share(double x, double share) { return x == -INFINITY ? -0.0 : x * share; }
struct Gelu {
  double operator()(double x) const { return times_share(x, 0.5 * std::erfc(-x / std::numbers::sqrt2)); }
};
struct GeluTanh {
  double operator()(double x) const {
    return times_share(x, Sigmoid()(2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
};
struct Silu {
  double operator()(double x) const { return times_share(x, Sigmoid()(x)); }
};

template <class T, class F>
UnaryLoop slow() {
  return {plain_unary_run<T, T, F>, slow_grain};
}

}  // namespace

UnaryLoop plain_unary(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::neg:
      return {plain_unary_run<int64_t, int64_t, Negate>, cheap_grain};
    case UnaryOp::abs:
      return {plain_unary_run<int64_t, int64_t, Absolute>, cheap_grain};
    case UnaryOp::sign:
      return {plain_unary_run<int64_t, int64_t, Sign>, cheap_grain};
    case UnaryOp::logical_not:
      return visit_dtype(dtype, []<class T>(T) { return UnaryLoop{plain_unary_run<bool, T, Not>, cheap_grain}; });
    case UnaryOp::is_finite:
      return visit_compute(dtype, []<class T>(T) {
        return UnaryLoop{plain_unary_run<bool, T, IsFinite>, cheap_grain};
      });
    case UnaryOp::sin:
      return visit_compute(dtype, []<class T>(T) { return slow<T, Sin>(); });
    case UnaryOp::cos:
      return visit_compute(dtype, []<class T>(T) { return slow<T, Cos>(); });
    case UnaryOp::exp:
      return slow<double, Exp>();
    case UnaryOp::log:
      return slow<double, Log>();
    case UnaryOp::tanh:
      return slow<double, Tanh>();
    case UnaryOp::sigmoid:
      return slow<double, Sigmoid>();
    case UnaryOp::gelu:
      return slow<double, Gelu>();
    case UnaryOp::gelu_tanh:
      return slow<double, GeluTanh>();
    case UnaryOp::silu:
      return slow<double, Silu>();
    case UnaryOp::erf:
      return slow<double, Erf>();
    default:
      fail<DTypeError>("unary", "no kernel for dtype ", dtype, ": convert with to(DType::f32)");
  }
}

}  // namespace regard::cpu_backend
