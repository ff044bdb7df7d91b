// Matrix products and training steps with products in bf16 beside the same in f32, measured in turns on one thread so
// that a busy machine treats both alike: by processor time, the best of several rounds, and what share of f32's time
// bf16 takes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/regard.hpp>
#include <vector>

namespace {

using namespace regard;
using cpu_backend::Matrix;

double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Times {
  double f32 = 1e9, bf16 = 1e9;
};

template <class Work>
Times in_turns(int rounds, int calls, Work work) {
  Times best;
  for (int round = 0; round < 2 * rounds; ++round) {
    const bool bf16 = round % 2 == 1;
    const MatmulPrecisionScope scope(bf16 ? MatmulPrecision::bf16 : MatmulPrecision::f32);
    work();
    const double start = processor_seconds();
    for (int call = 0; call < calls; ++call) work();
    double& time = bf16 ? best.bf16 : best.f32;
    time = std::min(time, (processor_seconds() - start) / calls);
  }
  return best;
}

void product(int64_t m, int64_t n, int64_t k) {
  const char* names[] = {"", "B transposed", "A transposed"};
  for (int layout = 0; layout < 3; ++layout) {
    const std::vector<float> a_memory(static_cast<size_t>(m * k), 0.5F), b_memory(static_cast<size_t>(k * n), 0.25F);
    std::vector<float> c(static_cast<size_t>(m * n));
    const Matrix<const float> a{a_memory.data(), layout == 2 ? 1 : k, layout == 2 ? m : 1};
    const Matrix<const float> b{b_memory.data(), layout == 1 ? 1 : n, layout == 1 ? k : 1};
    const double work = 2e-9 * static_cast<double>(m * n * k);
    const Times times = in_turns(work > 1 ? 5 : 15, 1 + static_cast<int>(1e-4 / (work / 100)), [&] {
      cpu_backend::gemm<float>(m, n, k, 1, a, b, 0, {c.data(), n, 1});
    });
    std::printf("| %ld x %ld x %ld | %s | %.0f | %.0f | %.2f |\n", static_cast<long>(m), static_cast<long>(n),
                static_cast<long>(k), names[layout], work / times.f32, work / times.bf16, times.bf16 / times.f32);
    std::fflush(stdout);
  }
}

// Forward, backward and AdamW.
void step(int64_t batch, int64_t length, int64_t vocabulary, int64_t width, int64_t heads, int64_t depth) {
  manual_seed(1);
  layers::GPTOptions options;
  options.vocabulary = vocabulary;
  options.context = length;
  options.width = width;
  options.heads = heads;
  options.layers = depth;
  layers::GPT model(options);
  optim::AdamW optimizer(model.parameters());
  const Tensor ids = randint(0, vocabulary, {batch, length}), targets = randint(0, vocabulary, {batch * length});
  const int calls = width < 64 ? 50 : width < 256 ? 5 : 1;
  const Times times = in_turns(5, calls, [&] {
    Tensor loss = cross_entropy(model(ids).view({-1, vocabulary}), targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });
  std::printf("| %ld, %ld, %ld, %ld, %ld, %ld | %.2f | %.2f | %.2f |\n", static_cast<long>(batch),
              static_cast<long>(length), static_cast<long>(vocabulary), static_cast<long>(width),
              static_cast<long>(heads), static_cast<long>(depth), 1e3 * times.f32, 1e3 * times.bf16,
              times.bf16 / times.f32);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::puts(cpu_report().c_str());
  if (!bf16_matmul_available()) std::puts("no fast products in bf16 here: both columns are f32");
  set_num_threads(1);
  std::puts("\n| m x n x k | layout | f32, GFLOP/s | bf16, GFLOP/s | time of bf16 / f32 |\n|---|---|---|---|---|");
  const int64_t shapes[][3] = {
      {4, 768, 768},    {16, 16, 16},     {32, 32, 32},      {64, 64, 64},     {256, 32, 32},    {768, 65, 128},
      {768, 128, 128},  {768, 512, 128},  {768, 128, 512},   {128, 128, 768},  {40, 512, 512},   {1024, 512, 512},
      {384, 384, 2048}, {2048, 384, 384}, {2048, 1536, 384}, {256, 768, 3072}, {256, 3072, 768}, {2048, 2048, 2048}};
  for (const auto& [m, n, k] : shapes) product(m, n, k);
  std::puts(
      "\n| GPT step: batch, length, vocabulary, width, heads, layers | f32, ms | bf16, ms | time of bf16 / f32 "
      "|\n|---|---|---|---|");
  step(16, 16, 16, 32, 4, 2);
  step(12, 64, 65, 128, 4, 4);
  step(8, 256, 65, 384, 6, 6);
}
