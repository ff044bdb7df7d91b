// Matrix products by cuBLASLt, in its own terms: matrices lie by columns.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/dtype.hpp>

namespace regard::cuda_backend {

/// An operand that lies by columns, `leading` elements from one to the next.
struct BlasMatrix {
  const void* data = nullptr;
  int64_t leading = 1;       ///< at least the rows that it has in memory
  int64_t batch_stride = 0;  ///< elements to the next of the batch
  bool transposed = false;   ///< whether the product takes its transpose
};

/// d = alpha a b + beta c + bias, `batch` times, with a [rows, depth], b [depth, columns] and c, d [rows, columns], all
/// of one dtype (f32, f64, bf16, f16; sums are in f32, of f64 in f64) and no size 0.
struct BlasProduct {
  DType dtype = DType::f32;
  int64_t rows = 0, columns = 0, depth = 0, batch = 1;
  double alpha = 1, beta = 0;
  BlasMatrix a{}, b{};
  const void* c = nullptr;  ///< d itself, or a matrix that lies as d does
  void* d = nullptr;
  int64_t leading = 1, batch_stride = 0;  ///< of c and d
  const void* bias = nullptr;             ///< [rows], dense, aligned to blas_bias_alignment: added to every column
};
inline constexpr uintptr_t blas_bias_alignment = 16;

/// Makes the library's handle for the current GPU, where there is none yet.
void prepare_blas(const char* op);

/// Queues the product, in the precision that matmul_precision() says. False where cuBLASLt has no algorithm for it:
/// then nothing was done. Same bits every time.
bool blas_multiply(const char* op, cudaStream_t stream, const BlasProduct& product);

}  // namespace regard::cuda_backend
