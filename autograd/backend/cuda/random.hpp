// Random numbers of counters on the GPU: to the bit those of the CPU (backend/cpu/random.cpp).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>

#include <regard/autograd/backend/cuda/capture.hpp>
#include <regard/autograd/philox.hpp>
#include <regard/autograd/random.hpp>

namespace regard::cuda_backend {

/// The counters of an op, from the first on. Passed to kernels by value.
class Counters {
 public:
  Counters(const char* op, uint64_t seed, uint64_t offset)
      : seed_(seed), offset_(offset), state_(generator_state(op, offset)) {
    if (state_) offset_ &= counted_in_capture;
  }
  Counters() = default;

  /// The random bits of counter i. In a replay they begin where the generator is then; the seed is its, too.
  __device__ std::array<uint32_t, 4> bits(uint64_t i) const {
    if (!state_) return regard::detail::philox_element(seed_, offset_ + i);
    return regard::detail::philox_element(__ldg(&state_->seed), __ldg(&state_->offset) + offset_ + i);
  }
  /// The uniform number of counter i, in [0, 1).
  template <class T>
  __device__ T uniform(uint64_t i) const {
    const auto bits_of = bits(i);
    if constexpr (sizeof(T) == sizeof(float))
      return uniform_float(bits_of[0]);
    else
      return uniform_double(bits_of[0], bits_of[1]);
  }

 private:
  uint64_t seed_ = 0, offset_ = 0;
  const GeneratorState* state_ = nullptr;  // of a capture
};

/// What dropout keeps: element i where the uniform number of counter offset + i is at least p. The number has 24 bits
/// for f32 and f64 alike, so that both keep the same elements. Passed to kernels by value; p = 0 keeps everything.
class DropoutMask {
 public:
  DropoutMask(double p, uint64_t seed, uint64_t offset)
      : counters_(p > 0 ? Counters("dropout", seed, offset) : Counters()),
        threshold_(static_cast<uint32_t>(std::ceil(p * 0x1p24))),
        scale_(p < 1 ? 1 / (1 - p) : 0) {}

  __device__ bool keeps(uint64_t i) const { return (counters_.bits(i)[0] >> 8) >= threshold_; }
  /// What is kept is multiplied by this.
  template <class T>
  __host__ __device__ T scale() const {
    return static_cast<T>(scale_);
  }

 private:
  Counters counters_;
  uint32_t threshold_;
  double scale_;
};

}  // namespace regard::cuda_backend
