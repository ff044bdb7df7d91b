// Copies from memory to shared memory that run while the threads go on, and past their registers.
#pragma once

#include <cuda_runtime.h>

namespace regard::cuda_backend {

/// Copies 16 bytes to shared memory, or zeros it: there after wait_for_copies() and a barrier. Both addresses are
/// multiples of 16. In a host compiler tests/cuda_host stands in for the instruction.
__device__ inline void copy_vector(void* to, const void* from, bool whole) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(whole ? 16 : 0)
      : "memory");
#elif !defined(__CUDACC__)
  cuda_host::copy_later(to, from, whole);
#endif
}
__device__ inline void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
  cuda_host::finish_copies();
#endif
}

}  // namespace regard::cuda_backend
