// Matrix products: values and gradients over layouts, batches and sizes; messages.
#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace matmul_test {

using namespace regard;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

namespace {

Tensor random_f64(const Shape& shape) {
  static Generator generator(17);
  return randn(shape, DType::f64, generator);
}

/// The product of two tensors with at least two dimensions, an element at a time.
Tensor naive(const Tensor& a, const Tensor& b) {
  int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  Shape a_batch = a.shape(), b_batch = b.shape();
  for (Shape* batch : {&a_batch, &b_batch})
    for (int i = 0; i < 2; ++i) batch->erase(batch->dim() - 1);
  Shape batch = broadcast_shapes("naive", a_batch, b_batch), a_full = batch, b_full = batch, shape = batch;
  for (int64_t size : {m, k}) a_full.push_back(size);
  for (int64_t size : {k, n}) b_full.push_back(size);
  for (int64_t size : {m, n}) shape.push_back(size);
  auto left = a.expand(a_full).to_vector<double>(), right = b.expand(b_full).to_vector<double>();
  std::vector<double> result(static_cast<size_t>(shape.numel()));
  for (int64_t entry = 0; entry < batch.numel(); ++entry)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          result[static_cast<size_t>((entry * m + i) * n + j)] +=
              left[static_cast<size_t>((entry * m + i) * k + l)] * right[static_cast<size_t>((entry * k + l) * n + j)];
  return from_vector<double>(result, shape);
}

/// x in another layout: the last two dimensions the other way round in memory, or columns of a wider matrix.
Tensor transposed_layout(const Tensor& x) { return x.transpose(-1, -2).contiguous().transpose(-1, -2); }
Tensor wide_layout(const Tensor& x) {
  return cat({random_f64(x.shape()), x, random_f64(x.shape())}, -1).narrow(-1, x.size(-1), x.size(-1));
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Values and gradients against the naive product; the gradients through sums over an explicit expansion.
void check_product(const Tensor& a, const Tensor& b) {
  INFO(a.shape() << " x " << b.shape());
  Tensor left = a.detach().set_requires_grad(), right = b.detach().set_requires_grad();
  Tensor y = matmul(left, right);
  CHECK(allclose(y.detach(), naive(a, b), 1e-12, 1e-12));
  Tensor g = random_f64(y.shape());
  y.backward(g);
  Tensor expected_left = sum_to(naive(g, b.transpose(-1, -2)), a.shape());
  Tensor expected_right = sum_to(naive(a.transpose(-1, -2), g), b.shape());
  CHECK(allclose(left.grad(), expected_left, 1e-12, 1e-12));
  CHECK(allclose(right.grad(), expected_right, 1e-12, 1e-12));
}

}  // namespace

TEST_CASE("matmul of a transposed view") {
  Tensor a = from_vector<float>({.7F, -1.3F, 2.1F, -.4F, 1.9F, -3.2F}, {2, 3});
  Tensor expected = from_vector<float>({.3F, .3F, .6F, .6F, -1.1F, -1.1F}, {3, 2});
  CHECK(allclose(matmul(a.t(), ones({2, 2})), expected, 1e-6, 1e-6));
}

TEST_CASE("matmul over sizes and layouts of both sides equals the naive product") {
  auto layout = [](const Tensor& x, int kind) {
    return kind == 0 ? x : kind == 1 ? transposed_layout(x) : wide_layout(x);
  };
  for (int64_t m : {1, 2, 3, 5, 8, 17, 33})
    for (int64_t n : {1, 2, 3, 5, 8, 17, 33})
      for (int64_t k : {1, 2, 3, 5, 8, 17, 33}) {
        Tensor a = random_f64({m, k}), b = random_f64({k, n}), expected = naive(a, b);
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j < 3; ++j) {
            INFO("m " << m << " n " << n << " k " << k << " layouts " << i << " " << j);
            REQUIRE(allclose(matmul(layout(a, i), layout(b, j)), expected, 1e-12, 1e-12));
            REQUIRE(allclose(matmul(layout(a, i).to(DType::f32), layout(b, j).to(DType::f32)), expected.to(DType::f32),
                             1e-4, 1e-4));
          }
      }
}

TEST_CASE("matmul broadcasts batches; a gradient has its input's shape") {
  check_product(random_f64({2, 3}), random_f64({3, 4}));
  check_product(random_f64({5, 2, 3}), random_f64({5, 3, 4}));
  check_product(random_f64({5, 2, 3}), random_f64({3, 4}));
  check_product(random_f64({6, 5, 2, 3}), random_f64({3, 4}));
  check_product(random_f64({2, 3}), random_f64({5, 3, 4}));
  check_product(random_f64({5, 2, 3}), random_f64({1, 3, 4}));
  check_product(random_f64({5, 2, 3}), random_f64({1, 1, 3, 4}));
  check_product(random_f64({6, 1, 2, 3}), random_f64({5, 3, 4}));
  check_product(random_f64({6, 5, 1, 3}), random_f64({3, 4}));
  check_product(random_f64({6, 1, 2, 3}), random_f64({1, 5, 3, 4}));
  check_product(random_f64({2, 1, 3, 1, 2, 3}), random_f64({4, 3, 5, 3, 1}));

  Tensor left = ones({2, 3}).set_requires_grad(), right = ones({4, 3, 2}).set_requires_grad();
  matmul(left, right).sum().backward();
  CHECK(equal(left.grad(), full({2, 3}, 8.0F)));
  CHECK(equal(right.grad(), full({4, 3, 2}, 2.0F)));
}

TEST_CASE("matmul reads strided, expanded and permuted batches in place") {
  Tensor heads = random_f64({2, 7, 3, 4}).permute({0, 2, 1, 3});  // [2, 3, 7, 4] as attention has it
  check_product(heads, random_f64({2, 5, 3, 4}).permute({0, 2, 3, 1}));
  check_product(heads, random_f64({4, 6}));
  check_product(heads.slice(1, 0, 3, 2), random_f64({4, 6}));
  check_product(random_f64({3, 4}).unsqueeze(0).expand({5, 3, 4}), random_f64({4, 6}));
  check_product(random_f64({3, 4}), random_f64({4, 1}).expand({4, 6}));
  check_product(random_f64({5, 2, 3}), random_f64({3, 4}).unsqueeze(0).expand({5, 3, 4}));
  check_product(random_f64({1}).expand({2, 3}), random_f64({9, 9}).slice(0, 1, 4).slice(1, 0, 9, 2));
}

TEST_CASE("matmul with one-dimensional sides") {
  Tensor vector = from_vector<float>({1, 2, 3}), matrix = arange(6.0F).view({3, 2}),
         batch = arange(12.0F).view({2, 2, 3});
  CHECK(matmul(vector, vector).shape() == Shape{});
  CHECK(matmul(vector, vector).item<float>() == 14);
  CHECK(equal(matmul(vector, matrix), from_vector<float>({16, 22})));
  CHECK(equal(matmul(matrix.t(), vector), from_vector<float>({16, 22})));
  CHECK(equal(matmul(batch, vector), from_vector<float>({8, 26, 44, 62}, {2, 2})));
  CHECK(equal(matmul(vector, batch.transpose(1, 2)), from_vector<float>({8, 26, 44, 62}, {2, 2})));

  Tensor a = vector.clone().set_requires_grad(), b = batch.clone().set_requires_grad();
  matmul(b, a).sum().backward();
  CHECK(equal(a.grad(), from_vector<float>({18, 22, 26})));
  CHECK(equal(b.grad(), vector.expand({2, 2, 3}).contiguous()));
}

TEST_CASE("matmul of empty sizes: an inner size of 0 gives zeros") {
  CHECK(equal(matmul(zeros({2, 0}), zeros({0, 3})), zeros({2, 3})));
  CHECK(equal(matmul(zeros({4, 2, 0}), zeros({0, 3})), zeros({4, 2, 3})));
  CHECK(matmul(zeros({0, 2}), zeros({2, 3})).shape() == Shape{0, 3});
  CHECK(matmul(zeros({0, 5, 2}), zeros({2, 3})).shape() == Shape{0, 5, 3});
  CHECK(matmul(zeros({0}), zeros({0})).item<float>() == 0);

  Tensor x = zeros({0, 5, 2}).set_requires_grad(), w = ones({2, 3}).set_requires_grad();
  matmul(x, w).sum().backward();
  CHECK(equal(w.grad(), zeros({2, 3})));
  CHECK(x.grad().shape() == Shape{0, 5, 2});
  Tensor bias = ones({3}).set_requires_grad();
  linear(x, ones({3, 2}), bias).sum().backward();
  CHECK(equal(bias.grad(), zeros({3})));
  CHECK(equal(linear(zeros({2, 0}), zeros({3, 0}), ones({3})), ones({2, 3})));
}

TEST_CASE("matmul's second derivatives") {
  Tensor a = random_f64({5, 2, 3}).set_requires_grad(), b = random_f64({3, 4}).set_requires_grad();
  Tensor u = random_f64({5, 2, 3}), v = random_f64({3, 4}), g = random_f64({5, 2, 4});
  // With f = sum(g (a b)): df/da . u + df/db . v is sum(g (u b)) + sum(g (a v)); its own gradients follow.
  Tensors first = grad(sum(g * matmul(a, b)), {a, b}, {.create_graph = true});
  Tensors second = grad(sum(first[0] * u) + sum(first[1] * v), {a, b});
  CHECK(allclose(second[0], naive(g, v.transpose(0, 1)), 1e-12, 1e-12));
  CHECK(allclose(second[1], sum_to(naive(u.transpose(1, 2), g), {3, 4}), 1e-12, 1e-12));
}

TEST_CASE("linear equals x times weight transposed plus bias, in value and gradients") {
  auto check_linear = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    INFO(x.shape());
    Tensor input = x.detach().set_requires_grad(), w = weight.detach().set_requires_grad();
    Tensor b = bias.defined() ? bias.detach().set_requires_grad() : Tensor();
    Tensor y = linear(input, w, b);
    Tensor expected = matmul(x, weight.transpose(0, 1));
    if (bias.defined()) expected = expected + bias;
    CHECK(allclose(y.detach(), expected, 1e-12, 1e-12));
    Tensor g = random_f64(y.shape());
    y.backward(g);
    Tensor rows = x.reshape({x.numel() / x.size(-1), x.size(-1)}), g_rows = g.reshape({rows.size(0), g.size(-1)});
    CHECK(allclose(input.grad(), matmul(g, weight), 1e-12, 1e-12));
    CHECK(allclose(w.grad(), matmul(g_rows.transpose(0, 1), rows), 1e-12, 1e-12));
    if (bias.defined()) CHECK(allclose(b.grad(), g_rows.sum(0), 1e-12, 1e-12));
  };
  Tensor weight = random_f64({4, 3}), bias = random_f64({4});
  check_linear(random_f64({3}), weight, bias);
  check_linear(random_f64({5, 3}), weight, bias);
  check_linear(random_f64({5, 3}), weight, {});
  check_linear(random_f64({2, 5, 3}), weight, bias);
  check_linear(random_f64({5, 2, 3}).transpose(0, 1), weight, bias);           // rows do not collapse
  check_linear(random_f64({2, 6, 5, 3}).permute({0, 2, 1, 3}), weight, bias);  // nor here
  check_linear(random_f64({2, 3, 5}).transpose(1, 2), weight, random_f64({8}).slice(0, 0, 8, 2));
  check_linear(random_f64({2, 5, 3}), random_f64({3, 4}).transpose(0, 1), bias);
  check_linear(random_f64({1, 3}).expand({6, 3}), weight, random_f64({1}).expand({4}));
}

TEST_CASE("linear's second derivatives") {
  Tensor x = random_f64({2, 5, 3}).set_requires_grad(), w = random_f64({4, 3}).set_requires_grad();
  Tensor b = random_f64({4}).set_requires_grad();
  Tensor u = random_f64({2, 5, 3}), v = random_f64({4, 3}), g = random_f64({2, 5, 4});
  Tensors first = grad(sum(g * linear(x, w, b)), {x, w, b}, {.create_graph = true});
  CHECK(allclose(first[2].detach(), g.sum({0, 1}), 1e-12, 1e-12));
  Tensors second = grad(sum(first[0] * u) + sum(first[1] * v), {x, w});
  CHECK(allclose(second[0], naive(g, v), 1e-12, 1e-12));
  CHECK(allclose(second[1], sum_to(naive(g.transpose(1, 2), u), {4, 3}), 1e-12, 1e-12));
}

TEST_CASE("messages of matmul and linear name the shapes and what differs") {
  auto zero = [](const Shape& shape) { return zeros(shape); };
  CHECK_THAT(message_of([&] {
               matmul(zero({4, 10, 512}), zero({256, 8}));
             }),
             Equals("matmul: [4, 10, 512] x [256, 8]: inner dimensions 512 and 256 differ"));
  CHECK_THAT(message_of([&] { matmul(zero({3}), zero({4})); }),
             Equals("matmul: [3] x [4]: inner dimensions 3 and 4 differ"));
  CHECK_THAT(message_of([&] {
               matmul(zero({3}), zero({4, 3}));
             }),
             Equals("matmul: [3] x [4, 3]: inner dimensions 3 and 4 differ"));
  CHECK_THAT(message_of([&] {
               matmul(zero({2, 4, 3}), zero({5, 3, 4}));
             }),
             Equals("matmul: [2, 4, 3] x [5, 3, 4]: batch dimensions [2] and [5] do not broadcast"));
  CHECK_THROWS_AS(matmul(zero({}), zero({3})), ShapeError);
  CHECK_THROWS_AS(matmul(Tensor(), zero({3})), ValueError);
  CHECK_THAT(message_of([&] {
               linear(zero({16, 127}), zero({64, 128}));
             }),
             Equals("linear: input [16, 127] and weight [64, 128]: the input's last dimension 127 should be 128"));
  CHECK_THROWS_AS(linear(zero({16, 8}), zero({4, 8}), zero({8})), ShapeError);
  CHECK_THROWS_AS(linear(zero({16, 8}), zero({8})), ShapeError);
  CHECK_THROWS_AS(linear(zero({}), zero({4, 8})), ShapeError);
  CHECK_THAT(message_of([&] { matmul(zeros({2, 2}, DType::i64), zero({2, 2})); }), Contains("to("));
  CHECK_THROWS_AS(matmul(zeros({2, 2}, DType::i64), zero({2, 2})), DTypeError);
  CHECK_THAT(message_of([&] { matmul(zeros({2, 2}, DType::f64), zero({2, 2})); }), Contains("to("));
  CHECK_THROWS_AS(linear(zero({2, 2}), zeros({2, 2}, DType::f64)), DTypeError);
}

}  // namespace matmul_test
