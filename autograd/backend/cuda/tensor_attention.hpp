// Attention on bf16 and f16 by matrix instructions, which attention() and attention_grad() hand over to.
#pragma once

#include <cstdint>

#include <regard/autograd/backend/cuda/attention_parts.hpp>

namespace regard::cuda_backend {

/// As the table's rows of these names, where q has 16 bits.
void tensor_attention(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                      const AttentionSettings& settings);
void tensor_attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                           const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                           const AttentionSettings& settings);

/// dq; dk and dv in the targets' parts of the queries. E: bfloat16 and float16.
template <class E>
void tensor_query_gradient(const AttentionProblem<E>& p, const Target<E>& dq, cudaStream_t stream);
template <class E>
void tensor_key_gradient(const AttentionProblem<E>& p, const Target<E>& dk, const Target<E>& dv, int64_t parts,
                         cudaStream_t stream);
/// Rows of queries that a tile of tensor_key_gradient() has.
inline constexpr int tensor_query_columns = 32;

/// Calls f with a value of the type of 16 bits.
template <class F>
void visit_half(DType dtype, F&& f) {
  if (dtype == DType::bf16)
    f(bfloat16{});
  else
    f(float16{});
}

/// Warps of a block, of 16 rows each: four, fewer where there are few rows or too few blocks for the GPU.
inline int tensor_warps(int64_t heads, int64_t length) {
  const auto blocks = [&](int warps) { return heads * ((length + 16 * warps - 1) / (16 * warps)); };
  int warps = 4;
  while (warps > 1 && (8 * warps >= length || blocks(warps) < device_limits().multiprocessors)) warps /= 2;
  return warps;
}

}  // namespace regard::cuda_backend
