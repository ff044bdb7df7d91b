// What is done to blocks of a matrix product while they are in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <regard/autograd/backend/cpu/elementwise.hpp>

namespace regard::cpu_backend {

/// Row functions on C, in this order: a copy is kept; an activation; the gradient of an activation at x, and the
/// activation of x; a residual. All matrices lie as C does. The row functions are those of the elementwise
/// kernels: the bits are those of an op of its own after the product.
struct GemmFinish {
  char* result;  ///< where C begins
  size_t element_bytes;
  char* before = nullptr;
  UnaryRun activation = nullptr;
  BinaryRun activation_grad = nullptr;
  const char* x = nullptr;
  UnaryRun activation_again = nullptr;
  char* activated = nullptr;
  BinaryRun add = nullptr;
  const char* residual = nullptr;

  /// On the block of C that begins at `c`.
  void operator()(int64_t rows, int64_t columns, void* c, int64_t row_stride, int64_t column_stride) const;
};

}  // namespace regard::cpu_backend
