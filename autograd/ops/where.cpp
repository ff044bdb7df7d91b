// Selection between two tensors, element by element.
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/promote.hpp>

namespace regard {

namespace {

// A boolean or integer tensor as a boolean one: non-zero is true.
Tensor truth(const char* op, const char* argument, const Tensor& condition) {
  check_defined(op, argument, condition);
  check<DTypeError>(!is_floating(condition.dtype()), op, "argument '", argument, "' is ", condition.dtype(),
                    "; it is boolean or integer: compare with a number, or convert with to(DType::boolean)");
  return converted(condition, DType::boolean);
}

// One dtype for both sides. Equal ones need no arithmetic: 16 bits and booleans pass.
DType selected_dtype(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() ? a.dtype() : common_dtype("where", a, b);
}
DType selected_dtype(const Tensor& a, Scalar b) {
  return is_floating(a.dtype()) ? a.dtype() : common_dtype("where", a, b);
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (autocast::mixes("where", a, b)) [[unlikely]]
    return where(condition, autocast::wide(a), autocast::wide(b));
  check_operands("where", a, b);
  const Tensor chosen = truth("where", "condition", condition);
  check_same_device("where", condition, a);
  const DType dtype = selected_dtype(a, b);
  const Operands operands("where", a, b, dtype);
  const Shape shape =
      chosen.shape() == operands.shape() ? chosen.shape() : broadcast_shapes("where", chosen.shape(), operands.shape());
  Tensor y = empty(shape, {dtype, a.device()});
  kernels(a).where(y, broadcast_view(chosen, shape), broadcast_view(operands.a(), shape),
                   broadcast_view(operands.b(), shape));
  return record("where", y, inputs(a, b), saved(chosen), [](const Saved& s, const Tensor& g) {
    const Tensor chosen = s[0];
    return Grads{s.needs(0) ? where(chosen, g, 0) : Tensor(), s.needs(1) ? where(chosen, 0, g) : Tensor()};
  });
}

Tensor where(const Tensor& condition, const Tensor& a, Scalar b) {
  check_defined("where", "a", a);
  const Tensor chosen = truth("where", "condition", condition);
  check_same_device("where", condition, a);
  const DType dtype = selected_dtype(a, b);
  const Tensor number = full({}, b, {dtype, a.device()});
  const Operands operands("where", a, number, dtype);
  const Shape shape =
      chosen.shape() == operands.shape() ? chosen.shape() : broadcast_shapes("where", chosen.shape(), operands.shape());
  Tensor y = empty(shape, {dtype, a.device()});
  kernels(a).where(y, broadcast_view(chosen, shape), broadcast_view(operands.a(), shape),
                   broadcast_view(operands.b(), shape));
  return record("where", y, inputs(a), saved(chosen),
                [](const Saved& s, const Tensor& g) { return Grads{where(s[0], g, 0)}; });
}

Tensor where(const Tensor& condition, Scalar a, const Tensor& b) {
  check_defined("where", "b", b);
  const Tensor chosen = truth("where", "condition", condition);
  check_same_device("where", condition, b);
  const DType dtype = selected_dtype(b, a);
  const Shape shape = chosen.shape() == b.shape() ? b.shape() : broadcast_shapes("where", chosen.shape(), b.shape());
  Tensor y = empty(shape, {dtype, b.device()});
  kernels(b).masked_fill(y, broadcast_view(converted(b, dtype), shape), broadcast_view(chosen, shape), a);
  return record("where", y, inputs(b), saved(chosen),
                [](const Saved& s, const Tensor& g) { return Grads{where(s[0], 0, g)}; });
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined("masked_fill", "x", x);
  const Tensor masked = truth("masked_fill", "mask", mask);
  check_same_device("masked_fill", x, mask);
  check<ShapeError>(broadcastable_to(mask.shape(), x.shape()), "masked_fill", "a mask of shape ", mask.shape(),
                    " does not broadcast to ", x.shape(), ": expand x first, or give the mask dimensions of size 1");
  check<DTypeError>(is_floating(x.dtype()) || !value.is_floating(), "masked_fill", "a floating value for an ",
                    x.dtype(), " tensor: convert the tensor with to(DType::f32)");
  check<DTypeError>(x.dtype() != DType::boolean || value.is_boolean(), "masked_fill",
                    "a number for a boolean tensor: give true or false, or convert the tensor with to()");
  Tensor y = empty_like(x);
  kernels(x).masked_fill(y, x, broadcast_view(masked, x.shape()), value);
  return record("masked_fill", y, inputs(x), saved(masked),
                [](const Saved& s, const Tensor& g) { return Grads{masked_fill(g, s[0], 0)}; });
}

}  // namespace regard
