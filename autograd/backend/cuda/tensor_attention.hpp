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

/// Its parts: dq; dk and dv, each undefined where it is not wanted. E: bfloat16 and float16.
template <class E>
void tensor_query_gradient(const AttentionProblem<E>& p, const Target<E>& dq, cudaStream_t stream);
template <class E>
void tensor_key_gradient(const AttentionProblem<E>& p, const Tensor& dk, const Tensor& dv, cudaStream_t stream);

/// Calls f with a value of the type of 16 bits.
template <class F>
void visit_half(DType dtype, F&& f) {
  if (dtype == DType::bf16)
    f(bfloat16{});
  else
    f(float16{});
}

/// Whether blocks of `rows` rows keep the GPU busy, and more than half of a block's rows are there.
template <int rows>
bool fills_gpu(int64_t heads, int64_t length) {
  return 2 * length > rows && heads * ((length + rows - 1) / rows) >= device_limits().multiprocessors;
}
/// Warps of a block: four, fewer where there are few rows or too few blocks for the GPU.
template <class Tile>
int tensor_warps(int64_t heads, int64_t length) {
  if (fills_gpu<4 * Tile::warp_rows>(heads, length)) return 4;
  return fills_gpu<2 * Tile::warp_rows>(heads, length) ? 2 : 1;
}

}  // namespace regard::cuda_backend
