// Softmax for attention's scores.
#pragma once

#include <regard/autograd/tensor.hpp>

namespace regard {

/// softmax(scores, dim), where a row of nothing but -inf (a query with nothing to attend to) gives zeros, and zero
/// gradients, in place of softmax's NaN.
Tensor softmax_or_zeros(const Tensor& scores, int64_t dim);

}  // namespace regard
