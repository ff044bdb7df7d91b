// Attention backward, dk and dv: a walk over queries for tiles of keys. See attention_backward.cu.
#pragma once

#include <regard/autograd/backend/cuda/attention_score_gradient.hpp>

namespace regard::cuda_backend {

template <class Tile>
constexpr size_t key_shared() {
  return (2 * Tile::rows + 2 * Tile::columns) * Tile::stride * sizeof(typename Tile::T) +
         Tile::rows * Tile::weights_stride * sizeof(typename Tile::T) + Tile::columns * sizeof(Row<typename Tile::T>) +
         2 * Tile::row_words * Tile::columns * sizeof(uint32_t);
}

/// Gradients of keys and values: where part z of the queries and heads that use them puts its sums.
template <class T>
struct KeyGradients {
  HeadRows<T> dk, dv;                // no data: not wanted
  int64_t dk_part = 0, dv_part = 0;  // from one part to the next
};

/// dk and dv. Blocks: x: tiles of keys of heads of keys; y: chunks of columns; z: parts of the queries that use them.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    key_gradient_kernel(AttentionProblem<typename Tile::T> p, KeyGradients<typename Tile::T> to) {
  using T = typename Tile::T;
  T* const k = dynamic_shared<T>();                      // [rows, width]
  T* const v = k + Tile::rows * Tile::stride;            // [rows, width]
  T* const q = v + Tile::rows * Tile::stride;            // [32, width]
  T* const dy = q + Tile::columns * Tile::stride;        // [32, width]
  T* const weights = dy + Tile::columns * Tile::stride;  // [rows, 32], transposed: a row a key
  auto* const rows = reinterpret_cast<Row<T>*>(weights + Tile::rows * Tile::weights_stride);  // [32]
  auto* const allowed = reinterpret_cast<uint32_t*>(rows + Tile::columns);                    // [words, 32]
  uint32_t* const kept = allowed + Tile::row_words * Tile::columns;

  const int tiles = (p.keys + Tile::rows - 1) / Tile::rows, key_heads = p.heads / p.group;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / key_heads, key_head = head - n * key_heads;
  const int first_key = (static_cast<int>(blockIdx.x) - head * tiles) * Tile::rows;
  const int chunks = Tile::chunks_of(p.width);              // of q and k
  const int value_chunks = Tile::chunks_of(p.value_width);  // of v and dy
  const int own_chunk = Tile::own_chunk();
  const bool wants_dk = to.dk && own_chunk < chunks, wants_dv = to.dv && own_chunk < value_chunks;

  // Tiles of queries that see any of these keys, one head after the other.
  const int first_seeing = p.causal ? max(0, first_key - (p.keys - p.queries)) / Tile::columns : 0;
  const int head_tiles = max(0, (p.queries + Tile::columns - 1) / Tile::columns - first_seeing);
  const int part_tiles = (p.group * head_tiles + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z);
  const int begin = static_cast<int>(blockIdx.z) * part_tiles;
  const int end = min(p.group * head_tiles, begin + part_tiles);

  const T* const k_rows = p.k.at(n, key_head);
  const T* const v_rows = p.v.at(n, key_head);
  const auto chunk_width = [&](int chunk) { return min(Tile::width, p.width - chunk * Tile::width); };
  const auto value_chunk_width = [&](int chunk) { return min(Tile::width, p.value_width - chunk * Tile::width); };
  const auto load_k = [&](int chunk) {
    load_rows<Tile, Tile::rows>(k, p.k, k_rows + chunk * Tile::width * p.k.column, first_key, p.keys,
                                chunk_width(chunk));
  };
  const auto load_v = [&](int chunk) {
    load_rows<Tile, Tile::rows>(v, p.v, v_rows + chunk * Tile::width * p.v.column, first_key, p.keys,
                                value_chunk_width(chunk));
  };
  typename Tile::Result dk, dv;
  set_zero(dk);
  set_zero(dv);
  if (chunks == 1) load_k(0);
  if (value_chunks == 1) load_v(0);

  for (int tile = begin; tile < end; ++tile) {
    const int member = tile / head_tiles, h = key_head * p.group + member;
    const int first_query = (first_seeing + tile - member * head_tiles) * Tile::columns;
    const HeadMask<T> mask(p, n, h);
    const auto load_q = [&](int chunk) {
      load_scaled_rows<Tile, Tile::columns>(q, p.q, p.q.at(n, h) + chunk * Tile::width * p.q.column, first_query,
                                            p.queries, chunk_width(chunk), p.scale);
    };
    const auto load_dy = [&](int chunk) {
      load_rows<Tile, Tile::columns>(dy, p.dy, p.dy.at(n, h) + chunk * Tile::width * p.dy.column, first_query,
                                     p.queries, value_chunk_width(chunk));
    };
    // Bit k of word [w][query]: test(query, key 32 w + k).
    const auto read_words = [&](uint32_t* words, const auto& test) {
      uint32_t any = 0;
#pragma unroll 2
      for (int w = Tile::warp(); w < Tile::row_words * Tile::columns; w += Tile::threads / 32) {
        const int row = w / Tile::columns * 32 + Tile::lane();
        const uint32_t bits =
            __ballot_sync(whole_warp, row < Tile::rows && test(first_query + w % Tile::columns, first_key + row));
        if (Tile::lane() == 0) words[w] = bits;
        any |= bits;
      }
      return any != 0;
    };

    __syncthreads();  // nothing reads the former tile any more
    if (Tile::reads_allowed(p)) {
      const bool any = read_words(allowed, [&](int query, int key) { return mask.allows(p, query, key); });
      if (!__syncthreads_or(any)) continue;
    }
    if (Tile::drops(p)) read_words(kept, [&](int query, int key) { return mask.keeps(p, query, key); });
    if (threadIdx.x < Tile::columns)
      rows[threadIdx.x] = read_row(p, n * p.heads + h, first_query + static_cast<int>(threadIdx.x));

    typename Tile::Scores scores, gradients;
    set_zero(scores);
    set_zero(gradients);
    // Where all columns fit, one pass of each of these loops: nothing is loaded twice.
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk > 0) __syncthreads();
      if (chunks > 1) load_k(chunk);
      load_q(chunk);
      if (chunk == 0 && value_chunks == 1) load_dy(0);
      wait_for_copies();
      __syncthreads();
      add_scores<Tile>(scores, k, q, chunk_width(chunk));
    }
    for (int chunk = 0; wants_dk && chunk < value_chunks; ++chunk) {
      if (value_chunks > 1) {
        __syncthreads();
        load_v(chunk);
        load_dy(chunk);
        wait_for_copies();
        __syncthreads();
      }
      add_scores<Tile>(gradients, v, dy, value_chunk_width(chunk));
    }
    if (chunks > 1 || value_chunks > 1) {
      __syncthreads();
      if (chunks > 1 && wants_dk) load_q(own_chunk);
      if (value_chunks > 1 && wants_dv) load_dy(own_chunk);
      wait_for_copies();
      __syncthreads();
    }

    const bool plain = Tile::plain(p, first_query, Tile::columns, first_key, Tile::rows);
#pragma unroll
    for (int j = 0; j < Tile::thread_columns; ++j) {
      const int query = first_query + Tile::column(j);
      const int visible = query < p.queries ? p.visible_keys(query) : 0;
      const Row<T> row = rows[Tile::column(j)];
#pragma unroll
      for (int i = 0; i < Tile::thread_rows; ++i) {
        const int key = first_key + Tile::row(i), word = Tile::row(i) / 32 * Tile::columns + Tile::column(j);
        bool is_allowed = plain || key < visible, is_kept = true;
        if (Tile::reads_allowed(p)) is_allowed = is_allowed && ((allowed[word] >> (Tile::row(i) % 32)) & 1U) != 0;
        if (Tile::drops(p)) is_kept = ((kept[word] >> (Tile::row(i) % 32)) & 1U) != 0;
        if (!plain && is_allowed && Tile::adds_to_scores(p)) scores[i][j] = mask.masked(p, query, key, scores[i][j]);
        score_gradient<Tile>(p, row, is_allowed, is_kept, scores[i][j], gradients[i][j]);
      }
    }
    if (wants_dv) {
      store_scores<Tile>(weights, scores);
      __syncwarp();
      add_result<Tile>(dv, weights, dy);
      __syncwarp();
    }
    if (wants_dk) {
      store_scores<Tile>(weights, gradients);
      __syncwarp();
      add_result<Tile>(dk, weights, q);
    }
  }
  wait_for_copies();
  const int column = own_chunk * Tile::width;
  if (wants_dk)
    store_result<Tile>(to.dk.at(n, key_head) + blockIdx.z * to.dk_part + column * to.dk.column, to.dk, first_key,
                       p.keys, p.width - column, dk, [](int) { return T(1); });
  if (wants_dv)
    store_result<Tile>(to.dv.at(n, key_head) + blockIdx.z * to.dv_part + column * to.dv.column, to.dv, first_key,
                       p.keys, p.value_width - column, dv, [](int) { return T(1); });
}

}  // namespace regard::cuda_backend
