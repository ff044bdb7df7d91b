// The toy task's training step (batch 16, length 16, vocabulary 16, width 32, 4 heads, 2 blocks) by the engine, and
// written by hand without it: what recording, layers and optimizer cost over the arithmetic.
#include <benchmark/benchmark.h>

#include <regard/regard.hpp>

#include <regard/bench/compare/plain_step.hpp>

namespace {

constexpr bench::GptSizes sizes{.batch = 16, .length = 16, .vocabulary = 16, .width = 32, .heads = 4, .depth = 2};

struct Toy {
  Toy() {
    regard::manual_seed(1);
    model.emplace(sizes);
    ids = regard::randint(0, sizes.vocabulary, {sizes.batch, sizes.length});
    targets = regard::randint(0, sizes.vocabulary, {sizes.batch, sizes.length});
  }
  std::optional<bench::Gpt> model;
  regard::Tensor ids, targets;
};

void engine(benchmark::State& state) {
  regard::set_num_threads(static_cast<int>(state.range(0)));
  Toy toy;
  regard::optim::AdamW optimizer(toy.model->parameters());
  for (auto _ : state) {
    const regard::Tensor loss = toy.model->loss(toy.ids, toy.targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    benchmark::DoNotOptimize(loss.item<float>());
  }
}
BENCHMARK(engine)->ArgName("threads")->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();

void by_hand(benchmark::State& state) {
  regard::set_num_threads(static_cast<int>(state.range(0)));
  Toy toy;
  bench::PlainGpt plain(sizes, toy.model->state_dict());
  for (auto _ : state) benchmark::DoNotOptimize(plain.step(toy.ids.data<int64_t>(), toy.targets.data<int64_t>()));
}
BENCHMARK(by_hand)->ArgName("threads")->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
