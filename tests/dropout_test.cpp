// Dropout: its values, its gradient and what it draws.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace dropout_test {

using namespace regard;

TEST_CASE("dropout with p = 1 gives zeros and zero gradients, no NaN") {
  float inf = std::numeric_limits<float>::infinity();
  Tensor x = from_vector<float>({1, -2, inf, 4}).set_requires_grad();
  Tensor y = dropout(x, 1);
  CHECK(equal(y, zeros({4})));
  y.sum().backward();
  CHECK(equal(x.grad(), zeros({4})));
}

TEST_CASE("dropout with p = 0 returns its input and draws nothing") {
  Generator generator(1);
  Tensor x = ones({3}).set_requires_grad();
  Tensor y = dropout(x, 0, generator);
  CHECK(y.impl() == x.impl());
  CHECK(generator.offset() == 0);
}

TEST_CASE("dropout scales what it keeps by 1 / (1 - p), and backward has the same mask and scale") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Generator generator(5);
    Tensor x = full({10000}, 3.0, dtype).set_requires_grad();
    Tensor y = dropout(x, 0.2, generator);
    CHECK(generator.offset() == 10000);
    y.sum().backward();
    std::vector<double> values = y.to_vector<double>(), gradient = x.grad().to_vector<double>();
    int64_t kept = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      bool is_kept = values[i] != 0;
      REQUIRE(values[i] == (is_kept ? 3.75 : 0.0));
      REQUIRE(gradient[i] == (is_kept ? 1.25 : 0.0));
      kept += is_kept ? 1 : 0;
    }
    CHECK(std::abs(static_cast<double>(kept) - 8000) < 200);
  }
}

TEST_CASE("dropout drops the same elements in f32 and f64 and in every layout, for the same counters") {
  Tensor x = arange(1, 1 + 6 * 500).to(DType::f32).view({6, 500});
  Generator generator(8);
  Tensor dense = dropout(x, 0.4, generator);
  generator.set_state(8, 0);
  Tensor in_f64 = dropout(x.to(DType::f64), 0.4, generator);
  CHECK(equal(dense == 0, in_f64 == 0));
  generator.set_state(8, 0);
  Tensor strided = dropout(x.transpose(0, 1).contiguous().transpose(0, 1), 0.4, generator);
  CHECK(equal(dense, strided));
  generator.set_state(8, 0);
  Tensor expanded = dropout(ones({1}).expand({6, 500}), 0.4, generator);
  CHECK(equal(dense == 0, expanded == 0));
}

TEST_CASE("dropout is linear, and so is its gradient: the second derivative reaches the gradient's input") {
  Generator generator(2);
  Tensor x = randn({50}, DType::f64, generator).set_requires_grad();
  Tensor weight = randn({50}, DType::f64, generator).set_requires_grad();
  uint64_t offset = generator.offset();
  Tensor y = dropout(x * x, 0.5, generator);
  generator.set_state(2, offset);
  Tensor mask = dropout(ones({50}, DType::f64), 0.5, generator);
  Tensor first = grad(sum(y * weight), {x}, {.create_graph = true})[0];
  CHECK(allclose(first, mask * x * weight * 2, 1e-14, 0));
  Tensors second = grad(sum(first), {x, weight});
  CHECK(allclose(second[0], mask * weight * 2, 1e-14, 0));
  CHECK(allclose(second[1], mask * x * 2, 1e-14, 0));
}

TEST_CASE("dropout refuses a p outside [0, 1], and draws nothing then") {
  Generator generator(1);
  Tensor x = ones({3});
  CHECK_THROWS_AS(dropout(x, -0.1, generator), ValueError);
  CHECK_THROWS_AS(dropout(x, 1.1, generator), ValueError);
  CHECK_THROWS_AS(dropout(x, std::numeric_limits<double>::quiet_NaN(), generator), ValueError);
  CHECK_THROWS_AS(dropout(Tensor(), 0.5, generator), ValueError);
  CHECK_THROWS_AS(dropout(from_vector<int64_t>({1, 2}), 0.5, generator), DTypeError);
  CHECK(generator.offset() == 0);
  CHECK(dropout(zeros({0, 4}), 0.5, generator).shape() == Shape{0, 4});
  CHECK(dropout(scalar_tensor(1.0), 1, generator).item<float>() == 0);
}

}  // namespace dropout_test
