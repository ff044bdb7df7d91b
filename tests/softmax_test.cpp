// Softmax and its logarithm.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/softmax_rows.hpp>

namespace softmax_test {

using namespace regard;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("softmax neither overflows nor underflows") {
  const auto check = [](const std::vector<float>& x, const std::vector<double>& expected) {
    const std::vector<double> y = values(softmax(from_vector<float>(x), 0));
    for (size_t i = 0; i < expected.size(); ++i) CHECK(y[i] == Approx(expected[i]).margin(1e-7));
  };
  check({1000, 1001, 1002}, {0.0900306, 0.2447285, 0.6652410});
  check({-10000, -10000}, {0.5, 0.5});
  check({3e38F, -3e38F}, {1, 0});
  check({0, -1e30F, -std::numeric_limits<float>::infinity()}, {1, 0, 0});
}

TEST_CASE("softmax's gradient under a weighted sum") {
  const Tensor x = from_vector<double>({0, std::log(3.0)}).set_requires_grad();
  sum(softmax(x, 0) * from_vector<double>({1, 0})).backward();
  CHECK(values(x.grad())[0] == Approx(0.1875));
  CHECK(values(x.grad())[1] == Approx(-0.1875));
}

TEST_CASE("softmax along every dimension of any layout, f32 and f64") {
  manual_seed(3);
  for (DType dtype : {DType::f32, DType::f64}) {
    const Tensor dense = randn({4, 37, 5}, dtype) * 3.0;
    const std::vector<Tensor> inputs = {dense, dense.permute({2, 0, 1}), randn({4, 1, 5}, dtype).expand({4, 19, 5}),
                                        dense.slice(1, 1, 30, 3)};
    for (const Tensor& x : inputs) {
      for (int64_t dim = -3; dim < 3; ++dim) {
        const Tensor wide = x.to(DType::f64);
        const Tensor power = exp(wide - max(wide, dim, true).first);
        const Tensor expected = power / sum(power, dim, true);
        const double tolerance = dtype == DType::f32 ? 1e-6 : 1e-13;
        CHECK(allclose(softmax(x, dim).to(DType::f64), expected, tolerance, tolerance));
        CHECK(allclose(log_softmax(x, dim).to(DType::f64), log(expected), 4 * tolerance, 4 * tolerance));
      }
    }
  }
}

TEST_CASE("a softmax row's bits do not depend on its neighbours") {
  manual_seed(4);
  const Tensor x = randn({50, 37});
  const Tensor all = softmax(x, -1);
  for (int64_t row : {0, 1, 17, 49}) CHECK(equal(softmax(x.narrow(0, row, 1), -1), all.narrow(0, row, 1)));
  const Tensor by_column = softmax(x.t(), 0);
  CHECK(equal(by_column.t().contiguous(), all));
}

TEST_CASE("softmax of nothing but -inf is NaN, and zeros with zero gradients for attention") {
  const Tensor x = from_vector<double>({-inf, -inf, 0, -inf}, {2, 2}).set_requires_grad();
  const std::vector<double> y = values(softmax(x, 1));
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(y[1]));
  CHECK(y[2] == 1);
  CHECK(y[3] == 0);
  const Tensor zero = softmax_or_zeros(x, 1);
  CHECK(values(zero) == std::vector<double>{0, 0, 1, 0});
  sum(zero * from_vector<double>({1, 2, 3, 4}, {2, 2})).backward();
  CHECK(values(x.grad()) == std::vector<double>{0, 0, 0, 0});
  // A NaN is not a row with nothing to attend to.
  CHECK(std::isnan(values(softmax_or_zeros(from_vector<double>({-inf, std::nan("")}), 0))[0]));
}

TEST_CASE("log_softmax where some entries are -inf") {
  const Tensor x = from_vector<double>({-inf, 1}).set_requires_grad();
  const Tensor y = log_softmax(x, 0);
  CHECK(values(y) == std::vector<double>{-inf, 0});
  y.select(0, 1).backward();
  CHECK(values(x.grad()) == std::vector<double>{0, 0});
}

TEST_CASE("softmax and log_softmax of one number and of nothing") {
  CHECK(softmax(scalar_tensor(3.0), 0).item<double>() == 1);
  CHECK(log_softmax(scalar_tensor(3.0), -1).item<double>() == 0);
  CHECK(softmax(zeros({0, 4}), 1).shape() == Shape{0, 4});
  CHECK(softmax(zeros({4, 0}), 1).shape() == Shape{4, 0});
  CHECK_THROWS_AS(softmax(zeros({2, 2}), 2), IndexError);
  CHECK_THROWS_WITH(softmax(arange(3), 0), Catch::Contains("to("));
}

TEST_CASE("where softmax is 0, so is its gradient, whatever comes from above") {
  for (double above : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor x = from_vector<double>({0, -inf, std::log(3.0)}).set_requires_grad();
    const Tensor weights = from_vector<double>({1, above, 0}).set_requires_grad();
    softmax(x, 0).backward(weights.detach());
    CHECK(values(x.grad())[0] == Approx(0.1875));
    CHECK(values(x.grad())[1] == 0);
    CHECK(values(x.grad())[2] == Approx(-0.1875));
    const Tensor g = grad(softmax(x, 0), {x}, {.grad_outputs = {weights}, .create_graph = true})[0];
    CHECK(all(isfinite(grad(g.select(0, 0), {x})[0])).item<bool>());
  }
}

TEST_CASE("softmax's second derivative") {
  // y = softmax(x)[0] with p = (1/4, 3/4): y' = (p q, -p q), d(p q)/dx = p q (q - p) (1, -1).
  const Tensor x = from_vector<double>({0, std::log(3.0)}).set_requires_grad();
  for (bool logarithm : {false, true}) {
    const Tensor y = logarithm ? exp(log_softmax(x, 0)) : softmax(x, 0);
    const Tensor first = grad(y.select(0, 0), {x}, {.create_graph = true})[0];
    const std::vector<double> second = values(grad(first.select(0, 0), {x})[0]);
    CHECK(second[0] == Approx(0.1875 * 0.5));
    CHECK(second[1] == Approx(-0.1875 * 0.5));
  }
}

}  // namespace softmax_test
