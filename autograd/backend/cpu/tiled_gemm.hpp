// The matrix product of one piece on one thread: SIMD tiles of C in registers, panels of B packed for them.
#pragma once

#include <cstdint>
#include <regard/autograd/backend/cpu/gemm.hpp>

namespace regard::cpu_backend {

/// As gemm for m, n, k >= 1, on the calling thread. `dots` asks for the way of dot products, where k runs along the
/// vectors: the faster one for up to tiled_gemm_dot_rows rows where B lies by columns. Otherwise every element is
/// summed in the order of k, in blocks that k alone decides: a piece of a product has the bits of the whole.
void tiled_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
                Matrix<float> c, bool dots);
void tiled_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
                double beta, Matrix<double> c, bool dots);

constexpr int64_t tiled_gemm_dot_rows = 12;

/// The tile of the instruction set in use: pieces that are multiples of it leave no ragged edges inside.
struct TileSize {
  int64_t rows, columns;
};
TileSize tiled_gemm_tile(int64_t element_bytes);

}  // namespace regard::cpu_backend
