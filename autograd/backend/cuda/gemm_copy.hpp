// Matrices from one layout to another, for products: operands whose strides cuBLASLt does not take, and results.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/dtype.hpp>

namespace regard::cuda_backend {

struct MatrixSizes {
  int64_t batch, rows, columns;
};
/// Elements from one entry of the batch, row, column to the next.
struct MatrixStrides {
  int64_t batch, row, column;
};

/// to = factor from, of any floating dtype. With the factor 0 `from` is not read. The two may be one and the same.
void copy_matrices(const char* op, cudaStream_t stream, DType dtype, MatrixSizes sizes, void* to,
                   MatrixStrides to_strides, const void* from, MatrixStrides from_strides, double factor = 1);

}  // namespace regard::cuda_backend
