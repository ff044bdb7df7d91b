// The activations that other ops take in, by name.
#pragma once

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

/// The kernel of an activation, and that of its gradient, which takes x (or relu's output) and g.
UnaryOp activation_kernel(Activation activation);
BinaryOp activation_grad_kernel(Activation activation);

/// g times the derivative of `activation` at x, as an op: differentiable in x and g.
Tensor activation_grad(Activation activation, const Tensor& x, const Tensor& g);

}  // namespace regard
