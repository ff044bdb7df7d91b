// Autocast's scopes, and what they mean on the CPU. On a GPU: tests/cuda/autocast_test.cpp.
#include <catch2/catch.hpp>

#include <optional>
#include <thread>

#include <regard/regard.hpp>

namespace autocast_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {}, generator);
}

}  // namespace

TEST_CASE("autocast: scopes nest, and hold on their thread") {
  CHECK(autocast_dtype() == std::nullopt);
  {
    const AutocastScope outer(DType::bf16);
    CHECK(autocast_dtype() == DType::bf16);
    {
      const AutocastScope inner(DType::f16);
      CHECK(autocast_dtype() == DType::f16);
      const AutocastScope off(std::nullopt);
      CHECK(autocast_dtype() == std::nullopt);
    }
    CHECK(autocast_dtype() == DType::bf16);
    std::optional<DType> elsewhere = DType::f16;
    std::thread([&] { elsewhere = autocast_dtype(); }).join();
    CHECK(elsewhere == std::nullopt);
  }
  CHECK(autocast_dtype() == std::nullopt);
}

TEST_CASE("autocast: only 16-bit dtypes") {
  for (DType dtype : {DType::f32, DType::f64, DType::i64}) {
    CHECK_THROWS_AS(AutocastScope(dtype), DTypeError);
    CHECK(autocast_dtype() == std::nullopt);
  }
  CHECK_THROWS_WITH(AutocastScope(DType::f32), Contains("f32 is no 16-bit dtype") && Contains("DType::bf16"));
}

TEST_CASE("autocast: a block that is computed again sees the precision of products that it saw at first") {
  constexpr auto f32 = MatmulPrecision::f32, bf16 = MatmulPrecision::bf16, tf32 = MatmulPrecision::tf32;
  std::vector<MatmulPrecision> seen;
  const auto block = [&](const Tensors& in) {
    seen.push_back(matmul_precision());
    {
      const AutocastScope off(std::nullopt);
      seen.push_back(matmul_precision());
    }
    const AutocastScope inner(DType::bf16);
    seen.push_back(matmul_precision());
    return in[0] * 2;
  };
  // The program's precision around all scopes, in a scope of autocast or not, with a precision of its own inside or
  // not.
  struct Case {
    MatmulPrecision around;
    std::optional<DType> scope;
    std::optional<MatmulPrecision> inside;
    std::vector<MatmulPrecision> expected;
  };
  for (const Case& c : {Case{f32, DType::bf16, {}, {bf16, f32, bf16}}, Case{tf32, DType::bf16, {}, {bf16, tf32, bf16}},
                        Case{f32, DType::bf16, f32, {f32, f32, bf16}}, Case{tf32, DType::f16, {}, {tf32, tf32, bf16}},
                        Case{tf32, {}, {}, {tf32, tf32, bf16}}, Case{f32, {}, bf16, {bf16, bf16, bf16}}}) {
    seen.clear();
    const Tensor x = ones({2}).set_requires_grad();
    Tensor y;
    {
      const MatmulPrecisionScope around(c.around);
      std::optional<AutocastScope> scope;
      std::optional<MatmulPrecisionScope> inside;
      if (c.scope) scope.emplace(c.scope);
      if (c.inside) inside.emplace(*c.inside);
      y = checkpoint(block, {x}).sum();
    }
    CHECK(seen == c.expected);
    seen.clear();
    const MatmulPrecisionScope elsewhere(c.around == f32 ? bf16 : f32);
    y.backward();
    CHECK(seen == c.expected);
  }
}

TEST_CASE("autocast: on the CPU bf16 is the precision of products, f16 nothing") {
  CHECK(matmul_precision() == MatmulPrecision::f32);
  {
    const AutocastScope scope(DType::bf16);
    CHECK(matmul_precision() == MatmulPrecision::bf16);
    {
      const AutocastScope half(DType::f16);
      CHECK(matmul_precision() == MatmulPrecision::f32);
    }
    {
      const AutocastScope off(std::nullopt);
      CHECK(matmul_precision() == MatmulPrecision::f32);
    }
    {
      const MatmulPrecisionScope exact(MatmulPrecision::f32);
      CHECK(matmul_precision() == MatmulPrecision::f32);
    }
    CHECK(matmul_precision() == MatmulPrecision::bf16);
  }
  CHECK(matmul_precision() == MatmulPrecision::f32);
  const MatmulPrecisionScope outside(MatmulPrecision::tf32);
  const AutocastScope half(DType::f16);
  CHECK(matmul_precision() == MatmulPrecision::tf32);
  const AutocastScope scope(DType::bf16), off(std::nullopt);
  CHECK(matmul_precision() == MatmulPrecision::tf32);
}

TEST_CASE("autocast: on the CPU results are f32, with the bits of MatmulPrecision::bf16") {
  const Tensor x = numbers({40, 64}, 1), w = numbers({48, 64}, 2), b = numbers({48}, 3);
  const auto run = [&](auto scope) {
    const Tensor weight = w.clone().set_requires_grad();
    Tensor y;
    {
      [[maybe_unused]] const auto holds = scope();
      y = gelu(linear(x, weight, b));
    }
    y.sum().backward();
    CHECK(y.dtype() == DType::f32);
    return std::pair(y.detach(), weight.grad());
  };
  const auto cast = run([] { return std::make_unique<AutocastScope>(DType::bf16); });
  const auto rounded = run([] { return std::make_unique<MatmulPrecisionScope>(MatmulPrecision::bf16); });
  CHECK(equal(cast.first, rounded.first));
  CHECK(equal(cast.second, rounded.second));
  const auto half = run([] { return std::make_unique<AutocastScope>(DType::f16); });
  const auto plain = run([] { return 0; });
  CHECK(equal(half.first, plain.first));
  CHECK(equal(half.second, plain.second));
}

TEST_CASE("autocast: on the CPU 16 bits store only, in a scope too") {
  const AutocastScope scope(DType::bf16);
  const Tensor x = ones({3}), y = ones({3}).to(DType::bf16);
  CHECK_THROWS_AS(x + y, DTypeError);
  CHECK_THROWS_AS(y.sum(), DTypeError);
  CHECK_THROWS_AS(matmul(x, y), DTypeError);
  CHECK_THROWS_AS(exp(y), DTypeError);
}

TEST_CASE("autocast: what is computed again in backward has the bits of the first time") {
  manual_seed(1);
  layers::TransformerEncoderLayer block(32, 2, {.hidden = 64, .dropout = 0});
  const Tensor x = numbers({4, 16, 32}, 4);
  const auto gradients = [&](bool again) {
    for (const Tensor& p : block.parameters()) p.zero_grad();
    Tensor loss;
    {
      const AutocastScope scope(DType::bf16);
      loss = square(again ? checkpoint(block, x) : block(x)).mean();
    }
    loss.backward();
    Tensors all;
    for (const Tensor& p : block.parameters()) all.push_back(p.grad());
    return all;
  };
  const Tensors kept = gradients(false), computed_again = gradients(true);
  for (size_t i = 0; i < kept.size(); ++i) CHECK(equal(kept[i], computed_again[i]));
}

}  // namespace autocast_test
