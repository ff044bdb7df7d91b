// Grids for work on rows, where threadIdx.x walks along a row and threadIdx.y over rows: no thread divides.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

/// A thread for each of `columns` units of each of `rows` rows, as far as grids go: kernels loop over the rest.

inline Grid row_grid(int64_t rows, int64_t columns, int most_threads = 256) {
  if (rows == 0 || columns == 0) return {dim3(0), dim3(0)};
  const auto across = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(columns, 64))));
  const auto down = std::min<int64_t>(most_threads / across, std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t x = std::min<int64_t>((rows + down - 1) / down, INT32_MAX);
  const int64_t y = std::min<int64_t>((columns + across - 1) / across, 65535);
  return {dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)),
          dim3(static_cast<unsigned>(across), static_cast<unsigned>(down))};
}

/// Of a row_grid(): the first row and column of this thread, and how far it is to the next.
__device__ inline int64_t first_row() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ inline int64_t row_step() { return int64_t{gridDim.x} * blockDim.y; }
__device__ inline int64_t first_column() { return int64_t{blockIdx.y} * blockDim.x + threadIdx.x; }
__device__ inline int64_t column_step() { return int64_t{gridDim.y} * blockDim.x; }

}  // namespace regard::cuda_backend
