// Attention with fewer heads of keys and values than of queries, and with ALiBi: the fused kernels against the composed
// path on repeated heads, dropout's numbers, bits on any number of threads, strides, memory, errors.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <limits>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/ops/attention.hpp>
#include <regard/regard.hpp>

namespace grouped_attention_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Result {
  Tensor output, dq, dk, dv;
};
template <class F>
Result run(const F& attend, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& g) {
  Tensor q = query.detach().set_requires_grad(), k = key.detach().set_requires_grad();
  Tensor v = value.detach().set_requires_grad();
  Tensor y = attend(q, k, v);
  y.backward(g);
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}
double distance(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return inf;
  return a.numel() == 0 ? 0 : (a.to(DType::f64) - b.to(DType::f64)).abs().max().item<double>();
}
double distance(const Result& a, const Result& b) {
  return std::max({distance(a.output, b.output), distance(a.dq, b.dq), distance(a.dk, b.dk), distance(a.dv, b.dv)});
}
bool same(const Result& a, const Result& b) {
  return equal(a.output, b.output) && equal(a.dq, b.dq) && equal(a.dk, b.dk) && equal(a.dv, b.dv);
}

/// Each head of keys or values, as often as query heads use it.
Tensor repeated(const Tensor& x, int64_t heads) {
  Tensors all;
  for (int64_t h = 0; h < heads; ++h) all.push_back(x.select(1, h / (heads / x.size(1))));
  return stack(all, 1);
}

/// q, k, v and the output's gradient, as heads split from [N, length, heads * width] where `split`.
struct Problem {
  Tensor q, k, v, g;
  Problem(int64_t n, int64_t h, int64_t key_heads, int64_t queries, int64_t keys, int64_t width, DType dtype,
          bool split, Generator& generator) {
    auto make = [&](int64_t heads, int64_t length, int64_t size) {
      return split ? randn({n, length, heads, size}, dtype, generator).transpose(1, 2)
                   : randn({n, heads, length, size}, dtype, generator);
    };
    q = make(h, queries, width), k = make(key_heads, keys, width), v = make(key_heads, keys, width + 3),
    g = make(h, queries, width + 3);
  }
};

struct Threads {
  int former = num_threads();
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_num_threads(former); }
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("grouped attention equals the composed path on repeated heads, with every mask, ALiBi and dropout") {
  Generator generator(3);
  struct Sizes {
    int64_t n, h, key_heads, queries, keys, width;
  };
  const std::vector<Sizes> all{{2, 4, 2, 5, 9, 6},    {1, 6, 3, 1, 70, 8},   {2, 8, 1, 1, 33, 4},
                               {1, 4, 1, 70, 70, 12}, {1, 4, 2, 300, 20, 5}, {3, 2, 1, 33, 65, 7},
                               {1, 12, 2, 17, 40, 3}, {2, 3, 3, 20, 30, 4}};
  int64_t tried = 0;
  for (DType dtype : {DType::f64, DType::f32})
    for (const Sizes& s : all) {
      Problem p(s.n, s.h, s.key_heads, s.queries, s.keys, s.width, dtype, tried % 2 == 0, generator);
      auto random_mask = [&](const Shape& shape) { return rand(shape, {}, generator) < 0.6; };
      const Tensors masks{
          {},
          random_mask({s.queries, s.keys}),
          random_mask({s.n, 1, 1, s.keys}),
          random_mask({1, s.h, s.queries, s.keys}),
          random_mask({s.n, s.h, 1, s.keys}),
          randn({s.queries, s.keys}, dtype, generator).masked_fill(random_mask({s.queries, s.keys}), -inf),
          randn({1, s.h, 1, s.keys}, dtype, generator)};
      for (size_t m = 0; m < masks.size(); ++m)
        for (int kind = 0; kind < 8; ++kind) {
          AttentionOptions options{.mask = masks[m], .causal = (kind & 1) != 0, .generator = &generator};
          if (kind & 2) options.alibi = layers::alibi_slopes(s.h);
          if (kind & 4) options.dropout = 0.3;
          if (kind == 3 || kind == 4) options.key_mask = random_mask({s.n, s.keys});
          INFO("H " << s.h << " over " << s.key_heads << " L " << s.queries << " S " << s.keys << " mask " << m
                    << " kind " << kind << " " << dtype);
          const uint64_t start = 1'000'000 + 977 * m;
          generator.set_state(generator.seed(), start);
          Result fused = run([&](auto& q, auto& k, auto& v) { return scaled_dot_product_attention(q, k, v, options); },
                             p.q, p.k, p.v, p.g);
          const uint64_t offset = generator.offset();
          generator.set_state(generator.seed(), start);
          Result right = run(
              [&](auto& q, auto& k, auto& v) {
                return detail::composed_attention(q, repeated(k, s.h), repeated(v, s.h), options).first;
              },
              p.q, p.k, p.v, p.g);
          CHECK(generator.offset() == offset);
          CHECK(distance(fused, right) < (dtype == DType::f64 ? 2e-12 : 5e-5));
          ++tried;
        }
    }
  CHECK(tried == 2 * 8 * 7 * 8);
}

TEST_CASE("grouped attention: the gradients have the same bits on any number of threads, recorded or not") {
  Generator generator(5);
  const Threads restore;
  for (auto [n, h, key_heads, length, width] :
       {std::array<int64_t, 5>{1, 8, 1, 100, 16}, {1, 4, 2, 500, 16}, {2, 6, 2, 64, 24}, {1, 16, 4, 1, 32}}) {
    Problem p(n, h, key_heads, length, std::max<int64_t>(length, 200), width, DType::f32, true, generator);
    for (bool causal : {false, true}) {
      const AttentionOptions options{.causal = causal, .alibi = causal ? layers::alibi_slopes(h) : Tensor()};
      const auto attend = [&](auto& q, auto& k, auto& v) { return scaled_dot_product_attention(q, k, v, options); };
      set_num_threads(1);
      Result one = run(attend, p.q, p.k, p.v, p.g);
      for (int threads : {2, 3}) {
        set_num_threads(threads);
        CHECK(same(run(attend, p.q, p.k, p.v, p.g), one));
      }
      Tensor q = p.q.detach().set_requires_grad(), k = p.k.detach().set_requires_grad();
      Tensor v = p.v.detach().set_requires_grad();
      Tensors recorded = grad(attend(q, k, v), {q, k, v}, {.grad_outputs = {p.g}, .create_graph = true});
      CHECK(same({one.output, recorded[0], recorded[1], recorded[2]}, one));
      CHECK(equal(grad(attend(p.q, k, p.v), {k}, {.grad_outputs = {p.g}})[0], one.dk));
    }
  }
}

TEST_CASE("grouped attention's first and second derivatives check against differences, with dropout and a float mask") {
  Generator generator(7);
  auto random = [&](const Shape& shape) { return randn(shape, DType::f64, generator).set_requires_grad(); };
  for (int64_t queries : {1, 3}) {
    Tensor q = random({1, 4, queries, 2}), k = random({1, 2, 4, 2}), v = random({1, 2, 4, 3});
    Tensor trained = random({1, 4, 1, 4});
    for (double dropout : {0.0, 0.4}) {
      auto f = [&](const Tensors& x) {
        Generator fixed(99);
        return scaled_dot_product_attention(
            x[0], x[1], x[2],
            {.mask = x[3], .causal = true, .dropout = dropout, .generator = &fixed, .alibi = layers::alibi_slopes(4)});
      };
      CHECK_THAT(f, passes_gradcheck({q, k, v, trained}));
      CHECK_THAT(f, passes_gradgradcheck({q, k, v, trained}));
      auto plain = [&](const Tensors& x) {
        Generator fixed(99);
        return scaled_dot_product_attention(x[0], x[1], x[2], {.dropout = dropout, .generator = &fixed});
      };
      CHECK_THAT(plain, passes_gradcheck({q, k, v}));
      CHECK_THAT(plain, passes_gradgradcheck({q, k, v}));
    }
  }
}

TEST_CASE("grouped attention: what stands at blocked keys changes no bit, and a single query reads no copies of keys") {
  Generator generator(11);
  Problem p(2, 4, 2, 1, 300, 16, DType::f32, true, generator);
  Tensor key_mask = rand({2, 300}, {}, generator) < 0.5;
  const auto attend = [&](auto& q, auto& k, auto& v) {
    return scaled_dot_product_attention(q, k, v, {.key_mask = key_mask});
  };
  Result clean = run(attend, p.q, p.k, p.v, p.g);
  Tensor blocked = (key_mask == 0).view({2, 1, 300, 1});
  for (double garbage : {inf, std::nan("")})
    CHECK(same(run(attend, p.q, p.k.masked_fill(blocked, garbage), p.v.masked_fill(blocked, garbage), p.g), clean));

  Problem large(1, 8, 2, 1, 4096, 64, DType::f32, false, generator);
  NoGrad no_grad;
  reset_peak_memory();
  const int64_t before = memory_stats().bytes;
  scaled_dot_product_attention(large.q, large.k, large.v);
  CHECK(memory_stats().peak_bytes - before < 256 * 1024);  // the keys alone are 2 MiB
}

TEST_CASE("grouped attention: heads that do not divide, and slopes that do not fit, are refused") {
  const auto message = [](const Shape& q, const Shape& k, const Shape& v, const AttentionOptions& options = {}) {
    return message_of([&] { scaled_dot_product_attention(randn(q), randn(k), randn(v), options); });
  };
  CHECK_THAT(message({1, 4, 2, 3}, {1, 3, 2, 3}, {1, 3, 2, 3}),
             Contains("dimension 1") && Contains("divides") && Contains("[1, 4, 2, 3]") && Contains("found 3"));
  CHECK_THAT(message({1, 4, 2, 3}, {1, 2, 2, 3}, {1, 4, 2, 3}), Contains("key [1, 2, 2, 3] and value [1, 4, 2, 3]"));
  CHECK_THAT(message({1, 2, 2, 3}, {1, 4, 2, 3}, {1, 4, 2, 3}), Contains("divides"));
  CHECK_THAT(message({1, 0, 2, 3}, {1, 2, 2, 3}, {1, 2, 2, 3}), Contains("divides"));
  CHECK_THAT(message({2, 4, 2, 3}, {1, 2, 2, 3}, {1, 2, 2, 3}), Contains("dimension 0"));
  const Shape four{1, 4, 2, 3};
  CHECK_THAT(message(four, four, four, {.alibi = zeros({2})}), Contains("alibi [2]") && Contains("[H] = [4]"));
  CHECK_THAT(message(four, four, four, {.alibi = full({4}, inf)}), Contains("not finite"));
  CHECK_THAT(message(four, four, four, {.alibi = zeros({4}).set_requires_grad()}), Contains("slopes get none"));
  CHECK_THAT(message(four, four, four, {.alibi = zeros({4}, DType::i64)}), Contains("alibi"));

  using layers::MultiHeadAttention;
  CHECK_THAT(message_of([] { MultiHeadAttention(8, 4, {.key_value_heads = 3}); }),
             Contains("key_value_heads 3 must divide num_heads 4"));
  CHECK_THAT(message_of([] { MultiHeadAttention(6, 2, {.rotary = true}); }), Contains("turn 3") && Contains("even"));
  CHECK_THAT(message_of([] { MultiHeadAttention(8, 2, {.rotary = true, .rotary_base = 0}); }), Contains("base"));
  CHECK_THAT(message_of([] { MultiHeadAttention(8, 2, {.rotary = true, .rotary_width = 6}); }), Contains("turn 6"));
  CHECK_THAT(message_of([] { rotary_positions(randn({2, 4}), -1); }), Contains("offset is -1"));
  CHECK_THAT(message_of([] { rotary_positions(randn({4})); }), Contains("[..., T, D]"));
  CHECK_THAT(message_of([] { rotary_positions(randn({2, 3})); }), Contains("even"));
  CHECK_THROWS_AS(rotary_positions(arange(4).view({2, 2})), DTypeError);
  CHECK_THROWS_AS(layers::alibi_slopes(0), ValueError);
  CHECK_THROWS_AS(layers::RotaryPositionalEncoding({.width = 3}), ValueError);
  CHECK(MultiHeadAttention(8, 4, {.key_value_heads = 2, .rotary = true, .alibi = true}).describe() ==
        "MultiHeadAttention(8, 4 heads, 2 of keys and values, rotary, alibi)");
}

TEST_CASE("rotary positions lie in memory as x does, depend on differences alone, and turn back in the gradient") {
  Generator generator(13);
  const Threads restore;
  Tensor x = randn({2, 300, 3, 8}, DType::f64, generator).transpose(1, 2);  // [2, 3, 300, 8]
  Tensor y = rotary_positions(x, 4);
  CHECK(y.transpose(1, 2).is_contiguous());
  CHECK(equal(y, rotary_positions(x.contiguous(), 4)));
  CHECK(equal(rotary_positions(x.narrow(2, 7, 20), 11), y.narrow(2, 7, 20)));
  Tensor q = randn({1, 8}, DType::f64, generator), k = randn({1, 8}, DType::f64, generator);
  const auto product = [&](int64_t i, int64_t j) {
    return sum(rotary_positions(q, i) * rotary_positions(k, j)).item<double>();
  };
  CHECK(std::abs(product(3, 1) - product(1002, 1000)) < 1e-12);
  CHECK(std::abs(product(3, 1) - product(4, 1)) > 1e-3);
  CHECK(distance(rotary_positions(x).norm(), x.norm()) < 1e-10);
  Tensor leaf = y.detach().set_requires_grad();
  rotary_positions(leaf, 4, {.base = 10000}).backward(rotary_positions(x, 4));
  CHECK(distance(leaf.grad(), x) < 1e-13);
  for (DType dtype : {DType::f32, DType::f64}) {
    Tensor large = randn({8, 64, 100, 16}, dtype, generator).transpose(1, 2);
    set_num_threads(1);
    Tensor one = rotary_positions(large);
    set_num_threads(2);
    CHECK(equal(rotary_positions(large), one));
  }
}

TEST_CASE("grouped attention and positions: a layer trains to the same bits on one and two threads") {
  const Threads restore;
  const auto trained = [](int threads) {
    set_num_threads(threads);
    manual_seed(17);
    layers::TransformerEncoderLayer layer(48, 6, {.dropout = 0.1, .key_value_heads = 2, .rotary = true, .alibi = true});
    optim::AdamW optimizer(layer.parameters(), {.lr = 1e-2});
    Tensor x = randn({4, 90, 48});
    double loss = 0;
    for (int step = 0; step < 3; ++step) {
      Tensor y = mse_loss(layer(x, {.causal = true}), x);
      optimizer.zero_grad();
      y.backward();
      optimizer.step();
      loss = y.item<double>();
    }
    StateDict state;
    for (const auto& [name, tensor] : layer.state_dict()) state[name] = tensor.clone();
    state["loss"] = scalar_tensor(loss);
    return state;
  };
  const StateDict one = trained(1), two = trained(2);
  for (const auto& [name, tensor] : one) {
    INFO(name);
    CHECK(equal(tensor, two.at(name)));
  }
}

}  // namespace grouped_attention_test
