// Sorts keys with the positions they came from, equal keys staying in order. Radix sort from the lowest digit up;
// within a tile, places are found by votes of a warp's lanes, so that nothing depends on which thread is faster.
// Merrill and Grimshaw, "High performance and scalable radix sorting", 2011.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

namespace radix {

constexpr int digit_bits = 8, digits = 1 << digit_bits;
constexpr int threads = digits;  // of a block: one a digit where digits are counted
constexpr int warps = threads / 32;
constexpr int items = 8;  // keys a thread
constexpr int tile = threads * items;

template <class Key>
__device__ uint32_t digit_of(Key key, int shift) {
  return static_cast<uint32_t>(key >> shift) & (digits - 1);
}

/// counts[t][d]: how often digit d is in tile t.
template <class Key>
__global__ void __launch_bounds__(threads) count_kernel(const Key* keys, int64_t count, int shift, uint32_t* counts) {
  __shared__ uint32_t bins[digits];
  bins[threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = int64_t{blockIdx.x} * tile + threadIdx.x;
  for (int i = 0; i < items; ++i)
    if (const int64_t at = first + i * threads; at < count) atomicAdd(&bins[digit_of(keys[at], shift)], 1U);
  __syncthreads();
  counts[int64_t{blockIdx.x} * digits + threadIdx.x] = bins[threadIdx.x];
}

/// counts[t][d]: now how often digit d is in the tiles before t; totals[d]: in all. A thread a digit.
template <class Count>
__global__ void sum_kernel(Count* counts, int64_t tiles, Count* totals) {
  constexpr int batch = 8;  // loads on their way at a time
  const unsigned digit = blockIdx.x * blockDim.x + threadIdx.x;
  Count sum = 0;
  for (int64_t t = 0; t < tiles; t += batch) {
    Count found[batch];
    for (int j = 0; j < batch; ++j) found[j] = t + j < tiles ? counts[(t + j) * digits + digit] : 0;
    for (int j = 0; j < batch; ++j) {
      if (t + j < tiles) counts[(t + j) * digits + digit] = sum;
      sum += found[j];
    }
  }
  totals[digit] = sum;
}

/// Where the keys with this thread's digit begin: how many have a smaller one.
__device__ inline uint32_t begin_of_digit(uint32_t total) {
  __shared__ uint32_t sums[warps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = total;
  for (unsigned by = 1; by < 32; by *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffU, sum, by);
    if (lane >= by) sum += other;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) sum += sums[w];
  return sum - total;
}

/// Moves each key and position of a tile to its place in the order of the digit at `shift`.
template <class Key>
__global__ void __launch_bounds__(threads)
    move_kernel(const Key* keys, const uint32_t* positions, int64_t count, int shift, const uint32_t* counts,
                const uint32_t* totals, Key* to_keys, uint32_t* to_positions) {
  __shared__ uint32_t bins[warps][digits];
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  for (auto& bin : bins) bin[thread] = 0;
  // There the block meets.
  uint32_t begin = begin_of_digit(totals[thread]) + counts[int64_t{blockIdx.x} * digits + thread];

  // A warp has consecutive keys, 32 at a time. Rank: how many of the warp's keys before have the same digit.
  Key key[items];
  uint32_t rank[items];
  const int64_t first = int64_t{blockIdx.x} * tile + warp * (32 * items) + lane;
#pragma unroll
  for (int i = 0; i < items; ++i) {
    const int64_t at = first + i * 32;
    const bool exists = at < count;
    key[i] = exists ? keys[at] : 0;
    const uint32_t digit = digit_of(key[i], shift);
    unsigned same = __ballot_sync(0xffffffffU, exists);
    for (int b = 0; b < digit_bits; ++b) {
      const bool set = (digit >> b) & 1U;
      const unsigned all = __ballot_sync(0xffffffffU, set);
      same &= set ? all : ~all;
    }
    const unsigned before = same & ((1U << lane) - 1);
    rank[i] = bins[warp][digit] + static_cast<uint32_t>(__popc(before));
    __syncwarp();
    if (exists && before == 0) bins[warp][digit] += static_cast<uint32_t>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
  for (auto& bin : bins) {  // counts of warps become their places
    const uint32_t found = bin[thread];
    bin[thread] = begin;
    begin += found;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < items; ++i) {
    const int64_t at = first + i * 32;
    if (at >= count) continue;
    const uint32_t to = bins[warp][digit_of(key[i], shift)] + rank[i];
    to_keys[to] = key[i];
    to_positions[to] = positions[at];
  }
}

}  // namespace radix

/// Up to 2^31 keys of uint32_t or uint64_t with positions, for kernels to fill in and then to read in order.
template <class Key>
class RadixSort {
 public:
  RadixSort(int64_t count, Device device)
      : count_(count),
        tiles_((count + radix::tile - 1) / radix::tile),
        keys_(2 * count * static_cast<int64_t>(sizeof(Key)), device),
        positions_(2 * count * static_cast<int64_t>(sizeof(uint32_t)), device),
        counts_((tiles_ + 1) * radix::digits * static_cast<int64_t>(sizeof(uint32_t)), device) {}

  Key* keys() const { return keys_.as<Key>() + current_ * count_; }
  uint32_t* positions() const { return positions_.as<uint32_t>() + current_ * count_; }

  /// By the lowest `bits` bits of the keys: the others must be 0. keys() and positions() are others afterwards.
  void sort(const char* op, cudaStream_t stream, int bits) {
    uint32_t *counts = counts_.as<uint32_t>(), *totals = counts + tiles_ * radix::digits;
    const Grid grid{dim3(static_cast<unsigned>(tiles_)), dim3(radix::threads)};
    for (int shift = 0; shift < bits; shift += radix::digit_bits) {
      launch(op, stream, grid, radix::count_kernel<Key>, keys(), count_, shift, counts);
      launch(op, stream, {dim3(radix::digits / 32), dim3(32)}, radix::sum_kernel<uint32_t>, counts, tiles_, totals);
      const Key* from_keys = keys();
      const uint32_t* from_positions = positions();
      current_ = 1 - current_;
      launch(op, stream, grid, radix::move_kernel<Key>, from_keys, from_positions, count_, shift, counts, totals,
             keys(), positions());
    }
  }

 private:
  int64_t count_, tiles_, current_ = 0;
  Scratch keys_, positions_, counts_;
};

}  // namespace regard::cuda_backend
