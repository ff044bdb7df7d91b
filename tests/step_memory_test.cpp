// What a step keeps in memory: values computed again in backward, gradients written over what is spent, and the peak of
// whole steps, so that it cannot creep up.
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <regard/autograd/checkpoint.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/bench/compare/gpt.hpp>
#include <regard/layers/attention.hpp>
#include <regard/optim/adam.hpp>

namespace step_memory_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

constexpr int64_t kMiB = 1024 * 1024;

int64_t live_bytes() { return memory_stats().bytes; }
/// The most bytes alive during `work`, beyond those before.
int64_t peak_of(const std::function<void()>& work) {
  const int64_t before = live_bytes();
  reset_peak_memory();
  work();
  return memory_stats().peak_bytes - before;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.to_vector<double>() == b.to_vector<double>();
}
Tensor leaf(const Shape& shape) { return randn(shape).set_requires_grad(); }
/// A tensor computed by an op that keeps nothing: what ops after it save is theirs alone.
Tensor computed(const Tensor& x) { return x + 0.0; }

constexpr int64_t rows = 512, width = 512;  // 1 MiB of f32
static_assert(rows * width * 4 >= least_recomputed_bytes);

struct Cheap {
  const char* name;
  std::function<Tensor(const Tensor&)> op;
  bool again = true;  // whether its output is computed again
};
std::vector<Cheap> cheap_ops() {
  const Tensor weight = randn({width}), bias = randn({width});
  return {
      {"gelu", [](const Tensor& x) { return gelu(x); }},
      {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluApproximation::tanh); }},
      {"silu", [](const Tensor& x) { return silu(x); }},
      {"layer_norm", [=](const Tensor& x) { return layer_norm(x, {width}, weight, bias); }},
      {"layer_norm without weight", [](const Tensor& x) { return layer_norm(x, {width}); }},
      {"rms_norm", [=](const Tensor& x) { return rms_norm(x, {width}, weight); }},
      {"gelu and dropout", [](const Tensor& x) { return dropout(gelu(x), 0.3); }},
      {"silu times another",
       [=](const Tensor& x) {
         return silu(x) * narrow(cat({x, x}, 1), 1, 3, width);
       },
       false},
  };
}

}  // namespace

TEST_CASE("a cheap op's output is not kept beside its input, and the gradients are the same bits") {
  for (const Cheap& cheap : cheap_ops()) {
    INFO(cheap.name);
    manual_seed(5);
    const Tensor x = leaf({rows, width}), w = leaf({16, width}), g = randn({rows, 16});
    const int64_t before = live_bytes();
    Tensor y = linear(cheap.op(x), w);
    if (cheap.again) CHECK(live_bytes() - before < kMiB / 2);
    y.backward(g);

    // The same with the output in a leaf of its own.
    manual_seed(5);
    const Tensor x2 = leaf({rows, width}), w2 = leaf({16, width}), g2 = randn({rows, 16});
    const Tensor h = cheap.op(x2), held = h.detach().clone().set_requires_grad();
    const Tensor y2 = linear(held, w2);
    y2.backward(g2);
    h.backward(held.grad());
    CHECK(same(y, y2));
    CHECK(same(w.grad(), w2.grad()));
    CHECK(same(x.grad(), x2.grad()));
  }
}

TEST_CASE("a recomputed output serves several ops, and backward twice") {
  manual_seed(1);
  const Tensor x = leaf({rows, width}), a = leaf({8, width}), b = leaf({8, width}), c = leaf({8, width});
  auto forward = [&] {
    const Tensor h = layer_norm(x, {width});
    return (linear(h, a) * linear(h, b)).sum() + linear(h, c).sum();
  };
  const Tensor once = forward();
  const Tensors first = grad(once, {x, a, b, c}, {.retain_graph = true});
  const Tensors second = grad(once, {x, a, b, c});
  for (size_t i = 0; i < 4; ++i) CHECK(same(first[i], second[i]));
  const int64_t before = live_bytes();
  forward().backward();
  CHECK(same(x.grad(), first[0]));
  CHECK(same(b.grad(), first[2]));
  CHECK(live_bytes() - before == (rows * width + 3 * 8 * width) * 4);  // the gradients alone
}

TEST_CASE("second derivatives go through a recomputed output") {
  manual_seed(2);
  const Tensor x = leaf({rows, width}), w = leaf({4, width}), v = randn({4, width});
  auto second = [&](const Tensor& h) {
    const Tensor loss = square(linear(h, w)).sum();
    const Tensor dw = grad(loss, {w}, {.create_graph = true})[0];
    return grad((dw * v).sum(), {x, w});
  };
  const Tensors through = second(gelu(x));
  // 2 (h w^T)^T h in w, by hand: its product with v depends on x through h in two places.
  const Tensor h = gelu(x) + 0.0;
  const Tensor by_hand = (2 * matmul(transpose(linear(h, w), 0, 1), h) * v).sum();
  const Tensors expected = grad(by_hand, {x, w});
  for (size_t i = 0; i < 2; ++i)
    CHECK((through[i] - expected[i]).abs().max().item<double>() < 1e-2 * expected[i].abs().max().item<double>());
}

TEST_CASE("what was computed by a node that is released still serves another backward") {
  manual_seed(3);
  const Tensor x = leaf({rows, width}), a = leaf({8, width}), b = leaf({8, width});
  const Tensor h = gelu(x);
  const Tensor expected_b = grad(linear(gelu(x), b).sum(), {b})[0];
  const Tensor one = linear(h, a).sum(), other = linear(h, b).sum();
  one.backward();  // gelu's node is used up
  CHECK(same(grad(other, {b})[0], expected_b));
}

TEST_CASE("chains of cheap ops are kept at intervals, not computed over and over") {
  manual_seed(6);
  const Tensor x = leaf({rows, width});
  Tensor y = x;
  const int64_t before = live_bytes();
  for (int i = 0; i < 40; ++i) y = y * y;  // computed back to the leaf each time, this would take 2^40 products
  y.sum().backward();
  CHECK(x.grad().defined());
  y = x;
  for (int i = 0; i < 12; ++i) y = gelu(y);
  CHECK(live_bytes() - before < 2 * kMiB + 12 * kMiB / 2);
  y.sum().backward();
}

TEST_CASE("an op on what a released node computed keeps it as it is") {
  manual_seed(7);
  const Tensor x = leaf({rows, width}), w = leaf({8, width});
  const Tensor h = gelu(x);
  h.sum().backward();
  CHECK(same(grad(linear(h, w).sum(), {w})[0], grad(linear(h.detach(), w).sum(), {w})[0]));
}

TEST_CASE("a mask's gradient alone, where query's op is used up") {
  manual_seed(8);
  const Tensor x = leaf({1, 4, 512, 64}), k = randn({1, 4, 32, 64}), v = randn({1, 4, 32, 64}), m = leaf({512, 32});
  const Tensor q = layer_norm(x, {64});
  const Tensor out = scaled_dot_product_attention(q, k, v, {.mask = m});
  q.sum().backward();
  const Tensor expected = grad(scaled_dot_product_attention(q.detach(), k, v, {.mask = m}).sum(), {m})[0];
  CHECK(same(grad(out.sum(), {m})[0], expected));
}

TEST_CASE("changes in place around a recomputed output") {
  manual_seed(4);
  const Tensor source = leaf({rows, width}), w = leaf({8, width});
  SECTION("of its input: an error") {
    const Tensor x = computed(source), y = linear(gelu(x), w);
    x.detach().mul_(2);
    CHECK_THROWS_WITH(y.sum().backward(), Contains("gelu") && Contains("changed in place"));
  }
  SECTION("of the output after it was used: the value that was used counts") {
    const Tensor h = gelu(source), y = linear(h, w).sum();
    const Tensor expected = grad(linear(gelu(source), w).sum(), {w})[0];
    h.detach().zero_();
    CHECK(same(grad(y, {w})[0], expected));
  }
  SECTION("of the output before it is used: the changed value counts") {
    const Tensor h = gelu(source);
    h.detach().fill_(1);
    const Tensor dw = grad(linear(h, w).sum(), {w})[0];
    CHECK(same(dw, full({8, width}, static_cast<float>(rows))));
  }
}

TEST_CASE("checkpoint() and custom_op around recomputed outputs") {
  manual_seed(6);
  const Tensor x = leaf({rows, width}), w = leaf({8, width});
  auto block = [&](const Tensors& in) { return linear(layer_norm(gelu(in[0]), {width}), w); };
  const Tensors plain = grad(block({x}).sum(), {x, w});
  const Tensor again = checkpoint(std::function<Tensor(const Tensors&)>(block), {x}, {w});
  const Tensors kept = grad(again.sum(), {x, w});
  for (size_t i = 0; i < 2; ++i) CHECK(same(plain[i], kept[i]));

  const Tensor h = gelu(x);
  const Tensor y = custom_op(
      "twice", {h}, [](const Tensors& in) { return in[0] * 2; },
      [](const Tensors& in, const Tensor& g) { return Tensors{g * 2 + in[0] * 0}; });
  CHECK(same(grad(y.sum(), {x})[0], grad((gelu(x) * 2).sum(), {x})[0]));
}

TEST_CASE("an activation's gradient is written over the incoming one, and over nobody's") {
  manual_seed(7);
  const Tensor x = leaf({rows, width}), g = randn({rows, width});
  const Tensor kept = g.clone();
  Tensor y = gelu(x);
  y.backward(g);
  CHECK(same(g, kept));
  const Tensor alone = x.grad();
  x.zero_grad();

  // The gradient that a hook keeps, and that of an intermediate tensor, stay what they are.
  Tensor seen;
  y = gelu(x);
  y.register_hook([&](const Tensor& dy) {
    seen = dy;
    return Tensor();
  });
  (y * 1.0).backward(g);
  CHECK(same(seen, kept));
  CHECK(same(x.grad(), alone));
  y = gelu(x);
  const Tensor z = y * 1.0;
  const Tensors both = grad(z, {y, x}, {.grad_outputs = {g}});
  CHECK(same(both[0], kept));
  CHECK(same(both[1], alone));

  // Nobody else's: one buffer less.
  x.zero_grad();
  y = gelu(computed(x));
  CHECK(peak_of([&] { (y * 1.0).backward(g); }) <= 2 * kMiB + 4096);  // the product, and the gradient all the way
}

TEST_CASE("the gradient of logits is written over the logits where nobody holds them") {
  manual_seed(8);
  constexpr int64_t classes = 2048;
  const Tensor x = leaf({rows, 8}), w = leaf({classes, 8}), targets = randint(0, classes, {rows});
  const int64_t size = rows * classes * 4;
  Tensor loss = cross_entropy(linear(x, w), targets, {.label_smoothing = 0.1});
  CHECK(peak_of([&] { loss.backward(); }) < size / 2);
  const Tensor dw = w.grad(), dx = x.grad();

  const Tensor logits = linear(x, w), values = logits.detach().clone();
  loss = cross_entropy(logits, targets, {.label_smoothing = 0.1});
  const Tensors held = grad(loss, {w, x}, {.retain_graph = true});
  CHECK(same(logits, values));
  CHECK(same(held[0], dw));
  CHECK(same(held[1], dx));
  const Tensors again = grad(loss, {w, x});
  CHECK(same(again[0], dw));
  CHECK(same(logits, values));
}

TEST_CASE("attention's gradients are written over query, key and value where nobody holds them") {
  manual_seed(9);
  struct Sizes {
    int64_t batch, heads, key_heads, length, keys;
  };
  for (const Sizes s :
       {Sizes{2, 8, 8, 130, 130}, {1, 2, 1, 300, 300}, {1, 2, 2, 70, 33}, {3, 4, 2, 1, 40}, {1, 1, 1, 600, 600}})
    for (const bool causal : {false, true})
      for (const bool masked : {false, true}) {
        INFO(s.heads << " heads, " << s.length << " x " << s.keys << (causal ? ", causal" : "")
                     << (masked ? ", masked" : ""));
        constexpr int64_t head = 24;
        const Tensor q = leaf({s.batch, s.length, s.heads * head}), k = leaf({s.batch, s.keys, s.key_heads * head}),
                     v = leaf({s.batch, s.keys, s.key_heads * head});
        const Tensor g = randn({s.batch, s.heads, s.length, head});
        const Tensor key_mask = masked ? bernoulli(full({s.batch, s.keys}, 0.7F)).to(DType::boolean) : Tensor();
        auto heads_of = [&](const Tensor& x, int64_t heads) {
          return computed(x).view({x.size(0), x.size(1), heads, head}).transpose(1, 2);
        };
        auto run = [&](const Tensor& qh, const Tensor& kh, const Tensor& vh) {
          return scaled_dot_product_attention(qh, kh, vh, {.key_mask = key_mask, .causal = causal});
        };
        Tensor y = run(heads_of(q, s.heads), heads_of(k, s.key_heads), heads_of(v, s.key_heads));
        const Tensors over = grad(y, {q, k, v}, {.grad_outputs = {g}});
        const Tensor qh = heads_of(q, s.heads), kh = heads_of(k, s.key_heads), vh = heads_of(v, s.key_heads);
        const Tensor kept = kh.detach().clone();
        y = run(qh, kh, vh);
        const Tensors apart = grad(y, {q, k, v}, {.grad_outputs = {g}});
        for (size_t i = 0; i < 3; ++i) CHECK(same(over[i], apart[i]));
        CHECK(same(kh, kept));
      }
}

TEST_CASE("a gradient that is written over a computed query has no past") {
  const Tensor q = leaf({1, 2, 8, 4}), k = leaf({1, 2, 8, 4}), v = leaf({1, 2, 8, 4});
  scaled_dot_product_attention(q + 1.0, k * 2.0, v + 0.5).sum().backward();
  for (const Tensor& x : {q, k, v}) {
    CHECK_FALSE(x.grad().requires_grad());
    CHECK_FALSE(x.grad().node());
    CHECK_NOTHROW(x.grad().mul_(0.5));
  }
}

TEST_CASE("a tied table's gradient is in memory once, and for no longer than it must") {
  manual_seed(10);
  constexpr int64_t words = 8192, size = words * 128 * 4;  // 4 MiB
  const Tensor table = leaf({words, 128}), ids = randint(0, 100, {16}), targets = randint(0, words, {16});
  auto loss = [&] {
    const Tensor x = embedding(ids, table, 3);
    return cross_entropy(linear(x, table), targets);
  };
  const Tensor expected = [&] {
    const Tensor head = table.detach().clone().set_requires_grad(), x = embedding(ids, table, 3);
    Tensors parts = grad(cross_entropy(linear(x, head), targets), {head, table});
    return parts[0] + parts[1];
  }();
  // A hook on what lies between the two uses: the table's gradient is not there yet.
  const Tensor x = embedding(ids, table, 3);
  int64_t between = -1;
  const int64_t before = live_bytes();
  x.register_hook([&](const Tensor&) {
    between = live_bytes() - before;
    return Tensor();
  });
  cross_entropy(linear(x, table), targets).backward();
  CHECK(same(table.grad(), expected));
  CHECK(between < size / 2);
  table.zero_grad();
  Tensor once = loss();
  CHECK(peak_of([&] { once.backward(); }) < size + size / 2);
  CHECK(same(table.grad(), expected));

  // Twice by one op, and carried over steps: nothing to wait for, or the next use at once.
  const Tensor square_table = leaf({1024, 1024});
  matmul(square_table, square_table).sum().backward();
  const Tensor column = matmul(square_table.detach(), ones({1024, 1})),
               row = matmul(ones({1, 1024}), square_table.detach());
  const Tensor by_hand = transpose(column, 0, 1) + transpose(row, 0, 1);
  CHECK((square_table.grad() - by_hand).abs().max().item<double>() < 0.05);
}

TEST_CASE("the peak of a GPT's training step") {
  // Three steps, as ./run bench --peers measures memory: weights are there before, moments come with the first step.
  const bench::GptSizes s{.batch = 8, .length = 128, .vocabulary = 65, .width = 256, .heads = 4, .depth = 3};
  manual_seed(1);
  bench::Gpt model(s);
  optim::AdamW optimizer(model.parameters(), 1e-3);
  const Tensor ids = randint(0, s.vocabulary, {s.batch, s.length}),
               targets = randint(0, s.vocabulary, {s.batch, s.length});
  int64_t parameters = 0;
  for (const Tensor& parameter : model.parameters()) parameters += parameter.numel() * 4;
  const int64_t peak = peak_of([&] {
    for (int i = 0; i < 3; ++i) {
      const Tensor loss = model.loss(ids, targets);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
  });
  // Moments and gradients; of each block input, query, key, value, context, sum and the inner layer's input; and what
  // one block's backward works in.
  const int64_t activation = s.batch * s.length * s.width * 4;
  CHECK(peak < 3 * parameters + (s.depth * 10 + 15) * activation);
}

TEST_CASE("the peak of attention, forward and backward") {
  manual_seed(1);
  constexpr int64_t length = 1024, wide = 256;
  layers::MultiHeadAttention layer(wide, 8);
  const Tensor x = leaf({1, length, wide}), g = randn({1, length, wide});
  const int64_t activation = length * wide * 4, weight = wide * wide * 4;
  for (const bool causal : {false, true}) {
    Tensor y;
    const int64_t peak = peak_of([&] {
      y = layer(x, {.mask = {}, .key_mask = {}, .causal = causal});
      y.backward(g);
    });
    // Query, key, value, context and its gradient, the output.
    CHECK(peak < 6 * activation + 2 * weight + activation / 4);
    y = {};
    x.zero_grad();
    layer.zero_grad();
  }
}

}  // namespace step_memory_test
