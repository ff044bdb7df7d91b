// Attention backward on bf16 and f16 by matrix instructions: the two walks of attention_backward.cu, by
// tensor_attention_query_gradient.cu and tensor_attention_key_gradient.cu.
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/tensor_attention.hpp>

namespace regard::cuda_backend {

void tensor_attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                           const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                           const AttentionSettings& settings) {
  visit_half(q.dtype(), [&]<class E>(E) {
    auto p = make_attention_problem<E>(statistics, q, k, v, mask, key_mask, alibi, settings);
    p.dy = rows_of<const E>(dy);
    const Delta<float> delta(dy, y);
    p.delta = delta.data();
    cudaStream_t stream = stream_of(q);

    // A block reads all of its own rows before it writes them. But dk and dv need q.
    const bool wants_keys = dk.defined() || dv.defined();
    const Target<E> query_target(dq, !is_over(dq, q) || !wants_keys, 1);
    if (dq.defined()) tensor_query_gradient(p, query_target, stream);
    if (wants_keys) tensor_key_gradient(p, dk, dv, stream);
    query_target.finish("scaled_dot_product_attention");
  });
}

}  // namespace regard::cuda_backend
