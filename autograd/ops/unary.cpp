// Functions of one tensor.
#include <cmath>
#include <limits>
#include <numbers>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/promote.hpp>
#include <regard/autograd/ops/unary_values.hpp>

namespace regard {

namespace {

// The few that take integers too.
Tensor compute_number(const char* name, UnaryOp op, const Tensor& x) {
  check_defined(name, "x", x);
  if (x.dtype() != DType::i64) return unary_values(name, op, x);
  Tensor y = empty_like(x);
  kernels(x).unary(op, y, x);
  return y;
}

}  // namespace

Tensor exp(const Tensor& x) {
  if (autocast::widens("exp", x)) [[unlikely]]
    return exp(autocast::wide(x));
  Tensor y = unary_values("exp", UnaryOp::exp, x);
  return record("exp", y, inputs(x), saved(y), [](const Saved& s, const Tensor& g) { return Grads{mul(g, s[0])}; });
}

Tensor log(const Tensor& x) {
  if (autocast::widens("log", x)) [[unlikely]]
    return log(autocast::wide(x));
  Tensor y = unary_values("log", UnaryOp::log, x);
  return record("log", y, inputs(x), saved(x), [](const Saved& s, const Tensor& g) { return Grads{div(g, s[0])}; });
}

Tensor sqrt(const Tensor& x) {
  Tensor y = unary_values("sqrt", UnaryOp::sqrt, x);
  return record("sqrt", y, inputs(x), saved(y),
                [](const Saved& s, const Tensor& g) { return Grads{div(g, mul(s[0], 2))}; });
}

Tensor rsqrt(const Tensor& x) {
  if (autocast::widens("rsqrt", x)) [[unlikely]]
    return rsqrt(autocast::wide(x));
  Tensor y = unary_values("rsqrt", UnaryOp::rsqrt, x);
  return record("rsqrt", y, inputs(x), saved(y), [](const Saved& s, const Tensor& g) {
    const Tensor y = s[0];
    return Grads{mul(mul(g, -0.5), mul(square(y), y))};
  });
}

Tensor reciprocal(const Tensor& x) {
  if (autocast::widens("reciprocal", x)) [[unlikely]]
    return reciprocal(autocast::wide(x));
  Tensor y = unary_values("reciprocal", UnaryOp::reciprocal, x);
  return record("reciprocal", y, inputs(x), saved(y),
                [](const Saved& s, const Tensor& g) { return Grads{neg(mul(g, square(s[0])))}; });
}

Tensor square(const Tensor& x) {
  check_defined("square", "x", x);
  if (x.dtype() == DType::i64) return mul(x, x);
  Tensor y = unary_values("square", UnaryOp::square, x);
  return record("square", y, inputs(x), saved(x),
                [](const Saved& s, const Tensor& g) { return Grads{mul(g, mul(s[0], 2))}; });
}

Tensor abs(const Tensor& x) {
  Tensor y = compute_number("abs", UnaryOp::abs, x);
  return record("abs", y, inputs(x), saved(x),
                [](const Saved& s, const Tensor& g) { return Grads{mul(g, sign(s[0]))}; });
}

Tensor sign(const Tensor& x) {
  Tensor y = compute_number("sign", UnaryOp::sign, x);
  return record("sign", y, inputs(x), saved(), [](const Saved&, const Tensor& g) { return Grads{zero_gradient(g)}; });
}

Tensor erf(const Tensor& x) {
  Tensor y = unary_values("erf", UnaryOp::erf, x);
  return record("erf", y, inputs(x), saved(x), [](const Saved& s, const Tensor& g) {
    return Grads{mul(g, mul(exp(neg(square(s[0]))), 2 * std::numbers::inv_sqrtpi))};
  });
}

Tensor sin(const Tensor& x) {
  Tensor y = unary_values("sin", UnaryOp::sin, x);
  return record("sin", y, inputs(x), saved(x),
                [](const Saved& s, const Tensor& g) { return Grads{mul(g, cos(s[0]))}; });
}

Tensor cos(const Tensor& x) {
  Tensor y = unary_values("cos", UnaryOp::cos, x);
  return record("cos", y, inputs(x), saved(x),
                [](const Saved& s, const Tensor& g) { return Grads{neg(mul(g, sin(s[0])))}; });
}

Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  check_defined("clamp", "x", x);
  check<ValueError>(min || max, "clamp", "neither min nor max is given: give one of them");
  check<ValueError>(!(min && std::isnan(*min)) && !(max && std::isnan(*max)), "clamp",
                    "a bound is NaN: leave it out for no bound");
  if (x.dtype() == DType::i64) {
    check<DTypeError>((!min || *min == std::floor(*min)) && (!max || *max == std::floor(*max)), "clamp",
                      "the bounds of an i64 tensor are whole numbers; convert it with to(DType::f32) for others");
  } else {
    check_floating("clamp", "x", x);
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Tensor y = empty_like(x);
  kernels(x).clamp(y, x, min.value_or(-infinity), max.value_or(infinity));
  return record("clamp", y, inputs(x), saved(x), [min, max](const Saved& s, const Tensor& g) {
    const Tensor x = s[0];
    Tensor inside = min ? x > Scalar(*min) : x < Scalar(*max);
    if (min && max) inside = logical_and(inside, x < Scalar(*max));
    return Grads{where(inside, g, 0)};
  });
}

}  // namespace regard
