// The fused attention kernels against the composed path: values, gradients, second derivatives, dropout, memory, bits.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/attention.hpp>
#include <regard/autograd/threads.hpp>

namespace fused_attention_test {

using namespace regard;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Result {
  Tensor output, dq, dk, dv;
};

enum class Path { fused, composed };

Tensor attend(Path path, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  return path == Path::fused ? scaled_dot_product_attention(q, k, v, options)
                             : detail::composed_attention(q, k, v, options).first;
}

/// Output and gradients of sum(g * output).
Result run(Path path, const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
           const Tensor& g) {
  Tensor q = query.detach().set_requires_grad(), k = key.detach().set_requires_grad();
  Tensor v = value.detach().set_requires_grad();
  Tensor y = attend(path, q, k, v, options);
  y.backward(g);
  return {y.detach(), q.grad(), k.grad(), v.grad()};
}

double distance(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return a.shape() == b.shape() ? 0 : inf;
  return (a.to(DType::f64) - b.to(DType::f64)).abs().max().item<double>();
}

bool near(const Result& a, const Result& b, double tolerance) {
  return distance(a.output, b.output) <= tolerance && distance(a.dq, b.dq) <= tolerance &&
         distance(a.dk, b.dk) <= tolerance && distance(a.dv, b.dv) <= tolerance;
}
bool same(const Result& a, const Result& b) {
  return equal(a.output, b.output) && equal(a.dq, b.dq) && equal(a.dk, b.dk) && equal(a.dv, b.dv);
}

/// Random q, k, v and the output's gradient, as heads split from [N, length, H * width] where `split`.
struct Problem {
  Tensor q, k, v, g;
  Problem(int64_t n, int64_t h, int64_t queries, int64_t keys, int64_t width, int64_t value_width, DType dtype,
          bool split, Generator& generator) {
    auto make = [&](int64_t length, int64_t size) {
      return split ? randn({n, length, h, size}, dtype, generator).transpose(1, 2)
                   : randn({n, h, length, size}, dtype, generator);
    };
    q = make(queries, width), k = make(keys, width), v = make(keys, value_width), g = make(queries, value_width);
  }
};

/// Restores the number of threads.
struct Threads {
  int former = num_threads();
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_num_threads(former); }
};

}  // namespace

TEST_CASE("fused attention equals the composed path over odd sizes, in both dtypes") {
  Generator generator(3);
  struct Sizes {
    int64_t n, h, queries, keys, width, value_width;
  };
  const std::vector<Sizes> all{{1, 1, 1, 1, 1, 1},     {2, 3, 5, 7, 3, 4},      {1, 2, 17, 16, 8, 8},
                               {2, 2, 33, 65, 17, 31}, {1, 1, 64, 64, 64, 64},  {1, 2, 65, 130, 40, 70},
                               {1, 3, 129, 1, 5, 2},   {1, 2, 1, 200, 33, 64},  {1, 1, 70, 70, 130, 257},
                               {3, 1, 20, 97, 1, 16},  {1, 1, 200, 31, 80, 12}, {1, 2, 48, 96, 32, 32}};
  for (DType dtype : {DType::f64, DType::f32})
    for (const Sizes& s : all)
      for (bool split : {false, true})
        for (bool causal : {false, true}) {
          INFO("N " << s.n << " H " << s.h << " L " << s.queries << " S " << s.keys << " D " << s.width << " Dv "
                    << s.value_width << " " << dtype << (split ? " split" : "") << (causal ? " causal" : ""));
          Problem p(s.n, s.h, s.queries, s.keys, s.width, s.value_width, dtype, split, generator);
          Result fused = run(Path::fused, p.q, p.k, p.v, {.causal = causal}, p.g);
          Result composed = run(Path::composed, p.q, p.k, p.v, {.causal = causal}, p.g);
          CHECK(near(fused, composed, dtype == DType::f64 ? 1e-11 : 1e-4));
        }
}

TEST_CASE("fused attention with every kind of mask and dropout equals the composed path") {
  Generator generator(5);
  auto random_mask = [&](const Shape& shape) { return rand(shape, {}, generator) < 0.6; };
  constexpr int64_t batch = 2, heads = 3;
  for (DType dtype : {DType::f64, DType::f32})
    for (auto [queries, keys] : {std::pair<int64_t, int64_t>{5, 9}, {70, 70}, {90, 40}, {33, 133}, {1, 70}}) {
      Problem p(batch, heads, queries, keys, 6, 9, dtype, true, generator);
      auto float_mask = [&](const Shape& shape) {
        return randn(shape, dtype, generator).masked_fill(random_mask(shape), -inf);
      };
      const Tensors masks{{},
                          random_mask({queries, keys}),
                          random_mask({keys, queries}).t(),
                          random_mask({queries, keys}).to(DType::i64) * 3,
                          random_mask({batch, 1, 1, keys}),
                          random_mask({batch, 1, 1, keys}).to(DType::i64),
                          random_mask({1, heads, queries, keys}),
                          random_mask({batch, 1, queries, 1}),
                          float_mask({queries, keys}),
                          float_mask({keys, queries}).t(),
                          float_mask({batch, heads, 1, keys}),
                          float_mask({1, 1, queries, 1})};
      for (size_t m = 0; m < masks.size(); ++m)
        for (int with_key_mask : {0, 1, 2})
          for (bool causal : {false, true})
            for (double dropout : {0.0, 0.3}) {
              AttentionOptions options{.mask = masks[m], .causal = causal, .dropout = dropout, .generator = &generator};
              if (with_key_mask > 0) options.key_mask = random_mask({batch, keys});
              if (with_key_mask == 2) options.key_mask = options.key_mask.to(DType::i64);
              INFO("L " << queries << " S " << keys << " mask " << m << " key_mask " << with_key_mask << " causal "
                        << causal << " dropout " << dropout << " " << dtype);
              generator.set_state(generator.seed(), 1'000'000 + 977 * m);
              Result fused = run(Path::fused, p.q, p.k, p.v, options, p.g);
              uint64_t offset = generator.offset();
              generator.set_state(generator.seed(), 1'000'000 + 977 * m);
              Result composed = run(Path::composed, p.q, p.k, p.v, options, p.g);
              CHECK(generator.offset() == offset);
              CHECK(near(fused, composed, dtype == DType::f64 ? 1e-12 : 3e-5));
            }
    }
}

TEST_CASE("fused attention over no queries, no keys, no width") {
  for (auto [queries, keys, width, value_width] :
       {std::array<int64_t, 4>{0, 3, 2, 2}, {3, 0, 2, 2}, {0, 0, 2, 2}, {3, 4, 0, 2}, {3, 4, 2, 0}, {3, 4, 0, 0}}) {
    Generator generator(1);
    Problem p(2, 2, queries, keys, width, value_width, DType::f32, true, generator);
    INFO(queries << " " << keys << " " << width << " " << value_width);
    CHECK(near(run(Path::fused, p.q, p.k, p.v, {.causal = true}, p.g),
               run(Path::composed, p.q, p.k, p.v, {.causal = true}, p.g), 1e-6));
  }
}

TEST_CASE("fused attention: rows with nothing to attend to give zeros, in the middle of a tile as in whole tiles") {
  Generator generator(7);
  Problem p(1, 2, 150, 140, 8, 8, DType::f32, true, generator);
  Tensor rows = ones({150, 140}, DType::boolean).masked_fill((arange(150) == 3).view({150, 1}), false);
  rows = rows.masked_fill((arange(150) > 63).view({150, 1}), false);
  for (const Tensor& mask : {rows, zeros({150, 140}).masked_fill(rows == 0, -inf)}) {
    Result r = run(Path::fused, p.q, p.k, p.v, {.mask = mask}, p.g);
    for (const Tensor& x : {r.output, r.dq}) {
      CHECK(equal(x.select(2, 3), zeros({1, 2, 8})));
      CHECK(equal(x.slice(2, 64), zeros({1, 2, 86, 8})));
      CHECK(x.slice(2, 4, 5).abs().max().item<float>() > 0);
    }
    CHECK(near(r, run(Path::composed, p.q, p.k, p.v, {.mask = mask}, p.g), 1e-5));
  }
  // Fewer keys than queries: the first queries see nothing.
  Problem few(1, 1, 150, 10, 8, 8, DType::f32, false, generator);
  Result r = run(Path::fused, few.q, few.k, few.v, {.causal = true}, few.g);
  CHECK(equal(r.output.slice(2, 0, 140), zeros({1, 1, 140, 8})));
  CHECK(equal(r.dq.slice(2, 0, 140), zeros({1, 1, 140, 8})));
}

TEST_CASE("fused attention: what stands at keys that nobody may see changes no bit") {
  Generator generator(11);
  Problem p(2, 2, 70, 100, 12, 12, DType::f32, true, generator);
  Tensor key_mask = rand({2, 100}, {}, generator) < 0.5;
  Tensor blocked = (key_mask == 0).view({2, 1, 100, 1});
  for (const AttentionOptions& options :
       {AttentionOptions{.key_mask = key_mask}, AttentionOptions{.mask = key_mask.view({2, 1, 1, 100})},
        AttentionOptions{.mask = key_mask.view({2, 1, 1, 100}).to(DType::i64), .causal = true},
        AttentionOptions{.mask = randn({70, 100}, {}, generator), .key_mask = key_mask}}) {
    Result clean = run(Path::fused, p.q, p.k, p.v, options, p.g);
    for (double garbage : {1e30, inf, std::nan("")})
      CHECK(same(
          run(Path::fused, p.q, p.k.masked_fill(blocked, garbage), p.v.masked_fill(blocked, garbage), options, p.g),
          clean));
  }
}

TEST_CASE("fused attention takes any strides and an expanded gradient") {
  Generator generator(13);
  Tensor q = randn({2, 4, 20, 3}, DType::f64, generator).permute({0, 3, 2, 1});  // [2, 3, 20, 4], columns apart
  Tensor k = randn({3, 30, 8}, DType::f64, generator).slice(2, 0, 8, 2).unsqueeze(0).expand({2, 3, 30, 4});
  Tensor v = randn({2, 3, 5, 30}, DType::f64, generator).transpose(2, 3);  // [2, 3, 30, 5]
  Tensor g = randn({1, 1, 1, 5}, DType::f64, generator).expand({2, 3, 20, 5});
  Result fused = run(Path::fused, q, k, v, {}, g), composed = run(Path::composed, q, k, v, {}, g);
  CHECK(near(fused, composed, 1e-12));
}

TEST_CASE("fused attention lays its output and gradients out as its inputs: merging heads copies nothing") {
  Generator generator(13);
  Problem p(2, 3, 10, 11, 4, 4, DType::f32, true, generator);
  Tensor y = scaled_dot_product_attention(p.q, p.k, p.v);
  CHECK(y.transpose(1, 2).is_contiguous());
  CHECK(scaled_dot_product_attention(p.q.contiguous(), p.k, p.v).is_contiguous());
}

TEST_CASE("fused attention's first and second derivatives check against differences") {
  Generator generator(17);
  auto random = [&](const Shape& shape) { return randn(shape, DType::f64, generator).set_requires_grad(); };
  Tensor q = random({1, 2, 3, 2}), k = random({1, 2, 4, 2}), v = random({1, 2, 4, 3});
  Tensor mask = from_vector<int64_t>({1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1}, {3, 4}),
         float_mask = randn({3, 4}, DType::f64, generator);
  Tensor key_mask = from_vector<int64_t>({1, 0, 1, 1}, {1, 4});
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.causal = true, .scale = 0.7}, AttentionOptions{.mask = mask},
        AttentionOptions{.mask = float_mask, .key_mask = key_mask}, AttentionOptions{.dropout = 0.4}}) {
    auto f = [&](const Tensors& x) {
      Generator fixed(99);
      AttentionOptions with = options;
      with.generator = &fixed;
      return scaled_dot_product_attention(x[0], x[1], x[2], with);
    };
    CHECK_THAT(f, passes_gradcheck({q, k, v}));
    CHECK_THAT(f, passes_gradgradcheck({q, k, v}));
  }
  // A mask that wants a gradient gets one.
  Tensor trained = random({1, 2, 1, 4});
  auto with_mask = [&](const Tensors& x) {
    return scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3], .causal = true});
  };
  CHECK_THAT(with_mask, passes_gradcheck({q, k, v, trained}));
  CHECK_THAT(with_mask, passes_gradgradcheck({q, k, v, trained}));
}

TEST_CASE("fused attention: second derivatives meet nothing of what stands at keys that nobody may see") {
  Generator generator(18);
  Problem p(2, 1, 3, 4, 2, 2, DType::f64, true, generator);
  Tensor key_mask = from_vector<int64_t>({1, 0, 1, 1, 1, 1, 1, 0}, {2, 4});
  Tensor blocked = (key_mask == 0).view({2, 1, 4, 1});
  auto second = [&](double garbage, const AttentionOptions& options) {
    Tensor q = p.q.detach().set_requires_grad(), k = p.k.masked_fill(blocked, garbage).set_requires_grad();
    Tensor v = p.v.masked_fill(blocked, garbage).set_requires_grad();
    Tensors first =
        grad(scaled_dot_product_attention(q, k, v, options), {q, k, v}, {.grad_outputs = {p.g}, .create_graph = true});
    return grad(square(first[0]).sum() + square(first[1]).sum() + square(first[2]).sum(), {q, k, v});
  };
  for (const AttentionOptions& options :
       {AttentionOptions{.key_mask = key_mask}, AttentionOptions{.mask = key_mask.view({2, 1, 1, 4})}}) {
    Tensors clean = second(0, options), dirty = second(std::nan(""), options);
    for (size_t i = 0; i < 3; ++i) CHECK(equal(clean[i], dirty[i]));
  }
}

TEST_CASE("fused attention: gradients have the same bits whether recorded or not, all wanted or one") {
  Generator generator(19);
  Problem p(2, 2, 40, 70, 12, 20, DType::f32, true, generator);
  Result plain = run(Path::fused, p.q, p.k, p.v, {.causal = true}, p.g);
  Tensor q = p.q.detach().set_requires_grad(), k = p.k.detach().set_requires_grad();
  Tensor v = p.v.detach().set_requires_grad();
  Tensors recorded = grad(scaled_dot_product_attention(q, k, v, {.causal = true}), {q, k, v},
                          {.grad_outputs = {p.g}, .create_graph = true});
  CHECK(equal(recorded[0], plain.dq));
  CHECK(equal(recorded[1], plain.dk));
  CHECK(equal(recorded[2], plain.dv));
  CHECK(equal(grad(scaled_dot_product_attention(q, p.k, p.v, {.causal = true}), {q}, {.grad_outputs = {p.g}})[0],
              plain.dq));
  CHECK(equal(grad(scaled_dot_product_attention(p.q, k, p.v, {.causal = true}), {k}, {.grad_outputs = {p.g}})[0],
              plain.dk));
  CHECK(equal(grad(scaled_dot_product_attention(p.q, p.k, v, {.causal = true}), {v}, {.grad_outputs = {p.g}})[0],
              plain.dv));
  NoGrad no_grad;
  CHECK(equal(scaled_dot_product_attention(q, k, v, {.causal = true}), plain.output));
}

TEST_CASE("fused attention's error in f32 is at most twice that of the composed path") {
  Generator generator(23);
  for (auto [queries, keys, width, factor] :
       {std::tuple<int64_t, int64_t, int64_t, double>{200, 300, 64, 1.0}, {300, 300, 32, 6.0}, {64, 1000, 17, 1.0}})
    for (bool causal : {false, true}) {
      Problem p(1, 2, queries, keys, width, width, DType::f32, true, generator);
      Tensor q = p.q * factor;
      auto exact = [](const Tensor& x) { return x.to(DType::f64); };
      Result right = run(Path::composed, exact(q), exact(p.k), exact(p.v), {.causal = causal}, exact(p.g));
      Result fused = run(Path::fused, q, p.k, p.v, {.causal = causal}, p.g);
      Result composed = run(Path::composed, q, p.k, p.v, {.causal = causal}, p.g);
      auto error = [&](Tensor Result::*x) {
        auto norm = [&](const Result& r) { return (exact(r.*x) - right.*x).norm().item<double>(); };
        return norm(fused) / norm(composed);
      };
      INFO("L " << queries << " S " << keys << " D " << width << " causal " << causal);
      CHECK(error(&Result::output) < 2);
      CHECK(error(&Result::dq) < 2);
      CHECK(error(&Result::dk) < 2);
      CHECK(error(&Result::dv) < 2);
    }
}

TEST_CASE("fused attention has the same bits on any number of threads") {
  Generator generator(29);
  const Threads restore;
  for (auto [n, h, length, width] : {std::array<int64_t, 4>{1, 1, 700, 32}, {2, 3, 300, 24}, {16, 4, 40, 8}})
    for (double dropout : {0.0, 0.2}) {
      Problem p(n, h, length, length, width, width, DType::f32, true, generator);
      auto on_threads = [&](int threads) {
        set_num_threads(threads);
        Generator fixed(5);
        return run(Path::fused, p.q, p.k, p.v, {.causal = true, .dropout = dropout, .generator = &fixed}, p.g);
      };
      Result one = on_threads(1);
      for (int threads : {2, 3, 4}) CHECK(same(on_threads(threads), one));
      Generator fixed(5);
      CHECK(near(one,
                 run(Path::composed, p.q, p.k, p.v, {.causal = true, .dropout = dropout, .generator = &fixed}, p.g),
                 2e-4));
    }
}

TEST_CASE("attention with weights: the output is the fused one to the bit, and both give gradients") {
  Generator generator(37);
  Problem p(2, 2, 20, 30, 8, 8, DType::f32, true, generator);
  auto [output, weights] = scaled_dot_product_attention_with_weights(p.q, p.k, p.v, {.causal = true});
  CHECK(equal(output, scaled_dot_product_attention(p.q, p.k, p.v, {.causal = true})));
  CHECK(equal(weights, detail::composed_attention(p.q, p.k, p.v, {.causal = true}).second));
  CHECK(distance(matmul(weights, p.v), output) < 1e-5);
}

TEST_CASE("fused attention keeps nothing of the size of the weights") {
  Generator generator(31);
  constexpr int64_t length = 1024, width = 16, heads = 2;
  Problem p(1, heads, length, length, width, width, DType::f32, true, generator);
  Tensor mask = rand({1, 1, 1, length}, {}, generator) < 0.9;
  reset_peak_memory();
  int64_t before = memory_stats().bytes;
  run(Path::fused, p.q, p.k, p.v, {.mask = mask, .causal = true, .dropout = 0.1, .generator = &generator}, p.g);
  int64_t peak = memory_stats().peak_bytes - before;
  CHECK(peak < heads * length * length * 4 / 4);  // the weights alone would be 8 MiB
  CHECK(peak < 12 * heads * length * width * 4 * 2);
}

}  // namespace fused_attention_test
