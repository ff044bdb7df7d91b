// Attention backward, dq: a walk over keys for tiles of queries. See attention_backward.cu.
#pragma once

#include <regard/autograd/backend/cuda/attention_score_gradient.hpp>

namespace regard::cuda_backend {

template <class Tile>
constexpr size_t query_shared() {
  return (2 * Tile::rows + 2 * Tile::columns) * Tile::stride * sizeof(typename Tile::T) +
         Tile::rows * Tile::weights_stride * sizeof(typename Tile::T) + 2 * Tile::rows * sizeof(uint32_t);
}

/// dq. Blocks: x: tiles of queries of heads; y: chunks of dq's columns.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    query_gradient_kernel(AttentionProblem<typename Tile::T> p, HeadRows<typename Tile::T> dq) {
  using T = typename Tile::T;
  T* const q = dynamic_shared<T>();                                                                // [rows, width]
  T* const dy = q + Tile::rows * Tile::stride;                                                     // [rows, width]
  T* const k = dy + Tile::rows * Tile::stride;                                                     // [32, width]
  T* const v = k + Tile::columns * Tile::stride;                                                   // [32, width]
  T* const dscores = v + Tile::columns * Tile::stride;                                             // [rows, 32]
  auto* const allowed = reinterpret_cast<uint32_t*>(dscores + Tile::rows * Tile::weights_stride);  // [rows]
  uint32_t* const kept = allowed + Tile::rows;

  const int tiles = (p.queries + Tile::rows - 1) / Tile::rows;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / p.heads, h = head - n * p.heads;
  const int first_query = (tiles - 1 - (static_cast<int>(blockIdx.x) - head * tiles)) * Tile::rows;
  const int queries = min(Tile::rows, p.queries - first_query);
  const int chunks = Tile::chunks_of(p.width);              // of q and k
  const int value_chunks = Tile::chunks_of(p.value_width);  // of v and dy
  const int own_chunk = Tile::own_chunk();

  const HeadMask<T> mask(p, n, h);
  const T* const q_rows = p.q.at(n, h);
  const T* const dy_rows = p.dy.at(n, h);
  const T* const k_rows = p.k.at(n, h / p.group);
  const T* const v_rows = p.v.at(n, h / p.group);
  const auto chunk_width = [&](int chunk) { return min(Tile::width, p.width - chunk * Tile::width); };
  const auto value_chunk_width = [&](int chunk) { return min(Tile::width, p.value_width - chunk * Tile::width); };
  const auto load_q = [&](int chunk) {
    load_scaled_rows<Tile, Tile::rows>(q, p.q, q_rows + chunk * Tile::width * p.q.column, first_query, p.queries,
                                       chunk_width(chunk), p.scale);
  };
  const auto load_dy = [&](int chunk) {
    load_rows<Tile, Tile::rows>(dy, p.dy, dy_rows + chunk * Tile::width * p.dy.column, first_query, p.queries,
                                value_chunk_width(chunk));
  };
  const auto load_k = [&](int key, int chunk) {
    load_rows<Tile, Tile::columns>(k, p.k, k_rows + chunk * Tile::width * p.k.column, key, p.keys, chunk_width(chunk),
                                   shown_keys<Tile>(p, mask, key));
  };
  const auto load_v = [&](int key, int chunk) {
    load_rows<Tile, Tile::columns>(v, p.v, v_rows + chunk * Tile::width * p.v.column, key, p.keys,
                                   value_chunk_width(chunk));
  };

  Row<T> rows[Tile::thread_rows];
#pragma unroll
  for (int i = 0; i < Tile::thread_rows; ++i) rows[i] = read_row(p, head, first_query + Tile::row(i));
  typename Tile::Result result;
  set_zero(result);
  if (chunks == 1) load_q(0);
  if (value_chunks == 1) load_dy(0);

  const int end = p.visible_keys(first_query + queries - 1);
  for (int key = 0; key < end; key += Tile::columns) {
    if (Tile::reads_allowed(p)) {
      const bool any =
          read_bits<Tile>(allowed, first_query, key, [&](int query, int at) { return mask.allows(p, query, at); });
      if (!__syncthreads_or(any)) continue;
    }
    typename Tile::Scores scores, gradients;
    set_zero(scores);
    set_zero(gradients);
    // Where all columns fit, one pass of each of these loops: nothing is loaded twice.
    for (int chunk = 0; chunk < chunks; ++chunk) {
      __syncthreads();  // nothing reads the former tile any more
      if (chunks > 1) load_q(chunk);
      load_k(key, chunk);
      if (chunk == 0 && value_chunks == 1) load_v(key, 0);
      wait_for_copies();
      __syncthreads();
      add_scores<Tile>(scores, q, k, chunk_width(chunk));
    }
    for (int chunk = 0; chunk < value_chunks; ++chunk) {
      if (value_chunks > 1) {
        __syncthreads();
        load_dy(chunk);
        load_v(key, chunk);
        wait_for_copies();
        __syncthreads();
      }
      add_scores<Tile>(gradients, dy, v, value_chunk_width(chunk));
    }
    if (chunks > 1 && own_chunk != chunks - 1) {
      __syncthreads();
      load_k(key, own_chunk);
      wait_for_copies();
      __syncthreads();
    }

    const bool plain = Tile::plain(p, first_query, queries, key, Tile::columns);
    if (Tile::drops(p)) {
      read_bits<Tile>(kept, first_query, key, [&](int query, int at) { return mask.keeps(p, query, at); });
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < Tile::thread_rows; ++i) {
      const int query = first_query + Tile::row(i);
      const int visible = query < p.queries ? p.visible_keys(query) : 0;
      const uint32_t bits = Tile::reads_allowed(p) ? allowed[Tile::row(i)] : ~uint32_t{0};
      const uint32_t kept_bits = Tile::drops(p) ? kept[Tile::row(i)] : 0;
#pragma unroll
      for (int j = 0; j < Tile::thread_columns; ++j) {
        const int at = key + Tile::column(j);
        const bool is_allowed = (plain || at < visible) && ((bits >> Tile::column(j)) & 1U) != 0;
        if (!plain && is_allowed && Tile::adds_to_scores(p)) scores[i][j] = mask.masked(p, query, at, scores[i][j]);
        score_gradient<Tile>(p, rows[i], is_allowed, ((kept_bits >> Tile::column(j)) & 1U) != 0, scores[i][j],
                             gradients[i][j]);
      }
    }
    store_scores<Tile>(dscores, gradients);
    __syncwarp();
    add_result<Tile>(result, dscores, k);
  }
  wait_for_copies();
  const int column = own_chunk * Tile::width;
  store_result<Tile>(dq.at(n, h) + column * dq.column, dq, first_query, p.queries, p.width - column, result,
                     [&](int) { return p.scale; });
}

}  // namespace regard::cuda_backend
