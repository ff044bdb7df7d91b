// What ops with two operands share: their common dtype and shape.
#pragma once

#include <regard/autograd/dtype.hpp>
#include <regard/autograd/shape.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

/// The dtype in which an op on `a` and `b` computes: their own where equal; the floating one beside an integer or
/// boolean one; i64 for i64 beside boolean. DTypeError for two different floating dtypes, and for bf16 and f16, which
/// do not compute.
DType common_dtype(const char* op, const Tensor& a, const Tensor& b);
/// With a number in place of b: it never changes a floating dtype. An integer or boolean tensor beside a floating
/// number gives f32, a boolean tensor beside an integer i64.
DType common_dtype(const char* op, const Tensor& a, Scalar b);

/// The dtype of arithmetic: booleans count as i64.
constexpr DType arithmetic_dtype(DType dtype) { return dtype == DType::boolean ? DType::i64 : dtype; }

/// Both defined (ValueError) and on one device (DeviceError).
void check_operands(const char* op, const Tensor& a, const Tensor& b);

/// x with stride 0 along the dimensions that `shape` adds or widens, without a graph; x itself where it has that
/// shape. The caller has checked that it broadcasts.
Tensor broadcast_view(const Tensor& x, const Shape& shape);

/// The operands of a kernel, brought to one dtype and one shape; where they have them already, nothing is made, not
/// even a handle. They outlive it: it is a local variable of an op.
class Operands {
 public:
  /// ShapeError where the shapes do not broadcast. Integer and boolean tensors are converted to `dtype`.
  Operands(const char* op, const Tensor& a, const Tensor& b, DType dtype) : a_(&a), b_(&b) {
    const TensorImpl &first = *a.impl(), &second = *b.impl();
    if (first.dtype != dtype || second.dtype != dtype || !(first.shape == second.shape)) [[unlikely]]
      prepare(op, dtype);
  }
  // Operands point at their tensors: temporaries would be gone.
  Operands(const char*, const Tensor&&, const Tensor&, DType) = delete;
  Operands(const char*, const Tensor&, const Tensor&&, DType) = delete;
  Operands(const char*, const Tensor&&, const Tensor&&, DType) = delete;
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  const Tensor& a() const { return *a_; }
  const Tensor& b() const { return *b_; }
  const Shape& shape() const { return a_->impl()->shape; }

 private:
  void prepare(const char* op, DType dtype);

  const Tensor* a_;
  const Tensor* b_;
  Tensor made_a_, made_b_;
};

/// x in `dtype` without a graph: for integer and boolean tensors, which have no gradient.
Tensor converted(const Tensor& x, DType dtype);

/// A gradient that is zero whatever `grad` is, and stays part of the graph, so that higher derivatives exist (as
/// zeros).
Tensor zero_gradient(const Tensor& grad);

}  // namespace regard
