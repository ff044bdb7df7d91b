// How much memory a training step takes beyond weights and inputs, each in a process of its own over three steps:
// `tensors`, the most bytes of tensors at once by the library's own count; `resident`, the same of the whole process as
// the system sees it. MiB.
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <regard/bench/compare/gpt.hpp>
#include <regard/bench/suite.hpp>
#include <regard/regard.hpp>
#include <stdexcept>

namespace {

using namespace regard;

constexpr int steps = 3;

int64_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  throw std::runtime_error("/proc/self/status has no " + field);
}

struct Peak {
  double tensors = -1, resident = -1;  // MiB
};

Peak measure(const std::function<std::function<void()>()>& make, int threads) {
  set_num_threads(threads);
  manual_seed(1);
  const std::function<void()> step = make();
  const int64_t bytes = memory_stats().bytes;
  reset_peak_memory();
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // VmHWM counts afresh
  const int64_t before = status_kib("VmRSS");
  for (int i = 0; i < steps; ++i) step();
  return {static_cast<double>(memory_stats().peak_bytes - bytes) / (1 << 20),
          static_cast<double>(status_kib("VmHWM") - before) / 1024};
}

// In a child: what earlier steps left in this process must not count. This process computes nothing itself and so has
// no threads that a child would miss.
Peak measure_apart(const std::function<std::function<void()>()>& make, int threads) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    Peak peak;
    try {
      peak = measure(make, threads);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "memory: %s\n", error.what());
    }
    const bool written = write(ends[1], &peak, sizeof peak) == sizeof peak;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  Peak peak;
  const bool there = read(ends[0], &peak, sizeof peak) == sizeof peak;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (!there || peak.tensors < 0) throw std::runtime_error("the step could not be measured");
  return peak;
}

void add(const std::string& name, const std::function<std::function<void()>()>& make) {
  auto run = [make](benchmark::State& state) {
    for (auto _ : state) {
      try {
        const Peak peak = measure_apart(make, static_cast<int>(state.range(0)));
        state.counters["tensors"] = peak.tensors;
        state.counters["resident"] = peak.resident;
      } catch (const std::exception& error) {
        state.SkipWithError(error.what());
      }
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

struct GptStep {
  bench::GptSizes sizes;
  bench::Gpt model;
  optim::AdamW optimizer;
  Tensor ids, targets;

  explicit GptStep(const bench::GptSizes& s)
      : sizes(s),
        model(s),
        optimizer(model.parameters()),
        ids(randint(0, s.vocabulary, {s.batch, s.length})),
        targets(randint(0, s.vocabulary, {s.batch, s.length})) {}
  void operator()() {
    const Tensor loss = model.loss(ids, targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
};

void add_gpt(const std::string& name, const bench::GptSizes& sizes) {
  add(name, [sizes] {
    auto step = std::make_shared<GptStep>(sizes);
    return [step] { (*step)(); };
  });
}

void add_attention(const std::string& name, int64_t length, bool causal) {
  add(name + "/1x" + std::to_string(length) + "x512", [=] {
    auto layer = std::make_shared<layers::MultiHeadAttention>(512, 8);
    layer->parameters();
    const Tensor x = randn({1, length, 512}).set_requires_grad(), gradient = randn(x.shape());
    return [=] {
      layer->zero_grad();
      x.zero_grad();
      (*layer)(x, {.causal = causal}).backward(gradient);
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  add_gpt("GPT 16,16,16,32,4,2", {.batch = 16, .length = 16, .vocabulary = 16, .width = 32, .heads = 4, .depth = 2});
  add_gpt("GPT 12,64,65,128,4,4", {.batch = 12, .length = 64, .vocabulary = 65, .width = 128, .heads = 4, .depth = 4});
  add_gpt("GPT 8,256,65,384,6,6", {.batch = 8, .length = 256, .vocabulary = 65, .width = 384, .heads = 6, .depth = 6});
  add_gpt("GPT-2 124M B4 T64", {.batch = 4,
                                .length = 64,
                                .vocabulary = 50257,
                                .width = 768,
                                .heads = 12,
                                .depth = 12,
                                .positions = 1024,
                                .tied = true});
  for (const int64_t length : {512, 1024, 2048, 4096}) add_attention("attention causal", length, true);
  add_attention("attention full", 2048, false);
  return bench::run(argc, argv);
}
