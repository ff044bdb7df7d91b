#include <regard/autograd/ops/promote.hpp>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

namespace {

void check_computes(const char* op, const Tensor& x) {
  const DType dtype = x.impl()->dtype;
  if (dtype != DType::bf16 && dtype != DType::f16) [[likely]]
    return;
  check<DTypeError>(computes(dtype, x.device()), op, "a ", dtype,
                    " tensor only stores; convert it with to(DType::f32) to compute");
}

}  // namespace

DType common_dtype(const char* op, const Tensor& a, const Tensor& b) {
  const DType first = a.impl()->dtype, second = b.impl()->dtype;
  check_computes(op, a);
  if (first == second) return first;
  check_computes(op, b);
  if (is_floating(first) && is_floating(second))
    fail<DTypeError>(op, a.shape(), " of ", first, " and ", b.shape(), " of ", second,
                     ": two different floating dtypes; convert one with to()");
  if (is_floating(first)) return first;
  if (is_floating(second)) return second;
  return DType::i64;
}

DType common_dtype(const char* op, const Tensor& a, Scalar b) {
  const DType dtype = a.impl()->dtype;
  check_computes(op, a);
  if (is_floating(dtype)) return dtype;
  if (b.is_floating()) return DType::f32;
  return dtype == DType::boolean && b.is_boolean() ? DType::boolean : DType::i64;
}

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_defined(op, "a", a);
  check_defined(op, "b", b);
  if (!(a.impl()->storage->device() == b.impl()->storage->device())) [[unlikely]]
    check_same_device(op, a, b);
}

Tensor broadcast_view(const Tensor& x, const Shape& shape) {
  const TensorImpl& impl = *x.impl();
  if (impl.shape == shape) return x;
  Strides strides = Strides::filled(shape.dim(), 0);
  const int64_t added = shape.dim() - impl.shape.dim();
  for (int64_t d = 0; d < impl.shape.dim(); ++d)
    if (impl.shape[d] == shape[d + added]) strides[d + added] = impl.strides[d];
  return make_view(x, shape, strides, impl.offset);
}

Tensor converted(const Tensor& x, DType dtype) {
  if (x.impl()->dtype == dtype) return x;
  Tensor y = empty(x.shape(), {dtype, x.device()});
  kernels(x).copy(y, x);
  return y;
}

void Operands::prepare(const char* op, DType dtype) {
  const Shape shape = a_->shape() == b_->shape() ? a_->shape() : broadcast_shapes(op, a_->shape(), b_->shape());
  made_a_ = broadcast_view(converted(*a_, dtype), shape);
  made_b_ = broadcast_view(converted(*b_, dtype), shape);
  a_ = &made_a_;
  b_ = &made_b_;
}

Tensor zero_gradient(const Tensor& grad) {
  return record("zero_gradient", zeros_like(grad), inputs(grad), saved(),
                [](const Saved&, const Tensor& g) { return Grads{zero_gradient(g)}; });
}

}  // namespace regard
