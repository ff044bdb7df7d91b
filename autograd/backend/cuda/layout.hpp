// Where the elements of one to four tensors of one shape lie, for kernels that walk them together.
#pragma once

#include <array>
#include <cstdint>

#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

/// n / divisor and n % divisor for 32-bit n by a multiplication: a GPU has no instruction that divides integers.
/// Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
class Divider {
 public:
  Divider() = default;
  explicit Divider(uint32_t divisor) : divisor_(divisor) {
    while (shift_ < 32 && (uint64_t{1} << shift_) < divisor) ++shift_;
    const uint64_t power = (uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor);
    multiplier_ = static_cast<uint32_t>(power / divisor + 1);
  }
  __host__ __device__ uint32_t divide(uint32_t n) const {
    const auto high = static_cast<uint32_t>((uint64_t{n} * multiplier_) >> 32);
    return static_cast<uint32_t>((uint64_t{high} + n) >> shift_);
  }
  __host__ __device__ uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_ = 1, multiplier_ = 1, shift_ = 0;
};

/// Offsets of an element in N tensors, in elements.
template <int N>
struct Offsets {
  int64_t at[N];
};

/// The common walk over N tensors of one shape: dimensions of size 1 are left out, and neighbours merged where every
/// tensor's strides allow it. Element i is counted in row-major order of the shape. Passed to kernels by value.
template <int N>
struct Layout {
  int64_t numel = 0;
  int dims = 0;                         ///< 0: all tensors are dense, so element i is at offset i in each
  bool narrow = true;                   ///< numel below 2^31: 32-bit division will do
  int64_t sizes[Shape::max_dims] = {};  // innermost first
  Divider dividers[Shape::max_dims];
  int64_t strides[Shape::max_dims][N] = {};

  explicit Layout(const std::array<const Tensor*, N>& tensors) {
    const Shape& shape = tensors[0]->shape();
    numel = shape.numel();
    narrow = numel < (int64_t{1} << 31);
    for (int64_t d = shape.dim() - 1; d >= 0; --d) {
      if (shape[d] == 1) continue;
      bool merges = dims > 0;
      for (size_t k = 0; merges && k < N; ++k)
        merges = tensors[k]->strides()[d] == strides[dims - 1][k] * sizes[dims - 1];
      if (merges) {
        sizes[dims - 1] *= shape[d];
        continue;
      }
      sizes[dims] = shape[d];
      for (size_t k = 0; k < N; ++k) strides[dims][k] = tensors[k]->strides()[d];
      ++dims;
    }
    bool dense = dims <= 1;
    for (size_t k = 0; dense && dims == 1 && k < N; ++k) dense = strides[0][k] == 1;
    if (dense || numel == 0) dims = 0;
    for (int d = 0; narrow && d < dims; ++d) dividers[d] = Divider(static_cast<uint32_t>(sizes[d]));
  }

  __host__ __device__ bool dense() const { return dims == 0; }

  __host__ __device__ Offsets<N> offsets(int64_t i) const {
    Offsets<N> result;
    for (int k = 0; k < N; ++k) result.at[k] = dims == 0 ? i : 0;
    if (narrow) {
      auto rest = static_cast<uint32_t>(i);
      for (int d = 0; d < dims; ++d) {
        const uint32_t quotient = dividers[d].divide(rest);
        const int64_t index = rest - quotient * dividers[d].divisor();
        rest = quotient;
        for (int k = 0; k < N; ++k) result.at[k] += index * strides[d][k];
      }
    } else {
      int64_t rest = i;
      for (int d = 0; d < dims; ++d) {
        const int64_t quotient = rest / sizes[d];
        const int64_t index = rest - quotient * sizes[d];
        rest = quotient;
        for (int k = 0; k < N; ++k) result.at[k] += index * strides[d][k];
      }
    }
    return result;
  }
};

}  // namespace regard::cuda_backend
