// Attention forward on bf16 and f16 by matrix instructions: attention_forward.cu's walk over tiles of keys, with the
// running softmax in registers. Scores, sums and statistics are f32; weights are rounded to the elements' type for
// their product with values. Dao, "FlashAttention-2: faster attention with better parallelism and work partitioning",
// 2023.
#include <algorithm>

#include <regard/autograd/backend/cuda/attention_parts.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/tensor_attention.hpp>
#include <regard/autograd/backend/cuda/tensor_tile.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "scaled_dot_product_attention";

template <class Tile>
constexpr size_t forward_shared(int rows) {
  return static_cast<size_t>(rows + 2 * Tile::columns) * Tile::stride * sizeof(typename Tile::E);
}

/// Of the two rows of each part that this lane has elements of.
template <class Tile>
struct RunningSoftmax {
  float largest[Tile::warp_parts][2], total[Tile::warp_parts][2];  // total: of this lane's columns alone

  float to_power;  // times a difference of scores: the power of two that is its exponential

  __device__ explicit RunningSoftmax(float factor) : to_power(factor) {
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        largest[i][r] = -infinity<float>();
        total[i][r] = 0;
      }
  }

  /// Scores to exponentials; what came before is brought to the same largest score.
  __device__ void add(typename Tile::Scores& scores, typename Tile::Result& output) {
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = largest[i][r];
#pragma unroll
        for (int j = 0; j < Tile::score_parts; ++j)
          most = Larger()(Larger()(most, scores[i][j][2 * r]), scores[i][j][2 * r + 1]);
        most = warp_reduce(most, Larger(), 4);
        const float shift = shift_of(most), rescale = quick_exp2((largest[i][r] - shift) * to_power);
        largest[i][r] = most;
        total[i][r] *= rescale;
#pragma unroll
        for (int j = 0; j < Tile::score_parts; ++j)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[i][j][e] = quick_exp2((scores[i][j][e] - shift) * to_power);
            total[i][r] += scores[i][j][e];
          }
#pragma unroll
        for (int j = 0; j < Tile::result_parts; ++j) {
          output[i][j][2 * r] *= rescale;
          output[i][j][2 * r + 1] *= rescale;
        }
      }
  }
};

/// Blocks: x: tiles of queries of heads; z: parts of the keys.
template <class Tile>
__global__ void __launch_bounds__(Tile::most_threads)
    tensor_attention_kernel(AttentionProblem<typename Tile::E> p, HeadRows<typename Tile::E> y, KeyParts<float> parts) {
  using E = typename Tile::E;
  const int block_rows = Tile::rows();
  E* const q = dynamic_shared<E>();               // [rows, width]
  E* const k = q + block_rows * Tile::stride;     // [columns, width]
  E* const v = k + Tile::columns * Tile::stride;  // [columns, width]

  const int tiles = (p.queries + block_rows - 1) / block_rows;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / p.heads, h = head - n * p.heads;
  // Later tiles of a causal head take longer: they go first.
  const int first_query = (tiles - 1 - (static_cast<int>(blockIdx.x) - head * tiles)) * block_rows;
  const int queries = min(block_rows, p.queries - first_query);

  const HeadMask<E> mask(p, n, h);
  const E* const k_rows = p.k.at(n, h / p.group);
  const E* const v_rows = p.v.at(n, h / p.group);

  int key = 0, end = p.visible_keys(first_query + queries - 1);
  if (parts.count > 1) {
    const int part_keys = ((end + Tile::columns - 1) / Tile::columns + parts.count - 1) / parts.count * Tile::columns;
    key = static_cast<int>(blockIdx.z) * part_keys;
    end = min(end, key + part_keys);
  }

  typename Tile::Bits allowed;  // of the scores of the tile at `key`
  set_all_bits<Tile>(allowed);
  // The next tile from `first_key` on in which any query may attend to any key.
  const auto find_tile = [&](int first_key) {
    if (!Tile::reads_allowed(p)) return first_key;
    for (; first_key < end; first_key += Tile::columns) {
      const bool any = read_score_bits<Tile>(
          allowed, [&](int row, int column) { return mask.allows(p, first_query + row, first_key + column); });
      if (__syncthreads_or(any)) break;
    }
    return first_key;
  };
  const auto load_keys = [&](int first_key) {
    load_tile<Tile>(k, Tile::columns, p.k, k_rows, first_key, p.keys, p.width);
  };
  const bool blocks_keys = Tile::masked && p.blocks_keys();

  // Without masks scores are left as the products of queries and keys, which saves a multiplication each: the scale is
  // above 0 then, see tensor_attention().
  RunningSoftmax<Tile> softmax(Tile::masked ? log2_of_e<float> : p.scale * log2_of_e<float>);
  typename Tile::Result output;
  set_zero_result<Tile>(output);
  int visible[Tile::warp_parts][2];  // keys to each of this lane's queries
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = first_query + Tile::row(i, 2 * r);
      visible[i][r] = query < p.queries ? p.visible_keys(query) : 0;
    }

  key = find_tile(key);
  if (key < end) {
    load_tile<Tile>(q, block_rows, p.q, p.q.at(n, h), first_query, p.queries, p.width);
    load_keys(key);
  }
  while (key < end) {
    wait_for_copies();
    __syncthreads();  // the keys are there, and nothing reads the former values any more
    load_tile<Tile>(v, Tile::columns, p.v, v_rows, key, p.keys, p.value_width,
                    [&](int at) { return !blocks_keys || mask.shows(p, at); });
    typename Tile::Scores scores;
    multiply_rows<Tile>(scores, q, k, p.width);

    const bool plain = Tile::plain(p, first_query, queries, key, Tile::columns);
    each_score<Tile>([&](int i, int j, int e) {
      float& score = scores[i][j][e];
      const int at = key + Tile::column(j, e);
      if (!plain && (at >= visible[i][e / 2] || !has_bit(allowed[i], j, e))) {
        score = -infinity<float>();
      } else if (Tile::masked) {
        score = tensor_scaled(p, score);
        if (Tile::adds_to_scores(p)) score = mask.masked(p, first_query + Tile::row(i, e), at, score);
      }
    });
    softmax.add(scores, output);
    if (Tile::drops(p)) {
      typename Tile::Bits kept;
      read_score_bits<Tile>(kept, [&](int row, int column) { return mask.keeps(p, first_query + row, key + column); });
      each_score<Tile>(
          [&](int i, int j, int e) { scores[i][j][e] = has_bit(kept[i], j, e) ? scores[i][j][e] * p.keep_scale : 0; });
    }

    wait_for_copies();
    __syncthreads();  // the values are there, and nothing reads these keys any more
    key = find_tile(key + Tile::columns);
    if (key < end) load_keys(key);
    add_weighted<Tile>(output, scores, v, p.value_width);
  }

  float factor[Tile::warp_parts][2];
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.total[i][r] = warp_reduce(softmax.total[i][r], Plus(), 4);
      factor[i][r] = softmax.total[i][r] == 0 ? 0 : 1 / softmax.total[i][r];
      if (!Tile::masked) softmax.largest[i][r] = tensor_scaled(p, softmax.largest[i][r]);
    }
  const int64_t first_row = static_cast<int64_t>(head) * p.queries;
  // Calls f(i, r, query) for the rows whose statistics are this lane's to write.
  const auto each_row = [&](const auto& f) {
    if (Tile::lane() % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (const int query = first_query + Tile::row(i, 2 * r); query < p.queries) f(i, r, query);
  };
  if (parts.count > 1) {
    const int64_t part_row = static_cast<int64_t>(blockIdx.z) * p.batch * p.heads * p.queries + first_row;
    store_part<Tile>(parts.output + part_row * p.value_width, first_query, p.queries, p.value_width, output, 1);
    each_row([&](int i, int r, int query) {
      parts.largest[part_row + query] = softmax.largest[i][r];
      parts.total[part_row + query] = softmax.total[i][r];
    });
    return;
  }
  store_rows<Tile>(y.at(n, h), y, q, first_query, p.queries, p.value_width, output,
                   [&](int i, int e) { return factor[i][e / 2]; });
  each_row([&](int i, int r, int query) {
    p.statistics[2 * first_row + query] = softmax.total[i][r] == 0 ? 0 : softmax.largest[i][r];
    p.statistics[2 * first_row + p.queries + query] = factor[i][r];
  });
}

template <class Tile, class E>
void run_forward(const AttentionProblem<E>& p, const Tensor& y) {
  static_assert(forward_shared<Tile>(Tile::most_rows) <= most_shared_bytes);
  const int64_t heads = int64_t{p.batch} * p.heads;
  const int warps = tensor_warps<Tile>(heads, p.queries), rows = warps * Tile::warp_rows;
  const int64_t blocks = heads * ((p.queries + rows - 1) / rows);
  // Small blocks share a multiprocessor; each part has a few tiles of keys, so that it is worth its start.
  const int64_t wanted = int64_t{device_limits().multiprocessors} * (rows == 16 ? 8 : 2);
  const int64_t worth = p.keys / (4 * Tile::columns);
  const int64_t count = std::clamp<int64_t>(wanted / blocks, 1, std::clamp<int64_t>(worth, 1, 64));

  const KeyPartsMemory<float> memory(p, count, y.device());
  const HeadRows<E> y_rows = rows_of<E>(y);
  cudaStream_t stream = stream_of(y);
  const dim3 grid(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(count));
  launch(name, stream,
         {grid, dim3(static_cast<unsigned>(32 * warps)), forward_shared<Tile>(rows),
          forward_shared<Tile>(Tile::most_rows)},
         tensor_attention_kernel<Tile>, p, y_rows, memory.parts());
  if (count > 1)
    launch(name, stream, row_grid(heads * p.queries, std::max(1, p.value_width), 128), join_parts_kernel<E>, p, y_rows,
           memory.parts());
}

}  // namespace

void tensor_attention(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                      const AttentionSettings& settings) {
  visit_half(q.dtype(), [&]<class E>(E) {
    const auto p = make_attention_problem<E>(statistics, q, k, v, mask, key_mask, alibi, settings);
    if (int64_t{p.batch} * p.heads * p.queries == 0) return;
    const bool large = p.is_plain() && p.scale > 0 && fills_gpu<128>(int64_t{p.batch} * p.heads, p.queries);
    if (std::max(p.width, p.value_width) <= 64)
      large ? run_forward<TensorTile<E, 64, 64, false, 2>>(p, y) : run_forward<TensorTile<E, 64, 64, true>>(p, y);
    else
      large ? run_forward<TensorTile<E, 128, 32, false, 2>>(p, y) : run_forward<TensorTile<E, 128, 32, true>>(p, y);
  });
}

}  // namespace regard::cuda_backend
