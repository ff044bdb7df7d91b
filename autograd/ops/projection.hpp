// Heads of attention: several projections of one input, and heads split and merged, each as one op. What layers use;
// programs compose linear(), view() and transpose().
#pragma once

#include <array>

#include <regard/autograd/tensor.hpp>

namespace regard::detail {

/// A linear map's parameters: weight [out, width] and bias [out], or undefined.
struct Projection {
  const Tensor& weight;
  const Tensor& bias;
};

/// Whether project_heads() takes these: x [N, T, width] and the weight dense, of one floating dtype, and sizes that
/// fit. Where it does not, linear() does, or says what is wrong.
bool can_project(const Tensor& x, const Projection& projection, int64_t head_width);

/// Each projection of x, [N, T, out], split into heads [N, out / head_width, T, head_width] without a copy:
/// linear(x, weight, bias).view({N, T, heads, head_width}).transpose(1, 2). The gradient of x is added up in the
/// products themselves. For one to three projections that can_project().
template <size_t count>
std::array<Tensor, count> project_heads(const Tensor& x, const std::array<Projection, count>& projections,
                                        int64_t head_width);

/// x [N, H, T, D] -> [N, T, H * D]: transpose(1, 2) and reshape, without a copy where x lies as [N, T, H, D].
Tensor merge_heads(const Tensor& x);

}  // namespace regard::detail
