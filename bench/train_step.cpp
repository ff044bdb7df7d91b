// Steps of training, forward, backward and AdamW, of GPT-like models and of attention alone: milliseconds a step on
// one and two threads.
#include <benchmark/benchmark.h>

#include <regard/regard.hpp>

namespace {

using namespace regard;

struct Gpt : layers::Layer {
  layers::Embedding tokens;
  layers::LearnedPositionalEncoding positions;
  std::vector<layers::TransformerEncoderLayer> blocks;
  layers::LayerNorm norm;
  layers::Linear head;

  Gpt(int64_t vocabulary, int64_t length, int64_t width, int64_t heads, int64_t depth)
      : tokens(vocabulary, width), positions(length, width), norm(width), head(width, vocabulary, false) {
    for (int64_t i = 0; i < depth; ++i) blocks.emplace_back(width, heads);
  }
  Tensor operator()(const Tensor& ids) const {  // [B, T] -> [B, T, vocabulary]
    Tensor x = positions(tokens(ids));
    for (const auto& block : blocks) x = block(x, {.causal = true});
    return head(norm(x));
  }
  void members(layers::Members& m) override {
    m("tokens", tokens);
    m("positions", positions);
    m("blocks", blocks);
    m("norm", norm);
    m("head", head);
  }
};

// batch, length, vocabulary, width, heads, depth, threads
void gpt_step(benchmark::State& state) {
  const int64_t batch = state.range(0), length = state.range(1), vocabulary = state.range(2);
  set_num_threads(static_cast<int>(state.range(6)));
  manual_seed(1);
  Gpt model(vocabulary, length, state.range(3), state.range(4), state.range(5));
  optim::AdamW optimizer(model.parameters());
  Tensor ids = randint(0, vocabulary, {batch, length}), targets = randint(0, vocabulary, {batch * length});
  for (auto _ : state) {
    Tensor loss = cross_entropy(model(ids).view({-1, vocabulary}), targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    benchmark::DoNotOptimize(loss.item<float>());
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(batch * length), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(gpt_step)
    ->ArgNames({"B", "T", "V", "E", "H", "L", "threads"})
    ->ArgsProduct({{16}, {16}, {16}, {32}, {4}, {2}, {1, 2}})
    ->ArgsProduct({{12}, {64}, {65}, {128}, {4}, {4}, {1, 2}})
    ->ArgsProduct({{8}, {256}, {65}, {384}, {6}, {6}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// batch, length, width, heads, causal, threads: forward and backward
void attention(benchmark::State& state) {
  set_num_threads(static_cast<int>(state.range(5)));
  manual_seed(1);
  layers::MultiHeadAttention layer(state.range(2), state.range(3));
  Tensor x = randn({state.range(0), state.range(1), state.range(2)}).set_requires_grad();
  const bool causal = state.range(4) != 0;
  for (auto _ : state) {
    layer.zero_grad();
    x.zero_grad();
    sum(layer(x, {.causal = causal})).backward();
    benchmark::DoNotOptimize(x.grad().raw_data());
  }
}
BENCHMARK(attention)
    ->ArgNames({"N", "L", "E", "H", "causal", "threads"})
    ->ArgsProduct({{2}, {3}, {6}, {2}, {0}, {1, 2}})
    ->ArgsProduct({{4}, {10}, {512}, {8}, {0}, {1, 2}})
    ->ArgsProduct({{8}, {128}, {512}, {8}, {0}, {1, 2}})
    ->ArgsProduct({{1}, {2048}, {512}, {8}, {0, 1}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// An op on tiny tensors, recorded, its result freed.
void tiny_add(benchmark::State& state) {
  Tensor a = randn({2, 3}).set_requires_grad(), b = randn({2, 3});
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(tiny_add);

}  // namespace

BENCHMARK_MAIN();
