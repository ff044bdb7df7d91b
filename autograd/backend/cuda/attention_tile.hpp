// A block's share of attention: tiles in shared memory and their products in registers.
//
// A block owns some rows (of queries, or of keys) and walks over the other side in tiles of 32. Eight threads share a
// row, so that a row's maximum is three shuffles away and a warp alone touches its rows of the weights. Each thread has
// the scores of `thread_rows` rows by 4 columns, and `thread_rows` rows by width / 8 columns of the result.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/backend/cuda/async_copy.hpp>
#include <regard/autograd/backend/cuda/attention_problem.hpp>

namespace regard::cuda_backend {

/// What a block can do beside plain attention, which is all that most training needs: a kernel without the rest has
/// more registers, so that there can be more blocks.
enum class Ability : uint8_t {
  plain,   ///< causal order alone
  masked,  ///< every mask, ALiBi and dropout
  wide     ///< and more columns of q, k, v and dy than its width, which come in chunks
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr int most_large_blocks = 2;  // a multiprocessor has 164 KiB of shared memory
#else
inline constexpr int most_large_blocks = 3;
#endif

/// The shape of a block.
template <class Element, int width_, int thread_rows_, int threads_, Ability ability = Ability::masked>
struct AttentionTile {
  using T = Element;
  using Problem = AttentionProblem<T>;
  static constexpr bool chunked = ability == Ability::wide, masked = ability != Ability::plain;
  static constexpr int width = width_, thread_rows = thread_rows_, threads = threads_;
  // On a multiprocessor, at least: as many as shared memory lets there be, and as registers do without spills.
  static constexpr int blocks = threads < 128 ? 4 : !masked && thread_rows <= 4 && width <= 64 ? most_large_blocks : 2;
  static constexpr int across = 8, down = threads / across;  // threads along a row, and rows side by side
  static constexpr int rows = down * thread_rows;            // of the block
  static constexpr int columns = 32, thread_columns = columns / across;
  static constexpr int result_columns = width / across, vector = vector_width<T>;
  // Rows of tiles and of weights lie so far apart that threads that read or write together meet other banks.
  static constexpr int stride = width + vector, weights_stride = columns + 8;
  static constexpr int row_words = (rows + 31) / 32;  // of bits
  static_assert(threads % 32 == 0 && result_columns % vector == 0);

  using Scores = T[thread_rows][thread_columns];
  using Result = T[thread_rows][result_columns];

  __device__ static int x() { return static_cast<int>(threadIdx.x) % across; }
  __device__ static int y() { return static_cast<int>(threadIdx.x) / across; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static bool drops(const Problem& p) { return masked && p.drops; }
  __device__ static bool reads_allowed(const Problem& p) { return masked && p.reads_allowed(); }
  __device__ static bool adds_to_scores(const Problem& p) { return masked && p.adds_to_scores(); }
  /// Whether each of the scores of these queries and keys counts as it is.
  __device__ static bool plain(const Problem& p, int first_query, int query_count, int first_key, int key_count) {
    return !reads_allowed(p) && !adds_to_scores(p) && first_query + query_count <= p.queries &&
           first_key + key_count <= p.visible_keys(first_query);
  }
  /// Chunks that `columns` columns take.
  __host__ __device__ static int chunks_of(int columns) {
    return chunked && columns > width ? (columns + width - 1) / width : 1;
  }
  /// The chunk of the result's columns that is the block's.
  __device__ static int own_chunk() { return chunked ? static_cast<int>(blockIdx.y) : 0; }
  /// This thread's i-th row of the block, j-th column of the scores and first column of the result's j-th vector.
  __device__ static int row(int i) { return y() + down * i; }
  __device__ static int column(int j) { return x() + across * j; }
  __device__ static int result_column(int j) { return (x() + across * j) * vector; }
  /// The r-th of this warp's 4 * thread_rows rows.
  __device__ static int warp_row(int r) { return warp() * 4 + r % 4 + r / 4 * down; }
};

// ---- Loads

/// Calls f(row, column, offset) for this thread's share of [count, Tile::width] elements, `step` columns at a time,
/// where offset is that of the element in memory, row 0 lying in row `first` there.
template <class Tile, int count, int step, class F>
__device__ void each_element(int first, int64_t row_stride, int64_t column_stride, const F& f) {
  constexpr int row_threads = Tile::width / step < Tile::threads ? Tile::width / step : Tile::threads;
  constexpr int rows_at_once = Tile::threads / row_threads;
  const int own_row = static_cast<int>(threadIdx.x) / row_threads;
  const int own_column = static_cast<int>(threadIdx.x) % row_threads * step;
#pragma unroll
  for (int c = 0; c < Tile::width; c += row_threads * step) {
    int64_t offset = (first + own_row) * row_stride + (own_column + c) * column_stride;
#pragma unroll 4
    for (int r = 0; r < count; r += rows_at_once) {
      f(own_row + r, own_column + c, offset);
      offset += rows_at_once * row_stride;
    }
  }
}

/// to [count, Tile::stride] = `width` columns of rows from `first` on, zeros beyond them, for rows from `end` on, and
/// (count 32) in rows without a bit in `shown`. All threads of the block take part.
template <class Tile, int count, class T>
__device__ void load_rows(T* to, const HeadRows<const T>& x, const T* from, int first, int end, int width,
                          uint32_t shown = ~uint32_t{0}) {
  const auto inside = [&](int row, int column) {
    return column < width && first + row < end && (count > 32 || ((shown >> (row % 32)) & 1U) != 0);
  };
  if (x.vectors)
    each_element<Tile, count, Tile::vector>(first, x.row, 1, [&](int row, int column, int64_t offset) {
      const bool whole = inside(row, column);
      copy_vector(to + row * Tile::stride + column, whole ? from + offset : from, whole);
    });
  else
    each_element<Tile, count, 1>(first, x.row, x.column, [&](int row, int column, int64_t offset) {
      to[row * Tile::stride + column] = inside(row, column) ? from[offset] : T(0);
    });
}
/// The same times a factor, at once.
template <class Tile, int count, class T>
__device__ void load_scaled_rows(T* to, const HeadRows<const T>& x, const T* from, int first, int end, int width,
                                 T factor) {
  if (x.vectors)
    each_element<Tile, count, Tile::vector>(first, x.row, 1, [&](int row, int column, int64_t offset) {
      Vector<T> value{};
      if (column < width && first + row < end) value = load_vector(from + offset);
#pragma unroll
      for (T& element : value.at) element *= factor;
      *reinterpret_cast<Vector<T>*>(to + row * Tile::stride + column) = value;
    });
  else
    each_element<Tile, count, 1>(first, x.row, x.column, [&](int row, int column, int64_t offset) {
      to[row * Tile::stride + column] = column < width && first + row < end ? from[offset] * factor : T(0);
    });
}

/// The result's first `width` columns times factor(i) to row `from_row + row(i)` of `to`, for rows below `end`.
template <class Tile, class T, class Factor>
__device__ void store_result(T* to, const HeadRows<T>& x, int from_row, int end, int width,
                             const typename Tile::Result& result, Factor factor) {
#pragma unroll
  for (int i = 0; i < Tile::thread_rows; ++i) {
    const int row = from_row + Tile::row(i);
    if (row >= end) continue;
    T* at = to + row * x.row;
    const T scale = factor(i);
#pragma unroll
    for (int j = 0; j < Tile::result_columns / Tile::vector; ++j) {
      const int column = Tile::result_column(j);
      Vector<T> value;
#pragma unroll
      for (int e = 0; e < Tile::vector; ++e) value.at[e] = result[i][j * Tile::vector + e] * scale;
      if (x.vectors) {
        if (column < width) *reinterpret_cast<Vector<T>*>(at + column) = value;
      } else {
#pragma unroll
        for (int e = 0; e < Tile::vector; ++e)
          if (column + e < width) at[(column + e) * x.column] = value.at[e];
      }
    }
  }
}

// ---- Products

/// scores += a b^T over the first `width` columns: of the block's rows a, and 32 rows b. Zeros fill a and b up to a
/// multiple of 4 vectors.
template <class Tile, class T>
__device__ void add_scores(typename Tile::Scores& scores, const T* a, const T* b, int width) {
  a += Tile::row(0) * Tile::stride;
  b += Tile::column(0) * Tile::stride;
  for (int k = 0; k < width; k += 4 * Tile::vector) {
#pragma unroll
    for (int step = 0; step < 4 * Tile::vector; step += Tile::vector) {
      Vector<T> right[Tile::thread_columns];
#pragma unroll
      for (int j = 0; j < Tile::thread_columns; ++j)
        right[j] = load_vector(b + j * Tile::across * Tile::stride + k + step);
#pragma unroll
      for (int i = 0; i < Tile::thread_rows; ++i) {
        const Vector<T> left = load_vector(a + i * Tile::down * Tile::stride + k + step);
#pragma unroll
        for (int e = 0; e < Tile::vector; ++e)
#pragma unroll
          for (int j = 0; j < Tile::thread_columns; ++j) scores[i][j] += left.at[e] * right[j].at[e];
      }
    }
  }
}

/// result += weights b: weights [rows, 32] as written by store_scores(), b 32 rows.
template <class Tile, class T>
__device__ void add_result(typename Tile::Result& result, const T* weights, const T* b) {
  weights += Tile::row(0) * Tile::weights_stride;
  b += Tile::result_column(0);
#pragma unroll 2
  for (int k = 0; k < Tile::columns; k += Tile::vector) {
    Vector<T> left[Tile::thread_rows];
#pragma unroll
    for (int i = 0; i < Tile::thread_rows; ++i)
      left[i] = load_vector(weights + i * Tile::down * Tile::weights_stride + k);
#pragma unroll
    for (int e = 0; e < Tile::vector; ++e)
#pragma unroll
      for (int j = 0; j < Tile::result_columns / Tile::vector; ++j) {
        const Vector<T> right = load_vector(b + (k + e) * Tile::stride + j * Tile::across * Tile::vector);
#pragma unroll
        for (int i = 0; i < Tile::thread_rows; ++i)
#pragma unroll
          for (int f = 0; f < Tile::vector; ++f) result[i][j * Tile::vector + f] += left[i].at[e] * right.at[f];
      }
  }
}

/// Writes this thread's scores to shared memory, where the warp that wrote them may read them after a __syncwarp().
template <class Tile, class T>
__device__ void store_scores(T* weights, const typename Tile::Scores& scores) {
#pragma unroll
  for (int i = 0; i < Tile::thread_rows; ++i)
#pragma unroll
    for (int j = 0; j < Tile::thread_columns; ++j)
      weights[Tile::row(i) * Tile::weights_stride + Tile::column(j)] = scores[i][j];
}

template <int rows, int columns, class T>
__device__ void set_zero(T (&x)[rows][columns]) {
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int j = 0; j < columns; ++j) x[i][j] = 0;
}

// ---- Bits of masks, where the block's rows are queries

/// Bit k of words[row]: test(query, key) for query first_query + row and key first_key + k. A warp reads the words of
/// its own rows alone, after a __syncwarp(). Returns whether it has set any bit.
template <class Tile, class Test>
__device__ bool read_bits(uint32_t* words, int first_query, int first_key, const Test& test) {
  uint32_t any = 0;
#pragma unroll 2
  for (int r = 0; r < 4 * Tile::thread_rows; ++r) {
    const int row = Tile::warp_row(r);
    const uint32_t bits = __ballot_sync(whole_warp, test(first_query + row, first_key + Tile::lane()));
    if (Tile::lane() == 0) words[row] = bits;
    any |= bits;
  }
  return any != 0;
}

/// The 32 keys from `first_key` on that may be read, see AttentionProblem::blocks_keys().
template <class Tile, class T>
__device__ uint32_t shown_keys(const AttentionProblem<T>& p, const HeadMask<T>& mask, int first_key) {
  if (!Tile::masked || !p.blocks_keys()) return ~uint32_t{0};
  return __ballot_sync(whole_warp, mask.shows(p, first_key + Tile::lane()));
}

}  // namespace regard::cuda_backend
