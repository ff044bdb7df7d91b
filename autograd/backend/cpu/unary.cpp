// Functions of one tensor, vectorised: f32, and of f64 those that need no polynomial.
#include <regard/autograd/backend/cpu/elementwise.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/unary.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <regard/autograd/backend/cpu/simd_math-inl.hpp>
#include <regard/autograd/backend/cpu/simd_run-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace {

// clang-format off
struct Negate { template <class D, class V> HWY_INLINE V operator()(D, V x) const { return hn::Neg(x); } };
struct Absolute { template <class D, class V> HWY_INLINE V operator()(D, V x) const { return hn::Abs(x); } };
struct Square { template <class D, class V> HWY_INLINE V operator()(D, V x) const { return hn::Mul(x, x); } };
struct SquareRoot { template <class D, class V> HWY_INLINE V operator()(D, V x) const { return hn::Sqrt(x); } };
struct Exp { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_exp(d, x); } };
struct Log { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_log(d, x); } };
struct Tanh { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_tanh(d, x); } };
struct Sigmoid { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_sigmoid(d, x); } };
struct Gelu { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_gelu(d, x); } };
struct GeluTanh { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_gelu_tanh(d, x); } };
struct Silu { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_silu(d, x); } };
struct Erf { template <class D, class V> HWY_INLINE V operator()(D d, V x) const { return simd_erf(d, x); } };
// clang-format on
struct Sign {  // 0 for NaN
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    const V zero = hn::Zero(d), one = hn::Set(d, 1);
    return hn::Sub(hn::IfThenElseZero(hn::Gt(x, zero), one), hn::IfThenElseZero(hn::Lt(x, zero), one));
  }
};
struct ReciprocalRoot {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Div(hn::Set(d, 1), hn::Sqrt(x));
  }
};
struct Reciprocal {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Div(hn::Set(d, 1), x);
  }
};
struct Relu {  // NaN stays NaN
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
  }
};

template <class T>
UnaryRun select_arithmetic(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg:
      return unary_run<T, Negate>;
    case UnaryOp::abs:
      return unary_run<T, Absolute>;
    case UnaryOp::sign:
      return unary_run<T, Sign>;
    case UnaryOp::sqrt:
      return unary_run<T, SquareRoot>;
    case UnaryOp::rsqrt:
      return unary_run<T, ReciprocalRoot>;
    case UnaryOp::reciprocal:
      return unary_run<T, Reciprocal>;
    case UnaryOp::square:
      return unary_run<T, Square>;
    case UnaryOp::relu:
      return unary_run<T, Relu>;
    default:
      return nullptr;
  }
}
UnaryRun select_f64(UnaryOp op) { return select_arithmetic<double>(op); }
UnaryRun select_f32(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
      return unary_run<float, Exp>;
    case UnaryOp::log:
      return unary_run<float, Log>;
    case UnaryOp::tanh:
      return unary_run<float, Tanh>;
    case UnaryOp::sigmoid:
      return unary_run<float, Sigmoid>;
    case UnaryOp::gelu:
      return unary_run<float, Gelu>;
    case UnaryOp::gelu_tanh:
      return unary_run<float, GeluTanh>;
    case UnaryOp::silu:
      return unary_run<float, Silu>;
    case UnaryOp::erf:
      return unary_run<float, Erf>;
    default:
      return select_arithmetic<float>(op);
  }
}

}  // namespace
}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(select_f32);
HWY_EXPORT(select_f64);

UnaryLoop simd_unary(UnaryOp op, DType dtype) {
  if (dtype == DType::f64) return {HWY_DYNAMIC_DISPATCH(select_f64)(op), math_grain};
  if (dtype != DType::f32) return {};
  const bool cheap =
      op == UnaryOp::neg || op == UnaryOp::abs || op == UnaryOp::sign || op == UnaryOp::square || op == UnaryOp::relu;
  return {HWY_DYNAMIC_DISPATCH(select_f32)(op), cheap ? cheap_grain : math_grain};
}

void unary(UnaryOp op, const Tensor& y, const Tensor& a) {
  UnaryLoop loop = simd_unary(op, a.impl()->dtype);
  if (!loop.run) loop = plain_unary(op, a.impl()->dtype);
  const Loop<2> walk({&y, &a});
  if (lies_across(walk, 1)) return unary(op, y, laid_along(a));
  walk.run(loop.grain,
           [run = loop.run](const auto& p, const auto& s, int64_t count) { run(p[0], p[1], s[0], s[1], count); });
}

}  // namespace regard::cpu_backend
#endif
