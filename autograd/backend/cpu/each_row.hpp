// Rows along one dimension of tensors of one shape, dense or not.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::cpu_backend {

/// Calls f(rows, out, in...) on dense rows of `output` and `inputs` along `dim`, `length` elements each, on threads
/// where that pays: many rows at once where all tensors are dense and dim is the last, else one row at a time through
/// copies. `f(int64_t rows, T* out, const std::array<const T*, N>& in)`.
template <class T, size_t N, class F>
void each_row(const Tensor& output, const std::array<const Tensor*, N>& inputs, int64_t dim, F f) {
  const Shape& shape = output.shape();
  const int64_t numel = shape.numel();
  if (numel == 0) return;
  const int64_t length = shape.dim() == 0 ? 1 : shape[dim];
  const int64_t rows = numel / length;
  constexpr int64_t chunk_elements = 8192;
  const int64_t grain = length >= chunk_elements ? 1 : chunk_elements / length;
  T* out = static_cast<T*>(output.raw_data());
  std::array<const T*, N> in{};
  bool dense = output.is_contiguous();
  for (size_t k = 0; k < N; ++k) {
    in[k] = static_cast<const T*>(inputs[k]->raw_data());
    dense = dense && inputs[k]->is_contiguous();
  }
  // The last dimension, or one followed by dimensions of size 1 alone.
  for (int64_t d = dim + 1; d < shape.dim(); ++d) dense = dense && shape[d] == 1;
  if (dense) {
    parallel_for_short(rows, grain, [&](int64_t begin, int64_t end) {
      std::array<const T*, N> at{};
      for (size_t k = 0; k < N; ++k) at[k] = in[k] + begin * length;
      f(end - begin, out + begin * length, at);
    });
    return;
  }
  parallel_for_short(rows, grain, [&](int64_t begin, int64_t end) {
    std::vector<T> copies(static_cast<size_t>(length) * (N + 1));
    std::array<const T*, N> at{};
    for (size_t k = 0; k < N; ++k) at[k] = copies.data() + (k + 1) * static_cast<size_t>(length);
    for (int64_t row = begin; row < end; ++row) {
      const auto offset = [&](const Strides& strides) {
        int64_t rest = row, sum = 0;
        for (int64_t d = shape.dim() - 1; d >= 0; --d) {
          if (d == dim) continue;
          sum += rest % shape[d] * strides[d];
          rest /= shape[d];
        }
        return sum;
      };
      for (size_t k = 0; k < N; ++k) {
        const Strides& strides = inputs[k]->strides();
        const T* from = in[k] + offset(strides);
        const int64_t stride = shape.dim() == 0 ? 0 : strides[dim];
        T* copy = copies.data() + (k + 1) * static_cast<size_t>(length);
        for (int64_t i = 0; i < length; ++i) copy[i] = from[i * stride];
      }
      f(1, copies.data(), at);
      T* to = out + offset(output.strides());
      const int64_t stride = shape.dim() == 0 ? 0 : output.strides()[dim];
      for (int64_t i = 0; i < length; ++i) to[i * stride] = copies[static_cast<size_t>(i)];
    }
  });
}

}  // namespace regard::cpu_backend
