// Functions of two tensors without vectors: comparisons, logic, integers, powers, and f64 gradients.
#include <cmath>
#include <numbers>

#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cpu/elementwise.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {
namespace {

// 16-bit numbers are compared as floats.
template <class T>
auto comparable(T value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
    return static_cast<float>(value);
  else
    return value;
}

// clang-format off
struct Equal { template <class T> bool operator()(T a, T b) const { return comparable(a) == comparable(b); } };
struct Unequal { template <class T> bool operator()(T a, T b) const { return comparable(a) != comparable(b); } };
struct Less { template <class T> bool operator()(T a, T b) const { return comparable(a) < comparable(b); } };
struct LessEqual { template <class T> bool operator()(T a, T b) const { return comparable(a) <= comparable(b); } };
struct Greater { template <class T> bool operator()(T a, T b) const { return comparable(a) > comparable(b); } };
struct GreaterEqual { template <class T> bool operator()(T a, T b) const { return comparable(a) >= comparable(b); } };
struct And { bool operator()(bool a, bool b) const { return a && b; } };
struct Or { bool operator()(bool a, bool b) const { return a || b; } };
struct Xor { bool operator()(bool a, bool b) const { return a != b; } };
// clang-format on

// Integers wrap around at the ends of their range.
int64_t wrap(uint64_t value) { return static_cast<int64_t>(value); }
// clang-format off
struct IntegerAdd { int64_t operator()(int64_t a, int64_t b) const { return wrap(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); } };
struct IntegerSub { int64_t operator()(int64_t a, int64_t b) const { return wrap(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); } };
struct IntegerMul { int64_t operator()(int64_t a, int64_t b) const { return wrap(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); } };
struct IntegerMaximum { int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; } };
struct IntegerMinimum { int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; } };
// clang-format on
struct IntegerPower {  // b >= 0: the op has checked
  int64_t operator()(int64_t a, int64_t b) const {
    uint64_t result = 1, factor = static_cast<uint64_t>(a);
    for (; b > 0; b >>= 1, factor *= factor)
      if (b & 1) result *= factor;
    return wrap(result);
  }
};
struct Power {
  template <class T>
  T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};

double logistic_derivative(double x) {  // of sigmoid, accurate in both tails
  const double e = std::exp(-std::abs(x));
  return e / ((1 + e) * (1 + e));
}
double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
double hold(double x, double limit) { return x < -limit ? -limit : x > limit ? limit : x; }
struct GeluGrad {
  double operator()(double x, double g) const {
    const double held = hold(x, 50);
    const double density = std::exp(-0.5 * held * held) * (0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return g * (0.5 * std::erfc(-x / std::numbers::sqrt2) + held * density);
  }
};
struct GeluTanhGrad {
  double operator()(double x, double g) const {
    const double held = hold(x, 50), scale = 2 * std::sqrt(2 / std::numbers::pi);
    const double v = scale * (held + 0.044715 * held * held * held);
    return g * (sigmoid(v) + held * logistic_derivative(v) * scale * (1 + 3 * 0.044715 * held * held));
  }
};
struct SiluGrad {
  double operator()(double x, double g) const { return g * (sigmoid(x) + hold(x, 800) * logistic_derivative(x)); }
};

template <class F>
BinaryLoop comparison(DType dtype) {
  return visit_dtype(dtype, []<class T>(T) { return BinaryLoop{plain_binary_run<bool, T, F>, cheap_grain}; });
}
[[noreturn]] void refuse(DType dtype) {
  fail<DTypeError>("binary", "no kernel for dtype ", dtype, ": convert with to(DType::f32)");
}
template <class F>
BinaryLoop integer(DType dtype) {
  if (dtype != DType::i64) refuse(dtype);
  return {plain_binary_run<int64_t, int64_t, F>, cheap_grain};
}

}  // namespace

BinaryLoop plain_binary(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::eq:
      return comparison<Equal>(dtype);
    case BinaryOp::ne:
      return comparison<Unequal>(dtype);
    case BinaryOp::lt:
      return comparison<Less>(dtype);
    case BinaryOp::le:
      return comparison<LessEqual>(dtype);
    case BinaryOp::gt:
      return comparison<Greater>(dtype);
    case BinaryOp::ge:
      return comparison<GreaterEqual>(dtype);
    case BinaryOp::logical_and:
      return {plain_binary_run<bool, bool, And>, cheap_grain};
    case BinaryOp::logical_or:
      return {plain_binary_run<bool, bool, Or>, cheap_grain};
    case BinaryOp::logical_xor:
      return {plain_binary_run<bool, bool, Xor>, cheap_grain};
    case BinaryOp::add:
      return integer<IntegerAdd>(dtype);
    case BinaryOp::sub:
      return integer<IntegerSub>(dtype);
    case BinaryOp::mul:
      return integer<IntegerMul>(dtype);
    case BinaryOp::maximum:
      return integer<IntegerMaximum>(dtype);
    case BinaryOp::minimum:
      return integer<IntegerMinimum>(dtype);
    case BinaryOp::pow:
      if (dtype == DType::i64) return integer<IntegerPower>(dtype);
      return visit_compute(dtype, []<class T>(T) { return BinaryLoop{plain_binary_run<T, T, Power>, slow_grain}; });
    case BinaryOp::gelu_grad_x:
      return {plain_binary_run<double, double, GeluGrad>, slow_grain};
    case BinaryOp::gelu_tanh_grad_x:
      return {plain_binary_run<double, double, GeluTanhGrad>, slow_grain};
    case BinaryOp::silu_grad_x:
      return {plain_binary_run<double, double, SiluGrad>, slow_grain};
    default:
      refuse(dtype);
  }
}

}  // namespace regard::cpu_backend
