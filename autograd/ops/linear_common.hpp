// What the ops that multiply by a weight [out, in] share.
#pragma once

#include <regard/autograd/ops.hpp>

namespace regard {

/// x as [rows, its last size].
Tensor as_rows(const Tensor& x);

/// Throws unless x is [..., in], weight [out, in] and bias [out] or undefined, floating, of one dtype and device.
void check_linear(const char* op, const Tensor& x, const char* weight_name, const Tensor& weight, const char* bias_name,
                  const Tensor& bias);

}  // namespace regard
