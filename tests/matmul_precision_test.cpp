// The precision of products, through the graph: gradients have their op's, and a model learns as it does in f32.
#include <catch2/catch.hpp>
#include <regard/regard.hpp>

namespace matmul_precision_test {

using namespace regard;

namespace {

Tensor difference(const Tensor& a, const Tensor& b) { return max(abs(a - b)); }

struct Gradients {
  Tensor x, weight;
};

Tensor inputs_of(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {}, generator);
}

}  // namespace

TEST_CASE("matmul precision: gradients are computed with the precision of their op") {
  const Tensor x0 = inputs_of({64, 48}, 1), w0 = inputs_of({56, 48}, 2), g = inputs_of({64, 56}, 3);
  const auto gradients = [&](MatmulPrecision forward, MatmulPrecision backward, int kind) {
    Tensor x = x0.clone().set_requires_grad(), w = w0.clone().set_requires_grad();
    Tensor loss;
    {
      MatmulPrecisionScope scope(forward);
      if (kind == 0) loss = sum(linear(x, w) * g);
      if (kind == 1) loss = sum(matmul(x, transpose(w, 0, 1)) * g);
      if (kind == 2) loss = sum(checkpoint([&](const Tensors& in) { return tanh(linear(in[0], in[1])); }, {x, w}) * g);
      if (kind == 3)
        loss = sum(custom_op(
                       "product", {x, w}, [](const Tensors& in) { return linear(in[0], in[1]); },
                       [](const Tensors& in, const Tensor& grad) {
                         return Tensors{matmul(grad, in[1]), matmul(transpose(grad, 0, 1), in[0])};
                       }) *
                   g);
    }
    MatmulPrecisionScope scope(backward);
    loss.backward();
    CHECK(matmul_precision() == backward);
    return Gradients{x.grad(), w.grad()};
  };
  constexpr auto f32 = MatmulPrecision::f32, bf16 = MatmulPrecision::bf16;
  for (int kind = 0; kind < 4; ++kind) {
    CAPTURE(kind);
    const Gradients plain = gradients(f32, f32, kind), rounded = gradients(bf16, bf16, kind);
    const Gradients outside = gradients(bf16, f32, kind), inside = gradients(f32, bf16, kind);
    CHECK(equal(rounded.x, outside.x));
    CHECK(equal(rounded.weight, outside.weight));
    CHECK(equal(plain.x, inside.x));
    CHECK(equal(plain.weight, inside.weight));
    CHECK(equal(plain.weight, rounded.weight) == !bf16_matmul_available());
    CHECK(plain.weight.dtype() == DType::f32);
    CHECK(difference(plain.x, rounded.x).item<float>() < 0.5F);  // of sums of 56 products of normal numbers
    CHECK(difference(plain.weight, rounded.weight).item<float>() < 0.5F);
  }
}

TEST_CASE("matmul precision: f64 is never rounded, and second derivatives keep it") {
  const Tensor x = inputs_of({40, 48}, 1).to(DType::f64), w = inputs_of({48, 40}, 2).to(DType::f64);
  const Tensor plain = matmul(x, w);
  MatmulPrecisionScope scope(MatmulPrecision::bf16);
  CHECK(equal(plain, matmul(x, w)));

  Tensor a = inputs_of({32, 32}, 3).set_requires_grad(), b = inputs_of({32, 32}, 4).set_requires_grad();
  const auto second = [&] {
    Tensors first = grad(sum(square(matmul(a, b))), {a}, {.create_graph = true});
    MatmulPrecisionScope other(MatmulPrecision::f32);
    return grad(sum(square(first[0])), {b})[0];
  };
  const Tensor rounded = second();
  Tensor exact;
  {
    MatmulPrecisionScope f32(MatmulPrecision::f32);
    exact = second();
  }
  CHECK(equal(rounded, exact) == !bf16_matmul_available());
  CHECK(difference(rounded, exact).item<float>() < 0.05F * max(abs(exact)).item<float>());
}

TEST_CASE("matmul precision: tf32 is for GPUs, and on the CPU products stay in f32") {
  const Tensor x = inputs_of({40, 48}, 1), w = inputs_of({48, 40}, 2), plain = matmul(x, w);
  MatmulPrecisionScope scope(MatmulPrecision::tf32);
  CHECK(matmul_precision() == MatmulPrecision::tf32);
  CHECK(equal(plain, matmul(x, w)));
}

TEST_CASE("matmul precision: a small model learns in bf16 as it does in f32") {
  const auto last_losses = [](MatmulPrecision precision) {
    MatmulPrecisionScope scope(precision);
    manual_seed(5);
    // One after the other: arguments would draw their weights in an order that is the compiler's.
    layers::Embedding embedding(10, 32);
    layers::LearnedPositionalEncoding positions(8, 32);
    layers::TransformerEncoderLayer block(32, 4);
    layers::Linear head(32, 10);
    layers::Sequential model(embedding, positions, block, head);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    double total = 0;
    for (int step = 0; step < 250; ++step) {
      Tensor digits = randint(0, 10, {64, 8});
      Tensor loss = cross_entropy(model(digits).view({-1, 10}), digits.flip(1).reshape({-1}));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      if (step >= 230) total += loss.item<double>() / 20;
    }
    for (const Tensor& parameter : model.parameters()) CHECK(parameter.dtype() == DType::f32);
    return total;
  };
  const double in_f32 = last_losses(MatmulPrecision::f32), in_bf16 = last_losses(MatmulPrecision::bf16);
  CAPTURE(in_f32, in_bf16);
  CHECK(in_f32 < 0.5);
  CHECK(in_bf16 < 0.5);
  CHECK((in_bf16 != in_f32) == bf16_matmul_available());
}

}  // namespace matmul_precision_test
