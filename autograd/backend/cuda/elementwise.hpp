// y[i] = f(a[i], b[i], ...) over tensors of one shape and any strides.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

/// Elements that one thread reads, computes and writes at a time where memory is dense: 16 bytes of f32.
inline constexpr int pack_width = 4;
template <class T>
struct alignas(sizeof(T) * pack_width) Pack {
  T at[pack_width];
};

template <class F, class Y, class... A, size_t... K>
__device__ void compute_element(const F& f, const Layout<sizeof...(A) + 1>& layout, int64_t i, Y* y,
                                std::index_sequence<K...>, const A*... a) {
  const auto offsets = layout.offsets(i);
  y[offsets.at[0]] = element<Y>(f(number(a[offsets.at[K + 1]])...));
}

/// `packed`: dense and aligned, so that each thread takes pack_width elements at once.
template <class F, class Y, class... A>
__global__ void elementwise_kernel(F f, Layout<sizeof...(A) + 1> layout, bool packed, Y* y, const A*... a) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t begin = 0;
  if (packed) {
    const int64_t packs = layout.numel / pack_width;
    for (int64_t p = thread; p < packs; p += step) {
      [&](const Pack<A>&... in) {
        Pack<Y> out;
        for (int j = 0; j < pack_width; ++j) out.at[j] = element<Y>(f(number(in.at[j])...));
        reinterpret_cast<Pack<Y>*>(y)[p] = out;
      }(reinterpret_cast<const Pack<A>*>(a)[p]...);
    }
    begin = packs * pack_width;
  }
  for (int64_t i = begin + thread; i < layout.numel; i += step)
    compute_element(f, layout, i, y, std::index_sequence_for<A...>(), a...);
}

/// `elementwise<Y, A, B>("add", f, y, a, b)`: f, called on the GPU, takes numbers of the types A and B and gives one of
/// Y, which are those of the tensors' elements (float for the 16-bit ones). A tensor may be written over itself.
template <class Y, class... A, class F, class... Inputs>
void elementwise(const char* op, const F& f, const Tensor& y, const Inputs&... inputs) {
  static_assert(sizeof...(A) == sizeof...(Inputs), "name the element type of every input");
  constexpr int count = static_cast<int>(sizeof...(A)) + 1;
  const Layout<count> layout({&y, &inputs...});
  if (layout.numel == 0) return;
  const auto aligned = [](const void* pointer, size_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  };
  const bool packed = layout.dense() && aligned(y.raw_data(), sizeof(Pack<Y>)) &&
                      (... && aligned(static_cast<const Tensor&>(inputs).raw_data(), sizeof(Pack<A>)));
  cudaStream_t stream = stream_of(y);
  launch(op, stream, grid_for(layout.numel, packed ? pack_width : 1), elementwise_kernel<F, Y, A...>, f, layout, packed,
         device_pointer<Y>(y), device_pointer<const A>(inputs)...);
}

}  // namespace regard::cuda_backend
