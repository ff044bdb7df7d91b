// Comparisons and logic: boolean results without a derivative.
#include <cmath>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/promote.hpp>

namespace regard {

namespace {

Tensor compare(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  if (autocast::mixes("comparison", a, b)) [[unlikely]]
    return compare(name, op, autocast::wide(a), autocast::wide(b));
  check_operands(name, a, b);
  // Numbers of one dtype can be compared whatever it is, 16 bits included.
  const DType dtype = a.dtype() == b.dtype() ? a.dtype() : common_dtype(name, a, b);
  const Operands operands(name, a, b, dtype);
  Tensor y = empty(operands.shape(), {DType::boolean, a.device()});
  kernels(a).binary(op, y, operands.a(), operands.b());
  return no_derivative(y);
}

Tensor compare(const char* name, BinaryOp op, const Tensor& a, Scalar b, bool scalar_first) {
  check_defined(name, "the tensor", a);
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : common_dtype(name, a, b);
  Tensor y = empty(a.shape(), {DType::boolean, a.device()});
  if (a.impl()->dtype == dtype)
    kernels(a).binary_scalar(op, y, a, b, scalar_first);
  else
    kernels(a).binary_scalar(op, y, converted(a, dtype), b, scalar_first);
  return no_derivative(y);
}

Tensor logic(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  check_operands(name, a, b);
  const Tensor first = converted(a, DType::boolean), second = converted(b, DType::boolean);
  const Operands operands(name, first, second, DType::boolean);
  Tensor y = empty(operands.shape(), {DType::boolean, a.device()});
  kernels(a).binary(op, y, operands.a(), operands.b());
  return no_derivative(y);
}

}  // namespace

Tensor operator==(const Tensor& a, const Tensor& b) { return compare("operator==", BinaryOp::eq, a, b); }
Tensor operator==(const Tensor& a, Scalar b) { return compare("operator==", BinaryOp::eq, a, b, false); }
Tensor operator==(Scalar a, const Tensor& b) { return compare("operator==", BinaryOp::eq, b, a, true); }
Tensor operator!=(const Tensor& a, const Tensor& b) { return compare("operator!=", BinaryOp::ne, a, b); }
Tensor operator!=(const Tensor& a, Scalar b) { return compare("operator!=", BinaryOp::ne, a, b, false); }
Tensor operator!=(Scalar a, const Tensor& b) { return compare("operator!=", BinaryOp::ne, b, a, true); }
Tensor operator<(const Tensor& a, const Tensor& b) { return compare("operator<", BinaryOp::lt, a, b); }
Tensor operator<(const Tensor& a, Scalar b) { return compare("operator<", BinaryOp::lt, a, b, false); }
Tensor operator<(Scalar a, const Tensor& b) { return compare("operator<", BinaryOp::lt, b, a, true); }
Tensor operator<=(const Tensor& a, const Tensor& b) { return compare("operator<=", BinaryOp::le, a, b); }
Tensor operator<=(const Tensor& a, Scalar b) { return compare("operator<=", BinaryOp::le, a, b, false); }
Tensor operator<=(Scalar a, const Tensor& b) { return compare("operator<=", BinaryOp::le, b, a, true); }
Tensor operator>(const Tensor& a, const Tensor& b) { return compare("operator>", BinaryOp::gt, a, b); }
Tensor operator>(const Tensor& a, Scalar b) { return compare("operator>", BinaryOp::gt, a, b, false); }
Tensor operator>(Scalar a, const Tensor& b) { return compare("operator>", BinaryOp::gt, b, a, true); }
Tensor operator>=(const Tensor& a, const Tensor& b) { return compare("operator>=", BinaryOp::ge, a, b); }
Tensor operator>=(const Tensor& a, Scalar b) { return compare("operator>=", BinaryOp::ge, a, b, false); }
Tensor operator>=(Scalar a, const Tensor& b) { return compare("operator>=", BinaryOp::ge, b, a, true); }

Tensor logical_and(const Tensor& a, const Tensor& b) { return logic("logical_and", BinaryOp::logical_and, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return logic("logical_or", BinaryOp::logical_or, a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return logic("logical_xor", BinaryOp::logical_xor, a, b); }

Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", "x", x);
  Tensor y = empty(x.shape(), {DType::boolean, x.device()});
  kernels(x).unary(UnaryOp::logical_not, y, x);
  return no_derivative(y);
}

Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", "x", x);
  if (!is_floating(x.dtype())) return ones(x.shape(), {DType::boolean, x.device()});
  const bool computed = computes(x.dtype(), x.device());
  Tensor y = empty(x.shape(), {DType::boolean, x.device()});
  kernels(x).unary(UnaryOp::is_finite, y, computed ? x : converted(x, DType::f32));
  return no_derivative(y);
}

bool equal(const Tensor& a, const Tensor& b) {
  check_operands("equal", a, b);
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  return all(a == b).item<bool>();
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check_operands("allclose", a, b);
  check<ValueError>(rtol >= 0 && atol >= 0, "allclose", "rtol ", rtol, " and atol ", atol,
                    " are tolerances: give numbers that are not negative");
  if (!(a.shape() == b.shape())) return false;
  NoGrad no_grad;
  const Tensor x = converted(a, DType::f64), y = converted(b, DType::f64);
  // An infinite b would make any tolerance infinite.
  const Tensor near = logical_and(isfinite(y), abs(x - y) <= add(mul(abs(y), rtol), atol));
  Tensor close = logical_or(x == y, near);
  if (equal_nan) close = logical_or(close, logical_and(x != x, y != y));
  return all(close).item<bool>();
}

}  // namespace regard
