// Cuts products into pieces, shares them out between threads, and picks the way of each.
#include <regard/autograd/backend/cpu/gemm.hpp>

#include <algorithm>
#include <bit>
#include <regard/autograd/backend/allocator.hpp>
#include <regard/autograd/backend/cpu/bf16_gemm.hpp>
#include <regard/autograd/backend/cpu/blis_gemm.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/scratch.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>
#include <regard/autograd/matmul_precision.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace regard::cpu_backend {
namespace {

template <class T>
struct Problem : Product<T> {
  // C' = B' A', the same product.
  Problem transposed() const {
    return {{this->n, this->m, this->k, this->alpha, this->b.transposed(), this->a.transposed(), this->beta,
             this->d.transposed(), this->c.transposed(), this->finish}};
  }
};

enum class Path {
  scale,  // no product at all
  tiles,  // tiled_gemm
  dots,   // tiled_gemm by dot products
  bf16,   // bf16_gemm, where that is asked for
  blis    // large products in f64, and where Highway has no vectors for the processor and BLIS may
};

// Dot products read B where it lies: the better way where so few rows use it that packing it is not paid back. Each
// ends in a sum over the vector's elements, so that k has to be long.
template <class T>
bool suits_dots(const Problem<T>& problem) {
  if (problem.b.row_stride != 1 || problem.b.column_stride == 1) return false;
  return problem.m <= 4 ? problem.k >= 32 : problem.m <= tiled_gemm_dot_rows && problem.k >= 256;
}

// Large products in f64: there BLIS is faster than the tiles. (In f32 it is not: bench/gemm_ratios.)
template <class T>
bool suits_blis(const Problem<T>& problem) {
  return std::is_same_v<T, double> && std::min({problem.m, problem.n, problem.k}) >= 512;
}

template <class T>
Path choose_path(const Problem<T>& problem) {
  if (problem.k == 0 || problem.alpha == 0) return Path::scale;
  if (std::is_same_v<T, float> && suits_bf16_gemm(problem.m, problem.n, problem.k) &&
      matmul_precision() == MatmulPrecision::bf16 && bf16_gemm_available()) {
    return Path::bf16;
  }
  if (suits_blis(problem)) return Path::blis;
  const bool vectors = tiled_gemm(T()).tile.columns > 2;
  if (!vectors && problem.m * problem.n * problem.k >= 100'000) return Path::blis;
  return suits_dots(problem) ? Path::dots : Path::tiles;
}

// Whether to compute C' = B' A' instead: where C lies by columns, or where few columns would fill no vector.
template <class T>
bool better_transposed(const Problem<T>& problem) {
  const auto [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
  if (std::min(m, n) <= 4 && m != n) return n < m;
  if (suits_dots(problem)) return false;
  if (suits_dots(problem.transposed())) return true;
  return problem.c.column_stride > problem.c.row_stride;
}

// C = beta D
template <class T>
void scale(const Problem<T>& problem) {
  const auto& c = problem.c;
  const auto& d = problem.d;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      c.data[i * c.row_stride + j * c.column_stride] =
          problem.beta == 0 ? T(0) : problem.beta * d.data[i * d.row_stride + j * d.column_stride];
    }
  }
}

template <class T>
void run_piece(const Problem<T>& problem, Path path) {
  if (path == Path::tiles) return tiled_gemm(T()).multiply(problem);
  if (path == Path::dots) return tiled_gemm(T()).multiply_by_dots(problem);
  if constexpr (std::is_same_v<T, float>) {
    if (path == Path::bf16) return bf16_gemm(problem);
  }
  T beta = problem.beta;
  if (path == Path::scale || (beta != 0 && problem.d.data != problem.c.data)) {
    scale(problem);
    beta = 1;
  }
  if (path == Path::blis) {
    blis_gemm(problem.m, problem.n, problem.k, problem.alpha, problem.a, problem.b, beta, problem.c);
  }
  if (problem.finish != nullptr) {
    (*problem.finish)(problem.m, problem.n, problem.c.data, problem.c.row_stride, problem.c.column_stride);
  }
}

// Cutting a product into pieces: over m and n, never k, and by its sizes alone

// The cost of a product in f32 multiply-adds; for few rows it is reading B.
template <class T>
int64_t work_of(const Problem<T>& problem) {
  return std::max<int64_t>(problem.m, 4) * problem.n * std::max<int64_t>(problem.k, 1) *
         static_cast<int64_t>(sizeof(T) / sizeof(float));
}

// A microsecond or so: worth a share of a thread that is awake. And some 10: worth waking one.
constexpr int64_t short_work = 150'000, worth_waking = 1'000'000;
// Of products with a long side less is worth it: their pieces pack little twice.
constexpr int64_t long_side = 128, short_long_work = 100'000;

// Enough pieces for some processors to end at about the same time, few enough that packing for each stays cheap.
int64_t wanted_pieces(int64_t work, int64_t longest, Path path) {
  if (work < 2 * (longest < long_side ? short_work : short_long_work)) return 1;
  int64_t pieces = 2;
  const int64_t least = path == Path::blis ? 64'000'000 : 4'000'000;  // BLIS packs both sides for each piece
  while (pieces < 64 && work >= least * pieces * pieces * pieces) pieces *= 2;
  return pieces;
}

struct Grid {
  int64_t m = 1, n = 1;  // pieces
  TileSize unit{1, 1};
  int64_t pieces() const { return m * n; }
};

// Of all grids with that many pieces, the one that packs least: A once for each column of pieces, B once for each row
// of them, which takes longer. Fewer pieces where they would be too small to pay that back.
template <class T>
Grid choose_grid(int64_t m, int64_t n, int64_t pieces) {
  if (pieces <= 1) return {};
  const TileSize unit = tiled_gemm(T()).tile;
  const int64_t least_rows = 48, least_columns = std::max<int64_t>(32, unit.columns);
  for (pieces = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(pieces))); pieces > 1; pieces /= 2) {
    Grid best;
    int64_t least = 0;
    for (int64_t rows = 1; rows <= pieces; rows *= 2) {
      const int64_t columns = pieces / rows;
      if ((rows > 1 && m < rows * least_rows) || (columns > 1 && n < columns * least_columns)) continue;
      const int64_t packed = columns * m + 3 * rows * n;
      if (least == 0 || packed < least) {
        least = packed;
        best = {rows, columns, unit};
      }
    }
    if (least > 0) return best;
  }
  return {};
}

// Where piece i of `pieces` begins: whole units, as even as they go.
int64_t bound(int64_t size, int64_t unit, int64_t i, int64_t pieces) {
  return pieces == 1 ? i * size : std::min(size, divide_up(size, unit) * i / pieces * unit);
}

template <class T>
Problem<T> cut(const Problem<T>& whole, const Grid& grid, int64_t piece) {
  const int64_t row = piece % grid.m, column = piece / grid.m;
  const int64_t i = bound(whole.m, grid.unit.rows, row, grid.m), j = bound(whole.n, grid.unit.columns, column, grid.n);
  Problem<T> part = whole;
  part.m = bound(whole.m, grid.unit.rows, row + 1, grid.m) - i;
  part.n = bound(whole.n, grid.unit.columns, column + 1, grid.n) - j;
  part.a = whole.a.offset_by(i * whole.a.row_stride);
  part.b = whole.b.offset_by(j * whole.b.column_stride);
  part.c = whole.c.offset_by(i * whole.c.row_stride + j * whole.c.column_stride);
  part.d = whole.d.offset_by(i * whole.d.row_stride + j * whole.d.column_stride);
  return part;
}

// How many pieces a thread takes at a time.
int64_t choose_grain(int64_t pieces, int64_t work) {
  if (work < 2 * short_long_work) return pieces;
  return divide_up(pieces, std::clamp<int64_t>(work / short_work / 2 * 2, 2, 64));
}

// Large products: packed once for all threads

// The longest side of a block that is packed at once: 6 MiB with a block of k.
constexpr int64_t most_shared = 3072;
// Of rows less: a block of them is packed and used up before the next, and costs nothing but another start of threads.
constexpr int64_t most_shared_rows = 1536;
constexpr int64_t shared_pieces = 48;
// Below, handing out the packing costs more than it saves.
constexpr int64_t least_repeated_bytes = 1'000'000;

// Whether the pieces of a grid would pack the same operands so often that it is worth doing that beforehand.
template <class T>
bool worth_sharing(const Problem<T>& problem, const Grid& grid) {
  const TileSize tile = tiled_gemm(T()).tile;
  const bool pack_a = must_pack_a(problem.m, problem.n / grid.n, tile, problem.a);
  const int64_t repeated = problem.k * ((grid.m - 1) * problem.n + (pack_a ? (grid.n - 1) * problem.m : 0));
  return repeated * static_cast<int64_t>(sizeof(T)) >= least_repeated_bytes;
}

// Memory for operands packed for all threads. From the tensors' allocator, for as long as the product takes: kept by
// the thread it would be many MiB beside a step's tensors, and in a step there is free memory for it most of the time.
template <class T>
class SharedMemory {
 public:
  explicit SharedMemory(int64_t elements) : bytes_(elements * static_cast<int64_t>(sizeof(T))) {
    if (bytes_ > 0) data_ = allocate_memory(bytes_, {});
  }
  ~SharedMemory() {
    if (data_ != nullptr) free_memory(data_, bytes_, {});
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  int64_t bytes_;
  void* data_ = nullptr;
};

template <class T>
void multiply_shared(const Problem<T>& whole) {
  const TiledGemm<T>& tiles = tiled_gemm(T());
  const TileSize tile = tiles.tile;
  const auto& [m, n, k, alpha, a, b, beta, d, c, finish] = static_cast<const Product<T>&>(whole);
  const int64_t k_block = even_part(k, longest_k_block);
  const int64_t n_block = round_up(even_part(n, most_shared), tile.columns);
  // Rows of A that are packed together: by the piece itself where there are so many that one takes all the columns.
  const bool pack_a = must_pack_a(m, n, tile, a), tall = divide_up(m, tiles.block_rows) >= shared_pieces;
  const bool share_a = pack_a && !tall;
  const int64_t m_block = share_a ? even_part(m, most_shared_rows) : m;
  const int64_t chunk = round_up(even_part(m_block, tiles.block_rows), tile.rows);
  const int64_t chunk_size = packed_rows_size<T>(chunk, k_block);
  const SharedMemory<T> b_memory(n_block * k_block), a_memory(share_a ? divide_up(m_block, chunk) * chunk_size : 0);
  T *packed_b = b_memory.data(), *packed_a = a_memory.data();
  constexpr int64_t panels_at_once = 4;
  const int64_t strip = panels_at_once * tile.columns;

  for (int64_t j0 = 0; j0 < n; j0 += n_block) {
    const int64_t width = std::min(n_block, n - j0), strips = divide_up(width, strip);
    for (int64_t p0 = 0; p0 < k; p0 += k_block) {
      const int64_t depth = std::min(k_block, k - p0);
      for (int64_t i0 = 0; i0 < m; i0 += m_block) {
        const int64_t height = std::min(m_block, m - i0), chunks = divide_up(height, chunk);
        const Matrix<const T> left = a.offset_by(i0 * a.row_stride + p0 * a.column_stride);
        const auto rows_of = [&](int64_t i) { return std::min(chunk, height - i * chunk); };

        const int64_t b_tasks = i0 == 0 ? strips : 0;
        parallel_for(b_tasks + (share_a ? chunks : 0), 1, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            if (task < b_tasks) {
              const int64_t j = task * strip;
              tiles.pack_b(depth, std::min(strip, width - j),
                           b.offset_by(p0 * b.row_stride + (j0 + j) * b.column_stride), packed_b + j * depth);
            } else {
              const int64_t i = task - b_tasks;
              tiles.pack_a(rows_of(i), depth, left.offset_by(i * chunk * a.row_stride), packed_a + i * chunk_size);
            }
          }
        });

        const int64_t groups = std::clamp<int64_t>(divide_up(shared_pieces, chunks), 1, strips);
        parallel_for(chunks * groups, 1, [&](int64_t begin, int64_t end) {
          for (int64_t piece = begin; piece < end; ++piece) {
            const int64_t i = piece / groups, group = piece % groups;
            const int64_t from = strips * group / groups * strip;
            const int64_t to = std::min(width, strips * (group + 1) / groups * strip);
            const int64_t row = i0 + i * chunk, column = j0 + from;
            Product<T> part{rows_of(i),
                            to - from,
                            depth,
                            alpha,
                            left.offset_by(i * chunk * a.row_stride),
                            {packed_b + from * depth, tile.columns, 1},
                            p0 == 0 ? beta : T(1),
                            d,
                            c.offset_by(row * c.row_stride + column * c.column_stride),
                            p0 + depth == k ? finish : nullptr};
            if (share_a) part.a = packed_rows(depth, a, packed_a + i * chunk_size);
            if (pack_a && !share_a) part.a = tiles.pack_a(part.m, depth, part.a, scratch<T>(Scratch::a, chunk_size));
            if (p0 == 0) {
              part.d = d.offset_by(row * d.row_stride + column * d.column_stride);
            } else {
              part.d = {part.c.data, part.c.row_stride, part.c.column_stride};
            }
            tiles.multiply_block(part);
          }
        });
      }
    }
  }
}

template <class T>
void multiply_all(int64_t batch, const int64_t* a_offsets, const int64_t* b_offsets, const int64_t* c_offsets,
                  Problem<T> problem) {
  if (batch <= 0 || problem.m <= 0 || problem.n <= 0) return;
  if (better_transposed(problem)) {
    problem = problem.transposed();
    std::swap(a_offsets, b_offsets);
  }
  const Path path = choose_path(problem);
  const int64_t work = work_of(problem) * batch;
  const Grid grid =
      choose_grid<T>(problem.m, problem.n, divide_up(wanted_pieces(work, std::max(problem.m, problem.n), path), batch));
  const int64_t pieces = batch * grid.pieces();
  if (batch == 1 && path == Path::tiles && worth_sharing(problem, grid)) {
    if (a_offsets != nullptr) problem.a.data += a_offsets[0];
    if (b_offsets != nullptr) problem.b.data += b_offsets[0];
    problem.c.data += c_offsets[0];
    if (problem.d.data == problem.c.data - c_offsets[0]) problem.d.data += c_offsets[0];
    return multiply_shared(problem);
  }
  parallel_for_short(pieces, choose_grain(pieces, work), work >= worth_waking, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t item = piece / grid.pieces();
      Problem<T> one = problem;
      if (a_offsets != nullptr) one.a.data += a_offsets[item];
      if (b_offsets != nullptr) one.b.data += b_offsets[item];
      one.c.data += c_offsets[item];
      one.d.data += c_offsets[item];
      run_piece(cut(one, grid, piece % grid.pieces()), path);
    }
  });
}

}  // namespace

template <class T>
void gemm_batched(int64_t batch, const int64_t* a_offsets, const int64_t* b_offsets, const int64_t* c_offsets,
                  int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  c = with_plain_strides(m, n, c);
  const Matrix<const T> d{c.data, c.row_stride, c.column_stride};
  multiply_all<T>(batch, a_offsets, b_offsets, c_offsets,
                  {{m, n, k, alpha, with_plain_strides(m, k, a), with_plain_strides(k, n, b), beta, d, c, nullptr}});
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  const int64_t none = 0;
  gemm_batched(1, nullptr, nullptr, &none, m, n, k, alpha, a, b, beta, c);
}

template <class T>
void gemm_finished(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<const T> addend,
                   Matrix<T> c, const GemmFinish* finish) {
  const int64_t none = 0;
  c = with_plain_strides(m, n, c);
  const T beta(addend.data != nullptr);
  if (beta == 0) addend = {c.data, c.row_stride, c.column_stride};  // not read
  multiply_all<T>(1, nullptr, nullptr, &none,
                  {{m, n, k, 1, with_plain_strides(m, k, a), with_plain_strides(k, n, b), beta, addend, c, finish}});
}

#define REGARD_GEMM(T)                                                                                                 \
  template void gemm<T>(int64_t, int64_t, int64_t, T, Matrix<const T>, Matrix<const T>, T, Matrix<T>);                 \
  template void gemm_batched<T>(int64_t, const int64_t*, const int64_t*, const int64_t*, int64_t, int64_t, int64_t, T, \
                                Matrix<const T>, Matrix<const T>, T, Matrix<T>);                                       \
  template void gemm_finished<T>(int64_t, int64_t, int64_t, Matrix<const T>, Matrix<const T>, Matrix<const T>,         \
                                 Matrix<T>, const GemmFinish*)
REGARD_GEMM(float);
REGARD_GEMM(double);
#undef REGARD_GEMM

}  // namespace regard::cpu_backend
