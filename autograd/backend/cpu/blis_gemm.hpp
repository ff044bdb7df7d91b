// A product by BLIS, on the calling thread.
#pragma once

#include <cstdint>
#include <regard/autograd/backend/cpu/gemm.hpp>

namespace regard::cpu_backend {

/// As gemm, for m, n, k >= 1.
void blis_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
               Matrix<float> c);
void blis_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
               double beta, Matrix<double> c);

// The stride over a dimension of size 1 says nothing: one that BLIS takes and that keeps its fast paths.
template <class T>
Matrix<T> with_plain_strides(int64_t rows, int64_t columns, Matrix<T> matrix) {
  if (rows == 1) {
    if (columns == 1) matrix.column_stride = 1;
    if (matrix.column_stride != 0) matrix.row_stride = matrix.column_stride == 1 ? columns : 1;
  } else if (columns == 1) {
    if (matrix.row_stride != 0) matrix.column_stride = matrix.row_stride == 1 ? rows : 1;
  }
  return matrix;
}

}  // namespace regard::cpu_backend
