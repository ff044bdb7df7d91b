// Attention forward: FlashAttention's running softmax, one tile of keys after the other, so that nothing of the size of
// the weights is in memory. Dao et al., "FlashAttention", 2022; Milakov, Gimelshein, "Online normalizer calculation for
// softmax", 2018. Where there are too few queries to keep a GPU busy the keys are split into parts, whose results a
// second kernel puts together in their order: "Flash-Decoding", Dao et al., 2023.
#include <algorithm>

#include <regard/autograd/backend/cuda/attention_parts.hpp>
#include <regard/autograd/backend/cuda/attention_tile.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/tensor_attention.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "scaled_dot_product_attention";

template <class Tile>
constexpr size_t forward_shared() {
  return (Tile::rows + 2 * Tile::columns) * Tile::stride * sizeof(typename Tile::T) +
         Tile::rows * Tile::weights_stride * sizeof(typename Tile::T) + 2 * Tile::rows * sizeof(uint32_t);
}

/// Of each of the block's rows that this thread shares.
template <class Tile>
struct RunningSoftmax {
  using T = typename Tile::T;
  T largest[Tile::thread_rows], total[Tile::thread_rows];  // total: of this thread's columns alone

  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < Tile::thread_rows; ++i) {
      largest[i] = -infinity<T>();
      total[i] = 0;
    }
  }

  /// Scores to exponentials; what came before is brought to the same largest score.
  __device__ void add(typename Tile::Scores& scores, typename Tile::Result& output) {
#pragma unroll
    for (int i = 0; i < Tile::thread_rows; ++i) {
      T most = largest[i];
#pragma unroll
      for (int j = 0; j < Tile::thread_columns; ++j) most = Larger()(most, scores[i][j]);
      most = warp_reduce(most, Larger(), Tile::across);
      const T shift = shift_of(most), rescale = power_of(largest[i], shift);
      largest[i] = most;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < Tile::thread_columns; ++j) {
        scores[i][j] = power_of(scores[i][j], shift);
        total[i] += scores[i][j];
      }
#pragma unroll
      for (int j = 0; j < Tile::result_columns; ++j) output[i][j] *= rescale;
    }
  }
};

/// Blocks: x: tiles of queries of heads; y: chunks of the values' columns; z: parts of the keys.
template <class Tile>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks)
    attention_kernel(AttentionProblem<typename Tile::T> p, HeadRows<typename Tile::T> y,
                     KeyParts<typename Tile::T> parts) {
  using T = typename Tile::T;
  T* const q = dynamic_shared<T>();                                                                // [rows, width]
  T* const k = q + Tile::rows * Tile::stride;                                                      // [32, width]
  T* const v = k + Tile::columns * Tile::stride;                                                   // [32, width]
  T* const weights = v + Tile::columns * Tile::stride;                                             // [rows, 32]
  auto* const allowed = reinterpret_cast<uint32_t*>(weights + Tile::rows * Tile::weights_stride);  // [rows]
  uint32_t* const kept = allowed + Tile::rows;

  const int tiles = (p.queries + Tile::rows - 1) / Tile::rows;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / p.heads, h = head - n * p.heads;
  // Later tiles of a causal head take longer: they go first.
  const int first_query = (tiles - 1 - (static_cast<int>(blockIdx.x) - head * tiles)) * Tile::rows;
  const int queries = min(Tile::rows, p.queries - first_query);
  const int value_column = Tile::own_chunk() * Tile::width;
  const int value_width = min(Tile::width, p.value_width - value_column);
  const int chunks = Tile::chunks_of(p.width);  // of q and k

  const HeadMask<T> mask(p, n, h);
  const T* const q_rows = p.q.at(n, h);
  const T* const k_rows = p.k.at(n, h / p.group);
  const T* const v_rows = p.v.at(n, h / p.group) + value_column * p.v.column;

  int key = 0, end = p.visible_keys(first_query + queries - 1);
  if (parts.count > 1) {
    const int part_keys = ((end + Tile::columns - 1) / Tile::columns + parts.count - 1) / parts.count * Tile::columns;
    key = static_cast<int>(blockIdx.z) * part_keys;
    end = min(end, key + part_keys);
  }

  const auto chunk_width = [&](int chunk) { return min(Tile::width, p.width - chunk * Tile::width); };
  const auto load_queries = [&](int chunk) {
    load_scaled_rows<Tile, Tile::rows>(q, p.q, q_rows + chunk * Tile::width * p.q.column, first_query, p.queries,
                                       chunk_width(chunk), p.scale);
  };
  const auto load_keys = [&](int first_key, int chunk) {
    load_rows<Tile, Tile::columns>(k, p.k, k_rows + chunk * Tile::width * p.k.column, first_key, p.keys,
                                   chunk_width(chunk));
    if (chunks > 1) load_queries(chunk);
  };
  // The next tile from `first_key` on in which any query may attend to any key; its words are in `allowed`.
  const auto find_tile = [&](int first_key) {
    if (!Tile::reads_allowed(p)) return first_key;
    for (; first_key < end; first_key += Tile::columns) {
      const bool any = read_bits<Tile>(allowed, first_query, first_key,
                                       [&](int query, int at) { return mask.allows(p, query, at); });
      if (__syncthreads_or(any)) break;
    }
    return first_key;
  };

  RunningSoftmax<Tile> softmax;
  typename Tile::Result output;
  set_zero(output);

  key = find_tile(key);
  if (key < end) {
    if (chunks == 1) load_queries(0);
    load_keys(key, 0);
  }
  while (key < end) {
    typename Tile::Scores scores;
    set_zero(scores);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      wait_for_copies();
      __syncthreads();  // the keys are there, and nothing reads the former values any more
      if (chunk == chunks - 1)
        load_rows<Tile, Tile::columns>(v, p.v, v_rows, key, p.keys, value_width, shown_keys<Tile>(p, mask, key));
      add_scores<Tile>(scores, q, k, chunk_width(chunk));
      if (chunk < chunks - 1) {
        __syncthreads();
        load_keys(key, chunk + 1);
      }
    }

    if (!Tile::plain(p, first_query, queries, key, Tile::columns)) {
#pragma unroll
      for (int i = 0; i < Tile::thread_rows; ++i) {
        const int query = first_query + Tile::row(i);
        const int visible = query < p.queries ? p.visible_keys(query) : 0;
        const uint32_t bits = Tile::reads_allowed(p) ? allowed[Tile::row(i)] : ~uint32_t{0};
#pragma unroll
        for (int j = 0; j < Tile::thread_columns; ++j) {
          const int at = key + Tile::column(j);
          T& score = scores[i][j];
          if (at >= visible || ((bits >> Tile::column(j)) & 1U) == 0)
            score = -infinity<T>();
          else if (Tile::adds_to_scores(p))
            score = mask.masked(p, query, at, score);
        }
      }
    }
    softmax.add(scores, output);
    if (Tile::drops(p)) {
      read_bits<Tile>(kept, first_query, key, [&](int query, int at) { return mask.keeps(p, query, at); });
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Tile::thread_rows; ++i) {
        const uint32_t bits = kept[Tile::row(i)];
#pragma unroll
        for (int j = 0; j < Tile::thread_columns; ++j)
          scores[i][j] = ((bits >> Tile::column(j)) & 1U) != 0 ? scores[i][j] * p.keep_scale : T(0);
      }
    }
    store_scores<Tile>(weights, scores);

    wait_for_copies();
    __syncthreads();  // the values are there, and nothing reads these keys any more
    key = find_tile(key + Tile::columns);
    if (key < end) load_keys(key, 0);
    add_result<Tile>(output, weights, v);
  }

#pragma unroll
  for (int i = 0; i < Tile::thread_rows; ++i) softmax.total[i] = warp_reduce(softmax.total[i], Plus(), Tile::across);
  const int64_t first_row = static_cast<int64_t>(head) * p.queries;
  const bool writes_statistics = value_column == 0 && Tile::x() == 0;
  if (parts.count > 1) {
    const int64_t part_row = static_cast<int64_t>(blockIdx.z) * p.batch * p.heads * p.queries + first_row;
    const HeadRows<T> rows = dense_rows<T>(parts.output, 1, p.queries, p.value_width);
    store_result<Tile>(rows.data + part_row * p.value_width + value_column, rows, first_query, p.queries, value_width,
                       output, [](int) { return T(1); });
#pragma unroll
    for (int i = 0; i < Tile::thread_rows; ++i)
      if (const int query = first_query + Tile::row(i); writes_statistics && query < p.queries) {
        parts.largest[part_row + query] = softmax.largest[i];
        parts.total[part_row + query] = softmax.total[i];
      }
    return;
  }
  const auto inverse = [&](int i) { return softmax.total[i] == 0 ? T(0) : 1 / softmax.total[i]; };
  store_result<Tile>(y.at(n, h) + value_column * y.column, y, first_query, p.queries, value_width, output, inverse);
#pragma unroll
  for (int i = 0; i < Tile::thread_rows; ++i)
    if (const int query = first_query + Tile::row(i); writes_statistics && query < p.queries) {
      p.statistics[2 * first_row + query] = softmax.total[i] == 0 ? T(0) : softmax.largest[i];
      p.statistics[2 * first_row + p.queries + query] = inverse(i);
    }
}

template <class Tile, class T>
int64_t blocks_of(const AttentionProblem<T>& p) {
  return int64_t{p.batch} * p.heads * ((p.queries + Tile::rows - 1) / Tile::rows);
}

template <class Tile, class T>
void run_forward(const AttentionProblem<T>& p, const Tensor& y) {
  static_assert(forward_shared<Tile>() <= most_shared_bytes);
  const HeadRows<T> y_rows = rows_of<T>(y);
  const int64_t blocks = blocks_of<Tile>(p), chunks = Tile::chunks_of(p.value_width);
  // Small blocks share a multiprocessor; each part has a few tiles of keys, so that it is worth its start.
  const int64_t wanted = int64_t{device_limits().multiprocessors} * (Tile::threads == 32 ? 8 : 2);
  const int64_t worth = p.keys / (4 * Tile::columns);
  const int64_t count = std::clamp<int64_t>(wanted / (blocks * chunks), 1, std::clamp<int64_t>(worth, 1, 64));

  const KeyPartsMemory<T> memory(p, count, y.device());
  cudaStream_t stream = stream_of(y);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(chunks), static_cast<unsigned>(count));
  launch(name, stream, {grid, dim3(Tile::threads), forward_shared<Tile>()}, attention_kernel<Tile>, p, y_rows,
         memory.parts());
  if (count > 1)
    launch(name, stream, row_grid(int64_t{p.batch} * p.heads * p.queries, std::max(1, p.value_width), 128),
           join_parts_kernel<T>, p, y_rows, memory.parts());
}

/// Many queries: large tiles. Few of them, or too few tiles for the GPU: those of one warp. Up to four, as where words
/// are generated one at a time: a tile of four.
template <class T, int width, int large_rows>
void choose_tile(const AttentionProblem<T>& p, const Tensor& y) {
  using Large = AttentionTile<T, width, large_rows, 128>;
  using Least = AttentionTile<T, std::max(width, 64), 1, 32>;
  if (p.queries <= Least::rows)
    run_forward<Least>(p, y);
  else if (2 * p.queries <= Large::rows || blocks_of<Large>(p) < device_limits().multiprocessors)
    run_forward<AttentionTile<T, width, 4, 32>>(p, y);
  else if (p.is_plain())
    run_forward<AttentionTile<T, width, large_rows, 128, Ability::plain>>(p, y);
  else
    run_forward<Large>(p, y);
}

}  // namespace

void attention(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings) {
  if (element_size(q.dtype()) == 2) return tensor_attention(y, statistics, q, k, v, mask, key_mask, alibi, settings);
  visit_compute(q.dtype(), [&]<class T>(T) {
    const auto p = make_attention_problem<T>(statistics, q, k, v, mask, key_mask, alibi, settings);
    if (int64_t{p.batch} * p.heads * p.queries == 0) return;
    const int widest = std::max(p.width, p.value_width);
    if constexpr (sizeof(T) == sizeof(double)) {
      if (widest > 64)
        run_forward<AttentionTile<T, 64, 2, 64, Ability::wide>>(p, y);
      else if (p.queries <= 4)
        run_forward<AttentionTile<T, 64, 1, 32>>(p, y);
      else
        run_forward<AttentionTile<T, 64, 4, 64>>(p, y);
    } else {
      if (widest <= 32)
        choose_tile<T, 32, 8>(p, y);
      else if (widest <= 64)
        choose_tile<T, 64, 8>(p, y);
      else if (widest <= 128)
        choose_tile<T, 128, 4>(p, y);
      else
        run_forward<AttentionTile<T, 128, 4, 64, Ability::wide>>(p, y);
    }
  });
}

}  // namespace regard::cuda_backend
