// Products too small for BLIS, whose calls cost more than the arithmetic there: a loop of our own, on one thread.
#pragma once

#include <cstdint>
#include <regard/autograd/backend/cpu/gemm.hpp>

namespace regard::cpu_backend {

/// Elements of B, columns rounded up to small_gemm_columns, that small_gemm can take.
constexpr int64_t small_gemm_capacity = 4096;
constexpr int64_t small_gemm_columns = 16;

constexpr bool small_gemm_fits(int64_t n, int64_t k) {
  return (n + small_gemm_columns - 1) / small_gemm_columns * small_gemm_columns <= small_gemm_capacity / k;
}

/// As gemm, for k >= 1 and small_gemm_fits(n, k).
void small_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
                Matrix<float> c);
void small_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                double beta, Matrix<double> c);

}  // namespace regard::cpu_backend
