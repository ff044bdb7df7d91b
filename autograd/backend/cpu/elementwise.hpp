// What the elementwise kernels share: inner loops by op and dtype, and the plain ones among them.
#pragma once

#include <cstdint>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>
#include <regard/autograd/backend/kernels.hpp>

namespace regard::cpu_backend {

/// y[i] = op(a[i]) for i < count; strides in elements.
using UnaryRun = void (*)(char* y, const char* a, int64_t y_stride, int64_t a_stride, int64_t count);
/// y[i] = op(a[i], b[i])
using BinaryRun = void (*)(char* y, const char* a, const char* b, int64_t y_stride, int64_t a_stride, int64_t b_stride,
                           int64_t count);

/// An inner loop and the elements a chunk that go with its cost. `dtype` is that of the inputs.
struct UnaryLoop {
  UnaryRun run = nullptr;
  int64_t grain = 0;
};
struct BinaryLoop {
  BinaryRun run = nullptr;
  int64_t grain = 0;
};

/// Vectorised loops; null where there is none.
UnaryLoop simd_unary(UnaryOp op, DType dtype);
BinaryLoop simd_binary(BinaryOp op, DType dtype);
/// Plain loops for the rest: integers, comparisons, logic, the standard library's functions.
UnaryLoop plain_unary(UnaryOp op, DType dtype);
BinaryLoop plain_binary(BinaryOp op, DType dtype);

/// Whether a large operand lies across the output: its elements are dense along another dimension than the innermost
/// one, so that a row of them touches a cache line each.
template <size_t N>
bool lies_across(const Loop<N>& loop, size_t operand) {
  if (loop.numel() < 4096 || loop.strides(0)[operand] <= 1) return false;
  for (int d = 1; d < loop.dims(); ++d)
    if (loop.strides(d)[operand] == 1) return true;
  return false;
}
/// A dense copy, made tile by tile.
inline Tensor laid_along(const Tensor& x) {
  Tensor dense = empty_like(x);
  copy(dense, x);
  return dense;
}

template <class To, class From, class F>
void plain_unary_run(char* y_bytes, const char* a_bytes, int64_t y_stride, int64_t a_stride, int64_t count) {
  const F f;
  auto* y = reinterpret_cast<To*>(y_bytes);
  const auto* a = reinterpret_cast<const From*>(a_bytes);
  if (y_stride == 1 && a_stride == 1)
    for (int64_t i = 0; i < count; ++i) y[i] = f(a[i]);
  else
    for (int64_t i = 0; i < count; ++i) y[i * y_stride] = f(a[i * a_stride]);
}

template <class To, class From, class F>
void plain_binary_run(char* y_bytes, const char* a_bytes, const char* b_bytes, int64_t y_stride, int64_t a_stride,
                      int64_t b_stride, int64_t count) {
  const F f;
  auto* y = reinterpret_cast<To*>(y_bytes);
  const auto* a = reinterpret_cast<const From*>(a_bytes);
  const auto* b = reinterpret_cast<const From*>(b_bytes);
  if (y_stride == 1 && a_stride == 1 && b_stride == 1) {
    for (int64_t i = 0; i < count; ++i) y[i] = f(a[i], b[i]);
  } else if (y_stride == 1 && a_stride == 1 && b_stride == 0) {
    const From value = *b;
    for (int64_t i = 0; i < count; ++i) y[i] = f(a[i], value);
  } else if (y_stride == 1 && a_stride == 0 && b_stride == 1) {
    const From value = *a;
    for (int64_t i = 0; i < count; ++i) y[i] = f(value, b[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) y[i * y_stride] = f(a[i * a_stride], b[i * b_stride]);
  }
}

}  // namespace regard::cpu_backend
