// Functions of two tensors, vectorised: f32 and f64 arithmetic, and the gradients of f32 activations.
#include <regard/autograd/backend/cpu/elementwise.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/binary.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <regard/autograd/backend/cpu/simd_math-inl.hpp>
#include <regard/autograd/backend/cpu/simd_run-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace {

// clang-format off
struct Add { template <class D, class V> HWY_INLINE V operator()(D, V a, V b) const { return hn::Add(a, b); } };
struct Sub { template <class D, class V> HWY_INLINE V operator()(D, V a, V b) const { return hn::Sub(a, b); } };
struct Mul { template <class D, class V> HWY_INLINE V operator()(D, V a, V b) const { return hn::Mul(a, b); } };
struct Div { template <class D, class V> HWY_INLINE V operator()(D, V a, V b) const { return hn::Div(a, b); } };
// clang-format on
struct Maximum {  // NaN where either is
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct Minimum {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
// Gradients: y or x, and the gradient g of the output.
struct TanhGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::Mul(g, hn::NegMulAdd(y, y, hn::Set(d, 1)));
  }
};
struct SigmoidGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::Mul(g, hn::Mul(y, hn::Sub(hn::Set(d, 1), y)));
  }
};
struct ReluGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::IfThenZeroElse(hn::Le(y, hn::Zero(d)), g);
  }
};
struct GeluGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V g) const {
    return hn::Mul(g, simd_gelu_grad(d, x));
  }
};
struct GeluTanhGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V g) const {
    return hn::Mul(g, simd_gelu_tanh_grad(d, x));
  }
};
struct SiluGrad {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V g) const {
    return hn::Mul(g, simd_silu_grad(d, x));
  }
};

template <class T>
BinaryRun select_arithmetic(BinaryOp op) {
  switch (op) {
    case BinaryOp::add:
      return binary_run<T, Add>;
    case BinaryOp::sub:
      return binary_run<T, Sub>;
    case BinaryOp::mul:
      return binary_run<T, Mul>;
    case BinaryOp::div:
      return binary_run<T, Div>;
    case BinaryOp::maximum:
      return binary_run<T, Maximum>;
    case BinaryOp::minimum:
      return binary_run<T, Minimum>;
    case BinaryOp::tanh_grad_y:
      return binary_run<T, TanhGrad>;
    case BinaryOp::sigmoid_grad_y:
      return binary_run<T, SigmoidGrad>;
    case BinaryOp::relu_grad_y:
      return binary_run<T, ReluGrad>;
    default:
      return nullptr;
  }
}
BinaryRun select_f64(BinaryOp op) { return select_arithmetic<double>(op); }
BinaryRun select_f32(BinaryOp op) {
  switch (op) {
    case BinaryOp::gelu_grad_x:
      return binary_run<float, GeluGrad>;
    case BinaryOp::gelu_tanh_grad_x:
      return binary_run<float, GeluTanhGrad>;
    case BinaryOp::silu_grad_x:
      return binary_run<float, SiluGrad>;
    default:
      return select_arithmetic<float>(op);
  }
}

// y[i] += alpha * a[i], one rounding where the machine can.
template <class T>
HWY_INLINE void axpy_run(T* y, const T* a, int64_t y_stride, int64_t a_stride, T alpha, int64_t count) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, alpha);
  if (y_stride == 1 && (a_stride == 1 || a_stride == 0)) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      const auto term = a_stride == 0 ? hn::Set(d, *a) : hn::LoadU(d, a + i);
      hn::StoreU(hn::MulAdd(factor, term, hn::LoadU(d, y + i)), d, y + i);
    }
    if (i < count) {
      const auto rest = static_cast<size_t>(count - i);
      const auto term = a_stride == 0 ? hn::Set(d, *a) : load_first(d, a + i, rest);
      store_first(hn::MulAdd(factor, term, load_first(d, y + i, rest)), d, y + i, rest);
    }
    return;
  }
  constexpr int64_t block = 256;
  HWY_ALIGN T buffer_a[block] = {};
  HWY_ALIGN T buffer_y[block] = {};
  for (int64_t i = 0; i < count; i += block) {
    const int64_t part = count - i < block ? count - i : block;
    gather_block(buffer_a, a + i * a_stride, a_stride, part);
    gather_block(buffer_y, y + i * y_stride, y_stride, part);
    for (int64_t j = 0; j < part; j += lanes)
      hn::Store(hn::MulAdd(factor, hn::Load(d, buffer_a + j), hn::Load(d, buffer_y + j)), d, buffer_y + j);
    for (int64_t j = 0; j < part; ++j) y[(i + j) * y_stride] = buffer_y[j];
  }
}
void axpy_f32(char* y, const char* a, int64_t y_stride, int64_t a_stride, double alpha, int64_t count) {
  axpy_run(reinterpret_cast<float*>(y), reinterpret_cast<const float*>(a), y_stride, a_stride,
           static_cast<float>(alpha), count);
}
void axpy_f64(char* y, const char* a, int64_t y_stride, int64_t a_stride, double alpha, int64_t count) {
  axpy_run(reinterpret_cast<double*>(y), reinterpret_cast<const double*>(a), y_stride, a_stride, alpha, count);
}

}  // namespace
}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(select_f32);
HWY_EXPORT(select_f64);
HWY_EXPORT(axpy_f32);
HWY_EXPORT(axpy_f64);

BinaryLoop simd_binary(BinaryOp op, DType dtype) {
  if (dtype == DType::f64) return {HWY_DYNAMIC_DISPATCH(select_f64)(op), cheap_grain};
  if (dtype != DType::f32) return {};
  const bool math = op == BinaryOp::gelu_grad_x || op == BinaryOp::gelu_tanh_grad_x || op == BinaryOp::silu_grad_x;
  return {HWY_DYNAMIC_DISPATCH(select_f32)(op), math ? math_grain : cheap_grain};
}

void binary(BinaryOp op, const Tensor& y, const Tensor& a, const Tensor& b) {
  BinaryLoop loop = simd_binary(op, a.impl()->dtype);
  if (!loop.run) loop = plain_binary(op, a.impl()->dtype);
  const Loop<3> walk({&y, &a, &b});
  if (lies_across(walk, 1)) return binary(op, y, laid_along(a), b);
  if (lies_across(walk, 2)) return binary(op, y, a, laid_along(b));
  walk.run(loop.grain, [run = loop.run](const auto& p, const auto& s, int64_t count) {
    run(p[0], p[1], p[2], s[0], s[1], s[2], count);
  });
}

void binary_scalar(BinaryOp op, const Tensor& y, const Tensor& a, Scalar b, bool scalar_first) {
  const DType dtype = a.impl()->dtype;
  if (op == BinaryOp::pow && !scalar_first && is_floating(dtype)) {
    // Common exponents have cheaper forms.
    const double exponent = b.to_double();
    if (exponent == 2) return unary(UnaryOp::square, y, a);
    if (exponent == 1) return copy(y, a);
    if (exponent == 0.5) return unary(UnaryOp::sqrt, y, a);
    if (exponent == -0.5) return unary(UnaryOp::rsqrt, y, a);
    if (exponent == -1) return unary(UnaryOp::reciprocal, y, a);
  }
  BinaryLoop loop = simd_binary(op, dtype);
  if (!loop.run) loop = plain_binary(op, dtype);
  // The number lies in memory as an element of a's dtype, and is read with stride 0.
  alignas(8) char number[8] = {};
  visit_dtype(dtype, [&]<class T>(T) { *reinterpret_cast<T*>(number) = b.to<T>(); });
  const char* scalar = number;
  const Loop<2> walk({&y, &a});
  if (lies_across(walk, 1)) return binary_scalar(op, y, laid_along(a), b, scalar_first);
  if (scalar_first)
    walk.run(loop.grain, [run = loop.run, scalar](const auto& p, const auto& s, int64_t count) {
      run(p[0], scalar, p[1], s[0], 0, s[1], count);
    });
  else
    walk.run(loop.grain, [run = loop.run, scalar](const auto& p, const auto& s, int64_t count) {
      run(p[0], p[1], scalar, s[0], s[1], 0, count);
    });
}

void axpy(const Tensor& y, const Tensor& a, double alpha) {
  const auto run = y.impl()->dtype == DType::f64 ? HWY_DYNAMIC_DISPATCH(axpy_f64) : HWY_DYNAMIC_DISPATCH(axpy_f32);
  iterate<2>({&y, &a}, cheap_grain,
             [run, alpha](const auto& p, const auto& s, int64_t count) { run(p[0], p[1], s[0], s[1], alpha, count); });
}

}  // namespace regard::cpu_backend
#endif
