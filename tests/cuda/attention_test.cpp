// Fused attention on the GPU against the CPU's kernels: odd sizes, layouts, masks, dropout, heads that share keys, long
// keys for few queries, gradients written over what they are of, bits, error.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include <regard/autograd/cuda.hpp>
#include <regard/autograd/ops/attention.hpp>

#include "both_devices.hpp"

namespace attention_test {

using namespace regard;
using both_devices::on_both;
using both_devices::Pair;
using both_devices::seen;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t n, h, key_heads, queries, keys, width, value_width;
  std::string text() const {
    return "N " + std::to_string(n) + " H " + std::to_string(h) + "/" + std::to_string(key_heads) + " L " +
           std::to_string(queries) + " S " + std::to_string(keys) + " D " + std::to_string(width) + " Dv " +
           std::to_string(value_width);
  }
};

/// How q, k, v and dy lie in memory.
enum class Layout { dense, split_heads, columns_apart, odd_offset };

Pair laid_out(const Shape& shape, DType dtype, Layout layout, Generator& generator) {
  const int64_t n = shape[0], h = shape[1], length = shape[2], width = shape[3];
  switch (layout) {
    case Layout::dense:
      return on_both(randn(shape, dtype, generator));
    case Layout::split_heads:
      return seen(on_both(randn({n, length, h, width}, dtype, generator)),
                  [](const Tensor& x) { return x.transpose(1, 2); });
    case Layout::columns_apart:
      return seen(on_both(randn({n, h, width, length}, dtype, generator)),
                  [](const Tensor& x) { return x.transpose(2, 3); });
    case Layout::odd_offset:
      return seen(on_both(randn({n, h, length, width + 3}, dtype, generator)),
                  [width](const Tensor& x) { return x.narrow(3, 1, width); });
  }
  return {};
}

/// What the kernels are called with.
struct Problem {
  Sizes sizes;
  DType dtype;
  Pair q, k, v, dy, mask = {}, key_mask = {}, alibi = {};
  AttentionSettings settings;

  Problem(const Sizes& s, DType type, Layout layout, Generator& generator)
      : sizes(s),
        dtype(type),
        q(laid_out({s.n, s.h, s.queries, s.width}, type, layout, generator)),
        k(laid_out({s.n, s.key_heads, s.keys, s.width}, type, layout, generator)),
        v(laid_out({s.n, s.key_heads, s.keys, s.value_width}, type, layout, generator)),
        dy(laid_out({s.n, s.h, s.queries, s.value_width}, type, layout, generator)),
        settings{.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, s.width))),
                 .causal = false,
                 .dropout = 0,
                 .seed = 0x1234567890abcdef,
                 .offset = 0xfffffff0} {}
  /// A mask that broadcasts to [N, H, L, S].
  void set_mask(const Tensor& x) {
    mask = seen(on_both(x), [this](const Tensor& t) {
      return t.expand({sizes.n, sizes.h, sizes.queries, sizes.keys});
    });
  }
};

struct Result {
  Tensor y, statistics, dq, dk, dv;
};

struct Choice {
  bool over = false;        ///< gradients are written over q, k and v, of which the problem's are spent then
  bool from_delta = false;  ///< attention_delta() first
  std::array<bool, 3> wanted{true, true, true};
  bool split_heads = false;  ///< outputs are views of [N, length, H, width]
};

Tensor output(const Tensor& like, int64_t width, const Choice& choice) {
  const TensorOptions options(like.dtype(), like.device());
  const int64_t n = like.size(0), h = like.size(1), length = like.size(2);
  return choice.split_heads ? empty({n, length, h, width}, options).transpose(1, 2)
                            : empty({n, h, length, width}, options);
}

Result run(const Problem& p, bool gpu, const Choice& choice = {}) {
  const auto of = [gpu](const Pair& x) { return gpu ? x.gpu : x.cpu; };
  const Tensor q = of(p.q), k = of(p.k), v = of(p.v), dy = of(p.dy);
  const Tensor mask = of(p.mask), key_mask = of(p.key_mask), alibi = of(p.alibi);
  const Kernels& table = kernels(q);
  Result r;
  r.y = output(q, v.size(3), choice);
  r.statistics = empty({q.size(0), q.size(1), 2, q.size(2)}, TensorOptions(q.dtype(), q.device()));
  table.attention(r.y, r.statistics, q, k, v, mask, key_mask, alibi, p.settings);
  if (choice.wanted[0]) r.dq = choice.over ? q : output(q, q.size(3), choice);
  if (choice.wanted[1]) r.dk = choice.over ? k : output(k, k.size(3), choice);
  if (choice.wanted[2]) r.dv = choice.over ? v : output(v, v.size(3), choice);
  Tensor y = r.y;
  if (choice.from_delta) {
    y = empty({q.size(0), q.size(1), q.size(2)}, TensorOptions(q.dtype(), q.device()));
    table.attention_delta(y, dy, r.y);
  }
  table.attention_grad(r.dq, r.dk, r.dv, dy, y, r.statistics, q, k, v, mask, key_mask, alibi, p.settings);
  return r;
}

Tensor here(const Tensor& x) {
  if (x.device() == cpu()) return x;
  // Without a copy kernel: the dense memory that lies behind a view of split heads.
  return x.is_contiguous() ? x.to(cpu()) : x.transpose(1, 2).to(cpu()).transpose(1, 2);
}

void check_near(const char* what, const Tensor& got, const Tensor& want, double tolerance) {
  INFO(what);
  if (!want.defined()) return;
  const Tensor a = here(got).to(DType::f64), b = want.to(DType::f64);
  REQUIRE(a.shape() == b.shape());
  if (b.numel() == 0) return;
  const double size = std::max(1.0, b.abs().max().item<double>());
  CHECK((a - b).abs().max().item<double>() <= tolerance * size);
}
void check_near(const Result& got, const Result& want, DType dtype) {
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
  check_near("y", got.y, want.y, tolerance);
  check_near("statistics", got.statistics, want.statistics, tolerance);
  check_near("dq", got.dq, want.dq, tolerance);
  check_near("dk", got.dk, want.dk, tolerance);
  check_near("dv", got.dv, want.dv, tolerance);
}
bool same(const Result& a, const Result& b) {
  const auto one = [](const Tensor& x, const Tensor& y) {
    return !x.defined() || !y.defined() || equal(here(x), here(y));
  };
  return one(a.y, b.y) && one(a.statistics, b.statistics) && one(a.dq, b.dq) && one(a.dk, b.dk) && one(a.dv, b.dv);
}
void check(const Problem& p, const Choice& choice = {}) { check_near(run(p, true, choice), run(p, false), p.dtype); }

}  // namespace

TEST_CASE("cuda attention: odd sizes and every layout give the CPU's output and gradients") {
  Generator generator(3);
  const std::vector<Sizes> all{{1, 1, 1, 1, 1, 1, 1},      {2, 3, 3, 5, 7, 3, 4},      {1, 2, 1, 17, 16, 8, 8},
                               {2, 2, 2, 33, 65, 17, 31},  {1, 2, 2, 70, 130, 32, 32}, {1, 2, 1, 129, 1, 5, 2},
                               {1, 1, 1, 70, 70, 40, 70},  {1, 2, 2, 48, 96, 64, 64},  {2, 1, 1, 130, 67, 64, 33},
                               {1, 1, 1, 65, 70, 128, 96}, {2, 1, 1, 9, 40, 72, 128},  {3, 1, 1, 20, 97, 1, 16}};
  int turn = 0;
  for (DType dtype : {DType::f32, DType::f64})
    for (const Sizes& s : all)
      for (Layout layout : {Layout::dense, Layout::split_heads, Layout::columns_apart, Layout::odd_offset}) {
        ++turn;
        if (turn % 2 && s.queries * s.keys > 3000) continue;
        Problem p(s, dtype, layout, generator);
        p.settings.causal = turn % 3 == 0;
        INFO(s.text() << " " << dtype << " layout " << static_cast<int>(layout) << " causal " << p.settings.causal);
        check(p, {.from_delta = turn % 4 < 2 && layout != Layout::columns_apart,
                  .split_heads = layout == Layout::split_heads});
      }
}

TEST_CASE("cuda attention: heads wider than a tile come in chunks") {
  Generator generator(5);
  for (DType dtype : {DType::f32, DType::f64})
    for (const Sizes& s : {Sizes{1, 2, 1, 20, 37, 130, 257},
                           {1, 1, 1, 35, 33, 256, 8},
                           {1, 1, 1, 3, 40, 16, 300},
                           {1, 1, 1, 33, 20, 200, 130}})
      for (bool over : {false, true}) {
        Problem p(s, dtype, Layout::dense, generator);
        p.settings.causal = over;
        p.settings.dropout = over ? 0.2 : 0;
        INFO(s.text() << " " << dtype << " over " << over);
        const Result want = run(p, false);
        check_near(run(p, true, {.over = over}), want, dtype);
      }
}

TEST_CASE("cuda attention: no queries, no keys, no width, no heads") {
  Generator generator(1);
  for (const Sizes& s : {Sizes{2, 2, 1, 0, 3, 2, 2},
                         {2, 2, 1, 3, 0, 2, 2},
                         {2, 2, 1, 0, 0, 2, 2},
                         {2, 2, 1, 3, 4, 0, 2},
                         {2, 2, 1, 3, 4, 2, 0},
                         {2, 2, 1, 3, 4, 0, 0},
                         {0, 2, 1, 3, 4, 2, 2},
                         {2, 0, 0, 3, 4, 2, 2}}) {
    Problem p(s, DType::f32, Layout::dense, generator);
    p.settings.causal = true;
    INFO(s.text());
    check(p);
  }
}

TEST_CASE("cuda attention: every kind of mask, causal order, ALiBi and dropout together") {
  Generator generator(7);
  int turn = 0, tried = 0;
  for (DType dtype : {DType::f32, DType::f64})
    for (const Sizes& s : {Sizes{2, 4, 2, 5, 9, 6, 9},
                           {2, 2, 2, 40, 70, 6, 9},
                           {1, 3, 1, 90, 40, 33, 20},
                           {2, 6, 2, 1, 70, 8, 8},
                           {1, 2, 1, 3, 300, 8, 8}}) {
      const auto random_mask = [&](const Shape& shape) { return rand(shape, {}, generator) < 0.6; };
      const auto float_mask = [&](const Shape& shape) {
        return randn(shape, dtype, generator).masked_fill(random_mask(shape), -inf);
      };
      const Tensors masks{{},
                          random_mask({s.queries, s.keys}),
                          random_mask({s.n, 1, s.queries, s.keys}).to(DType::i64) * 3,
                          random_mask({s.n, 1, 1, s.keys}),
                          random_mask({1, s.h, 1, s.keys}).to(DType::i64),
                          random_mask({s.n, 1, s.queries, 1}),
                          float_mask({s.queries, s.keys}),
                          float_mask({s.n, s.h, 1, s.keys}),
                          float_mask({1, 1, s.queries, 1})};
      for (const Tensor& mask : masks)
        for (int kind = 0; kind < 8; ++kind) {
          if ((++turn + kind / 2) % 3) continue;
          Problem p(s, dtype, turn % 2 ? Layout::split_heads : Layout::dense, generator);
          if (mask.defined()) p.set_mask(mask);
          if (kind % 3 == 1) p.key_mask = on_both(random_mask({s.n, s.keys}));
          if (kind % 3 == 2)
            p.key_mask =
                seen(on_both(random_mask({s.keys, s.n}).to(DType::i64)), [](const Tensor& x) { return x.t(); });
          if (kind & 1) p.alibi = on_both(rand({s.h}, DType::f64, generator));
          p.settings.causal = (kind & 2) != 0;
          p.settings.dropout = (kind & 4) != 0 ? 0.3 : 0;
          INFO(s.text() << " " << dtype << " kind " << kind << " turn " << turn);
          check(p);
          ++tried;
        }
    }
  CHECK(tried > 200);
}

TEST_CASE("cuda attention: dropout keeps what the CPU keeps, up to all and none of it") {
  Generator generator(9);
  for (double dropout : {0.5, 1.0}) {
    Problem p({2, 2, 1, 40, 50, 16, 16}, DType::f64, Layout::dense, generator);
    p.settings.dropout = dropout;
    check(p);
  }
}

TEST_CASE("cuda attention: few queries over many keys, whose parts are put together") {
  Generator generator(11);
  for (DType dtype : {DType::f32, DType::f64})
    for (const Sizes& s : {Sizes{1, 2, 2, 1, 1000, 16, 24},
                           {1, 8, 2, 1, 900, 64, 64},
                           {1, 1, 1, 4, 700, 100, 128},
                           {1, 1, 1, 16, 600, 32, 32},
                           {1, 1, 1, 60, 515, 32, 30},
                           {1, 1, 1, 7, 600, 16, 200}})
      for (int kind : {0, 1, 2}) {
        Problem p(s, dtype, Layout::dense, generator);
        if (kind == 1) {
          p.key_mask = on_both(rand({s.n, s.keys}, {}, generator) < 0.4);
          p.key_mask.cpu.narrow(1, 0, 500).zero_();  // whole parts
          p.key_mask = on_both(p.key_mask.cpu);
        }
        if (kind == 2) p.settings.causal = true, p.settings.dropout = 0.25;
        INFO(s.text() << " " << dtype << " kind " << kind);
        check(p);
      }
}

TEST_CASE("cuda attention: queries in parts for dk and dv") {
  Generator generator(12);
  for (const Sizes& s : {Sizes{1, 6, 1, 150, 40, 16, 16}, {1, 1, 1, 300, 33, 64, 40}, {1, 8, 2, 70, 100, 32, 32}})
    for (bool over : {false, true}) {
      Problem p(s, DType::f32, Layout::dense, generator);
      p.settings.causal = over;
      INFO(s.text() << " over " << over);
      const Result want = run(p, false);
      check_near(run(p, true, {.over = over, .from_delta = over}), want, p.dtype);
    }
}

TEST_CASE("cuda attention: as many large tiles as a large GPU has multiprocessors") {
  Generator generator(31);
  for (const Sizes& s : {Sizes{2, 100, 100, 65, 33, 8, 8}, {2, 100, 50, 65, 20, 40, 33}, {2, 100, 100, 33, 20, 65, 70}})
    for (bool masked : {false, true}) {
      Problem p(s, DType::f32, Layout::dense, generator);
      if (masked) p.set_mask(rand({s.n, 1, s.queries, s.keys}, {}, generator) < 0.7);
      INFO(s.text() << " masked " << masked);
      check(p);
    }
}

TEST_CASE("cuda attention: rows with nothing to attend to give zeros") {
  Generator generator(13);
  Problem p({1, 2, 2, 150, 140, 8, 8}, DType::f32, Layout::dense, generator);
  Tensor rows = ones({150, 140}, DType::boolean).masked_fill((arange(150) == 3).view({150, 1}), false);
  rows = rows.masked_fill((arange(150) > 63).view({150, 1}), false);
  for (const Tensor& mask : {rows, zeros({150, 140}).masked_fill(rows == 0, -inf)}) {
    p.set_mask(mask);
    const Result r = run(p, true);
    check_near(r, run(p, false), p.dtype);
    for (const Tensor& x : {here(r.y), here(r.dq)}) {
      CHECK(equal(x.select(2, 3), zeros({1, 2, 8})));
      CHECK(equal(x.slice(2, 64), zeros({1, 2, 86, 8})));
      CHECK(x.slice(2, 4, 5).abs().max().item<float>() > 0);
    }
  }
  Problem few({1, 1, 1, 150, 10, 8, 8}, DType::f32, Layout::dense, generator);
  few.settings.causal = true;
  const Result r = run(few, true);
  CHECK(equal(here(r.y).slice(2, 0, 140), zeros({1, 1, 140, 8})));
  CHECK(equal(here(r.dq).slice(2, 0, 140), zeros({1, 1, 140, 8})));
}

TEST_CASE("cuda attention: what stands at keys that nobody may see changes no bit, infinity and NaN pass elsewhere") {
  Generator generator(15);
  for (int64_t queries : {1, 70}) {
    const Problem clean({2, 4, 2, queries, 100, 12, 12}, DType::f32, Layout::dense, generator);
    const Tensor key_mask = rand({2, 100}, {}, generator) < 0.5;
    const Tensor blocked = (key_mask == 0).view({2, 1, 100, 1});
    for (int kind = 0; kind < 4; ++kind) {
      Problem p = clean;
      if (kind == 1 || kind == 2)
        p.set_mask(kind == 1 ? key_mask.view({2, 1, 1, 100}) : key_mask.view({2, 1, 1, 100}).to(DType::i64));
      else
        p.key_mask = on_both(key_mask);
      if (kind == 3) p.set_mask(randn({queries, 100}, {}, generator));
      p.settings.causal = kind == 2;
      const Result right = run(p, true);
      check_near(right, run(p, false), p.dtype);
      for (double garbage : {1e30, inf, std::nan("")}) {
        p.k = on_both(clean.k.cpu.masked_fill(blocked, garbage));
        p.v = on_both(clean.v.cpu.masked_fill(blocked, garbage));
        INFO("L " << queries << " kind " << kind << " garbage " << garbage);
        CHECK(same(run(p, true), right));
      }
    }
  }
  for (double special : {inf, -inf, std::nan("")})
    for (int which = 0; which < 3; ++which) {
      Problem p({1, 1, 1, 6, 40, 8, 8}, DType::f32, Layout::dense, generator);
      Pair& x = which == 0 ? p.q : which == 1 ? p.k : p.v;
      x.cpu.select(2, 2).select(2, 3).fill_(special);
      x = on_both(x.cpu);
      const Result got = run(p, true), want = run(p, false);
      INFO("special " << special << " in " << which);
      CHECK(equal(isfinite(here(got.y)), isfinite(want.y)));
      CHECK(equal(here(got.y) == inf, want.y == inf));
    }
}

TEST_CASE("cuda attention: the same bits again, over the inputs, from delta, all gradients or one") {
  Generator generator(17);
  for (const Sizes& s : {Sizes{2, 4, 2, 70, 90, 24, 20}, {1, 2, 2, 20, 30, 64, 64}, {1, 2, 1, 140, 150, 80, 80}})
    for (DType dtype : {DType::f32, DType::f64}) {
      Problem p(s, dtype, Layout::split_heads, generator);
      p.settings.causal = true;
      p.settings.dropout = 0.1;
      INFO(s.text() << " " << dtype);
      const Result first = run(p, true);
      CHECK(same(run(p, true), first));
      CHECK(same(run(p, true, {.from_delta = true, .split_heads = true}), first));
      for (size_t i = 0; i < 3; ++i) {
        Choice one;
        one.wanted = {i == 0, i == 1, i == 2};
        CHECK(same(run(p, true, one), first));
      }
      for (const std::array<bool, 3>& wanted : {std::array{true, true, true}, std::array{true, false, false},
                                                std::array{false, true, false}, std::array{true, false, true}}) {
        Problem spent = p;
        for (Pair* x : {&spent.q, &spent.k, &spent.v})
          *x = seen(on_both(x->cpu.transpose(1, 2).contiguous()), [](const Tensor& t) { return t.transpose(1, 2); });
        CHECK(same(run(spent, true, {.over = true, .wanted = wanted}), first));
      }
    }
}

TEST_CASE("cuda attention: an expanded gradient of the output") {
  Generator generator(19);
  Problem p({2, 3, 3, 20, 30, 4, 5}, DType::f64, Layout::dense, generator);
  p.dy = seen(on_both(randn({1, 1, 1, 5}, DType::f64, generator)), [](const Tensor& x) {
    return x.expand({2, 3, 20, 5});
  });
  check(p);
  p.dy = seen(on_both(randn({1, 1, 1, 1}, DType::f64, generator)), [](const Tensor& x) {
    return x.expand({2, 3, 20, 5});
  });
  check(p);
}

TEST_CASE("cuda attention's error in f32 is at most twice that of the composed path") {
  Generator generator(23);
  for (auto [queries, keys, width, factor] : {std::tuple<int64_t, int64_t, int64_t, double>{130, 200, 64, 1.0},
                                              {150, 150, 32, 6.0},
                                              {64, 600, 17, 1.0},
                                              {64, 100, 128, 1.0}})
    for (bool causal : {false, true}) {
      Problem p({1, 2, 2, queries, keys, width, width}, DType::f32, Layout::dense, generator);
      p.q = on_both(p.q.cpu * factor);
      p.settings.causal = causal;
      Problem wide = p;
      for (Pair* x : {&wide.q, &wide.k, &wide.v, &wide.dy}) *x = {x->cpu.to(DType::f64), {}};
      const Result right = run(wide, false), fused = run(p, true);
      Tensor q = p.q.cpu.detach().set_requires_grad(), k = p.k.cpu.detach().set_requires_grad();
      Tensor v = p.v.cpu.detach().set_requires_grad();
      Tensor y = detail::composed_attention(q, k, v, {.causal = causal}).first;
      y.backward(p.dy.cpu);
      const Result composed{y.detach(), {}, q.grad(), k.grad(), v.grad()};
      const auto error = [&](Tensor Result::*x) {
        const auto norm = [&](const Result& r) { return (here(r.*x).to(DType::f64) - right.*x).norm().item<double>(); };
        return norm(fused) / norm(composed);
      };
      INFO("L " << queries << " S " << keys << " D " << width << " causal " << causal);
      CHECK(error(&Result::y) < 2);
      CHECK(error(&Result::dq) < 2);
      CHECK(error(&Result::dk) < 2);
      CHECK(error(&Result::dv) < 2);
    }
}

TEST_CASE("cuda attention: nothing of the size of the weights in memory") {
  Generator generator(29);
  constexpr int64_t length = 512, width = 4;  // up to 16 parts of dk and dv are in memory at once
  Problem p({1, 1, 1, length, length, width, width}, DType::f32, Layout::dense, generator);
  p.settings.causal = true;
  reset_cuda_peak_memory();
  const int64_t before = cuda_memory_stats().allocated;
  run(p, true);
  CHECK(cuda_memory_stats().peak - before < length * length * 4 / 2);
}

}  // namespace attention_test
