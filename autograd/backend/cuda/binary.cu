// Functions of two tensors, or of a tensor and a number.
#include <math.h>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/elementwise.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/memory_order.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {
namespace {

// Integers wrap around at the ends of their range.
__device__ int64_t wrap(uint64_t value) { return static_cast<int64_t>(value); }
__device__ uint64_t bits(int64_t value) { return static_cast<uint64_t>(value); }
// 16-bit numbers are compared as floats.
template <class T>
__device__ auto comparable(T value) {
  if constexpr (is_half<T>)
    return to_float(value);
  else
    return value;
}

// clang-format off
struct Add {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
  __device__ int64_t operator()(int64_t a, int64_t b) const { return wrap(bits(a) + bits(b)); }
};
struct Subtract {
  template <class T> __device__ T operator()(T a, T b) const { return a - b; }
  __device__ int64_t operator()(int64_t a, int64_t b) const { return wrap(bits(a) - bits(b)); }
};
struct Multiply {
  template <class T> __device__ T operator()(T a, T b) const { return a * b; }
  __device__ int64_t operator()(int64_t a, int64_t b) const { return wrap(bits(a) * bits(b)); }
};
struct Divide { template <class T> __device__ T operator()(T a, T b) const { return a / b; } };
struct Power {
  template <class T> __device__ T operator()(T a, T b) const { return ::pow(a, b); }
  __device__ int64_t operator()(int64_t a, int64_t b) const {  // b >= 0: the op has checked
    uint64_t result = 1, factor = bits(a);
    for (; b > 0; b >>= 1, factor *= factor)
      if (b & 1) result *= factor;
    return wrap(result);
  }
};
// NaN where either is.
struct Maximum { template <class T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; } };
struct Minimum { template <class T> __device__ T operator()(T a, T b) const { return a < b || a != a ? a : b; } };

struct Equal { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) == comparable(b); } };
struct Unequal { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) != comparable(b); } };
struct Less { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) < comparable(b); } };
struct LessEqual { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) <= comparable(b); } };
struct Greater { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) > comparable(b); } };
struct GreaterEqual { template <class T> __device__ bool operator()(T a, T b) const { return comparable(a) >= comparable(b); } };
struct And { __device__ bool operator()(bool a, bool b) const { return a && b; } };
struct Or { __device__ bool operator()(bool a, bool b) const { return a || b; } };
struct Xor { __device__ bool operator()(bool a, bool b) const { return a != b; } };

// Gradients: y or x, and the gradient g of the output.
struct TanhGrad { template <class T> __device__ T operator()(T y, T g) const { return g * fma(-y, y, T(1)); } };
struct SigmoidGrad { template <class T> __device__ T operator()(T y, T g) const { return g * (y * (1 - y)); } };
struct ReluGrad { template <class T> __device__ T operator()(T y, T g) const { return y <= 0 ? T(0) : g; } };
struct GeluGrad { template <class T> __device__ T operator()(T x, T g) const { return gelu_grad(x, g); } };
struct GeluTanhGrad { template <class T> __device__ T operator()(T x, T g) const { return gelu_tanh_grad(x, g); } };
struct SiluGrad { template <class T> __device__ T operator()(T x, T g) const { return silu_grad(x, g); } };
// clang-format on

// A function of two with a number on one side.
template <class F, class T>
struct WithNumber {
  T number;
  bool first;
  __device__ auto operator()(T x) const {
    const T a = first ? number : x, b = first ? x : number;
    return F()(a, b);
  }
};

struct Operands {
  const Tensor &y, &a;
  const Tensor* b;  // null: the number
  Scalar scalar = 0;
  bool scalar_first = false;

  template <class Y, class T, class F>
  void run(const char* op) const {
    if (b)
      elementwise<Y, T, T>(op, F(), y, a, *b);
    else
      elementwise<Y, T>(op, WithNumber<F, Number<T>>{scalar.to<Number<T>>(), scalar_first}, y, a);
  }
  template <class F>
  void floating(const char* op) const {
    check_dtype(is_floating(a.dtype()));
    visit_floating(a.dtype(), [&]<class T>(T) { run<T, T, F>(op); });
  }
  template <class F>
  void arithmetic(const char* op) const {
    if (a.dtype() == DType::i64)
      run<int64_t, int64_t, F>(op);
    else
      floating<F>(op);
  }
  template <class F>
  void comparison(const char* op) const {
    visit_dtype(a.dtype(), [&]<class T>(T) { run<bool, T, F>(op); });
  }
  void check_dtype(bool known) const {
    check<DTypeError>(known, "binary", "no kernel for dtype ", a.dtype(), ": convert with to(DType::f32)");
  }
};

void compute(BinaryOp op, const Operands& operands) {
  switch (op) {
    case BinaryOp::add:
      return operands.arithmetic<Add>("add");
    case BinaryOp::sub:
      return operands.arithmetic<Subtract>("sub");
    case BinaryOp::mul:
      return operands.arithmetic<Multiply>("mul");
    case BinaryOp::div:
      return operands.floating<Divide>("div");
    case BinaryOp::pow:
      return operands.arithmetic<Power>("pow");
    case BinaryOp::maximum:
      return operands.arithmetic<Maximum>("maximum");
    case BinaryOp::minimum:
      return operands.arithmetic<Minimum>("minimum");
    case BinaryOp::eq:
      return operands.comparison<Equal>("operator==");
    case BinaryOp::ne:
      return operands.comparison<Unequal>("operator!=");
    case BinaryOp::lt:
      return operands.comparison<Less>("operator<");
    case BinaryOp::le:
      return operands.comparison<LessEqual>("operator<=");
    case BinaryOp::gt:
      return operands.comparison<Greater>("operator>");
    case BinaryOp::ge:
      return operands.comparison<GreaterEqual>("operator>=");
    case BinaryOp::logical_and:
      return operands.run<bool, bool, And>("logical_and");
    case BinaryOp::logical_or:
      return operands.run<bool, bool, Or>("logical_or");
    case BinaryOp::logical_xor:
      return operands.run<bool, bool, Xor>("logical_xor");
    case BinaryOp::tanh_grad_y:
      return operands.floating<TanhGrad>("tanh_grad");
    case BinaryOp::sigmoid_grad_y:
      return operands.floating<SigmoidGrad>("sigmoid_grad");
    case BinaryOp::relu_grad_y:
      return operands.floating<ReluGrad>("relu_grad");
    case BinaryOp::gelu_grad_x:
      return operands.floating<GeluGrad>("gelu_grad");
    case BinaryOp::gelu_tanh_grad_x:
      return operands.floating<GeluTanhGrad>("gelu_tanh_grad");
    case BinaryOp::silu_grad_x:
      return operands.floating<SiluGrad>("silu_grad");
  }
}

}  // namespace

void binary(BinaryOp op, const Tensor& y, const Tensor& a, const Tensor& b) {
  if (!y.is_contiguous()) {
    const auto views = in_memory_order<3>({&y, &a, &b});
    return compute(op, {views[0], views[1], &views[2]});
  }
  const Tensor along_a = laid_along(y, a), along_b = laid_along(y, b);
  compute(op, {y, along_a, &along_b});
}

void binary_scalar(BinaryOp op, const Tensor& y, const Tensor& a, Scalar b, bool scalar_first) {
  if (op == BinaryOp::pow && !scalar_first && is_floating(a.dtype())) {
    // Common exponents have cheaper forms.
    const double exponent = b.to_double();
    if (exponent == 2) return unary(UnaryOp::square, y, a);
    if (exponent == 1) return copy(y, a);
    if (exponent == 0.5) return unary(UnaryOp::sqrt, y, a);
    if (exponent == -0.5) return unary(UnaryOp::rsqrt, y, a);
    if (exponent == -1) return unary(UnaryOp::reciprocal, y, a);
  }
  if (!y.is_contiguous()) {
    const auto views = in_memory_order<2>({&y, &a});
    return compute(op, {views[0], views[1], nullptr, b, scalar_first});
  }
  const Tensor along = laid_along(y, a);
  compute(op, {y, along, nullptr, b, scalar_first});
}

}  // namespace regard::cuda_backend
