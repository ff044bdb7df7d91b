// Fused attention on the GPU against the CPU's kernels: odd sizes, layouts, masks, dropout, heads that share keys, long
// keys for few queries, gradients written over what they are of, bits, error.
#include <catch2/catch.hpp>

#include <regard/autograd/ops/attention.hpp>

#include "attention_problems.hpp"

namespace attention_test {

using namespace attention_problems;

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
                         {2, 0, 0, 3, 4, 2, 2}})
    for (DType dtype : {DType::f32, DType::bf16}) {
      Problem p(s, dtype, Layout::dense, generator);
      p.settings.causal = true;
      INFO(s.text() << " " << dtype);
      check(p);
    }
}

TEST_CASE("cuda attention: delta is the sum of the output times its gradient") {
  Generator generator(19);
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (int64_t width : {1, 7, 16, 72, 130})
      for (Layout layout : {Layout::dense, Layout::split_heads, Layout::columns_apart, Layout::odd_offset}) {
        INFO(dtype << " width " << width << " layout " << static_cast<int>(layout));
        const Shape shape{2, 3, 5, width};
        const Pair y = laid_out(shape, dtype, layout, generator), dy = laid_out(shape, dtype, layout, generator);
        const Tensor delta = empty({2, 3, 5}, {is_narrow(dtype) ? DType::f32 : dtype, cuda()});
        kernels(y.gpu).attention_delta(delta, dy.gpu, y.gpu);
        check_near("delta", delta, (dy.cpu * y.cpu).sum({-1}), dtype == DType::f64 ? 1e-14 : 2e-6);
      }
}

TEST_CASE("cuda attention: every kind of mask, causal order, ALiBi and dropout together") {
  Generator generator(7);
  int turn = 0, tried = 0;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const Sizes& s : {Sizes{2, 4, 2, 5, 9, 6, 9},
                           {2, 2, 2, 40, 70, 6, 9},
                           {1, 3, 1, 90, 40, 33, 20},
                           {2, 6, 2, 1, 70, 8, 8},
                           {1, 2, 1, 3, 300, 8, 8}}) {
      const auto random_mask = [&](const Shape& shape) { return rand(shape, {}, generator) < 0.6; };
      const auto float_mask = [&](const Shape& shape) {
        return randn(shape, cpu_type(dtype), generator).masked_fill(random_mask(shape), -inf);
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
          if ((++turn + kind / 2) % (dtype == DType::bf16 ? 11 : dtype == DType::f16 ? 13 : 3)) continue;
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
  CHECK(tried > 280);
}

TEST_CASE("cuda attention: dropout keeps what the CPU keeps, up to all and none of it") {
  Generator generator(9);
  for (DType dtype : {DType::f64, DType::bf16, DType::f16})
    for (double dropout : {0.5, 1.0}) {
      Problem p({2, 2, 1, 40, 50, 16, 16}, dtype, Layout::dense, generator);
      p.settings.dropout = dropout;
      check(p);
    }
}

TEST_CASE("cuda attention: few queries over many keys, whose parts are put together") {
  Generator generator(11);
  int turn = 0;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const Sizes& s : {Sizes{1, 2, 2, 1, 1000, 16, 24},
                           {1, 8, 2, 1, 900, 64, 64},
                           {1, 1, 1, 4, 700, 100, 128},
                           {1, 1, 1, 16, 600, 32, 32},
                           {1, 1, 1, 60, 515, 32, 30},
                           {1, 1, 1, 7, 600, 16, 200}})
      for (int kind : {0, 1, 2}) {
        if (is_narrow(dtype) && (s.value_width > 128 || ++turn % 3)) continue;
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
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Sizes& s : {Sizes{1, 6, 1, 150, 40, 16, 16}, {1, 1, 1, 300, 33, 64, 40}, {1, 8, 2, 70, 100, 32, 32}})
      for (bool over : {false, true}) {
        if (is_narrow(dtype) && over != (s.h == 1)) continue;
        Problem p(s, dtype, Layout::dense, generator);
        p.settings.causal = over;
        INFO(s.text() << " " << dtype << " over " << over);
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
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Problem p({1, 2, 2, 150, 140, 8, 8}, dtype, Layout::dense, generator);
    Tensor rows = ones({150, 140}, DType::boolean).masked_fill((arange(150) == 3).view({150, 1}), false);
    rows = rows.masked_fill((arange(150) > 63).view({150, 1}), false);
    for (const Tensor& mask : {rows, zeros({150, 140}).masked_fill(rows == 0, -inf)}) {
      p.set_mask(mask);
      const Result r = run(p, true);
      check_near(r, run(p, false), p.dtype);
      for (const Tensor& x : {here(r.y), here(r.dq)}) {
        CHECK(equal(x.select(2, 3), zeros({1, 2, 8}, dtype)));
        CHECK(equal(x.slice(2, 64), zeros({1, 2, 86, 8}, dtype)));
        CHECK(x.slice(2, 4, 5).to(DType::f32).abs().max().item<float>() > 0);
      }
    }
    Problem few({1, 1, 1, 150, 10, 8, 8}, dtype, Layout::dense, generator);
    few.settings.causal = true;
    const Result r = run(few, true);
    CHECK(equal(here(r.y).slice(2, 0, 140), zeros({1, 1, 140, 8}, dtype)));
    CHECK(equal(here(r.dq).slice(2, 0, 140), zeros({1, 1, 140, 8}, dtype)));
  }
}

TEST_CASE("cuda attention: what stands at keys that nobody may see changes no bit, infinity and NaN pass elsewhere") {
  Generator generator(15);
  for (auto [dtype, queries] : {std::pair<DType, int64_t>{DType::f32, 1},
                                {DType::f32, 70},
                                {DType::bf16, 1},
                                {DType::bf16, 70},
                                {DType::f16, 20}}) {
    const Problem clean({2, 4, 2, queries, 100, 12, 12}, dtype, Layout::dense, generator);
    const Tensor key_mask = rand({2, 100}, {}, generator) < 0.5;
    const Tensor blocked = (key_mask == 0).view({2, 1, 100, 1});
    for (int kind = 0; kind < 4; ++kind) {
      if (is_narrow(dtype) && queries > 1 && kind < 3) continue;
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
        p.k = numbers_on_both(clean.k.cpu.masked_fill(blocked, garbage), dtype);
        p.v = numbers_on_both(clean.v.cpu.masked_fill(blocked, garbage), dtype);
        INFO(dtype << " L " << queries << " kind " << kind << " garbage " << garbage);
        CHECK(same(run(p, true), right));
      }
    }
  }
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (double special : {inf, -inf, std::nan("")})
      for (int which = 0; which < 3; ++which) {
        Problem p({1, 1, 1, 6, 40, 8, 8}, dtype, Layout::dense, generator);
        Pair& x = which == 0 ? p.q : which == 1 ? p.k : p.v;
        x.cpu.select(2, 2).select(2, 3).fill_(special);
        x = numbers_on_both(x.cpu, dtype);
        const Result got = run(p, true), want = run(p, false);
        INFO(dtype << " special " << special << " in " << which);
        const Tensor y = here(got.y).to(cpu_type(dtype));
        CHECK(equal(isfinite(y), isfinite(want.y)));
        CHECK(equal(y == inf, want.y == inf));
      }
}

TEST_CASE("cuda attention: the same bits again, over the inputs, from delta, all gradients or one") {
  Generator generator(17);
  for (const Sizes& s : {Sizes{2, 4, 2, 70, 90, 24, 20},
                         {1, 2, 2, 20, 30, 64, 64},
                         {1, 2, 1, 17, 70, 80, 72},
                         {1, 2, 1, 140, 150, 80, 80}})
    for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      if (is_narrow(dtype) && s.queries > 20) continue;
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
          *x = seen(numbers_on_both(x->cpu.transpose(1, 2).contiguous(), dtype),
                    [](const Tensor& t) { return t.transpose(1, 2); });
        CHECK(same(run(spent, true, {.over = true, .wanted = wanted}), first));
      }
    }
}

TEST_CASE("cuda attention: an expanded gradient of the output") {
  Generator generator(19);
  for (DType dtype : {DType::f64, DType::bf16})
    for (int64_t columns : {5, 1}) {
      Problem p({2, 3, 3, 20, 30, 4, 5}, dtype, Layout::dense, generator);
      p.dy = seen(numbers_on_both(randn({1, 1, 1, columns}, DType::f64, generator), dtype), [](const Tensor& x) {
        return x.expand({2, 3, 20, 5});
      });
      check(p);
    }
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
