// The only file that includes blis.h.
#include <regard/autograd/backend/cpu/blis_gemm.hpp>

#include <blis.h>

#include <cstdlib>
#include <memory>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/threads.hpp>
#include <sstream>
#include <string_view>
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

// BLIS refuses zero strides and rows or columns that overlap (an expanded or windowed operand).
template <class T>
bool blis_accepts(int64_t rows, int64_t columns, const Matrix<T>& matrix) {
  const int64_t row = matrix.row_stride, column = matrix.column_stride;
  return row > 0 && column > 0 && (row >= column * columns || column >= row * rows);
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
void call_blis(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
  std::unique_ptr<T[]> a_memory, b_memory;
  a = operand(m, k, a, a_memory);
  b = operand(k, n, b, b_memory);
  c = with_plain_strides(m, n, c);
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  bli_rntm_disable_l3_sup(&runtime);  // whose bits depend on where a product is cut
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

}  // namespace

void blis_gemm(int64_t m, int64_t n, int64_t k, float alpha, Matrix<const float> a, Matrix<const float> b, float beta,
               Matrix<float> c) {
  call_blis(m, n, k, alpha, a, b, beta, c);
}
void blis_gemm(int64_t m, int64_t n, int64_t k, double alpha, Matrix<const double> a, Matrix<const double> b,
               double beta, Matrix<double> c) {
  call_blis(m, n, k, alpha, a, b, beta, c);
}

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
