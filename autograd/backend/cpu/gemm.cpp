// The only file that includes blis.h.
#include <regard/autograd/backend/cpu/gemm.hpp>

#include <blis.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/small_gemm.hpp>
#include <regard/autograd/threads.hpp>
#include <sstream>
#include <tuple>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace regard::cpu_backend {
namespace {

// Which kernels BLIS runs

#if defined(__x86_64__) && defined(BLIS_CONFIG_SKX) && defined(BLIS_CONFIG_ZEN3)
// BLIS knows processors by maker and family and takes its generic C kernels on AMD's newer than itself, five times
// slower than they can go. The kernels that suit such a processor, by the instructions it has; generic where BLIS
// chooses well by itself.
arch_t kernels_that_blis_misses() {
  unsigned highest, vendor[3], signature, ignored;
  if (__get_cpuid(0, &highest, &vendor[0], &vendor[2], &vendor[1]) == 0 ||
      __get_cpuid(1, &signature, &ignored, &ignored, &ignored) == 0) {
    return BLIS_ARCH_GENERIC;
  }
  const std::string_view maker(reinterpret_cast<const char*>(vendor), sizeof(vendor));
  const unsigned family = ((signature >> 8) & 0xf) + ((signature >> 20) & 0xff);
  if (maker != "AuthenticAMD" || family <= 0x19) return BLIS_ARCH_GENERIC;  // 0x19: Zen 3 and 4, on which zen3 is best
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return BLIS_ARCH_SKX;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return BLIS_ARCH_ZEN3;
  return BLIS_ARCH_GENERIC;
}
#else
arch_t kernels_that_blis_misses() { return BLIS_ARCH_GENERIC; }
#endif

BlisKernels start_blis() {
  const arch_t wanted = kernels_that_blis_misses();
  const bool choose = wanted != BLIS_ARCH_GENERIC && std::getenv("BLIS_ARCH_TYPE") == nullptr;
  // The variable is BLIS's one way to be told, and it is read once; it does not stay, for child processes.
  if (choose) setenv("BLIS_ARCH_TYPE", std::to_string(static_cast<int>(wanted)).c_str(), 0);
  bli_init();
  if (choose) unsetenv("BLIS_ARCH_TYPE");
  const arch_t chosen = bli_arch_query_id();
  return {bli_info_get_version_str(), bli_arch_string(chosen), chosen == BLIS_ARCH_GENERIC, choose && chosen == wanted};
}

// At load time, before a program has threads that read the environment.
[[maybe_unused]] const bool blis_started = !blis_kernels().family.empty();

// The multiples at which a matrix is cut into pieces: BLIS's micro-tile, as it lies on a C stored by rows.
struct Units {
  int64_t m, n;
};

template <class T>
Units query_units() {
  blis_kernels();
  cntx_t* context = bli_gks_query_cntx();
  const num_t type = std::is_same_v<T, float> ? BLIS_FLOAT : BLIS_DOUBLE;
  const int64_t mr = bli_cntx_get_blksz_def_dt(type, BLIS_MR, context);
  const int64_t nr = bli_cntx_get_blksz_def_dt(type, BLIS_NR, context);
  return bli_cntx_l3_vir_ukr_prefers_rows_dt(type, BLIS_GEMM_UKR, context) ? Units{mr, nr} : Units{nr, mr};
}

template <class T>
Units units() {
  static const Units found = query_units<T>();
  return found;
}

// One piece, on one thread

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
  scale,      // no product at all
  own_loop,   // small_gemm
  blis,       // whichever way BLIS itself chooses
  blis_pack,  // BLIS's way for small matrices, B packed
  blis_large  // BLIS's way for large matrices, both packed
};

// A product of up to this many multiply-adds whose B fits goes to the own loop: BLIS's call costs about 0.4 us, its
// packing is not paid back at such sizes, and its kernels fill a whole micro-tile however small the product.
constexpr int64_t own_loop_work = 1 << 20;

// The fastest way to compute a piece with C by rows; measured, see bench/gemm.cpp. BLIS's way for small matrices
// reads A and B where they lie: the better one until B outgrows the caches or lies across the vectors.
template <class T>
Path choose_path(const Problem<T>& problem) {
  const auto [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
  if (k == 0 || problem.alpha == 0) return Path::scale;
  const int64_t work = m * n * k;
  if (work <= own_loop_work && small_gemm_fits(n, k)) return Path::own_loop;
  if (problem.b.column_stride != 1) return std::min({m, n, k}) >= 96 ? Path::blis_large : Path::blis;
  if (problem.a.column_stride != 1) return work >= 30'000'000 ? Path::blis_large : Path::blis;
  const int64_t b_bytes = n * k * static_cast<int64_t>(sizeof(T));
  return b_bytes > 512 * 1024 && m >= 48 ? Path::blis_pack : Path::blis;
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

// BLIS refuses zero strides and rows or columns that overlap (an expanded or windowed operand).
template <class T>
bool blis_accepts(int64_t rows, int64_t columns, const Matrix<T>& matrix) {
  const int64_t row = matrix.row_stride, column = matrix.column_stride;
  return row > 0 && column > 0 && (row >= column * columns || column >= row * rows);
}

// The stride over a dimension of size 1 says nothing: one that BLIS takes and that keeps its fast paths.
template <class T>
Matrix<T> with_plain_strides(int64_t rows, int64_t columns, Matrix<T> matrix) {
  if (rows == 1) {
    if (columns == 1) matrix.column_stride = 1;
    if (matrix.column_stride != 0) matrix.row_stride = matrix.column_stride == 1 ? columns : 1;
  } else if (columns == 1) {
    if (matrix.row_stride != 0) matrix.column_stride = matrix.row_stride == 1 ? rows : 1;
  }
  return matrix;
}

// The operand itself, or its copy by rows in `memory` where BLIS cannot take its strides.
template <class T>
Matrix<const T> operand(int64_t rows, int64_t columns, Matrix<const T> matrix, std::unique_ptr<T[]>& memory) {
  matrix = with_plain_strides(rows, columns, matrix);
  if (blis_accepts(rows, columns, matrix)) return matrix;
  memory = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(rows * columns));
  T* to = memory.get();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) *to++ = matrix.data[i * matrix.row_stride + j * matrix.column_stride];
  }
  return {memory.get(), columns, 1};
}

template <class T>
void call_blis(const Problem<T>& problem, Path path) {
  std::unique_ptr<T[]> a_memory, b_memory;
  const auto [m, n, k] = std::tuple(problem.m, problem.n, problem.k);
  const auto a = operand(m, k, problem.a, a_memory);
  const auto b = operand(k, n, problem.b, b_memory);
  const auto c = with_plain_strides(m, n, problem.c);
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  if (path == Path::blis_pack) bli_rntm_set_pack_b(TRUE, &runtime);
  if (path == Path::blis_large) bli_rntm_disable_l3_sup(&runtime);
  T alpha = problem.alpha, beta = problem.beta;
  const auto multiply = [&](auto function) {
    function(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &alpha, const_cast<T*>(a.data), a.row_stride,
             a.column_stride, const_cast<T*>(b.data), b.row_stride, b.column_stride, &beta, c.data, c.row_stride,
             c.column_stride, nullptr, &runtime);
  };
  if constexpr (std::is_same_v<T, float>) {
    multiply(bli_sgemm_ex);
  } else {
    multiply(bli_dgemm_ex);
  }
}

template <class T>
void run_piece(const Problem<T>& problem) {
  switch (const Path path = choose_path(problem)) {
    case Path::scale:
      return scale(problem);
    case Path::own_loop:
      return small_gemm(problem.m, problem.n, problem.k, problem.alpha, problem.a, problem.b, problem.beta, problem.c);
    default:
      return call_blis(problem, path);
  }
}

// Cutting a product into pieces: over m and n, never k, and by its sizes alone

// The cost of a product in f32 multiply-adds.
template <class T>
int64_t work_of(int64_t m, int64_t n, int64_t k) {
  return m * n * std::max<int64_t>(k, 1) * static_cast<int64_t>(sizeof(T) / sizeof(float));
}

// Enough pieces for a few processors, few enough that packing A and B anew for each stays cheap.
int64_t wanted_pieces(int64_t work) {
  if (work < 2'000'000) return 1;
  if (work < 50'000'000) return 2;
  int64_t pieces = 4;
  while (pieces < 64 && work / pieces >= 100'000'000) pieces *= 2;
  return pieces;
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Grid {
  int64_t m = 1, n = 1;  // pieces
  Units unit{1, 1};
  int64_t pieces() const { return m * n; }
};

// Of all grids with that many pieces (rounded up to a power of two), the one that packs least: A once for each column
// of pieces, B once for each row of them.
template <class T>
Grid choose_grid(int64_t m, int64_t n, int64_t pieces) {
  if (pieces <= 1) return {};
  const Units unit = units<T>();
  const int64_t m_units = divide_up(m, unit.m), n_units = divide_up(n, unit.n);
  for (pieces = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(pieces))); pieces > 1; pieces /= 2) {
    Grid best;
    int64_t least = 0;
    for (int64_t rows = 1; rows <= pieces; rows *= 2) {
      const int64_t columns = pieces / rows;
      if (rows > m_units || columns > n_units) continue;
      const int64_t packed = columns * m + rows * n;
      if (least == 0 || packed <= least) {
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
  const int64_t i = bound(whole.m, grid.unit.m, row, grid.m), j = bound(whole.n, grid.unit.n, column, grid.n);
  Problem<T> part = whole;
  part.m = bound(whole.m, grid.unit.m, row + 1, grid.m) - i;
  part.n = bound(whole.n, grid.unit.n, column + 1, grid.n) - j;
  part.a = whole.a.offset_by(i * whole.a.row_stride);
  part.b = whole.b.offset_by(j * whole.b.column_stride);
  part.c = whole.c.offset_by(i * whole.c.row_stride + j * whole.c.column_stride);
  return part;
}

// How many pieces a thread takes at a time. Less than about 20 microseconds of work wakes nobody.
int64_t choose_grain(int64_t pieces, int64_t work) {
  if (work < 1'000'000) return pieces;
  return divide_up(pieces, std::clamp<int64_t>(work / 500'000 / 2 * 2, 2, 64));
}

}  // namespace

const BlisKernels& blis_kernels() {
  static const BlisKernels kernels = start_blis();
  return kernels;
}

int blis_architecture_number(std::string_view family) {
  for (int id = 0; id < static_cast<int>(BLIS_NUM_ARCHS); ++id) {
    if (family == bli_arch_string(static_cast<arch_t>(id))) return id;
  }
  return -1;
}

template <class T>
void gemm_batched(int64_t batch, const int64_t* a_offsets, const int64_t* b_offsets, const int64_t* c_offsets,
                  int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  if (batch <= 0 || m <= 0 || n <= 0) return;
  const Matrix<T> plain = with_plain_strides(m, n, c);
  const bool transpose = plain.column_stride > plain.row_stride;  // so that C lies by rows from here on
  const int64_t work = work_of<T>(m, n, k) * batch;
  const int64_t pieces_each = divide_up(wanted_pieces(work), batch);
  const Grid grid = transpose ? choose_grid<T>(n, m, pieces_each) : choose_grid<T>(m, n, pieces_each);
  const int64_t pieces = batch * grid.pieces();
  parallel_for(pieces, choose_grain(pieces, work), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t item = piece / grid.pieces();
      const Problem<T> whole{m,
                             n,
                             k,
                             alpha,
                             a_offsets == nullptr ? a : a.offset_by(a_offsets[item]),
                             b_offsets == nullptr ? b : b.offset_by(b_offsets[item]),
                             beta,
                             c.offset_by(c_offsets[item])};
      run_piece(cut(transpose ? whole.transposed() : whole, grid, piece % grid.pieces()));
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

namespace regard {

std::string cpu_report() {
  const cpu_backend::BlisKernels& blis = cpu_backend::blis_kernels();
  const int threads = num_threads();
  std::ostringstream report;
  report << "BLIS " << blis.version << ", kernels " << blis.family;
  if (blis.chosen_by_regard) report << " (chosen by Regard: this BLIS does not know the processor)";
  report << ", " << threads << (threads == 1 ? " thread" : " threads");
  if (blis.generic) {
    report << "\nwarning: BLIS runs its generic kernels, which are several times slower than the processor allows. "
              "The environment variable BLIS_ARCH_TYPE selects others by number: ";
#if defined(__x86_64__)
    report << cpu_backend::blis_architecture_number("skx") << " for skx (needs AVX-512), "
           << cpu_backend::blis_architecture_number("haswell") << " for haswell or "
           << cpu_backend::blis_architecture_number("zen3") << " for zen3 (need AVX2).";
#else
    report << "see arch_t in blis.h.";
#endif
  }
  return report.str();
}

}  // namespace regard
