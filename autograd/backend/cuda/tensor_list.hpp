// One launch over many tensors, however small each is: their pointers travel in the kernel's parameters, and their
// elements are cut into chunks, which blocks take.
#pragma once

#include <array>
#include <cstdint>

#include <regard/autograd/backend/cuda/elementwise.hpp>

namespace regard::cuda_backend {

/// Lists of N dense arrays each, `count` elements long: a parameter, its gradient and moments. Passed to kernels by
/// value.
template <class T, int N>
struct TensorList {
  static constexpr int most = 3900 / (8 * N + 12);  // parameters of 4 KiB at most
  static constexpr int64_t chunk = 4096;            // elements

  int entries = 0;
  uint32_t first_chunk[most + 1] = {};  // of an entry; behind the last one: of all
  int64_t counts[most] = {};
  T* data[most][N] = {};

  bool full() const { return entries == most; }
  void add(int64_t count, const std::array<T*, N>& arrays) {
    for (size_t k = 0; k < N; ++k) data[entries][k] = arrays[k];
    counts[entries] = count;
    first_chunk[entries + 1] = first_chunk[entries] + static_cast<uint32_t>((count + chunk - 1) / chunk);
    ++entries;
  }
  __host__ __device__ uint32_t chunks() const { return first_chunk[entries]; }

  /// Blocks that take chunk after chunk. Chunks of few elements want few threads.
  Grid grid() const {
    int64_t largest = 0;
    for (int e = 0; e < entries; ++e) largest = counts[e] > largest ? counts[e] : largest;
    Grid result = grid_for(largest < chunk ? largest : chunk, pack_width);
    const uint32_t most_blocks = static_cast<uint32_t>(device_limits().multiprocessors) * 16;
    result.blocks = dim3(chunks() < most_blocks ? chunks() : most_blocks);
    return result;
  }

  /// The entry to which a chunk belongs; empty ones have none.
  __device__ int entry_of(uint32_t of) const {
    int low = 0, high = entries - 1;
    while (low < high) {  // the last one that does not begin behind it
      const int middle = (low + high + 1) / 2;
      if (first_chunk[middle] <= of)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

/// The elements of a chunk in N arrays, and whether they may be read a pack at a time.
template <class T, int N>
struct Chunk {
  T* data[N];
  int count;
  bool packed;

  __device__ Chunk(const TensorList<T, N>& list, uint32_t number) {
    const int entry = list.entry_of(number);
    const int64_t begin = int64_t{number - list.first_chunk[entry]} * TensorList<T, N>::chunk;
    const int64_t rest = list.counts[entry] - begin;
    count = static_cast<int>(rest < TensorList<T, N>::chunk ? rest : TensorList<T, N>::chunk);
    packed = true;
    for (int k = 0; k < N; ++k) {
      data[k] = list.data[entry][k] + begin;
      packed = packed && reinterpret_cast<uintptr_t>(data[k]) % sizeof(Pack<T>) == 0;
    }
  }
};

/// All threads of all blocks together: f(x) for the N values x of every element, of which f may change those whose bits
/// are set in F::written. Which thread gets which elements depends on the grid alone.
template <class T, int N, class F>
__device__ void each_element(const TensorList<T, N>& list, F& f) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (uint32_t number = blockIdx.x; number < list.chunks(); number += gridDim.x) {
    const Chunk<T, N> chunk(list, number);
    int begin = 0;
    if (chunk.packed) {
      const int packs = chunk.count / pack_width;
      for (int p = thread; p < packs; p += threads) {
        Pack<T> packs_of[N];
        for (int k = 0; k < N; ++k) packs_of[k] = reinterpret_cast<const Pack<T>*>(chunk.data[k])[p];
        for (int j = 0; j < pack_width; ++j) {
          T x[N];
          for (int k = 0; k < N; ++k) x[k] = packs_of[k].at[j];
          f(x);
          for (int k = 0; k < N; ++k) packs_of[k].at[j] = x[k];
        }
        for (int k = 0; k < N; ++k)
          if ((F::written >> k) & 1) reinterpret_cast<Pack<T>*>(chunk.data[k])[p] = packs_of[k];
      }
      begin = packs * pack_width;
    }
    for (int i = begin + thread; i < chunk.count; i += threads) {
      T x[N];
      for (int k = 0; k < N; ++k) x[k] = chunk.data[k][i];
      f(x);
      for (int k = 0; k < N; ++k)
        if ((F::written >> k) & 1) chunk.data[k][i] = x[k];
    }
  }
}

/// Gives `entries` to start(list) in lists of as many as go into one launch. arrays(entry) are an entry's pointers, and
/// count(entry) is their length; 0 is left out.
template <class T, int N, class Entries, class Count, class Arrays, class Start>
void in_lists(const Entries& entries, const Count& count, const Arrays& arrays, const Start& start) {
  TensorList<T, N> list;
  for (const auto& entry : entries) {
    if (count(entry) == 0) continue;
    list.add(count(entry), arrays(entry));
    if (!list.full()) continue;
    start(list);
    list.entries = 0;
  }
  if (list.entries > 0) start(list);
}

}  // namespace regard::cuda_backend
