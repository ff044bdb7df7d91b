// Attention backward: the weights are computed again tile by tile, from the scores and each row's statistics. With
// P the weights, dP = dy v^T and delta = sum(dy y) of each row: dv = P^T dy, dS = P (dP - delta), dq = scale dS k,
// dk = dS^T (scale q). Dropout stands between P and dv, and between dP and dS. Dao et al., "FlashAttention", 2022.
// One kernel walks over keys for tiles of queries (attention_query_gradient.hpp: dq), one over queries for tiles of
// keys (attention_key_gradient.hpp: dk and dv): each writes what is its own alone, so that the order of sums is fixed.
#include <algorithm>

#include <regard/autograd/backend/cuda/attention_key_gradient.hpp>
#include <regard/autograd/backend/cuda/attention_parts.hpp>
#include <regard/autograd/backend/cuda/attention_query_gradient.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/tensor_attention.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "scaled_dot_product_attention";

template <class Tile, class T>
void run_backward(const AttentionProblem<T>& p, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& q,
                  const Tensor& k, const Tensor& v) {
  static_assert(query_shared<Tile>() <= most_shared_bytes && key_shared<Tile>() <= most_shared_bytes);
  const int64_t chunks = Tile::chunks_of(p.width);
  const int64_t value_chunks = Tile::chunks_of(p.value_width);
  const bool one_chunk = chunks == 1 && value_chunks == 1, wants_keys = dk.defined() || dv.defined();
  cudaStream_t stream = stream_of(q);

  // A block reads all of its own rows before it writes them, unless they come in chunks. But dk and dv need q.
  const Target<T> query_target(dq, !is_over(dq, q) || (one_chunk && !wants_keys), 1);
  if (dq.defined()) {
    const int64_t blocks = int64_t{p.batch} * p.heads * ((p.queries + Tile::rows - 1) / Tile::rows);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks));
    launch(name, stream, {grid, dim3(Tile::threads), query_shared<Tile>()}, query_gradient_kernel<Tile>, p,
           query_target.written());
  }

  if (wants_keys) {
    const int64_t blocks = k.size(0) * k.size(1) * ((p.keys + Tile::rows - 1) / Tile::rows);
    const int64_t tiles = int64_t{p.group} * ((p.queries + Tile::columns - 1) / Tile::columns);
    const int64_t busy = device_limits().multiprocessors;  // with fewer blocks the queries are split
    const int64_t parts =
        blocks == 0 ? 1 : std::clamp<int64_t>(2 * busy / blocks, 1, std::clamp<int64_t>(tiles / 4, 1, 16));
    const bool over = is_over(dk, k) || is_over(dv, v);
    const Target<T> key_target(dk, one_chunk || !over, parts), value_target(dv, one_chunk || !over, parts);
    const KeyGradients<T> to{key_target.written(), value_target.written(), key_target.part(), value_target.part()};
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::max(chunks, value_chunks)),
                    static_cast<unsigned>(parts));
    launch(name, stream, {grid, dim3(Tile::threads), key_shared<Tile>()}, key_gradient_kernel<Tile>, p, to);
    key_target.finish(name);
    value_target.finish(name);
  }
  query_target.finish(name);
}

/// Few queries and keys: tiles of one warp.
template <class T, int width, int large_threads>
void choose_tile(const AttentionProblem<T>& p, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& q,
                 const Tensor& k, const Tensor& v) {
  if (std::max(p.queries, p.keys) <= 32)
    run_backward<AttentionTile<T, width, 4, 32>>(p, dq, dk, dv, q, k, v);
  else if (p.is_plain())
    run_backward<AttentionTile<T, width, 4, large_threads, Ability::plain>>(p, dq, dk, dv, q, k, v);
  else
    run_backward<AttentionTile<T, width, 4, large_threads>>(p, dq, dk, dv, q, k, v);
}

}  // namespace

void attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                    const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings) {
  if (element_size(q.dtype()) == 2)
    return tensor_attention_grad(dq, dk, dv, dy, y, statistics, q, k, v, mask, key_mask, alibi, settings);
  visit_compute(q.dtype(), [&]<class T>(T) {
    auto p = make_attention_problem<T>(statistics, q, k, v, mask, key_mask, alibi, settings);
    p.dy = rows_of<const T>(dy);
    const Delta<T> delta(dy, y);
    p.delta = delta.data();
    const int widest = std::max(p.width, p.value_width);
    if constexpr (sizeof(T) == sizeof(double)) {
      if (widest <= 64)
        run_backward<AttentionTile<T, 64, 2, 64>>(p, dq, dk, dv, q, k, v);
      else
        run_backward<AttentionTile<T, 64, 2, 64, Ability::wide>>(p, dq, dk, dv, q, k, v);
    } else {
      if (widest <= 32)
        choose_tile<T, 32, 128>(p, dq, dk, dv, q, k, v);
      else if (widest <= 64)
        choose_tile<T, 64, 128>(p, dq, dk, dv, q, k, v);
      else if (widest <= 128)
        choose_tile<T, 128, 64>(p, dq, dk, dv, q, k, v);
      else
        run_backward<AttentionTile<T, 128, 2, 128, Ability::wide>>(p, dq, dk, dv, q, k, v);
    }
  });
}

}  // namespace regard::cuda_backend
