// Attention by matrix instructions, bf16 and f16, against the CPU in f64 on the same numbers: odd sizes, layouts,
// masks, dropout, heads that share keys, long keys for few queries, gradients written over what they are of, bits.
#include <catch2/catch.hpp>

#include "attention_problems.hpp"

namespace tensor_attention_test {

using namespace attention_problems;

TEST_CASE("cuda attention in 16 bits: odd sizes and every layout") {
  Generator generator(3);
  const std::vector<Sizes> all{{1, 1, 1, 1, 1, 1, 1},     {2, 3, 3, 7, 16, 8, 8},      {1, 2, 1, 17, 16, 16, 16},
                               {2, 2, 1, 16, 63, 17, 31}, {1, 2, 2, 65, 130, 32, 32},  {1, 2, 1, 129, 1, 5, 2},
                               {1, 1, 1, 63, 65, 40, 64}, {1, 1, 1, 130, 67, 64, 128}, {1, 1, 1, 65, 70, 128, 96},
                               {2, 1, 1, 9, 40, 72, 104}, {1, 1, 1, 20, 97, 65, 1}};
  int turn = 0;
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Sizes& s : all)
      for (Layout layout : {Layout::dense, Layout::split_heads, Layout::columns_apart, Layout::odd_offset}) {
        if (++turn % 2 && s.queries * s.keys > 1000) continue;
        Problem p(s, dtype, layout, generator);
        p.settings.causal = turn % 3 == 0;
        INFO(s.text() << " " << dtype << " layout " << static_cast<int>(layout) << " causal " << p.settings.causal);
        check(p, {.from_delta = turn % 4 < 2 && layout != Layout::columns_apart,
                  .split_heads = layout == Layout::split_heads});
      }
}

TEST_CASE("cuda attention in 16 bits: gradients of a mask, and of gradients") {
  Generator generator(7);
  for (DType dtype : {DType::bf16, DType::f16}) {
    Tensors gpu, cpu;
    for (const Shape& shape : {Shape{2, 4, 5, 8}, {2, 2, 6, 8}, {2, 2, 6, 4}, {5, 6}}) {
      const Tensor x = randn(shape, {}, generator).to(dtype);
      gpu.push_back(x.to(cuda()).set_requires_grad());
      cpu.push_back(x.to(DType::f64).set_requires_grad());
    }
    const auto derivatives = [](const Tensors& x) {
      const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], {.mask = x[3], .causal = true});
      Tensors all = grad((y * y).sum(), x, {.create_graph = true});
      Tensor sum;
      for (const Tensor& first : all) sum = sum.defined() ? sum + (first * first).sum() : (first * first).sum();
      for (const Tensor& second : grad(sum, x)) all.push_back(second);
      return all;
    };
    const Tensors got = derivatives(gpu), want = derivatives(cpu);
    REQUIRE(got.size() == 8);
    for (size_t i = 0; i < 8; ++i) {
      INFO(dtype << " derivative " << i);
      CHECK(got[i].dtype() == dtype);
      check_near("", got[i], want[i], (i < 4 ? 8 : 16) * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11), 0.01);
    }
  }
}

TEST_CASE("cuda attention in 16 bits: heads that are too wide are computed in f32") {
  Generator generator(9);
  for (int64_t width : {128, 130}) {
    const auto wide = [](const Tensor& x) { return x.to(DType::f32); };
    const Tensor q = randn({1, 2, 9, width}, {}, generator).to(DType::bf16).to(cuda());
    const Tensor k = randn({1, 2, 20, width}, {}, generator).to(DType::bf16).to(cuda());
    const Tensor y = scaled_dot_product_attention(q, k, k);
    const Tensor f32 = scaled_dot_product_attention(wide(q), wide(k), wide(k)).to(DType::bf16);
    CHECK(y.dtype() == DType::bf16);
    CHECK(equal(y.to(cpu()), f32.to(cpu())) == (width > 128));
    check_near("y", y, f32.to(cpu()), 0x1p-7, 0.01);
  }
}

TEST_CASE("cuda attention in 16 bits: rows that a float mask wholly sets to large numbers") {
  struct Case {
    DType dtype;
    double added;
    int64_t queries, keys;  // few queries: the keys come in parts
  };
  Generator generator(23);
  for (const Case& c : {Case{DType::bf16, -1e9, 20, 37},
                        {DType::bf16, -0x1.fep127, 20, 37},
                        {DType::bf16, 1e9, 20, 37},
                        {DType::f16, -65504, 20, 37},
                        {DType::bf16, -1e9, 3, 600},
                        {DType::bf16, -0x1.fep127, 3, 600}})
    for (bool rest_too : {false, true}) {  // all rows, or the second alone
      INFO(c.dtype << " " << c.added << " S " << c.keys << " all rows " << rest_too);
      Problem p({1, 2, 1, c.queries, c.keys, 24, 24}, c.dtype, Layout::dense, generator);
      // In f32 such a row has the mask's number as each score: of a query of zeros so it has in f64.
      Tensor q = p.q.cpu.clone(), mask = zeros({c.queries, c.keys}, DType::f64);
      (rest_too ? q : q.narrow(2, 1, 1)).fill_(0);
      (rest_too ? mask : mask.narrow(0, 1, 1)).fill_(c.added);
      p.q = numbers_on_both(q, c.dtype);
      p.set_mask(mask);
      check(p);
      check(p, {.from_delta = true});
    }
}

TEST_CASE("cuda attention in 16 bits: a kernel in blocks of two warps and of four") {
  Generator generator(31);
  for (int64_t length : {20, 65, 20}) {
    INFO("L " << length);
    check(Problem({2, 1, 1, length, length, 128, 128}, DType::bf16, Layout::dense, generator));
  }
}

TEST_CASE("cuda attention in 16 bits: products of queries and keys up to 1e9") {
  Generator generator(29);
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool causal : {false, true})
      for (int64_t queries : {20, 192}) {  // tiles without masks where there are many
        INFO(dtype << " causal " << causal << " L " << queries);
        Problem p({1, 2, 2, queries, queries, 64, 64}, dtype, Layout::dense, generator);
        const double large = 8192;
        p.q = numbers_on_both(p.q.cpu * large, dtype);
        p.k = numbers_on_both(p.k.cpu * large, dtype);
        p.settings.causal = causal;
        const Result want = run(p, false);
        const Tensor delta = (p.dy.cpu * want.y).sum({-1}).to(DType::f32).to(cuda());
        const Result got = run(p, true, {.delta = delta});
        // One key has the whole weight, so that gradients of scores are 0 but for rounding.
        check_near("y", got.y, want.y, 0.01);
        check_near("dv", got.dv, want.dv, 0.01);
        check_near("dq", got.dq, want.dq, 1e-4, large);
        check_near("dk", got.dk, want.dk, 1e-4, large);
      }
}

}  // namespace tensor_attention_test
