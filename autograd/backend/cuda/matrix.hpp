// Matrix instructions of a warp (sm_80 and later) on the 16-bit types, and what goes with them. How the elements lie in
// the lanes' registers is as in the PTX ISA, "Matrix fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4,
//   a [16, 16]: {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}, each a word of that element and the one after it
//   b [16, 8]:  {(2t, g), (2t + 8, g)}, each a word of that element and the one below it
//   c [16, 8]:  {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}
// All lanes of the warp run each of them together. In a host compiler tests/cuda_host stands in for the instructions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include <regard/autograd/backend/cuda/convert.hpp>

namespace regard::cuda_backend {

/// c += a b. The products are exact; sums are kept in f32, whose rounding the GPU chooses.
template <class E>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(is_half<E>);
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<E, bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  cuda_host::multiply_add(c, a, b, [](uint16_t bits) {
    E value;
    value.bits = bits;
    return to_float(value);
  });
#endif
}

/// Four matrices of [8, 8] from shared memory: lane i gives the address, a multiple of 16, of row i % 8 of matrix i
/// / 8. words[m] is elements (g, 2t) and (g, 2t + 1) of matrix m.
template <class E>
__device__ inline void load_matrices(uint32_t (&words)[4], const E* row) {
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#elif !defined(__CUDACC__)
  cuda_host::load_matrices(words, row, false);
#endif
}
/// The same of the matrices turned over: words[m] is elements (2t, g) and (2t + 1, g) of matrix m.
template <class E>
__device__ inline void load_transposed_matrices(uint32_t (&words)[4], const E* row) {
#if defined(__CUDA_ARCH__)
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
#elif !defined(__CUDACC__)
  cuda_host::load_matrices(words, row, true);
#endif
}

/// Two numbers, rounded to nearest even, as a word: the first in its lower half.
template <class E>
__device__ inline uint32_t word_of(float first, float second) {
  static_assert(is_half<E>);
#if defined(__CUDA_ARCH__)
  uint32_t word;
  if constexpr (std::is_same_v<E, bfloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  return uint32_t{from_float<E>(first).bits} | uint32_t{from_float<E>(second).bits} << 16;
#endif
}

/// 2^x to about 2 ulp, subnormal results 0: more than enough for what is rounded to 16 bits.
__device__ inline float quick_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

}  // namespace regard::cuda_backend
