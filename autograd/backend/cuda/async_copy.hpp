// Copies from memory to shared memory that run while the threads go on, and past their registers.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

namespace regard::cuda_backend {

/// Copies 16 bytes to shared memory, or zeros it: there after wait_for_copies() and a barrier. Both addresses are
/// multiples of 16.
__device__ inline void copy_vector(void* to, const void* from, bool whole) {
#ifdef __CUDA_ARCH__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(whole ? 16 : 0)
      : "memory");
#else
  if (whole)
    memcpy(to, from, 16);
  else
    memset(to, 0, 16);
#endif
}
__device__ inline void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace regard::cuda_backend
