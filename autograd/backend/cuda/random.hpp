// Random numbers of counters on the GPU: to the bit those of the CPU (backend/cpu/random.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include <regard/autograd/philox.hpp>
#include <regard/autograd/random.hpp>

namespace regard::cuda_backend {

/// The uniform number of a counter, in [0, 1).
template <class T>
__device__ T uniform_number(uint64_t seed, uint64_t counter) {
  const auto bits = regard::detail::philox_element(seed, counter);
  if constexpr (sizeof(T) == sizeof(float))
    return uniform_float(bits[0]);
  else
    return uniform_double(bits[0], bits[1]);
}

/// What dropout keeps: element i where the uniform number of counter offset + i is at least p. The number has 24 bits
/// for f32 and f64 alike, so that both keep the same elements. Passed to kernels by value; p = 0 keeps everything.
class DropoutMask {
 public:
  DropoutMask(double p, uint64_t seed, uint64_t offset)
      : seed_(seed),
        offset_(offset),
        threshold_(static_cast<uint32_t>(std::ceil(p * 0x1p24))),
        scale_(p < 1 ? 1 / (1 - p) : 0) {}

  __device__ bool keeps(uint64_t i) const {
    return (regard::detail::philox_element(seed_, offset_ + i)[0] >> 8) >= threshold_;
  }
  /// What is kept is multiplied by this.
  template <class T>
  __host__ __device__ T scale() const {
    return static_cast<T>(scale_);
  }

 private:
  uint64_t seed_, offset_;
  uint32_t threshold_;
  double scale_;
};

}  // namespace regard::cuda_backend
