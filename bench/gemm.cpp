// Matrix products: Regard's gemm on one and two threads, and BLIS called directly on one, in GFLOP/s.
#include <benchmark/benchmark.h>
#include <blis.h>

#include <cstdint>
#include <cstdio>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/threads.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace {

using regard::cpu_backend::Matrix;

// A is [m, k], B [k, n] and C [m, n], by rows; "transposed" means stored the other way round, as a weight [out, in]
// is in x W^T and x is in the weight's gradient.
enum Layout { plain, b_transposed, a_transposed };

template <class T>
struct Operands {
  Operands(int64_t m, int64_t n, int64_t k, Layout layout)
      : a_memory(static_cast<size_t>(m * k)),
        b_memory(static_cast<size_t>(k * n)),
        c_memory(static_cast<size_t>(m * n)),
        a{a_memory.data(), k, 1},
        b{b_memory.data(), n, 1},
        c{c_memory.data(), n, 1} {
    for (size_t i = 0; i < a_memory.size(); ++i) a_memory[i] = static_cast<T>(static_cast<int>(i % 7) - 3);
    for (size_t i = 0; i < b_memory.size(); ++i) b_memory[i] = static_cast<T>(static_cast<int>(i % 5) - 2);
    if (layout == a_transposed) a = {a_memory.data(), 1, m};
    if (layout == b_transposed) b = {b_memory.data(), 1, k};
  }
  std::vector<T> a_memory, b_memory, c_memory;
  Matrix<const T> a, b;
  Matrix<T> c;
};

void count(benchmark::State& state, int64_t multiply_adds) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(multiply_adds), benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void regard_gemm(benchmark::State& state, int64_t m, int64_t n, int64_t k, Layout layout, int threads) {
  regard::set_num_threads(threads);
  Operands<T> x(m, n, k, layout);
  for (auto _ : state) {
    regard::cpu_backend::gemm<T>(m, n, k, 1, x.a, x.b, 0, x.c);
    benchmark::ClobberMemory();
  }
  count(state, m * n * k);
}

template <class T>
void blis_gemm(benchmark::State& state, int64_t m, int64_t n, int64_t k, Layout layout) {
  Operands<T> x(m, n, k, layout);
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  T one = 1, zero = 0;
  for (auto _ : state) {
    const auto call = [&](auto function) {
      function(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, m, n, k, &one, const_cast<T*>(x.a.data), x.a.row_stride,
               x.a.column_stride, const_cast<T*>(x.b.data), x.b.row_stride, x.b.column_stride, &zero, x.c.data,
               x.c.row_stride, x.c.column_stride, nullptr, &runtime);
    };
    if constexpr (sizeof(T) == sizeof(float)) {
      call(bli_sgemm_ex);
    } else {
      call(bli_dgemm_ex);
    }
    benchmark::ClobberMemory();
  }
  count(state, m * n * k);
}

// Attention's score products: `batch` of them, [length, head] x [head, length].
void batched(benchmark::State& state, int64_t batch, int64_t length, int64_t head, int threads) {
  regard::set_num_threads(threads);
  const Operands<float> x(batch * length, length * batch, head, b_transposed);
  std::vector<float> c(static_cast<size_t>(batch * length * length));
  std::vector<int64_t> a_offsets, c_offsets;
  for (int64_t i = 0; i < batch; ++i) {
    a_offsets.push_back(i * length * head);
    c_offsets.push_back(i * length * length);
  }
  for (auto _ : state) {
    regard::cpu_backend::gemm_batched<float>(batch, a_offsets.data(), a_offsets.data(), c_offsets.data(), length,
                                             length, head, 1, x.a, x.b, 0, {c.data(), length, 1});
    benchmark::ClobberMemory();
  }
  count(state, batch * length * length * head);
}

template <class T>
void add_products(const char* type) {
  const int64_t shapes[][3] = {{6, 6, 6},        {10, 10, 64},     {16, 16, 16},     {32, 32, 32},
                               {64, 64, 64},     {128, 128, 128},  {256, 256, 256},  {1, 768, 768},
                               {768, 32, 32},    {768, 128, 128},  {768, 512, 128},  {384, 384, 2048},
                               {256, 3072, 768}, {256, 768, 3072}, {1024, 3072, 768}};
  const char* names[] = {"", " B transposed", " A transposed"};
  for (const auto& [m, n, k] : shapes) {
    for (const Layout layout : {plain, b_transposed, a_transposed}) {
      const std::string name = std::string(type) + " " + std::to_string(m) + " x " + std::to_string(n) + " x " +
                               std::to_string(k) + names[layout];
      benchmark::RegisterBenchmark((name + "/BLIS").c_str(), blis_gemm<T>, m, n, k, layout);
      benchmark::RegisterBenchmark((name + "/one thread").c_str(), regard_gemm<T>, m, n, k, layout, 1);
      benchmark::RegisterBenchmark((name + "/two threads").c_str(), regard_gemm<T>, m, n, k, layout, 2)->UseRealTime();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::puts(regard::cpu_report().c_str());
  add_products<float>("f32");
  add_products<double>("f64");
  for (const auto& [batch, length, head] :
       {std::tuple<int64_t, int64_t, int64_t>{64, 16, 8}, {48, 64, 32}, {64, 128, 64}}) {
    const std::string name = "scores " + std::to_string(batch) + " of " + std::to_string(length) + " x " +
                             std::to_string(length) + " x " + std::to_string(head);
    for (const int threads : {1, 2}) {
      benchmark::RegisterBenchmark((name + (threads == 1 ? "/one thread" : "/two threads")).c_str(), batched, batch,
                                   length, head, threads)
          ->UseRealTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
