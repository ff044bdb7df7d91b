// Attention backward: the weights are computed again tile by tile, from the scores and each row's statistics. With
// P the weights, dP = dy v^T and delta = sum(dy y) of each row: dv = P^T dy, dS = P (dP - delta), dq = scale dS k,
// dk = dS^T (scale q). Dropout stands between P and dv, and between dP and dS. Dao et al., "FlashAttention", 2022.
// One kernel walks over keys for tiles of queries (dq), one over queries for tiles of keys (dk, dv): each writes what
// is its own alone, so that the order of sums is fixed.
#include <algorithm>
#include <optional>

#include <regard/autograd/backend/cuda/attention_tile.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/row_grid.hpp>

namespace regard::cuda_backend {
namespace {

constexpr const char* name = "scaled_dot_product_attention";

// ---- delta

constexpr int delta_lanes = 8;

/// delta[row] = the sum of dy y, eight lanes a row.
template <class T>
__global__ void delta_kernel(T* delta, HeadRows<const T> dy, HeadRows<const T> y, int64_t rows, int heads, int queries,
                             int width) {
  const int lane = static_cast<int>(threadIdx.x) % delta_lanes;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / delta_lanes;
  int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / delta_lanes;
  for (const int64_t end = (rows + 3) / 4 * 4; row < end; row += step) {  // whole warps
    T sum = 0;
    if (row < rows) {
      const int64_t head = row / queries, query = row - head * queries, n = head / heads, h = head - n * heads;
      const T *a = dy.at(n, h) + query * dy.row, *b = y.at(n, h) + query * y.row;
      if (dy.vectors && y.vectors) {
        for (int j = lane * vector_width<T>; j < width; j += delta_lanes * vector_width<T>) {
          const Vector<T> left = load_vector(a + j), right = load_vector(b + j);
#pragma unroll
          for (int e = 0; e < vector_width<T>; ++e) sum += left.at[e] * right.at[e];
        }
      } else {
        for (int j = lane; j < width; j += delta_lanes) sum += a[j * dy.column] * b[j * y.column];
      }
    }
    sum = warp_reduce(sum, Plus(), delta_lanes);
    if (lane == 0 && row < rows) delta[row] = sum;
  }
}

template <class T>
void run_delta(T* delta, const Tensor& dy, const Tensor& y) {
  const int64_t rows = y.size(0) * y.size(1) * y.size(2);
  const Grid grid = grid_for((rows + 3) / 4 * 32, 1, 128);
  launch(name, stream_of(y), grid, delta_kernel<T>, delta, rows_of<const T>(dy), rows_of<const T>(y), rows,
         static_cast<int>(y.size(1)), static_cast<int>(y.size(2)), static_cast<int>(y.size(3)));
}

// ---- Gradients of scores

/// What the gradient of a score needs of its row.
template <class T>
struct Row {
  T shift, inverse, delta;
};
template <class T>
__device__ Row<T> read_row(const AttentionProblem<T>& p, int64_t head, int query) {
  if (query >= p.queries) return {0, 0, 0};
  const T* statistics = p.statistics + 2 * head * p.queries + query;
  return {shift_of(statistics[0]), statistics[p.queries], p.delta[head * p.queries + query]};
}

/// The score to the (dropped) weight, and the gradient of that weight to the gradient of the score.
template <class Tile, class T>
__device__ void score_gradient(const AttentionProblem<T>& p, const Row<T>& row, bool allowed, bool kept, T& score,
                               T& gradient) {
  const T weight = allowed ? power_of(score, row.shift) * row.inverse : T(0);
  score = weight;
  if (Tile::drops(p)) {
    score = kept ? weight * p.keep_scale : T(0);
    gradient = kept ? gradient * p.keep_scale : T(0);
  }
  // Selected, not multiplied: a value that is blocked may be anything.
  gradient = weight == 0 ? T(0) : weight * (gradient - row.delta);
}

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

/// to = the sum of `parts` dense parts, in their order.
template <class T>
__global__ void sum_parts_kernel(HeadRows<T> to, const T* from, int parts, int64_t rows, int heads, int length,
                                 int width) {
  for (int64_t row = first_row(); row < rows; row += row_step()) {
    const int64_t head = row / length, i = row - head * length, n = head / heads, h = head - n * heads;
    T* const at = to.at(n, h) + i * to.row;
    for (int64_t column = first_column(); column < width; column += column_step()) {
      T sum = from[row * width + column];
      for (int part = 1; part < parts; ++part) sum += from[(part * rows + row) * width + column];
      at[column * to.column] = sum;
    }
  }
}

/// A gradient that a kernel writes: in place, or first to memory of its own, in parts that are then added up.
template <class T>
class Target {
 public:
  Target(const Tensor& gradient, bool in_place, int64_t parts)
      : gradient_(gradient), in_place_(in_place && parts == 1), parts_(parts) {
    if (gradient.defined() && !in_place_)
      memory_.emplace(parts * gradient.numel() * static_cast<int64_t>(sizeof(T)), gradient.device());
  }
  HeadRows<T> rows() const {
    if (!gradient_.defined() || in_place_) return rows_of<T>(gradient_);
    return dense_rows<T>(memory_->as<T>(), gradient_.size(1), gradient_.size(2), gradient_.size(3));
  }
  int64_t part() const { return gradient_.defined() ? gradient_.numel() : 0; }
  void finish() const {
    if (!gradient_.defined() || in_place_) return;
    const int64_t length = gradient_.size(2), rows = gradient_.size(0) * gradient_.size(1) * length;
    launch(name, stream_of(gradient_), row_grid(rows, gradient_.size(3)), sum_parts_kernel<T>, rows_of<T>(gradient_),
           memory_->as<T>(), static_cast<int>(parts_), rows, static_cast<int>(gradient_.size(1)),
           static_cast<int>(length), static_cast<int>(gradient_.size(3)));
  }

 private:
  const Tensor& gradient_;
  bool in_place_;
  int64_t parts_;
  std::optional<Scratch> memory_;
};

bool is_over(const Tensor& gradient, const Tensor& x) {
  return gradient.defined() && gradient.raw_data() == x.raw_data();
}

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
           query_target.rows());
  }

  if (wants_keys) {
    const int64_t blocks = k.size(0) * k.size(1) * ((p.keys + Tile::rows - 1) / Tile::rows);
    const int64_t tiles = int64_t{p.group} * ((p.queries + Tile::columns - 1) / Tile::columns);
    const int64_t busy = device_limits().multiprocessors;  // with fewer blocks the queries are split
    const int64_t parts =
        blocks == 0 ? 1 : std::clamp<int64_t>(2 * busy / blocks, 1, std::clamp<int64_t>(tiles / 4, 1, 16));
    const bool over = is_over(dk, k) || is_over(dv, v);
    const Target<T> key_target(dk, one_chunk || !over, parts), value_target(dv, one_chunk || !over, parts);
    const KeyGradients<T> to{key_target.rows(), value_target.rows(), key_target.part(), value_target.part()};
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(std::max(chunks, value_chunks)),
                    static_cast<unsigned>(parts));
    launch(name, stream, {grid, dim3(Tile::threads), key_shared<Tile>()}, key_gradient_kernel<Tile>, p, to);
    key_target.finish();
    value_target.finish();
  }
  query_target.finish();
}

/// Few queries and keys: tiles of one warp.
template <class T, int width, int large_threads>
void choose_tile(const AttentionProblem<T>& p, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& q,
                 const Tensor& k, const Tensor& v) {
  if (std::max(p.queries, p.keys) <= 32)
    run_backward<AttentionTile<T, width, 4, 32>>(p, dq, dk, dv, q, k, v);
  else if (!p.reads_allowed() && !p.adds_to_scores() && !p.drops)
    run_backward<AttentionTile<T, width, 4, large_threads, Ability::plain>>(p, dq, dk, dv, q, k, v);
  else
    run_backward<AttentionTile<T, width, 4, large_threads>>(p, dq, dk, dv, q, k, v);
}

}  // namespace

void attention_delta(const Tensor& delta, const Tensor& dy, const Tensor& y) {
  visit_compute(y.dtype(), [&]<class T>(T) { run_delta(device_pointer<T>(delta), dy, y); });
}

void attention_grad(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                    const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings) {
  visit_compute(q.dtype(), [&]<class T>(T) {
    auto p = make_attention_problem<T>(statistics, q, k, v, mask, key_mask, alibi, settings);
    p.dy = rows_of<const T>(dy);
    std::optional<Scratch> delta;
    if (y.dim() == 3) {
      p.delta = device_pointer<const T>(y);
    } else {
      delta.emplace(int64_t{p.batch} * p.heads * p.queries * static_cast<int64_t>(sizeof(T)), q.device());
      p.delta = delta->as<const T>();
      run_delta(delta->as<T>(), dy, y);
    }
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
