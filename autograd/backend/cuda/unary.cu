// Functions of one tensor.
#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/elementwise.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/math.hpp>

namespace regard::cuda_backend {
namespace {

// clang-format off
struct Negate {
  template <class T> __device__ T operator()(T x) const { return -x; }
  __device__ int64_t operator()(int64_t x) const { return static_cast<int64_t>(-static_cast<uint64_t>(x)); }
};
struct Absolute {
  template <class T> __device__ T operator()(T x) const { return fabs(x); }
  __device__ int64_t operator()(int64_t x) const { return x < 0 ? Negate()(x) : x; }
};
struct Sign { template <class T> __device__ T operator()(T x) const { return static_cast<T>((x > 0) - (x < 0)); } };
struct Exp { template <class T> __device__ T operator()(T x) const { return exp(x); } };
struct Log { template <class T> __device__ T operator()(T x) const { return log(x); } };
struct SquareRoot { template <class T> __device__ T operator()(T x) const { return sqrt(x); } };
struct ReciprocalRoot { template <class T> __device__ T operator()(T x) const { return 1 / sqrt(x); } };
struct Reciprocal { template <class T> __device__ T operator()(T x) const { return 1 / x; } };
struct Square { template <class T> __device__ T operator()(T x) const { return x * x; } };
struct Tanh { template <class T> __device__ T operator()(T x) const { return tanh(x); } };
struct Sigmoid { template <class T> __device__ T operator()(T x) const { return sigmoid(x); } };
struct Relu { template <class T> __device__ T operator()(T x) const { return x <= 0 ? T(0) : x; } };  // NaN stays
struct Gelu { template <class T> __device__ T operator()(T x) const { return gelu(x); } };
struct GeluTanh { template <class T> __device__ T operator()(T x) const { return gelu_tanh(x); } };
struct Silu { template <class T> __device__ T operator()(T x) const { return silu(x); } };
struct Erf { template <class T> __device__ T operator()(T x) const { return erf(x); } };
struct Sin { template <class T> __device__ T operator()(T x) const { return sin(x); } };
struct Cos { template <class T> __device__ T operator()(T x) const { return cos(x); } };
struct Not { template <class T> __device__ bool operator()(T x) const { return !convert<bool>(x); } };
struct IsFinite { template <class T> __device__ bool operator()(T x) const { return fabs(x) < infinity<T>(); } };
// clang-format on

template <class F>
void floating(const char* op, const Tensor& y, const Tensor& a) {
  visit_floating(a.dtype(), [&]<class T>(T) { elementwise<T, T>(op, F(), y, a); });
}
template <class F>
void arithmetic(const char* op, const Tensor& y, const Tensor& a) {
  if (a.dtype() == DType::i64)
    elementwise<int64_t, int64_t>(op, F(), y, a);
  else
    floating<F>(op, y, a);
}

}  // namespace

void unary(UnaryOp op, const Tensor& y, const Tensor& a) {
  switch (op) {
    case UnaryOp::neg:
      return arithmetic<Negate>("neg", y, a);
    case UnaryOp::abs:
      return arithmetic<Absolute>("abs", y, a);
    case UnaryOp::sign:
      return arithmetic<Sign>("sign", y, a);
    case UnaryOp::exp:
      return floating<Exp>("exp", y, a);
    case UnaryOp::log:
      return floating<Log>("log", y, a);
    case UnaryOp::sqrt:
      return floating<SquareRoot>("sqrt", y, a);
    case UnaryOp::rsqrt:
      return floating<ReciprocalRoot>("rsqrt", y, a);
    case UnaryOp::reciprocal:
      return floating<Reciprocal>("reciprocal", y, a);
    case UnaryOp::square:
      return floating<Square>("square", y, a);
    case UnaryOp::tanh:
      return floating<Tanh>("tanh", y, a);
    case UnaryOp::sigmoid:
      return floating<Sigmoid>("sigmoid", y, a);
    case UnaryOp::relu:
      return floating<Relu>("relu", y, a);
    case UnaryOp::gelu:
      return floating<Gelu>("gelu", y, a);
    case UnaryOp::gelu_tanh:
      return floating<GeluTanh>("gelu_tanh", y, a);
    case UnaryOp::silu:
      return floating<Silu>("silu", y, a);
    case UnaryOp::erf:
      return floating<Erf>("erf", y, a);
    case UnaryOp::sin:
      return floating<Sin>("sin", y, a);
    case UnaryOp::cos:
      return floating<Cos>("cos", y, a);
    case UnaryOp::logical_not:
      return visit_dtype(a.dtype(), [&]<class T>(T) { elementwise<bool, T>("logical_not", Not(), y, a); });
    case UnaryOp::is_finite:
      return visit_floating(a.dtype(), [&]<class T>(T) { elementwise<bool, T>("isfinite", IsFinite(), y, a); });
  }
}

}  // namespace regard::cuda_backend
