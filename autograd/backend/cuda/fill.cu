// Tensors from numbers, and sums into them: fill, arange, axpy.
#include <math.h>

#include <cstring>
#include <type_traits>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/elementwise.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/memory_order.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {
namespace {

template <class Word>
struct Constant {
  Word value;
  __device__ Word operator()() const { return value; }
};

template <class T>
struct AddMultiple {
  T alpha;
  __device__ T operator()(T y, T a) const { return fma(alpha, a, y); }
};

// start + i * step for each i by itself: no error builds up along the way. The product is rounded before it is added,
// as on the CPU.
__device__ double in_sequence(double start, double step, int64_t i) {
  return __dadd_rn(start, __dmul_rn(static_cast<double>(i), step));
}
__device__ int64_t in_sequence(int64_t start, int64_t step, int64_t i) {
  return static_cast<int64_t>(static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(step));
}
template <class T, class Number>
__global__ void arange_kernel(Layout<1> layout, T* y, Number start, Number step) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += threads)
    y[layout.offsets(i).at[0]] = convert<T>(in_sequence(start, step, i));
}

}  // namespace

void fill(const Tensor& y, Scalar value) {
  if (y.numel() == 0) return;
  uint64_t bits = 0;
  visit_dtype(y.dtype(), [&]<class T>(T) {
    const T element = value.to<T>();
    std::memcpy(&bits, &element, sizeof(T));
  });
  const bool dense = y.is_contiguous();
  if (dense && (bits == 0 || y.dtype() == DType::boolean)) {
    cudaStream_t stream = stream_of(y);
    check_cuda("fill", cudaMemsetAsync(y.raw_data(), static_cast<int>(bits),
                                       static_cast<size_t>(y.numel() * element_size(y.dtype())), stream));
    return check_launched("fill", stream);
  }
  const Tensor to = dense ? y : in_memory_order<1>({&y})[0];
  visit_word(y.dtype(),
             [&]<class Word>(Word) { elementwise<Word>("fill", Constant<Word>{static_cast<Word>(bits)}, to); });
}

void arange(const Tensor& y, Scalar start, Scalar step) {
  const Layout<1> layout({&y});
  if (layout.numel == 0) return;
  visit_dtype(y.dtype(), [&]<class T>(T) {
    using Number = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;
    launch("arange", stream_of(y), grid_for(layout.numel), arange_kernel<T, Number>, layout, device_pointer<T>(y),
           start.to<Number>(), step.to<Number>());
  });
}

void axpy(const Tensor& y, const Tensor& a, double alpha) {
  const auto run = [alpha](const Tensor& to, const Tensor& from) {
    visit_floating(to.dtype(), [&]<class T>(T) {
      elementwise<T, T, T>("axpy", AddMultiple<Number<T>>{static_cast<Number<T>>(alpha)}, to, to, from);
    });
  };
  if (y.is_contiguous()) return run(y, laid_along(y, a));
  const auto views = in_memory_order<2>({&y, &a});
  run(views[0], views[1]);
}

}  // namespace regard::cuda_backend
