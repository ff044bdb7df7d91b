// Attention backward on bf16 and f16, dk and dv: a walk over queries for tiles of keys. See
// tensor_attention_backward.cu. Scores and their gradients are those of a tile turned over: a row is a key.
#include <algorithm>

#include <regard/autograd/backend/cuda/tensor_attention.hpp>
#include <regard/autograd/backend/cuda/tensor_score_gradient.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "scaled_dot_product_attention";

template <class Tile>
constexpr size_t key_shared(int rows) {
  return static_cast<size_t>(2 * rows + 4 * Tile::columns) * Tile::stride * sizeof(typename Tile::E) +
         2 * Tile::columns * sizeof(TensorRow);
}

/// Where part z of the queries and heads puts its sums: the gradient itself, or `dense`.
template <class E>
struct TensorGradient {
  HeadRows<E> rows;  // no data: not wanted
  float* dense;
  int64_t part;  // from one part to the next
};

/// Blocks: x: tiles of keys of heads of keys; z: parts of the queries that use them.
template <class Tile>
__global__ void __launch_bounds__(Tile::most_threads, 2)
    tensor_key_gradient_kernel(AttentionProblem<typename Tile::E> p, TensorGradient<typename Tile::E> to_dk,
                               TensorGradient<typename Tile::E> to_dv) {
  using E = typename Tile::E;
  const int block_rows = Tile::rows();
  E* const k = dynamic_shared<E>();                    // [rows, width]
  E* const v = k + block_rows * Tile::stride;          // [rows, width]
  E* const q = v + block_rows * Tile::stride;          // [2, columns, width]: one is read, the other written
  E* const dy = q + 2 * Tile::columns * Tile::stride;  // [2, columns, width]
  auto* const rows = reinterpret_cast<TensorRow*>(dy + 2 * Tile::columns * Tile::stride);  // [2, columns]

  const int tiles = (p.keys + block_rows - 1) / block_rows, key_heads = p.heads / p.group;
  const int head = static_cast<int>(blockIdx.x) / tiles, n = head / key_heads, key_head = head - n * key_heads;
  const int first_key = (static_cast<int>(blockIdx.x) - head * tiles) * block_rows;
  const bool wants_dk = static_cast<bool>(to_dk.rows), wants_dv = static_cast<bool>(to_dv.rows);

  // Tiles of queries that see any of these keys, one head after the other.
  const int first_seeing = p.causal ? max(0, first_key - (p.keys - p.queries)) / Tile::columns : 0;
  const int head_tiles = max(0, (p.queries + Tile::columns - 1) / Tile::columns - first_seeing);
  const int part_tiles = (p.group * head_tiles + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z);
  const int begin = static_cast<int>(blockIdx.z) * part_tiles;
  const int end = min(p.group * head_tiles, begin + part_tiles);

  typename Tile::Result dk, dv;
  set_zero_result<Tile>(dk);
  set_zero_result<Tile>(dv);
  load_tile<Tile>(k, block_rows, p.k, p.k.at(n, key_head), first_key, p.keys, p.width);
  load_tile<Tile>(v, block_rows, p.v, p.v.at(n, key_head), first_key, p.keys, p.value_width);

  const auto head_of = [&](int tile) { return key_head * p.group + tile / head_tiles; };
  const auto query_of = [&](int tile) { return (first_seeing + tile % head_tiles) * Tile::columns; };
  typename Tile::Bits allowed, next_allowed, kept;
  set_all_bits<Tile>(next_allowed);
  set_all_bits<Tile>(kept);
  // The next tile from `tile` on in which any query may attend to any key.
  const auto find_tile = [&](int tile) {
    if (!Tile::reads_allowed(p)) return tile;
    for (; tile < end; ++tile) {
      const HeadMask<E> mask(p, n, head_of(tile));
      const int first_query = query_of(tile);
      const bool any = read_score_bits<Tile>(
          next_allowed, [&](int row, int column) { return mask.allows(p, first_query + column, first_key + row); });
      if (__syncthreads_or(any)) break;
    }
    return tile;
  };
  const auto load_queries = [&](int tile, int place) {
    const int h = head_of(tile), first_query = query_of(tile);
    load_tile<Tile>(q + place * Tile::stride, Tile::columns, p.q, p.q.at(n, h), first_query, p.queries, p.width);
    load_tile<Tile>(dy + place * Tile::stride, Tile::columns, p.dy, p.dy.at(n, h), first_query, p.queries,
                    p.value_width);
    for (int i = static_cast<int>(threadIdx.x); i < Tile::columns; i += static_cast<int>(blockDim.x))
      rows[place + i] = read_tensor_row(p, n * p.heads + h, first_query + i);
  };

  int tile = find_tile(begin), place = 0;
  if (tile < end) load_queries(tile, place);
  while (tile < end) {
    wait_for_copies();
    __syncthreads();  // this tile is there, and nothing reads the one before it any more
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i) allowed[i] = next_allowed[i];
    const int next_tile = find_tile(tile + 1), next_place = Tile::columns - place;
    if (next_tile < end) load_queries(next_tile, next_place);
    const int first_query = query_of(tile);
    const HeadMask<E> mask(p, n, head_of(tile));
    if (Tile::drops(p))
      read_score_bits<Tile>(kept,
                            [&](int row, int column) { return mask.keeps(p, first_query + column, first_key + row); });
    const E *const tile_q = q + place * Tile::stride, *const tile_dy = dy + place * Tile::stride;

    typename Tile::Scores scores, gradients;
    multiply_rows<Tile>(scores, k, tile_q, p.width);
    if (wants_dk)
      multiply_rows<Tile>(gradients, v, tile_dy, p.value_width);
    else
      set_zero_scores<Tile>(gradients);
    const bool plain = Tile::plain(p, first_query, Tile::columns, first_key, block_rows);
    each_score<Tile>([&](int i, int j, int e) {
      const int query = first_query + Tile::column(j, e), key = first_key + Tile::row(i, e);
      const bool is_allowed = plain || (query < p.queries && key < p.visible_keys(query) && has_bit(allowed[i], j, e));
      float& score = scores[i][j][e];
      score = tensor_scaled(p, score);
      if (!plain && is_allowed && Tile::adds_to_scores(p)) score = mask.masked(p, query, key, score);
      tensor_score_gradient<Tile>(p, rows[place + Tile::column(j, e)], is_allowed, has_bit(kept[i], j, e), score,
                                  gradients[i][j][e]);
    });
    if (wants_dv) add_weighted<Tile>(dv, scores, tile_dy, p.value_width);
    if (wants_dk) add_weighted<Tile>(dk, gradients, tile_q, p.width);
    tile = next_tile;
    place = next_place;
  }
  wait_for_copies();
  __syncthreads();  // where no tile came, others may still write to this warp's rows of k and v
  const auto store = [&](const TensorGradient<E>& to, E* own, int width, const typename Tile::Result& result,
                         float factor) {
    if (to.dense)
      store_part<Tile>(to.dense + blockIdx.z * to.part + static_cast<int64_t>(head) * p.keys * width, first_key, p.keys,
                       width, result, factor);
    else
      store_rows<Tile>(to.rows.at(n, key_head), to.rows, own, first_key, p.keys, width, result,
                       [&](int, int) { return factor; });
  };
  if (wants_dk) store(to_dk, k, p.width, dk, p.scale);
  if (wants_dv) store(to_dv, v, p.value_width, dv, 1);
}

template <class Tile, class E>
void run(const AttentionProblem<E>& p, const Tensor& dk, const Tensor& dv, cudaStream_t stream) {
  static_assert(key_shared<Tile>(Tile::most_rows) <= most_shared_bytes);
  const int64_t heads = int64_t{p.batch} * (p.heads / p.group);
  const int warps = tensor_warps<Tile>(heads, p.keys), rows = warps * Tile::warp_rows;
  const int64_t blocks = heads * ((p.keys + rows - 1) / rows);
  const int64_t tiles = int64_t{p.group} * ((p.queries + Tile::columns - 1) / Tile::columns);
  const int64_t busy = device_limits().multiprocessors;  // with fewer blocks the queries are split
  const int64_t parts =
      blocks == 0 ? 1 : std::clamp<int64_t>(2 * busy / blocks, 1, std::clamp<int64_t>(tiles / 4, 1, 16));
  const Target<E> key_target(dk, true, parts), value_target(dv, true, parts);
  const auto to = [](const Target<E>& x) { return TensorGradient<E>{x.rows(), x.parts(), x.part()}; };
  const dim3 grid(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(parts));
  launch(name, stream,
         {grid, dim3(static_cast<unsigned>(32 * warps)), key_shared<Tile>(rows), key_shared<Tile>(Tile::most_rows)},
         tensor_key_gradient_kernel<Tile>, p, to(key_target), to(value_target));
  key_target.finish(name);
  value_target.finish(name);
}

}  // namespace

template <class E>
void tensor_key_gradient(const AttentionProblem<E>& p, const Tensor& dk, const Tensor& dv, cudaStream_t stream) {
  const bool large = p.is_plain() && fills_gpu<128>(int64_t{p.batch} * (p.heads / p.group), p.keys);
  if (std::max(p.width, p.value_width) <= 64)
    large ? run<TensorTile<E, 64, 32, false, 2>>(p, dk, dv, stream)
          : run<TensorTile<E, 64, 32, true>>(p, dk, dv, stream);
  else
    p.is_plain() ? run<TensorTile<E, 128, 32, false>>(p, dk, dv, stream)
                 : run<TensorTile<E, 128, 32, true>>(p, dk, dv, stream);
}
template void tensor_key_gradient(const AttentionProblem<bfloat16>&, const Tensor&, const Tensor&, cudaStream_t);
template void tensor_key_gradient(const AttentionProblem<float16>&, const Tensor&, const Tensor&, cudaStream_t);

}  // namespace regard::cuda_backend
