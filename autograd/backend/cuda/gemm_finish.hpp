// What an epilogue does to a product behind cuBLASLt's work: all of it in one pass.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/backend/kernels.hpp>

namespace regard::cuda_backend {

/// Whether there is something to be done beside the bias.
bool needs_finish(const GemmEpilogue& epilogue);

/// c = the epilogue of `product`, which is c or, where what comes before the activation is wanted, that; `numel`
/// elements each, of any floating dtype. The bias is added already.
void finish_gemm(cudaStream_t stream, DType dtype, int64_t numel, void* c, const void* product,
                 const GemmEpilogue& epilogue);

}  // namespace regard::cuda_backend
