// Matrix products beside plain BLIS on one thread, measured in turns so that a busy machine treats both alike: GFLOP/s
// by processor time, the best of several rounds, and the ratio to the best of BLIS's three ways. `gemm_ratios f64` for
// double; on two threads, the processor time of both, which says what sharing costs where cores are not free.
#include <blis.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/threads.hpp>
#include <string_view>
#include <vector>

namespace {

using regard::cpu_backend::Matrix;

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

enum BlisWay { chosen_by_blis, packing_b, for_large };

template <class T>
void blis(BlisWay way, int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  if (way == packing_b) bli_rntm_set_pack_b(TRUE, &runtime);
  if (way == for_large) bli_rntm_disable_l3_sup(&runtime);
  T one = 1, zero = 0;
  const auto call = [&](auto function) {
    function(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &one, const_cast<T*>(a.data), a.row_stride, a.column_stride,
             const_cast<T*>(b.data), b.row_stride, b.column_stride, &zero, c.data, c.row_stride, c.column_stride,
             nullptr, &runtime);
  };
  if constexpr (sizeof(T) == sizeof(float)) {
    call(bli_sgemm_ex);
  } else {
    call(bli_dgemm_ex);
  }
}

template <class T>
void compare(int64_t m, int64_t n, int64_t k) {
  const char* names[] = {"", "B transposed", "A transposed"};
  for (int layout = 0; layout < 3; ++layout) {
    std::vector<T> a_memory(static_cast<size_t>(m * k), T(0.5)), b_memory(static_cast<size_t>(k * n), T(0.25)),
        c_memory(static_cast<size_t>(m * n));
    const Matrix<const T> a =
        layout == 2 ? Matrix<const T>{a_memory.data(), 1, m} : Matrix<const T>{a_memory.data(), k, 1};
    const Matrix<const T> b =
        layout == 1 ? Matrix<const T>{b_memory.data(), 1, k} : Matrix<const T>{b_memory.data(), n, 1};
    const Matrix<T> c{c_memory.data(), n, 1};
    const auto run = [&](int way) {
      if (way < 3) return blis<T>(static_cast<BlisWay>(way), m, n, k, a, b, c);
      regard::set_num_threads(way - 2);
      regard::cpu_backend::gemm<T>(m, n, k, 1, a, b, 0, c);
    };
    const double work = 2e-9 * static_cast<double>(m * n * k);
    const int calls = 1 + static_cast<int>(1e-4 / (work / 100));
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    for (int round = 0; round < (work > 1 ? 5 : 15); ++round) {
      for (int way = 0; way < 5; ++way) {
        run(way);
        const double start = processor_seconds();
        for (int call = 0; call < calls; ++call) run(way);
        best[way] = std::min(best[way], (processor_seconds() - start) / calls);
      }
    }
    const double best_blis = std::min({best[0], best[1], best[2]});
    std::printf("| %ld x %ld x %ld | %s | %.1f / %.1f / %.1f | %.1f | %.2f | %.2f |\n", static_cast<long>(m),
                static_cast<long>(n), static_cast<long>(k), names[layout], work / best[0], work / best[1],
                work / best[2], work / best[3], best_blis / best[3], best[4] / best[3]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::puts(regard::cpu_report().c_str());
  std::puts(
      "\n| m x n x k | layout | BLIS: default / B packed / large path | Regard | ratio to the best | processor time, "
      "two threads / one |\n|---|---|---|---|---|---|");
  const int64_t shapes[][3] = {
      {6, 6, 6},          {10, 10, 64},      {32, 32, 32},      {64, 64, 64},     {65, 65, 65},     {128, 128, 128},
      {256, 256, 256},    {512, 512, 512},   {1, 768, 768},     {4, 768, 768},    {12, 768, 768},   {768, 1, 768},
      {768, 8, 768},      {768, 32, 32},     {768, 65, 128},    {768, 128, 128},  {768, 512, 128},  {768, 128, 512},
      {384, 384, 2048},   {2048, 1536, 384}, {2048, 384, 1536}, {256, 3072, 768}, {256, 768, 3072}, {1024, 3072, 768},
      {1024, 1024, 1024}, {2048, 2048, 2048}};
  for (const auto& [m, n, k] : shapes) {
    if (argc > 1 && std::string_view(argv[1]) == "f64") {
      compare<double>(m, n, k);
    } else {
      compare<float>(m, n, k);
    }
  }
}
