// Arithmetic of two tensors, or of a tensor and a number.
#include <cmath>

#include <regard/autograd/backend/entry_check.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/promote.hpp>

namespace regard {

namespace {

// The common dtype; i64 for booleans, and f32 for integers where the op has no integer result.
DType result_dtype(const char* op, const Tensor& a, const Tensor& b, bool divides = false) {
  const DType dtype = arithmetic_dtype(common_dtype(op, a, b));
  return divides && dtype == DType::i64 ? DType::f32 : dtype;
}
DType result_dtype(const char* op, const Tensor& a, Scalar b, bool divides = false) {
  const DType dtype = arithmetic_dtype(common_dtype(op, a, b));
  return divides && dtype == DType::i64 ? DType::f32 : dtype;
}

Tensor compute(const char* name, BinaryOp op, const Tensor& a, const Tensor& b, bool divides = false) {
  check_operands(name, a, b);
  const DType dtype = result_dtype(name, a, b, divides);
  const Operands operands(name, a, b, dtype);
  Tensor y = empty(operands.shape(), {dtype, a.device()});
  kernels(a).binary(op, y, operands.a(), operands.b());
  return y;
}

Tensor compute(const char* name, BinaryOp op, const Tensor& a, Scalar b, bool scalar_first = false) {
  check_defined(name, "the tensor", a);
  const DType dtype = result_dtype(name, a, b, op == BinaryOp::div);
  Tensor y = empty(a.shape(), {dtype, a.device()});
  if (a.impl()->dtype == dtype)
    kernels(a).binary_scalar(op, y, a, b, scalar_first);
  else
    kernels(a).binary_scalar(op, y, converted(a, dtype), b, scalar_first);
  return y;
}

// x where its partner's gradient needs it, else nothing: what is not saved can be freed.
const Tensor& kept_for(const Tensor& partner, const Tensor& x) {
  static const Tensor nothing;
  return partner.impl()->requires_grad ? x : nothing;
}

Tensor if_needed(bool needed, const Tensor& g) { return needed ? g : Tensor(); }

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("add", a, b)) [[unlikely]]
    return add(autocast::wide(a), autocast::wide(b));
  return record("add", compute("add", BinaryOp::add, a, b), inputs(a, b), saved(), [](const Saved& s, const Tensor& g) {
    return Grads{if_needed(s.needs(0), g), if_needed(s.needs(1), g)};
  });
}
Tensor add(const Tensor& a, Scalar b) {
  return record("add", compute("add", BinaryOp::add, a, b), inputs(a), saved(),
                [](const Saved&, const Tensor& g) { return Grads{g}; });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("sub", a, b)) [[unlikely]]
    return sub(autocast::wide(a), autocast::wide(b));
  return record("sub", compute("sub", BinaryOp::sub, a, b), inputs(a, b), saved(), [](const Saved& s, const Tensor& g) {
    return Grads{if_needed(s.needs(0), g), s.needs(1) ? neg(g) : Tensor()};
  });
}
Tensor sub(const Tensor& a, Scalar b) {
  return record("sub", compute("sub", BinaryOp::sub, a, b), inputs(a), saved(),
                [](const Saved&, const Tensor& g) { return Grads{g}; });
}
Tensor sub(Scalar a, const Tensor& b) {
  return record("sub", compute("sub", BinaryOp::sub, b, a, true), inputs(b), saved(),
                [](const Saved&, const Tensor& g) { return Grads{neg(g)}; });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("mul", a, b)) [[unlikely]]
    return mul(autocast::wide(a), autocast::wide(b));
  Tensor y = compute("mul", BinaryOp::mul, a, b);
  const Tensor &kept_a = kept_for(b, a), &kept_b = kept_for(a, b);
  const auto backward = [](const Saved& s, const Tensor& g) {
    return Grads{s.needs(0) ? mul(g, s[1]) : Tensor(), s.needs(1) ? mul(g, s[0]) : Tensor()};
  };
  if (!kept_a.defined() || !kept_b.defined()) return record("mul", y, inputs(a, b), saved(kept_a, kept_b), backward);
  return record_recomputable("mul", y, inputs(a, b), saved(kept_a, kept_b), backward,
                             [](const Saved& s) { return compute("mul", BinaryOp::mul, s[0], s[1]); });
}
Tensor mul(const Tensor& a, Scalar b) {
  return record("mul", compute("mul", BinaryOp::mul, a, b), inputs(a), saved(),
                [b](const Saved&, const Tensor& g) { return Grads{mul(g, b)}; });
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("div", a, b)) [[unlikely]]
    return div(autocast::wide(a), autocast::wide(b));
  Tensor y = compute("div", BinaryOp::div, a, b, true);
  return record("div", y, inputs(a, b), saved(kept_for(b, a), b), [](const Saved& s, const Tensor& g) {
    const Tensor b = s[1];
    return Grads{s.needs(0) ? div(g, b) : Tensor(), s.needs(1) ? neg(mul(g, div(div(s[0], b), b))) : Tensor()};
  });
}
Tensor div(const Tensor& a, Scalar b) {
  return record("div", compute("div", BinaryOp::div, a, b), inputs(a), saved(),
                [b](const Saved&, const Tensor& g) { return Grads{div(g, b)}; });
}
Tensor div(Scalar a, const Tensor& b) {
  if (autocast::widens("number / tensor", b)) [[unlikely]]
    return div(a, autocast::wide(b));
  return record("div", compute("div", BinaryOp::div, b, a, true), inputs(b), saved(b),
                [a](const Saved& s, const Tensor& g) {
                  const Tensor b = s[0];
                  return Grads{neg(mul(g, div(div(a, b), b)))};
                });
}

Tensor neg(const Tensor& x) {
  check_defined("neg", "x", x);
  if (x.dtype() != DType::i64) check_floating("neg", "x", x);
  Tensor y = empty_like(x);
  kernels(x).unary(UnaryOp::neg, y, x);
  return record("neg", y, inputs(x), saved(), [](const Saved&, const Tensor& g) { return Grads{neg(g)}; });
}

// ---- Powers

namespace {

constexpr const char* negative_exponent = " of an integer power is negative; convert the base with to(DType::f32)";

void check_integer_exponent(const char* op, int64_t exponent) {
  check<ValueError>(exponent >= 0, op, "the exponent ", exponent, negative_exponent);
}
void check_integer_exponents(const char* op, const Tensor& exponents) {
  if (exponents.numel() == 0) return;
  const Tensor integers = converted(exponents, DType::i64);
  if (integers.device() != cpu())
    return check_entries_later(integers, {.low = 0,
                                          .high = INT64_MAX,
                                          .raises = EntryCheck::Raises::value_error,
                                          .names = EntryCheck::Names::entry,
                                          .before = std::string(op) + ": the exponent ",
                                          .after = negative_exponent});
  int64_t smallest = 0, largest = 0;
  kernels(integers).index_range(integers, &smallest, &largest);
  check_integer_exponent(op, smallest);
}

}  // namespace

Tensor pow(const Tensor& a, const Tensor& b) {
  if (autocast::widens("pow", a, b)) [[unlikely]]
    return pow(autocast::wide(a), autocast::wide(b));
  check_operands("pow", a, b);
  if (!is_floating(common_dtype("pow", a, b))) check_integer_exponents("pow", b);
  Tensor y = compute("pow", BinaryOp::pow, a, b);
  const bool saves_y = b.impl()->requires_grad;
  return record("pow", y, inputs(a, b), saved(a, b, saves_y ? y : Tensor()), [](const Saved& s, const Tensor& g) {
    const Tensor a = s[0], b = s[1];
    Grads grads(2);
    const Tensor at_zero = a == Scalar(0);
    if (s.needs(0)) {
      // b a^(b-1); 0 * 0^-1 is taken as 0.
      const Tensor exponent = masked_fill(b.dtype() == g.dtype() ? b : to(b, g.dtype()),  //
                                          b == Scalar(0), 1);
      const Tensor slope = mul(pow(a, sub(where(at_zero, exponent, b), 1)), b);
      grads[0] = mul(g, slope);
    }
    if (s.needs(1)) {
      // a^b log(a), 0 where a is 0: chosen before the logarithm, so that higher derivatives stay finite too.
      grads[1] = masked_fill(mul(mul(g, s[2]), log(masked_fill(to(a, g.dtype()), at_zero, 1))), at_zero, 0);
    }
    return grads;
  });
}

Tensor pow(const Tensor& a, Scalar b) {
  if (autocast::widens("pow", a)) [[unlikely]]
    return pow(autocast::wide(a), b);
  check_defined("pow", "a", a);
  if (!is_floating(common_dtype("pow", a, b))) check_integer_exponent("pow", b.to_int());
  Tensor y = compute("pow", BinaryOp::pow, a, b);
  return record("pow", y, inputs(a), saved(a), [b](const Saved& s, const Tensor& g) {
    const double exponent = b.to_double();
    if (exponent == 0) return Grads{zero_gradient(g)};
    if (exponent == 1) return Grads{g};
    if (exponent == 2) return Grads{mul(g, mul(s[0], 2))};
    return Grads{mul(g, mul(pow(s[0], exponent - 1), exponent))};
  });
}

Tensor pow(Scalar a, const Tensor& b) {
  if (autocast::widens("pow", b)) [[unlikely]]
    return pow(a, autocast::wide(b));
  check_defined("pow", "b", b);
  if (!is_floating(common_dtype("pow", b, a))) check_integer_exponents("pow", b);
  Tensor y = compute("pow", BinaryOp::pow, b, a, true);
  return record("pow", y, inputs(b), saved(y), [a](const Saved& s, const Tensor& g) {
    if (a.to_double() == 0) return Grads{zero_gradient(g)};
    return Grads{mul(mul(g, s[0]), std::log(a.to_double()))};
  });
}

// ---- The larger and the smaller of two

namespace {

// The share of the gradient that goes to `x` where `lost` tells that the other one was chosen.
Tensor chosen_gradient(const Tensor& g, const Tensor& tied, const Tensor& lost) {
  return masked_fill(where(tied, mul(g, 0.5), g), lost, 0);
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("maximum", a, b)) [[unlikely]]
    return maximum(autocast::wide(a), autocast::wide(b));
  Tensor y = compute("maximum", BinaryOp::maximum, a, b);
  return record("maximum", y, inputs(a, b), saved(a, b), [](const Saved& s, const Tensor& g) {
    const Tensor a = s[0], b = s[1], tied = a == b;
    return Grads{s.needs(0) ? chosen_gradient(g, tied, a < b) : Tensor(),
                 s.needs(1) ? chosen_gradient(g, tied, b < a) : Tensor()};
  });
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  if (autocast::mixes("minimum", a, b)) [[unlikely]]
    return minimum(autocast::wide(a), autocast::wide(b));
  Tensor y = compute("minimum", BinaryOp::minimum, a, b);
  return record("minimum", y, inputs(a, b), saved(a, b), [](const Saved& s, const Tensor& g) {
    const Tensor a = s[0], b = s[1], tied = a == b;
    return Grads{s.needs(0) ? chosen_gradient(g, tied, a > b) : Tensor(),
                 s.needs(1) ? chosen_gradient(g, tied, b > a) : Tensor()};
  });
}

}  // namespace regard
