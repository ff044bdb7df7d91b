// What functions of one tensor and activations share: their values, from a kernel, without a graph.
#pragma once

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

/// `op` of every element of x, which is f32 or f64: anything else is a DTypeError that names `name`.
inline Tensor unary_values(const char* name, UnaryOp op, const Tensor& x) {
  check_floating(name, "x", x);
  Tensor y = empty_like(x);
  kernels(x).unary(op, y, x);
  return y;
}

}  // namespace regard
