// Sums, means, extremes and their relatives, over any dimensions and strides.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>

namespace reduce_test {

using namespace regard;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

Tensor numbers(const std::vector<double>& list) { return from_vector<double>(list); }

// The sum over `dims` of x [A, B, C], element by element.
std::vector<double> plain_sum(const Tensor& x, const std::vector<bool>& reduced) {
  const Shape shape = x.shape();
  Shape kept = shape;
  for (int64_t d = 0; d < 3; ++d)
    if (reduced[static_cast<size_t>(d)]) kept[d] = 1;
  std::vector<double> sums(static_cast<size_t>(kept.numel()), 0.0);
  const std::vector<double> all = values(x);
  size_t i = 0;
  for (int64_t a = 0; a < shape[0]; ++a)
    for (int64_t b = 0; b < shape[1]; ++b)
      for (int64_t c = 0; c < shape[2]; ++c, ++i) {
        const int64_t at = ((reduced[0] ? 0 : a) * kept[1] + (reduced[1] ? 0 : b)) * kept[2] + (reduced[2] ? 0 : c);
        sums[static_cast<size_t>(at)] += all[i];
      }
  return sums;
}

}  // namespace

TEST_CASE("sum over every set of dimensions of dense, permuted and expanded tensors") {
  manual_seed(1);
  const Tensor dense = randn({5, 70, 9}, DType::f32);
  const std::vector<Tensor> inputs = {dense, dense.permute({2, 0, 1}), dense.permute({1, 2, 0}),
                                      randn({1, 7, 1}).expand({6, 7, 5}), dense.slice(1, 3, 60, 2)};
  for (const Tensor& x : inputs) {
    for (int mask = 1; mask < 8; ++mask) {
      Shape dims;
      std::vector<bool> reduced(3);
      for (int64_t d = 0; d < 3; ++d) {
        reduced[static_cast<size_t>(d)] = (mask >> d & 1) != 0;
        if (reduced[static_cast<size_t>(d)]) dims.push_back(d);
      }
      const std::vector<double> expected = plain_sum(x, reduced);
      const Tensor y = sum(x, Dims(dims));
      CAPTURE(x.shape(), x.strides(), dims);
      REQUIRE(y.dim() == 3 - dims.dim());
      const std::vector<double> got = values(y);
      REQUIRE(got.size() == expected.size());
      for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == Approx(expected[i]).margin(1e-4));
    }
  }
}

TEST_CASE("sum is accurate over many f32 numbers") {
  const Tensor x = full({1 << 22}, 0.1F);
  CHECK(sum(x).item<double>() == Approx((1 << 22) * static_cast<double>(0.1F)).epsilon(1e-7));
  const Tensor rows = full({1 << 20, 3}, 0.1F);
  for (double v : values(sum(rows, 0))) CHECK(v == Approx((1 << 20) * static_cast<double>(0.1F)).epsilon(1e-7));
}

TEST_CASE("sums have the same bits for every number of threads") {
  manual_seed(2);
  const Tensor x = randn({3000, 130});
  const int before = num_threads();
  std::vector<std::vector<float>> all;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<float> bits = sum(x, 0).to_vector<float>();
    for (float v : sum(x, 1).to_vector<float>()) bits.push_back(v);
    bits.push_back(sum(x).item<float>());
    bits.push_back(norm(x).item<float>());
    all.push_back(bits);
  }
  set_num_threads(before);
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
}

TEST_CASE("sum of integers and booleans counts in i64; their mean asks for a cast") {
  const Tensor mask = from_vector<bool>({true, false, true});
  CHECK(sum(mask).dtype() == DType::i64);
  CHECK(sum(mask).item<int64_t>() == 2);
  CHECK(sum(arange(5)).item<int64_t>() == 10);
  CHECK_THROWS_AS(mean(mask), DTypeError);
  CHECK_THROWS_WITH(mean(arange(5)), Catch::Contains("to("));
  CHECK(mask.to(DType::f32).mean().item<double>() == Approx(2.0 / 3));
}

TEST_CASE("reductions of nothing: sum 0, mean NaN, any false, all true, no extreme") {
  const Tensor x = zeros({0, 3});
  CHECK(sum(x).item<double>() == 0);
  CHECK(values(sum(x, 0)) == std::vector<double>{0, 0, 0});
  CHECK(sum(x, 1).shape() == Shape{0});
  CHECK(std::isnan(mean(x).item<double>()));
  CHECK_FALSE(any(x).item<bool>());
  CHECK(all(x).item<bool>());
  CHECK(norm(x).item<double>() == 0);
  CHECK(logsumexp(x, 0).to_vector<double>() == std::vector<double>{-inf, -inf, -inf});
  CHECK_THROWS_AS(max(x), ValueError);
  CHECK_THROWS_AS(min(x, 0), ValueError);
  CHECK_THROWS_WITH(argmax(x, 0), Catch::Contains("empty"));
  CHECK(argmax(x, 1).shape() == Shape{0});
}

TEST_CASE("sum_to is the reverse of broadcasting") {
  const Tensor x = arange(24).to(DType::f64).reshape({2, 3, 4});
  CHECK(sum_to(x, {2, 3, 4}).impl() == x.impl());
  CHECK(values(sum_to(x, {4})) == std::vector<double>{60, 66, 72, 78});
  CHECK(values(sum_to(x, {3, 1})) == std::vector<double>{60, 92, 124});
  CHECK(values(sum_to(x, {1, 1, 1})) == std::vector<double>{276});
  CHECK(sum_to(x, {}).item<double>() == 276);
  CHECK_THROWS_AS(sum_to(x, {2}), ShapeError);
  CHECK_THROWS_AS(sum_to(x, {1, 2, 3, 4}), ShapeError);

  const Tensor leaf = x.clone().set_requires_grad();
  sum(sum_to(leaf, {3, 1}) * numbers({1, 2, 3}).reshape({3, 1})).backward();
  CHECK(values(leaf.grad().select(0, 1).select(1, 2)) == std::vector<double>{1, 2, 3});
}

TEST_CASE("dims: negative, repeated, out of range, zero-dimensional") {
  const Tensor x = ones({2, 3});
  CHECK(sum(x, {0, -1}).shape() == Shape{});
  CHECK(sum(x, -1, true).shape() == Shape{2, 1});
  CHECK(sum(x, {}).item<double>() == 6);
  CHECK_THROWS_AS(sum(x, {1, -1}), ValueError);
  CHECK_THROWS_AS(sum(x, 2), IndexError);
  CHECK(sum(scalar_tensor(4.0), -1).item<double>() == 4);
  CHECK(max(scalar_tensor(4.0), 0).first.item<double>() == 4);
  CHECK_THROWS_AS(sum(Tensor()), ValueError);
}

TEST_CASE("mean, var and their gradients") {
  const Tensor x = numbers({1, 2, 4, 9}).reshape({2, 2}).set_requires_grad();
  CHECK(mean(x).item<double>() == 4);
  CHECK(values(var(x, 1)) == std::vector<double>{0.5, 12.5});
  CHECK(values(var(x, 1, false)) == std::vector<double>{0.25, 6.25});
  CHECK(var(x, {}).item<double>() == Approx(38.0 / 3));
  CHECK(values(grad(mean(x), {x})[0]) == std::vector<double>{0.25, 0.25, 0.25, 0.25});
  CHECK(values(grad(sum(var(x, 1)), {x})[0]) == std::vector<double>{-1, 1, -5, 5});
  // A large mean beside small deviations.
  CHECK(var(numbers({1e8, 1e8 + 1, 1e8 + 2}), 0).item<double>() == Approx(1));
}

TEST_CASE("extremes: the first of equals, its gradient, NaN, and any layout") {
  const Tensor x = numbers({3, 5, 5, 1, 5, 0}).reshape({2, 3}).set_requires_grad();
  CHECK(max(x).item<double>() == 5);
  CHECK(argmax(x).item<int64_t>() == 1);
  CHECK(argmin(x).item<int64_t>() == 5);
  CHECK(values(grad(max(x), {x})[0]) == std::vector<double>{0, 1, 0, 0, 0, 0});
  auto [top, where_top] = max(x, 1);
  CHECK(values(top) == std::vector<double>{5, 5});
  CHECK(where_top.to_vector<int64_t>() == std::vector<int64_t>{1, 1});
  CHECK(values(grad(sum(top * numbers({2, 3})), {x})[0]) == std::vector<double>{0, 2, 0, 0, 3, 0});
  CHECK(min(x, 0, true).first.shape() == Shape{1, 3});
  CHECK(argmax(x.t(), 0).to_vector<int64_t>() == std::vector<int64_t>{1, 1});
  CHECK(argmax(x.t()).item<int64_t>() == 2);  // row-major in the view
  const Tensor nan = numbers({1, std::nan(""), 7});
  CHECK(std::isnan(max(nan).item<double>()));
  CHECK(argmin(nan).item<int64_t>() == 1);
  CHECK(max(arange(4)).item<int64_t>() == 3);
}

TEST_CASE("the maximum's second derivative goes through its value") {
  const Tensor x = numbers({1, 3, 2}).set_requires_grad();
  const Tensor first = grad(square(max(x, 0).first), {x}, {.create_graph = true})[0];
  CHECK(values(first) == std::vector<double>{0, 6, 0});
  CHECK(values(grad(sum(first), {x})[0]) == std::vector<double>{0, 2, 0});
}

TEST_CASE("logsumexp of all -inf is -inf with gradient 0") {
  const Tensor x = numbers({-inf, -inf}).set_requires_grad();
  const Tensor y = logsumexp(x, 0);
  CHECK(y.item<double>() == -inf);
  y.backward();
  CHECK(values(x.grad()) == std::vector<double>{0, 0});

  const Tensor mixed = numbers({-inf, 1}).set_requires_grad();
  const Tensor z = logsumexp(mixed, 0);
  CHECK(z.item<double>() == 1);
  z.backward();
  CHECK(values(mixed.grad()) == std::vector<double>{0, 1});

  CHECK(logsumexp(numbers({1000, 1001}), 0).item<double>() == Approx(1001 + std::log1p(std::exp(-1.0))));
  CHECK(logsumexp(numbers({inf, 1}), 0).item<double>() == inf);
  CHECK(std::isnan(logsumexp(numbers({std::nan(""), 1}), 0).item<double>()));
}

TEST_CASE("any and all, of booleans and numbers") {
  const Tensor x = from_vector<bool>({true, false, true, true}, {2, 2});
  CHECK(any(x).item<bool>());
  CHECK_FALSE(all(x).item<bool>());
  CHECK(all(x, 1).to_vector<bool>() == std::vector<bool>{false, true});
  CHECK(any(numbers({0, 0, 2})).item<bool>());
  CHECK(all(x, 0).dtype() == DType::boolean);
}

TEST_CASE("norm at zero has gradient 0, and large numbers do not overflow") {
  const Tensor x = numbers({0, 0}).set_requires_grad();
  const Tensor y = norm(x);
  CHECK(y.item<double>() == 0);
  const Tensor first = grad(y, {x}, {.create_graph = true})[0];
  CHECK(values(first) == std::vector<double>{0, 0});
  CHECK(values(grad(sum(first * numbers({1, 2})), {x})[0]) == std::vector<double>{0, 0});

  const Tensor z = numbers({3, 4}).set_requires_grad();
  norm(z).backward();
  CHECK(values(z.grad())[0] == Approx(0.6));
  CHECK(values(z.grad())[1] == Approx(0.8));
  CHECK(norm(full({100}, 1e20F)).item<double>() == Approx(1e21));
  CHECK(norm(full({4}, 1e-30F)).item<double>() == Approx(2e-30));
}

TEST_CASE("gradients of sum where an operand was broadcast") {
  const Tensor a = ones({3, 4}), row = ones({1, 4}).set_requires_grad();
  sum(a + row).backward();
  CHECK(row.grad().shape() == Shape{1, 4});
  CHECK(values(row.grad()) == std::vector<double>{3, 3, 3, 3});
}

}  // namespace reduce_test
