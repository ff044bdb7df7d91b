#include <regard/autograd/backend/cpu/bf16_gemm.hpp>

#include <algorithm>
#include <array>
#include <regard/autograd/backend/cpu/scratch.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>
#include <utility>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define REGARD_BF16_GEMM 1
#include <hwy/base.h>

// GCC's avx512fintrin.h warns of itself.
HWY_DIAGNOSTICS(push)
#if HWY_COMPILER_GCC_ACTUAL
HWY_DIAGNOSTICS_OFF(disable : 4700, ignored "-Wuninitialized")
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wmaybe-uninitialized")
#endif
#include <immintrin.h>

// Highway 1.0.3 has no way to this instruction. What stands between PUSH and POP runs on processors that have it alone.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <regard/autograd/backend/cpu/bf16_gemm_pack-inl.hpp>
#include <regard/autograd/backend/cpu/bf16_gemm_tile-inl.hpp>

namespace regard::cpu_backend::bf16 {
namespace {

// Block sizes in elements, as in tiled_gemm.cpp, whose blocks take as many bytes.
constexpr int64_t longest_k_block = 768;
constexpr int64_t rows_in_block = 240;
constexpr int64_t columns_in_block = 1024;
constexpr int64_t panel_columns = 2 * lanes;
constexpr int64_t columns_to_finish = 4 * panel_columns;  // together, so that a row of them is worth a call

void multiply(const Product<float>& product) {
  const auto [m, n, k, alpha, a, b, beta, d, c, finish] = product;
  const int64_t k_block = round_up(even_part(k, longest_k_block), 2 * lanes);  // no pair is parted
  const int64_t m_block = even_part(m, rows_in_block);
  const int64_t n_block = std::min(n, columns_in_block);
  const bool keep_b = m > m_block;  // every panel is used again for the next block of rows
  const int64_t panel_size = k_block / 2 * panel_columns;
  auto* packed_b = scratch<uint32_t>(Scratch::b, (keep_b ? divide_up(n_block, panel_columns) : 1) * panel_size);
  auto* packed_a =
      scratch<uint32_t>(Scratch::a, std::max(m_block * words_of_row(k_block), whole_vectors(m_block) * (k_block / 2)));

  for (int64_t j0 = 0; j0 < n; j0 += n_block) {
    const int64_t j_end = std::min(n, j0 + n_block);
    for (int64_t p0 = 0; p0 < k; p0 += k_block) {
      const int64_t depth = std::min(k_block, k - p0), pairs = (depth + 1) / 2;
      const Result result =
          p0 == 0 ? Result{alpha, beta, d, c} : Result{alpha, 1, {c.data, c.row_stride, c.column_stride}, c};
      for (int64_t i0 = 0; i0 < m; i0 += m_block) {
        const int64_t height = std::min(m_block, m - i0);
        const Words left = pack_rows(height, depth, a.offset_by(i0 * a.row_stride + p0 * a.column_stride), packed_a);
        uint32_t* panel = packed_b;
        int64_t finished = j0;
        for (int64_t j = j0; j < j_end; j += panel_columns) {
          const int64_t columns = std::min(panel_columns, j_end - j);
          if (i0 == 0 || !keep_b) {
            pack_panel(depth, columns, whole_vectors(columns), b.offset_by(p0 * b.row_stride + j * b.column_stride),
                       panel);
          }
          multiply_panel(height, columns, pairs, left, panel, result, i0, j);
          if (keep_b) panel += panel_size;
          const int64_t done = j + columns;
          if (finish != nullptr && p0 + depth == k && (done - finished >= columns_to_finish || done == j_end)) {
            (*finish)(height, done - finished, c.data + i0 * c.row_stride + finished * c.column_stride, c.row_stride,
                      c.column_stride);
            finished = done;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace regard::cpu_backend::bf16
HWY_POP_ATTRIBUTES
HWY_DIAGNOSTICS(pop)
#endif

namespace regard::cpu_backend {

bool bf16_gemm_available() {
#ifdef REGARD_BF16_GEMM
  // AMD's processors (from Zen 4 on) compute with it at twice the rate of f32. Others that have it are left in f32
  // until somebody has measured the same there: some have it at the rate of f32, which would not pay for the packing.
  static const bool fast = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_is("amd");
  constexpr int64_t columns_of_avx512 = 32;
  return fast && tiled_gemm(float()).tile.columns == columns_of_avx512;
#else
  return false;
#endif
}

// Rounding and packing both operands is paid back where each of them is used often enough. Below these sizes f32 was
// as fast or faster in some layout; above them bf16 took at most 0.95 of its time, mostly 0.5 to 0.6.
bool suits_bf16_gemm(int64_t m, int64_t n, int64_t k) {
  return std::min(m, n) >= 16 && std::max(m, n) >= 32 && k >= 24;
}

void bf16_gemm(const Product<float>& product) {
#ifdef REGARD_BF16_GEMM
  bf16::multiply(product);
#else
  tiled_gemm(float()).multiply(product);
#endif
}

}  // namespace regard::cpu_backend
