// Attention backward on bf16 and f16, dq: a walk over keys for tiles of queries. See tensor_attention_backward.cu.
#include <algorithm>

#include <regard/autograd/backend/cuda/tensor_attention.hpp>
#include <regard/autograd/backend/cuda/tensor_score_gradient.hpp>

namespace regard::cuda_backend {
namespace {

template <class Tile>
constexpr size_t query_shared(int rows) {
  return static_cast<size_t>(2 * rows + 4 * Tile::columns) * Tile::stride * sizeof(typename Tile::E);
}

/// Blocks: tiles of queries of heads. To `dense` where that is given.
template <class Tile>
__global__ void __launch_bounds__(Tile::most_threads, 2)
    tensor_query_gradient_kernel(AttentionProblem<typename Tile::E> p, HeadRows<typename Tile::E> dq, float* dense) {
  using E = typename Tile::E;
  const int block_rows = Tile::rows();
  E* const q = dynamic_shared<E>();                   // [rows, width]
  E* const dy = q + block_rows * Tile::stride;        // [rows, width]
  E* const k = dy + block_rows * Tile::stride;        // [2, columns, width]: one is read, the other written
  E* const v = k + 2 * Tile::columns * Tile::stride;  // [2, columns, width]

  const int tiles = (p.queries + block_rows - 1) / block_rows;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / p.heads, h = head - n * p.heads;
  const int first_query = (tiles - 1 - (static_cast<int>(blockIdx.x) - head * tiles)) * block_rows;
  const int queries = min(block_rows, p.queries - first_query);

  const HeadMask<E> mask(p, n, h);
  const E* const k_rows = p.k.at(n, h / p.group);
  const E* const v_rows = p.v.at(n, h / p.group);
  const bool blocks_keys = Tile::masked && p.blocks_keys();

  TensorRow rows[Tile::warp_parts][2];
  int visible[Tile::warp_parts][2];  // keys to each of this lane's queries
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = first_query + Tile::row(i, 2 * r);
      rows[i][r] = read_tensor_row(p, head, query);
      visible[i][r] = query < p.queries ? p.visible_keys(query) : 0;
    }
  typename Tile::Result result;
  set_zero_result<Tile>(result);

  const int end = p.visible_keys(first_query + queries - 1);
  typename Tile::Bits allowed, next_allowed, kept;
  set_all_bits<Tile>(next_allowed);
  set_all_bits<Tile>(kept);
  // The next tile from `first_key` on in which any query may attend to any key.
  const auto find_tile = [&](int first_key) {
    if (!Tile::reads_allowed(p)) return first_key;
    for (; first_key < end; first_key += Tile::columns) {
      const bool any = read_score_bits<Tile>(
          next_allowed, [&](int row, int column) { return mask.allows(p, first_query + row, first_key + column); });
      if (__syncthreads_or(any)) break;
    }
    return first_key;
  };
  const auto load_keys = [&](int first_key, int place) {
    load_tile<Tile>(k + place * Tile::stride, Tile::columns, p.k, k_rows, first_key, p.keys, p.width,
                    [&](int at) { return !blocks_keys || mask.shows(p, at); });
    load_tile<Tile>(v + place * Tile::stride, Tile::columns, p.v, v_rows, first_key, p.keys, p.value_width);
  };

  load_tile<Tile>(q, block_rows, p.q, p.q.at(n, h), first_query, p.queries, p.width);
  load_tile<Tile>(dy, block_rows, p.dy, p.dy.at(n, h), first_query, p.queries, p.value_width);
  int key = find_tile(0), place = 0;
  if (key < end) load_keys(key, place);
  while (key < end) {
    wait_for_copies();
    __syncthreads();  // this tile is there, and nothing reads the one before it any more
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i) allowed[i] = next_allowed[i];
    const int next_key = find_tile(key + Tile::columns), next_place = Tile::columns - place;
    if (next_key < end) load_keys(next_key, next_place);
    if (Tile::drops(p))
      read_score_bits<Tile>(kept, [&](int row, int column) { return mask.keeps(p, first_query + row, key + column); });

    typename Tile::Scores scores, gradients;
    multiply_rows<Tile>(scores, q, k + place * Tile::stride, p.width);
    multiply_rows<Tile>(gradients, dy, v + place * Tile::stride, p.value_width);
    const bool plain = Tile::plain(p, first_query, queries, key, Tile::columns);
    each_score<Tile>([&](int i, int j, int e) {
      const int at = key + Tile::column(j, e);
      const bool is_allowed = plain || (at < visible[i][e / 2] && has_bit(allowed[i], j, e));
      float& score = scores[i][j][e];
      score = tensor_scaled(p, score);
      if (!plain && is_allowed && Tile::adds_to_scores(p))
        score = mask.masked(p, first_query + Tile::row(i, e), at, score);
      tensor_score_gradient<Tile>(p, rows[i][e / 2], is_allowed, has_bit(kept[i], j, e), score, gradients[i][j][e]);
    });
    add_weighted<Tile>(result, gradients, k + place * Tile::stride, p.width);
    key = next_key;
    place = next_place;
  }
  wait_for_copies();
  __syncthreads();  // where no tile came, others may still write to this warp's rows of q
  if (dense)
    store_part<Tile>(dense + static_cast<int64_t>(head) * p.queries * p.width, first_query, p.queries, p.width, result,
                     p.scale);
  else
    store_rows<Tile>(dq.at(n, h), dq, q, first_query, p.queries, p.width, result, [&](int, int) { return p.scale; });
}

template <class Tile, class E>
void run(const AttentionProblem<E>& p, const Target<E>& dq, cudaStream_t stream) {
  static_assert(query_shared<Tile>(Tile::most_rows) <= most_shared_bytes);
  const int64_t heads = int64_t{p.batch} * p.heads;
  const int warps = tensor_warps<Tile>(heads, p.queries), rows = warps * Tile::warp_rows;
  const dim3 grid(static_cast<unsigned>(heads * ((p.queries + rows - 1) / rows)));
  launch("scaled_dot_product_attention", stream,
         {grid, dim3(static_cast<unsigned>(32 * warps)), query_shared<Tile>(rows), query_shared<Tile>(Tile::most_rows)},
         tensor_query_gradient_kernel<Tile>, p, dq.rows(), dq.parts());
}

}  // namespace

template <class E>
void tensor_query_gradient(const AttentionProblem<E>& p, const Target<E>& dq, cudaStream_t stream) {
  const bool plain = p.is_plain();
  if (std::max(p.width, p.value_width) > 64)
    plain ? run<TensorTile<E, 128, 32, false>>(p, dq, stream) : run<TensorTile<E, 128, 32, true>>(p, dq, stream);
  else if (plain && fills_gpu<128>(int64_t{p.batch} * p.heads, p.queries))
    run<TensorTile<E, 64, 32, false, 2>>(p, dq, stream);
  else
    run<TensorTile<E, 64, 32, true>>(p, dq, stream);
}
template void tensor_query_gradient(const AttentionProblem<bfloat16>&, const Target<bfloat16>&, cudaStream_t);
template void tensor_query_gradient(const AttentionProblem<float16>&, const Target<float16>&, cudaStream_t);

}  // namespace regard::cuda_backend
