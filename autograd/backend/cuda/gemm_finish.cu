#include <regard/autograd/backend/cuda/gemm_finish.hpp>

#include <optional>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {

namespace {

// An activation, and its gradient: of x, or of the output where that is what the row of the table takes.
// clang-format off
struct Identity {
  template <class T> static __device__ T value(T x) { return x; }
  template <class T> static __device__ T grad(T, T g) { return g; }
};
struct Relu {
  template <class T> static __device__ T value(T x) { return x <= 0 ? T(0) : x; }
  template <class T> static __device__ T grad(T y, T g) { return y <= 0 ? T(0) : g; }
};
struct Gelu {
  template <class T> static __device__ T value(T x) { return gelu(x); }
  template <class T> static __device__ T grad(T x, T g) { return gelu_grad(x, g); }
};
struct GeluTanh {
  template <class T> static __device__ T value(T x) { return gelu_tanh(x); }
  template <class T> static __device__ T grad(T x, T g) { return gelu_tanh_grad(x, g); }
};
struct Silu {
  template <class T> static __device__ T value(T x) { return silu(x); }
  template <class T> static __device__ T grad(T x, T g) { return silu_grad(x, g); }
};
struct Tanh {
  template <class T> static __device__ T value(T x) { return tanh(x); }
  template <class T> static __device__ T grad(T y, T g) { return g * (1 - y * y); }
};
struct Sigmoid {
  template <class T> static __device__ T value(T x) { return sigmoid(x); }
  template <class T> static __device__ T grad(T y, T g) { return g * (y * (1 - y)); }
};
// clang-format on

template <class F>
void visit_activation(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::relu:
      return f(Relu());
    case UnaryOp::gelu:
      return f(Gelu());
    case UnaryOp::gelu_tanh:
      return f(GeluTanh());
    case UnaryOp::silu:
      return f(Silu());
    case UnaryOp::tanh:
      return f(Tanh());
    case UnaryOp::sigmoid:
      return f(Sigmoid());
    default:
      fail<ValueError>("gemm_epilogue", "the function is no activation");
  }
}

UnaryOp activation_of(BinaryOp grad) {
  switch (grad) {
    case BinaryOp::relu_grad_y:
      return UnaryOp::relu;
    case BinaryOp::gelu_grad_x:
      return UnaryOp::gelu;
    case BinaryOp::gelu_tanh_grad_x:
      return UnaryOp::gelu_tanh;
    case BinaryOp::silu_grad_x:
      return UnaryOp::silu;
    case BinaryOp::tanh_grad_y:
      return UnaryOp::tanh;
    case BinaryOp::sigmoid_grad_y:
      return UnaryOp::sigmoid;
    default:
      fail<ValueError>("gemm_epilogue", "the function is no gradient of an activation");
  }
}

/// What one pass does, in this order; null: not that.
template <class T>
struct Parts {
  bool activate, differentiate;
  const T* x;
  T* activated;
  const T* residual;
};

// Never part of a multiply-add: the sum of what another op would have stored.
__device__ inline float plain_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double plain_sum(double a, double b) { return __dadd_rn(a, b); }

template <class T, int width>
struct alignas(sizeof(T) * width) Group {
  T at[width];
};

/// The elements that thread number i takes, `width` at a time. Between reading and writing they are numbers: 16 bits
/// are rounded to once, whatever is done.
template <class A, int width, class T>
__device__ void finish_group(int64_t i, T* c, const T* product, const Parts<T>& parts) {
  using Numbers = Group<Number<T>, width>;
  const auto read = [i](const T* from) {
    const auto elements = reinterpret_cast<const Group<T, width>*>(from)[i];
    Numbers numbers;
    for (int j = 0; j < width; ++j) numbers.at[j] = number(elements.at[j]);
    return numbers;
  };
  const auto write = [i](T* to, const Numbers& numbers) {
    Group<T, width> elements;
    for (int j = 0; j < width; ++j) elements.at[j] = element<T>(numbers.at[j]);
    reinterpret_cast<Group<T, width>*>(to)[i] = elements;
  };
  Numbers result = read(product);
  if (parts.activate)
    for (int j = 0; j < width; ++j) result.at[j] = A::value(result.at[j]);
  if (parts.x) {
    const Numbers x = read(parts.x);
    if (parts.differentiate)
      for (int j = 0; j < width; ++j) result.at[j] = A::grad(x.at[j], result.at[j]);
    if (parts.activated) {
      Numbers again;
      for (int j = 0; j < width; ++j) again.at[j] = A::value(x.at[j]);
      write(parts.activated, again);
    }
  }
  if (parts.residual) {
    const Numbers residual = read(parts.residual);
    for (int j = 0; j < width; ++j) result.at[j] = plain_sum(residual.at[j], result.at[j]);
  }
  write(c, result);
}

template <class A, int width, class T>
__global__ void finish_kernel(int64_t numel, bool grouped, T* c, const T* product, Parts<T> parts) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t groups = grouped ? numel / width : 0;
  for (int64_t i = thread; i < groups; i += step) finish_group<A, width>(i, c, product, parts);
  for (int64_t i = groups * width + thread; i < numel; i += step) finish_group<A, 1>(i, c, product, parts);
}

template <class A, class T>
void run_finish(cudaStream_t stream, int64_t numel, void* c, const void* product, const Parts<T>& parts) {
  constexpr int width = 16 / sizeof(T);
  uintptr_t bits = 0;
  for (const void* data : {static_cast<const void*>(c), product, static_cast<const void*>(parts.x),
                           static_cast<const void*>(parts.activated), static_cast<const void*>(parts.residual)})
    bits |= reinterpret_cast<uintptr_t>(data);
  const bool grouped = bits % 16 == 0;
  launch("gemm_epilogue", stream, grid_for(numel, grouped ? width : 1), finish_kernel<A, width, T>, numel, grouped,
         static_cast<T*>(c), static_cast<const T*>(product), parts);
}

template <class T>
void finish(cudaStream_t stream, int64_t numel, void* c, const void* product, const GemmEpilogue& e) {
  const auto* x = static_cast<const T*>(e.x);
  auto* activated = e.activation_again ? static_cast<T*>(e.activated) : nullptr;
  const auto* residual = static_cast<const T*>(e.residual);
  const auto grad_of = e.activation_grad ? std::optional(activation_of(*e.activation_grad)) : std::nullopt;

  // All are of one activation in training. Where they are not, each has a pass of its own.
  std::optional<UnaryOp> common;
  bool one = true;
  for (const std::optional<UnaryOp>& op : {e.activation, grad_of, e.activation_again}) {
    if (!op) continue;
    if (common && *common != *op) one = false;
    common = op;
  }
  if (!common) return run_finish<Identity, T>(stream, numel, c, product, {false, false, nullptr, nullptr, residual});
  if (one) {
    const Parts<T> parts{e.activation.has_value(), grad_of.has_value(), grad_of || activated ? x : nullptr, activated,
                         residual};
    return visit_activation(*common, [&]<class A>(A) { run_finish<A, T>(stream, numel, c, product, parts); });
  }
  const auto pass = [&](UnaryOp op, const Parts<T>& parts) {
    visit_activation(op, [&]<class A>(A) { run_finish<A, T>(stream, numel, c, product, parts); });
    product = c;
  };
  if (e.activation) pass(*e.activation, {true, false, nullptr, nullptr, nullptr});
  if (grad_of) pass(*grad_of, {false, true, x, nullptr, activated ? nullptr : residual});
  if (activated) pass(*e.activation_again, {false, false, x, activated, residual});
}

}  // namespace

bool needs_finish(const GemmEpilogue& e) {
  return e.before || e.activation || e.activation_grad || e.activation_again || e.residual;
}

// cuBLASLt's own epilogues for relu and gelu are not used: results are to be those of the ops, at NaN and far below 0
// too, where nothing is said of its gelu, and what backward needs would lie in its own format.
void finish_gemm(cudaStream_t stream, DType dtype, int64_t numel, void* c, const void* product,
                 const GemmEpilogue& epilogue) {
  visit_floating(dtype, [&]<class T>(T) { finish<T>(stream, numel, c, product, epilogue); });
}

}  // namespace regard::cuda_backend
