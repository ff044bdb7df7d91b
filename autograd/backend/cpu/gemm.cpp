// Cuts products into pieces, shares them out between threads, and picks the way of each.
#include <regard/autograd/backend/cpu/gemm.hpp>

#include <algorithm>
#include <bit>
#include <regard/autograd/backend/cpu/blis_gemm.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace regard::cpu_backend {
namespace {

template <class T>
struct Problem {
  int64_t m, n, k;
  T alpha;
  Matrix<const T> a, b;
  T beta;
  Matrix<T> c;

  // C' = B' A', the same product.
  Problem transposed() const { return {n, m, k, alpha, b.transposed(), a.transposed(), beta, c.transposed()}; }
};

enum class Path {
  scale,  // no product at all
  tiles,  // tiled_gemm
  dots,   // tiled_gemm by dot products
  blis    // large products in f64, and where Highway has no vectors for the processor and BLIS may
};

// Dot products read B where it lies: the better way where so few rows use it that packing it is not paid back. Each
// ends in a sum over the vector's elements, so that k has to be long.
template <class T>
bool suits_dots(const Problem<T>& problem) {
  if (problem.b.row_stride != 1 || problem.b.column_stride == 1) return false;
  return problem.m <= 4 ? problem.k >= 32 : problem.m <= tiled_gemm_dot_rows && problem.k >= 256;
}

// Large products in f64: there BLIS is as fast as the tiles. (In f32 it is not, cut into pieces: bench/gemm_ratios.)
template <class T>
bool suits_blis(const Problem<T>& problem) {
  return std::is_same_v<T, double> && std::min({problem.m, problem.n, problem.k}) >= 256;
}

template <class T>
Path choose_path(const Problem<T>& problem) {
  if (problem.k == 0 || problem.alpha == 0) return Path::scale;
  if (suits_blis(problem)) return Path::blis;
  const bool vectors = tiled_gemm_tile(sizeof(T)).columns > 2;
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

template <class T>
void scale(const Problem<T>& problem) {
  const auto& c = problem.c;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      T& element = c.data[i * c.row_stride + j * c.column_stride];
      element = problem.beta == 0 ? T(0) : problem.beta * element;
    }
  }
}

template <class T>
void run_piece(const Problem<T>& problem, Path path) {
  const auto& [m, n, k, alpha, a, b, beta, c] = problem;
  if (path == Path::scale) return scale(problem);
  if (path == Path::blis) return blis_gemm(m, n, k, alpha, a, b, beta, c);
  tiled_gemm(m, n, k, alpha, a, b, beta, c, path == Path::dots);
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

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  const TileSize unit = tiled_gemm_tile(sizeof(T));
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
  return part;
}

// How many pieces a thread takes at a time.
int64_t choose_grain(int64_t pieces, int64_t work) {
  if (work < 2 * short_long_work) return pieces;
  return divide_up(pieces, std::clamp<int64_t>(work / short_work / 2 * 2, 2, 64));
}

}  // namespace

template <class T>
void gemm_batched(int64_t batch, const int64_t* a_offsets, const int64_t* b_offsets, const int64_t* c_offsets,
                  int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  if (batch <= 0 || m <= 0 || n <= 0) return;
  Problem<T> problem{
      m, n, k, alpha, with_plain_strides(m, k, a), with_plain_strides(k, n, b), beta, with_plain_strides(m, n, c)};
  if (better_transposed(problem)) {
    problem = problem.transposed();
    std::swap(a_offsets, b_offsets);
  }
  const Path path = choose_path(problem);
  const int64_t work = work_of(problem) * batch;
  const Grid grid =
      choose_grid<T>(problem.m, problem.n, divide_up(wanted_pieces(work, std::max(problem.m, problem.n), path), batch));
  const int64_t pieces = batch * grid.pieces();
  parallel_for_short(pieces, choose_grain(pieces, work), work >= worth_waking, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t item = piece / grid.pieces();
      Problem<T> one = problem;
      if (a_offsets != nullptr) one.a.data += a_offsets[item];
      if (b_offsets != nullptr) one.b.data += b_offsets[item];
      one.c.data += c_offsets[item];
      run_piece(cut(one, grid, piece % grid.pieces()), path);
    }
  });
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  const int64_t none = 0;
  gemm_batched(1, nullptr, nullptr, &none, m, n, k, alpha, a, b, beta, c);
}

#define REGARD_GEMM(T)                                                                                                 \
  template void gemm<T>(int64_t, int64_t, int64_t, T, Matrix<const T>, Matrix<const T>, T, Matrix<T>);                 \
  template void gemm_batched<T>(int64_t, const int64_t*, const int64_t*, const int64_t*, int64_t, int64_t, int64_t, T, \
                                Matrix<const T>, Matrix<const T>, T, Matrix<T>)
REGARD_GEMM(float);
REGARD_GEMM(double);
#undef REGARD_GEMM

}  // namespace regard::cpu_backend
