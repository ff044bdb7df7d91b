// Reductions over the threads of a warp and of a block. The order of the operands is fixed: same bits from run to run.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

inline constexpr int warp_threads = 32;
inline constexpr unsigned whole_warp = 0xffffffffU;

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
/// The larger; a NaN counts for nothing.
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

/// Two sums that go together.
template <class T>
struct Two {
  T first, second;
  __device__ friend Two operator+(Two a, Two b) { return {a.first + b.first, a.second + b.second}; }
};

/// Whether x is not a number; integers always are one.
template <class T>
__device__ bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x != x;
  else
    return false;
}

/// The value of the lane whose number differs in `bits`, for any type that is a whole number of 32-bit words.
template <class T>
__device__ T shuffle_xor(T value, int bits) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(__shfl_xor_sync(whole_warp, value, bits));
  } else {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(unsigned) == 0);
    unsigned words[sizeof(T) / sizeof(unsigned)];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (unsigned& word : words) word = __shfl_xor_sync(whole_warp, word, bits);
    memcpy(&value, words, sizeof(T));
    return value;
  }
}

/// op over groups of `width` lanes, a power of two, that are neighbours; every lane of the warp calls it and gets its
/// group's result. `op` must not care for the order of its two operands.
template <class T, class Op>
__device__ T warp_reduce(T value, Op op, int width = warp_threads) {
  for (int bits = width / 2; bits > 0; bits /= 2) value = op(value, shuffle_xor(value, bits));
  return value;
}

/// op over the threads of a block, a power of two of at least 32, along x alone; all threads call it and get the
/// result.
template <class T, class Op>
__device__ T block_reduce(T value, Op op) {
  __shared__ T parts[warp_threads];
  value = warp_reduce(value, op);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  if (warps == 1) return value;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads, lane = static_cast<int>(threadIdx.x) % warp_threads;
  __syncthreads();  // until all have read the parts of a reduction before this one
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  return warp_reduce(parts[lane % warps], op, warps);
}

/// The least power of two that is at least n.
constexpr int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

/// The threads that share a row: `count` lanes, a power of two, neighbours along x. Up to 32 of them are a part of a
/// warp, more are a whole block. All threads of a warp, or of a block, reduce together.
struct Lanes {
  int lane, count;

  __device__ explicit Lanes(int count) : lane(static_cast<int>(threadIdx.x) & (count - 1)), count(count) {}

  /// Which of the block's rows is this thread's, and how many there are.
  __device__ int group() const { return static_cast<int>(threadIdx.x) / count; }
  __device__ int groups() const { return static_cast<int>(blockDim.x) / count; }

  template <class T, class Op>
  __device__ T reduce(T value, Op op) const {
    return count <= warp_threads ? warp_reduce(value, op, count) : block_reduce(value, op);
  }
};

/// The same where what lies side by side in memory are the rows, as columns do: a block takes `columns` of them, a
/// power of two, whose threads are neighbours along x, and every columns-th thread is a lane of the same one.
struct ColumnLanes {
  static constexpr int most_threads = 256;
  int lane, count, columns;

  __device__ explicit ColumnLanes(int columns)
      : lane(static_cast<int>(threadIdx.x) / columns),
        count(static_cast<int>(blockDim.x) / columns),
        columns(columns) {}

  __device__ int group() const { return static_cast<int>(threadIdx.x) & (columns - 1); }
  __device__ int groups() const { return columns; }

  /// All threads of the block call it, of which there are at most most_threads.
  template <class T, class Op>
  __device__ T reduce(T value, Op op) const {
    __shared__ T parts[most_threads];
    if (count == 1) return value;
    __syncthreads();  // until all have read the parts of a reduction before this one
    parts[threadIdx.x] = value;
    __syncthreads();
    value = parts[group()];
    for (int other = 1; other < count; ++other) value = op(value, parts[other * columns + group()]);
    return value;
  }
};

/// Threads and blocks for `rows` groups of `lanes` threads each, as Lanes takes them.
inline Grid grid_for_lanes(int64_t rows, int64_t lanes) {
  const int64_t threads =
      lanes > warp_threads ? lanes : std::min<int64_t>(128, std::max<int64_t>(32, power_of_two_from(rows * lanes)));
  const int64_t groups = threads / lanes;
  const int64_t blocks = std::min((rows + groups - 1) / groups, int64_t{device_limits().multiprocessors} * 32);
  return {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads))};
}

}  // namespace regard::cuda_backend
