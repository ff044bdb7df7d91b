// The same seed gives the same bits: for any number of threads, and again and again.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/norm.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>

namespace determinism_test {

using namespace regard;
using cpu_backend::parallel_regions_started;

namespace {

struct ThreadCount {
  explicit ThreadCount(int count) : before(num_threads()) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(before); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
  int before;
};

struct Sizes {
  int64_t vocabulary, width, heads, blocks, batch, length;
};

struct Model : layers::Layer {
  layers::Embedding tokens;
  layers::SinusoidalPositionalEncoding positions;
  std::vector<layers::TransformerEncoderLayer> blocks;
  layers::LayerNorm norm;

  explicit Model(const Sizes& s) : tokens(s.vocabulary, s.width), positions(s.length, s.width), norm(s.width) {
    for (int64_t i = 0; i < s.blocks; ++i)
      blocks.emplace_back(s.width, s.heads, layers::TransformerLayerOptions{.dropout = 0.1});
  }
  void members(layers::Members& m) override {
    m("tokens", tokens);
    m("positions", positions);
    m("blocks", blocks);
    m("norm", norm);
  }
  Tensor operator()(const Tensor& ids) const {
    Tensor x = positions(tokens(ids));  // [N, T, width]
    for (const auto& block : blocks) x = block(x, {.mask = {}, .key_mask = {}, .causal = true});
    return linear(norm(x), tokens.weight);  // [N, T, vocabulary], with tied weights
  }
};

/// Losses, gradients and parameters of a few steps of training from seed 1.
std::vector<Tensor> train(const Sizes& s, int steps) {
  manual_seed(1);
  Model model(s);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  std::vector<Tensor> record;
  for (int i = 0; i < steps; ++i) {
    Tensor ids = randint(0, s.vocabulary, {s.batch, s.length});
    Tensor logits = model(ids).view({-1, s.vocabulary});
    Tensor loss = cross_entropy(logits, ids.flatten().flip(0), {.ignore_index = 0, .label_smoothing = 0.1});
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm(optimizer.parameters(), 1);
    record.push_back(loss.detach());
    for (const Tensor& parameter : model.parameters()) record.push_back(parameter.grad());
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.state_dict()) record.push_back(tensor.clone());
  return record;
}

void check_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(equal(a[i], b[i]));
  }
}

constexpr Sizes kSmall{.vocabulary = 13, .width = 24, .heads = 3, .blocks = 2, .batch = 3, .length = 7};
// Large enough that every kind of work is cut into several chunks: products, attention, rows, elements.
constexpr Sizes kLarge{.vocabulary = 301, .width = 160, .heads = 4, .blocks = 1, .batch = 9, .length = 65};

}  // namespace

TEST_CASE("a small transformer trains to the same bits on 1, 2, 3 and 4 threads") {
  std::vector<Tensor> one;
  {
    const ThreadCount scope(1);
    one = train(kSmall, 5);
    CHECK(std::isfinite(one[0].item<float>()));
    check_same_bits(one, train(kSmall, 5));
  }
  for (int threads : {2, 3, 4}) {
    const ThreadCount scope(threads);
    CAPTURE(threads);
    check_same_bits(one, train(kSmall, 5));
  }
}

TEST_CASE("a transformer whose work is split trains to the same bits on 1, 2, 3 and 4 threads") {
  std::vector<Tensor> one;
  {
    const ThreadCount scope(1);
    const int64_t before = parallel_regions_started();
    one = train(kLarge, 2);
    CHECK(parallel_regions_started() == before);
  }
  for (int threads : {2, 3, 4}) {
    const ThreadCount scope(threads);
    CAPTURE(threads);
    const int64_t before = parallel_regions_started();
    check_same_bits(one, train(kLarge, 2));
    CHECK(parallel_regions_started() - before > 50);  // or nothing was tested
  }
}

TEST_CASE("a linear layer large enough to be split has the same bits on every number of threads") {
  manual_seed(5);
  layers::Linear layer(700, 300);
  const Tensor x = randn({400, 700}).set_requires_grad();
  auto run = [&] {
    Tensor y = layer(x);
    Tensors grads = grad(sum(y * y), {x, layer.weight, layer.bias});
    grads.push_back(y.detach());
    return grads;
  };
  Tensors one;
  {
    const ThreadCount scope(1);
    one = run();
  }
  for (int threads : {2, 3, 4}) {
    const ThreadCount scope(threads);
    const int64_t before = parallel_regions_started();
    check_same_bits(one, run());
    CHECK(parallel_regions_started() > before);
  }
}

TEST_CASE("gradients that meet at one tensor are added in the same order every time") {
  manual_seed(3);
  const Tensor x = randn({1000}).set_requires_grad();
  auto run = [&] {
    Tensor y = x * 1.0;
    Tensor total = zeros({});
    for (int i = 0; i < 20; ++i) total = total + (sin(y * (i + 0.1)) * exp(y)).sum();
    return grad(total, {x})[0];
  };
  const Tensor first = run();
  for (int i = 0; i < 20; ++i) REQUIRE(equal(first, run()));
}

}  // namespace determinism_test
