// What the suites share: a benchmark by name on one and two threads, and what it counts.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include <regard/autograd/random.hpp>
#include <regard/autograd/shape.hpp>
#include <regard/autograd/threads.hpp>

namespace bench {

/// What one call of a benchmark's body does; 0: not shown.
struct Amounts {
  double bytes = 0;  ///< read and written, each tensor once
  double flops = 0;  ///< of matrix products, two a multiply-add
};

inline void show(benchmark::State& state, const Amounts& amounts) {
  using benchmark::Counter;
  if (amounts.bytes > 0) state.counters["GB"] = Counter(1e-9 * amounts.bytes, Counter::kIsIterationInvariantRate);
  if (amounts.flops > 0) state.counters["GFLOP"] = Counter(1e-9 * amounts.flops, Counter::kIsIterationInvariantRate);
}

/// Registers `name/threads:1` and `name/threads:2`. `make` prepares what is computed on and returns the body, which is
/// called again and again; the seed is the same for all.
inline void add(const std::string& name, const Amounts& amounts, std::function<std::function<void()>()> make) {
  auto run = [amounts, make = std::move(make)](benchmark::State& state) {
    regard::set_num_threads(static_cast<int>(state.range(0)));
    regard::manual_seed(1);
    const std::function<void()> body = make();
    body();  // allocations of the first time
    for (auto _ : state) body();
    show(state, amounts);
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

/// The rest of main().
inline int run(int argc, char** argv) {
  std::puts(regard::cpu_report().c_str());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

inline std::string sizes(std::initializer_list<int64_t> list) {
  std::string text;
  for (int64_t size : list) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

}  // namespace bench
