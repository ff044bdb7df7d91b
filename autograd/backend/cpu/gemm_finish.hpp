// What is done to blocks of a matrix product while they are in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <regard/autograd/backend/cpu/elementwise.hpp>

namespace regard::cpu_backend {

/// Row functions on C, in this order: a copy is kept; an activation; the gradient of an activation, whose input or
/// output `gradient_of` is; a residual. All matrices lie as C does. The row functions are those of the elementwise
/// kernels: the bits are those of an op of its own after the product.
struct GemmFinish {
  char* result;  ///< where C begins
  size_t element_bytes;
  char* kept = nullptr;
  UnaryRun activation = nullptr;
  BinaryRun gradient = nullptr;
  const char* gradient_of = nullptr;
  BinaryRun add = nullptr;
  const char* residual = nullptr;

  /// On the block of C that begins at `c`.
  void operator()(int64_t rows, int64_t columns, void* c, int64_t row_stride, int64_t column_stride) const;
};

}  // namespace regard::cpu_backend
