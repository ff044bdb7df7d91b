// A block's share of attention on 16-bit types: tiles in shared memory, and their products by matrix instructions.
//
// A block owns some rows (of queries, or of keys), 16 a warp, and walks over the other side in tiles of `columns` rows.
// A warp has the scores of its rows in the registers of its lanes as matrix.hpp lays them out: lane 4g + t has columns
// 8j + 2t and 8j + 2t + 1 of rows g and g + 8. That is also how an operand of the next product lies, so that weights
// and gradients of scores never leave the registers. Dao, "FlashAttention-2", 2023.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/backend/cuda/async_copy.hpp>
#include <regard/autograd/backend/cuda/attention_problem.hpp>
#include <regard/autograd/backend/cuda/matrix.hpp>

namespace regard::cuda_backend {

/// The shape of a block. `masked`: with every mask, ALiBi and dropout; without, causal order alone. Warps with
/// `warp_parts` times 16 rows read what comes from the other side once for all of them.
template <class Element, int width_, int columns_, bool masked_, int warp_parts_ = 1>
struct TensorTile {
  using E = Element;
  using Problem = AttentionProblem<E>;
  static constexpr bool masked = masked_;
  static constexpr int width = width_, columns = columns_, warp_parts = warp_parts_;
  static constexpr int warp_rows = 16 * warp_parts, most_warps = 4, most_threads = 32 * most_warps;
  static constexpr int most_rows = warp_rows * most_warps;
  // Rows lie so far apart that the eight of a matrix are in different banks.
  static constexpr int vector = vector_width<E>, stride = width + vector;
  static constexpr int score_parts = columns / 8, result_parts = width / 8;  // matrices side by side
  static_assert(width % 16 == 0 && columns % 16 == 0);
  static_assert(4 * score_parts <= 32, "a bit for each of a lane's scores");

  using Scores = float[warp_parts][score_parts][4];
  using Result = float[warp_parts][result_parts][4];
  using Bits = uint32_t[warp_parts];

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int rows() { return static_cast<int>(blockDim.x) / 32 * warp_rows; }  // of the block
  /// The row in the block, and the column in the tile, of element e of a lane's part j of part i of its warp's rows.
  __device__ static int row(int i, int e) { return warp() * warp_rows + 16 * i + lane() / 4 + e / 2 * 8; }
  __device__ static int column(int j, int e) { return 8 * j + 2 * (lane() % 4) + e % 2; }
  __device__ static bool drops(const Problem& p) { return masked && p.drops; }
  __device__ static bool reads_allowed(const Problem& p) { return masked && p.reads_allowed(); }
  __device__ static bool adds_to_scores(const Problem& p) { return masked && p.adds_to_scores(); }
  /// Whether each of the scores of these queries and keys counts as it is.
  __device__ static bool plain(const Problem& p, int first_query, int query_count, int first_key, int key_count) {
    return !reads_allowed(p) && !adds_to_scores(p) && first_query + query_count <= p.queries &&
           first_key + key_count <= p.visible_keys(first_query);
  }
};

/// Calls f(i, j, e) for each element of a lane's scores or result, all of which are in registers.
template <class Tile, int parts, class F>
__device__ void each_register(const F& f) {
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
    for (int j = 0; j < parts; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) f(i, j, e);
}
template <class Tile, class F>
__device__ void each_score(const F& f) {
  each_register<Tile, Tile::score_parts>(f);
}
template <class Tile>
__device__ void set_zero_scores(typename Tile::Scores& scores) {
  each_score<Tile>([&](int i, int j, int e) { scores[i][j][e] = 0; });
}
template <class Tile>
__device__ void set_zero_result(typename Tile::Result& result) {
  each_register<Tile, Tile::result_parts>([&](int i, int j, int e) { result[i][j][e] = 0; });
}

// ---- Loads

/// to [count, Tile::stride] = `width` columns of rows from `first` on; zeros beyond them, for rows from `end` on, and
/// for those of which shown(row) is false. All threads of the block take part.
template <class Tile, class E, class Shown>
__device__ void load_tile(E* to, int count, const HeadRows<const E>& x, const E* from, int first, int end, int width,
                          const Shown& shown) {
  constexpr int step_of_vectors = Tile::width / Tile::vector;
  if (x.vectors) {
    for (int i = static_cast<int>(threadIdx.x); i < count * step_of_vectors; i += static_cast<int>(blockDim.x)) {
      const int row = i / step_of_vectors, column = i % step_of_vectors * Tile::vector;
      const bool whole = column < width && first + row < end && shown(first + row);
      copy_vector(to + row * Tile::stride + column, whole ? from + (first + row) * x.row + column : from, whole);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < count * Tile::width; i += static_cast<int>(blockDim.x)) {
      const int row = i / Tile::width, column = i % Tile::width;
      E value{};
      if (column < width && first + row < end && shown(first + row))
        value = from[(first + row) * x.row + column * x.column];
      to[row * Tile::stride + column] = value;
    }
  }
}
template <class Tile, class E>
__device__ void load_tile(E* to, int count, const HeadRows<const E>& x, const E* from, int first, int end, int width) {
  load_tile<Tile>(to, count, x, from, first, end, width, [](int) { return true; });
}

// ---- Products

/// scores = a b^T over the first `width` columns: of this warp's rows a, and the tile's rows b.
template <class Tile, class E>
__device__ void multiply_rows(typename Tile::Scores& scores, const E* a, const E* b, int width) {
  const int lane = Tile::lane();
  a += (Tile::warp() * Tile::warp_rows + lane % 16) * Tile::stride + lane / 16 * 8;
  b += (lane / 16 * 8 + lane % 8) * Tile::stride + lane / 8 % 2 * 8;
  set_zero_scores<Tile>(scores);
#pragma unroll
  for (int k = 0; k < Tile::width; k += 16) {
    if (k >= width) break;
    uint32_t left[Tile::warp_parts][4];
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i) load_matrices(left[i], a + 16 * i * Tile::stride + k);
#pragma unroll
    for (int j = 0; j < Tile::score_parts; j += 2) {
      uint32_t right[4];
      load_matrices(right, b + j * 8 * Tile::stride + k);
#pragma unroll
      for (int i = 0; i < Tile::warp_parts; ++i) {
        multiply_add<E>(scores[i][j], left[i], {right[0], right[1]});
        multiply_add<E>(scores[i][j + 1], left[i], {right[2], right[3]});
      }
    }
  }
}

/// result += weights b in the first `width` columns: weights of this warp's rows, rounded to E, b the tile's rows.
template <class Tile, class E>
__device__ void add_weighted(typename Tile::Result& result, const typename Tile::Scores& weights, const E* b,
                             int width) {
  const int lane = Tile::lane();
  b += lane % 16 * Tile::stride + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < Tile::columns / 16; ++k) {
    uint32_t left[Tile::warp_parts][4];
#pragma unroll
    for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float(&from)[4] = weights[i][2 * k + word / 2];
        left[i][word] = word_of<E>(from[word % 2 * 2], from[word % 2 * 2 + 1]);
      }
#pragma unroll
    for (int j = 0; j < Tile::result_parts; j += 2) {
      if (8 * j >= width) break;
      uint32_t right[4];
      load_transposed_matrices(right, b + k * 16 * Tile::stride + j * 8);
#pragma unroll
      for (int i = 0; i < Tile::warp_parts; ++i) {
        multiply_add<E>(result[i][j], left[i], {right[0], right[1]});
        multiply_add<E>(result[i][j + 1], left[i], {right[2], right[3]});
      }
    }
  }
}

/// The product of a query and a key to the score. Never fused with what is added or taken away next: the difference of
/// a large score to the row's largest is right only where both are rounded alike.
template <class Problem>
__device__ float tensor_scaled(const Problem& p, float product) {
  return __fmul_rn(product, p.scale);
}

// ---- Bits of masks

/// A bit for each of this lane's scores: bit 4j + e of word i is test(row(i, e), column(j, e)). Whether any is set. One
/// element at a time: the tests are long.
template <class Tile, class Test>
__device__ bool read_score_bits(typename Tile::Bits& words, const Test& test) {
  bool any = false;
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int bit = 0; bit < 4 * Tile::score_parts; ++bit)
      bits |= (test(Tile::row(i, bit % 4), Tile::column(bit / 4, bit % 4)) ? 1U : 0U) << bit;
    words[i] = bits;
    any = any || bits != 0;
  }
  return any;
}
template <class Tile>
__device__ void set_all_bits(typename Tile::Bits& words) {
#pragma unroll
  for (uint32_t& word : words) word = ~uint32_t{0};
}
__device__ inline bool has_bit(uint32_t bits, int j, int e) { return ((bits >> (4 * j + e)) & 1U) != 0; }

// ---- Results

/// The result's first `width` columns times factor(i, e) to rows from `first` on of `to`, below `end`. Through `own`, a
/// [rows, Tile::stride] in shared memory of which a warp takes its own rows alone, so that memory is written in whole
/// vectors.
template <class Tile, class E, class Factor>
__device__ void store_rows(E* to, const HeadRows<E>& x, E* own, int first, int end, int width,
                           const typename Tile::Result& result, const Factor& factor) {
  __syncwarp();  // its lanes have read what is there
#pragma unroll
  for (int i = 0; i < Tile::warp_parts; ++i)
#pragma unroll
    for (int j = 0; j < Tile::result_parts; ++j)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        *reinterpret_cast<uint32_t*>(own + Tile::row(i, e) * Tile::stride + Tile::column(j, e)) =
            word_of<E>(result[i][j][e] * factor(i, e), result[i][j][e + 1] * factor(i, e));
  __syncwarp();
  const int step = x.vectors ? Tile::vector : 1, row_steps = Tile::width / step;
  for (int at = Tile::lane(); at < Tile::warp_rows * row_steps; at += 32) {
    const int row = Tile::warp() * Tile::warp_rows + at / row_steps, column = at % row_steps * step;
    if (first + row >= end || column >= width) continue;
    const E* const from = own + row * Tile::stride + column;
    E* const target = to + (first + row) * x.row + column * x.column;
    if (x.vectors)
      *reinterpret_cast<Vector<E>*>(target) = *reinterpret_cast<const Vector<E>*>(from);
    else
      *target = *from;
  }
}
/// The same to dense rows of f32, for sums of parts.
template <class Tile>
__device__ void store_part(float* to, int first, int end, int width, const typename Tile::Result& result,
                           float factor) {
  each_register<Tile, Tile::result_parts>([&](int i, int j, int e) {
    const int row = first + Tile::row(i, e), column = Tile::column(j, e);
    if (row < end && column < width) to[static_cast<int64_t>(row) * width + column] = result[i][j][e] * factor;
  });
}

}  // namespace regard::cuda_backend
