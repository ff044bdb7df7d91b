// checkpoint(): blocks that are computed again in backward.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/regard.hpp>

namespace recompute_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

/// A stack of encoder blocks that drop, recomputed or not.
struct Stack : Layer {
  std::vector<TransformerEncoderLayer> blocks;
  Linear head;
  bool recompute = false;

  Stack(int64_t width, int64_t depth, double dropout) : head(width, 3) {
    for (int64_t i = 0; i < depth; ++i)
      blocks.emplace_back(width, 2, TransformerLayerOptions{.hidden = 2 * width, .dropout = dropout});
  }
  Tensor operator()(const Tensor& x) const {
    Tensor h = x;
    for (const auto& block : blocks) {
      const AttentionMasks masks{.mask = {}, .key_mask = {}, .causal = true};
      h = recompute ? checkpoint(block, h, masks) : block(h, masks);
    }
    return head(h);
  }
  void members(Members& m) override {
    m("blocks", blocks);
    m("head", head);
  }
};

Tensor leaf(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Generator generator(seed);
  return randn(shape, dtype, generator).set_requires_grad();
}

bool same(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return equal(a, b);
}

}  // namespace

TEST_CASE("recomputation: losses and gradients have the same bits, dropout included, and the generator goes on alike") {
  manual_seed(1);
  Stack plain(8, 3, 0.2);
  Stack again = plain;
  again.recompute = true;
  const Tensor x = leaf({2, 5, 8}, 2), x2 = x.detach().clone().set_requires_grad();
  auto run = [](const Stack& model, const Tensor& in) {
    manual_seed(7);
    Tensor loss = square(model(in)).mean();
    const uint64_t offset = default_generator().offset();
    loss.backward();
    CHECK(default_generator().offset() == offset);
    CHECK(default_generator().seed() == 7);
    return std::pair(loss.item<float>(), offset);
  };
  for (int step = 0; step < 2; ++step) {  // the second adds to gradients
    CHECK(run(plain, x) == run(again, x2));
    CHECK(same(x.grad(), x2.grad()));
    const auto expected = plain.named_parameters(), got = again.named_parameters();
    REQUIRE(expected.size() == got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      INFO(got[i].first);
      REQUIRE(expected[i].second.grad().defined());
      CHECK(same(expected[i].second.grad(), got[i].second.grad()));
    }
  }
  // The dropout acts: another seed gives another loss.
  manual_seed(8);
  CHECK(square(again(x2)).mean().item<float>() != run(again, x2).first);
}

TEST_CASE("recomputation: frozen parameters and inputs get no gradient") {
  manual_seed(1);
  Stack plain(8, 2, 0), again = plain;
  again.recompute = true;
  for (Stack* model : {&plain, &again}) {
    model->blocks[0].set_requires_grad(false);
    model->blocks[1].norm1.bias.set_requires_grad(false);
  }
  const Tensor x = leaf({2, 3, 8}, 2).detach();
  square(plain(x)).mean().backward();
  square(again(x)).mean().backward();
  const auto expected = plain.named_parameters(), got = again.named_parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(got[i].first);
    CHECK(same(expected[i].second.grad(), got[i].second.grad()));
    CHECK(got[i].second.grad().defined() == got[i].second.requires_grad());
  }
  // Nothing needs a gradient: nothing is recorded.
  again.set_requires_grad(false);
  CHECK_FALSE(again(x).requires_grad());
  again.set_requires_grad(true);
  NoGrad no_grad;
  CHECK_FALSE(again(x).requires_grad());
}

TEST_CASE("recomputation: activations of one block at a time are in memory") {
  manual_seed(1);
  const int64_t depth = 6;
  Stack model(32, depth, 0.1);
  const Tensor x = leaf({4, 32, 32}, 2).detach();
  auto measure = [&](bool recompute) {
    model.recompute = recompute;
    model.zero_grad();
    square(model(x)).mean().backward();  // gradients and caches are there
    const int64_t before = memory_stats().bytes;
    Tensor loss = square(model(x)).mean();
    const int64_t forward = memory_stats().bytes - before;
    reset_peak_memory();
    loss.backward();
    return std::pair(forward, memory_stats().peak_bytes - before);
  };
  const auto [forward, peak] = measure(false);
  const auto [forward_again, peak_again] = measure(true);
  const int64_t boundary = x.numel() * 4;  // bytes of what goes from block to block
  INFO("forward " << forward << " bytes, recomputed " << forward_again << "; peak " << peak << ", " << peak_again);
  // Kept: the blocks' outputs (and what the head and the loss keep), not what is inside of them.
  CHECK(forward_again < (depth + 3) * boundary);
  CHECK(forward > 8 * depth * boundary);
  // At most one block's activations, and gradients on the way, beside what is kept.
  CHECK(peak_again < forward_again + 2 * forward / depth);
  CHECK(peak_again < peak / 2);
  CHECK(peak >= forward);
}

TEST_CASE("recomputation: several inputs, several outputs, undefined and integer ones") {
  const Tensor a = leaf({3}, 1, DType::f64), b = leaf({3}, 2, DType::f64), w = leaf({3}, 3, DType::f64);
  auto f = [&](const Tensors& in) {
    Tensors out = {in[0] * in[1] * w, Tensor(), argmax(in[1]), in[0], exp(w), in[0] + in[1]};
    return out;
  };
  const Tensors plain = f({a, b}), again = checkpoint(f, {a, b}, {w, w});
  REQUIRE(again.size() == 6);
  CHECK_FALSE(again[1].defined());
  CHECK(again[2].dtype() == DType::i64);
  CHECK_FALSE(again[2].requires_grad());
  auto gradients = [&](const Tensors& out, bool all) {
    Tensor loss = sum(out[0] * 2.0) + sum(square(out[3]));
    if (all) loss = loss + sum(out[4] * 3.0) + sum(out[5] * out[0]);
    return grad(loss, {a, b, w}, {.grad_outputs = {}, .create_graph = false, .retain_graph = true});
  };
  for (bool all : {false, true}) {
    const Tensors expected = gradients(plain, all), got = gradients(again, all);
    for (size_t i = 0; i < 3; ++i) CHECK(allclose(got[i], expected[i], 1e-14, 1e-14));
  }
  // An output that nobody used, and inputs that nobody asked for.
  CHECK(equal(grad(sum(again[4]), {w})[0], exp(w)));
  CHECK_THROWS_AS(grad(sum(checkpoint(f, {a, b}, {w})[4]), {a}), GraphError);

  // The same tensor as two inputs; an input that the function hands out again.
  Tensor twice = checkpoint([](const Tensors& in) { return in[0] * in[1]; }, {a, a});
  sum(twice).backward();
  CHECK(allclose(a.grad(), 2.0 * a.detach()));
  Tensor itself = checkpoint([](const Tensors& in) { return in[0]; }, {b});
  CHECK(itself.node() != nullptr);
  CHECK(b.is_leaf());
  sum(itself * itself).backward();
  CHECK(allclose(b.grad(), 2.0 * b.detach()));

  Tensor optional =
      checkpoint([](const Tensors& in) { return in[1].defined() ? in[0] + in[1] : in[0] * 3.0; }, {w, Tensor()});
  sum(optional).backward();
  CHECK(equal(w.grad(), full({3}, 3.0, DType::f64)));
}

TEST_CASE("recomputation: layers with several arguments and outputs") {
  manual_seed(1);
  const MultiHeadAttention attention(4, 2);
  const Tensor q = leaf({1, 3, 4}, 2), k = leaf({1, 2, 4}, 3), v = leaf({1, 2, 4}, 4);
  auto gradients = [&](const Tensor& y) {
    Tensors all = {q, k, v};
    for (const Tensor& p : attention.parameters()) all.push_back(p);
    return grad(sum(square(y)), all);
  };
  const Tensors expected = gradients(attention(q, k, v));
  const Tensors got = gradients(checkpoint(attention, q, k, v, AttentionMasks{}));
  for (size_t i = 0; i < got.size(); ++i) CHECK(equal(got[i], expected[i]));

  struct Two : Layer {
    Linear first{4, 4}, second{4, 4};
    std::pair<Tensor, Tensor> operator()(const Tensors& x, double factor) const {
      return {first(x[0]) * factor, second(x[1])};
    }
    void members(Members& m) override {
      m("first", first);
      m("second", second);
    }
  } two;
  auto loss = [](const std::pair<Tensor, Tensor>& y) { return sum(y.first * y.second); };
  auto inputs = [&] { return Tensors{q[0][Range(0, 2)], k[0]}; };
  const Tensors wanted = {q, k, two.first.weight, two.second.bias};
  const Tensors one = grad(loss(two(inputs(), 2)), wanted), other = grad(loss(checkpoint(two, inputs(), 2)), wanted);
  for (size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], other[i]));
}

TEST_CASE("recomputation: second and third derivatives, also of nested checkpoints, dropout included") {
  manual_seed(5);
  Linear in(3, 4), out(4, 1);
  in.to(DType::f64);
  out.to(DType::f64);
  const Tensor x = leaf({2, 3}, 6, DType::f64);
  Tensors wanted = {x};
  for (const Linear* layer : {&in, &out})
    for (const Tensor& p : layer->parameters()) wanted.push_back(p);
  enum Way { plain, once, nested };
  auto value = [&](Way way) {
    manual_seed(3);
    auto inner = [&](const Tensors& a) { return tanh(dropout(in(a[0]), 0.3)); };
    auto whole = [&in, &out, inner, way](const Tensors& a) {
      Tensor h = way == nested ? checkpoint(inner, a, in.parameters()) : inner(a);
      return sum(exp(dropout(out(h), 0.2)) * a[0].sum());
    };
    return way == plain ? whole({x}) : checkpoint(whole, {x}, Tensors(wanted.begin() + 1, wanted.end()));
  };
  auto derivatives = [&](Way way) {
    const GradOptions graph{.grad_outputs = {}, .create_graph = true};
    Tensors first = grad(value(way), wanted, graph);
    Tensor mixed;
    for (const Tensor& g : first) mixed = mixed.defined() ? mixed + sum(square(g)) : sum(square(g));
    Tensors second = grad(mixed, wanted, graph);
    Tensor further;
    for (const Tensor& g : second) further = further.defined() ? further + sum(g * g) : sum(g * g);
    Tensors third = grad(further, wanted);
    Tensors all;
    for (const Tensors* list : {&first, &second, &third}) all.insert(all.end(), list->begin(), list->end());
    return all;
  };
  const Tensors expected = derivatives(plain);
  for (Way way : {once, nested}) {
    const Tensors got = derivatives(way);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("way " << way << ", derivative " << i);
      CHECK(allclose(got[i], expected[i], 1e-11, 1e-13));
    }
    // First derivatives have the same bits with and without a graph of their own.
    const Tensors first = grad(value(way), wanted), bare = grad(value(plain), wanted);
    for (size_t i = 0; i < first.size(); ++i) {
      CHECK(equal(first[i], got[i]));
      CHECK(equal(first[i], bare[i]));
    }
  }
  in.weight.zero_grad();
  REQUIRE_THAT(
      [&](const Tensors& a) {
        return checkpoint([&](const Tensors& b) { return tanh(in(b[0])); }, a, in.parameters());
      },
      passes_gradgradcheck({x}));
}

TEST_CASE("recomputation: hooks on inputs and parameters are called once, as without") {
  const Tensor x = leaf({3}, 1, DType::f64), w = leaf({3}, 2, DType::f64);
  int calls = 0, accumulated = 0;
  w.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 2.0;
  });
  w.register_post_accumulate_grad_hook([&](const Tensor&) { ++accumulated; });
  Tensor h = x * 1.0;
  h.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 10.0;
  });
  sum(checkpoint([&](const Tensors& in) { return in[0] * w; }, {h}, {w})).backward();
  CHECK(calls == 2);
  CHECK(accumulated == 1);
  CHECK(allclose(w.grad(), 2.0 * x.detach()));
  CHECK(allclose(x.grad(), 10.0 * w.detach()));
}

TEST_CASE("recomputation: backward twice with retain_graph, once without") {
  const Tensor x = leaf({3}, 1);
  Tensor y = sum(checkpoint([](const Tensors& in) { return exp(in[0]); }, {x}));
  y.backward({}, true);
  y.backward();
  CHECK(allclose(x.grad(), 2.0 * exp(x.detach())));
  CHECK_THROWS_AS(y.backward(), GraphError);
}

TEST_CASE("recomputation: a generator of its own is set back where it is named") {
  Generator own(4), reference(4);
  const Tensor x = leaf({50}, 1), x2 = x.detach().clone().set_requires_grad();
  auto f = [](Generator& generator) {
    return [&generator](const Tensors& in) { return dropout(in[0], 0.5, generator); };
  };
  Tensor y = checkpoint(f(own), {x}, {}, {.generators = {&own}});
  const Tensor expected = f(reference)({x2});
  CHECK(equal(y, expected));
  rand({10}, {}, own);  // others draw in between
  rand({10}, {}, reference);
  sum(y).backward();
  sum(expected).backward();
  CHECK(equal(x.grad(), x2.grad()));
  CHECK(own.offset() == reference.offset());
}

TEST_CASE("recomputation: a gradient that would be lost is an error that says where") {
  const Tensor x = leaf({3}, 1), w = leaf({3}, 2);
  const Tensor computed = w * 2.0;
  auto loss = [&](const Tensor& used, const Tensors& parameters) {
    return sum(checkpoint([used](const Tensors& in) { return in[0] * used; }, {x}, parameters));
  };
  CHECK_THROWS_AS(loss(w, {}).backward(), GraphError);
  CHECK_THROWS_WITH(loss(w, {}).backward(),
                    Contains("checkpoint") && Contains("[3]") && Contains("'mul'") && Contains("among the parameters"));
  CHECK_THROWS_WITH(loss(computed, {w}).backward(), Contains("computed before by 'mul'"));
  CHECK_THROWS_WITH(loss(computed, {computed}), Contains("pass it as an input"));
  CHECK_THROWS_AS(loss(w, {Tensor()}), ValueError);
  CHECK_FALSE(w.grad().defined());
  loss(w, {w}).backward();
  CHECK(w.grad().defined());
  loss(w.detach(), {}).backward();
  std::function<Tensor(const Tensors&)> empty;
  CHECK_THROWS_WITH(checkpoint(empty, {x}), Contains("empty"));
}

TEST_CASE("recomputation: what changed before backward is an error") {
  manual_seed(1);
  const Tensor x = leaf({2, 4}, 1);
  Stack model(4, 1, 0);
  model.parameters();
  const Tensor in = leaf({1, 3, 4}, 2);
  auto& block = model.blocks[0];
  auto forward = [&] { return sum(checkpoint(block, in)); };

  Tensor loss = forward();
  block.eval();
  CHECK_THROWS_WITH(loss.backward(), Contains("checkpoint(blocks.0)") && Contains("train()") && Contains("eval()"));
  block.train();

  loss = forward();
  {
    NoGrad no_grad;
    block.norm1.weight.tensor().mul_(2);
  }
  CHECK_THROWS_WITH(loss.backward(), Contains("checkpoint(blocks.0)") && Contains("changed in place"));

  loss = forward();
  block.norm1.weight.set_requires_grad(false);
  CHECK_THROWS_WITH(loss.backward(), Contains("frozen after"));
  block.norm1.weight.set_requires_grad(true);

  int64_t rows = 1;
  loss = sum(checkpoint([&](const Tensors& a) { return a[0].narrow(0, 0, rows++); }, {x}));
  CHECK_THROWS_WITH(loss.backward(), Contains("the same again") && Contains("[1, 4]"));

  loss = forward();
  std::vector<TransformerEncoderLayer> moved = std::move(model.blocks);
  moved.reserve(8);  // moves the layer
  CHECK_THROWS_WITH(loss.backward(), Contains("gone, or was moved"));

  auto gone = std::make_unique<Linear>(4, 4);
  loss = sum(checkpoint(*gone, x));
  gone.reset();
  CHECK_THROWS_WITH(loss.backward(), Contains("checkpoint(Linear(4, 4))") && Contains("gone, or was moved"));
}

TEST_CASE("recomputation: errors inside name the layer, in the first run and the second") {
  struct Moody : Layer {
    Linear inner{4, 4};
    mutable int calls = 0;
    int bad;
    explicit Moody(int at) : bad(at) {}
    Tensor operator()(const Tensor& x) const { return inner(++calls == bad ? x.t() : x); }
    void members(Members& m) override { m("inner", inner); }
  };
  struct Whole : Layer {
    std::vector<Moody> parts;
    void members(Members& m) override { m("parts", parts); }
  } model;
  model.parts.emplace_back(1);
  model.parts.emplace_back(2);
  model.parameters();
  const Tensor x = leaf({2, 4}, 1);
  CHECK_THROWS_WITH(checkpoint(model.parts[0], x), Contains("linear") && Contains("(in parts.0.inner)"));
  Tensor y = checkpoint(model.parts[1], x);
  CHECK_THROWS_WITH(sum(y).backward(), Contains("linear") && Contains("(in parts.1.inner)"));
}

TEST_CASE("recomputation: nothing stays alive after the graph") {
  const MemoryStats before = memory_stats();
  {
    manual_seed(1);
    Stack model(8, 2, 0.1);
    model.recompute = true;
    Tensor loss = sum(model(leaf({1, 3, 8}, 1)));
    loss.backward();
    Tensor unused = sum(model(leaf({1, 3, 8}, 1)));
  }
  CHECK(memory_stats().live_nodes == before.live_nodes);
  CHECK(memory_stats().live_storages == before.live_storages);
  CHECK(memory_stats().bytes == before.bytes);
}

}  // namespace recompute_test
