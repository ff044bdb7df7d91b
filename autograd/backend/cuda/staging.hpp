// Copies from the CPU's memory to a GPU's that nothing waits for: through buffers that the GPU reads by itself.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace regard::cuda_backend {

/// Copies behind what is queued; `from` has been read when this returns. Waits only where more than 64 MiB are under
/// way already.
void copy_to_gpu(const char* op, void* to, const void* from, int64_t bytes, int index, cudaStream_t stream);

}  // namespace regard::cuda_backend
