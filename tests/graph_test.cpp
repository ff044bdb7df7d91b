// The engine: what gradients it gives, where it adds them up, and what it refuses.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace graph_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

Tensor leaf(double value) { return full({}, value, DType::f64).set_requires_grad(); }
Tensor leaf(const Numbers& values) { return from_vector<double>(values).set_requires_grad(); }
double number(const Tensor& x) { return x.item<double>(); }
Numbers numbers(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("a diamond in the graph neither drops nor double-counts a branch") {
  Tensor x = leaf(2);
  Tensor y = 3 * x;
  (2 * y + 5 * y).backward();
  CHECK(number(x.grad()) == 21);

  Tensor u = leaf(1), a = leaf(1);
  (2 * (u * (u * a)) + pow(u, 2) * a).backward();
  CHECK(number(u.grad()) == 6);
  CHECK(number(a.grad()) == 3);
}

TEST_CASE("a ladder of diamonds: paths are added up, not walked one by one") {
  Tensor x = leaf(1);
  Tensor y = x;
  for (int i = 0; i < 200; ++i) y = (y + y) * 0.5;  // 2^200 paths
  y.backward();
  CHECK(number(x.grad()) == 1);
}

TEST_CASE("a gradient that two inputs share is not changed through one of them") {
  Tensor x = leaf(1), y = leaf(1);
  (x / (x + y)).backward();
  CHECK(number(x.grad()) == 0.25);
  CHECK(number(y.grad()) == -0.25);
  x = leaf(3);
  y = leaf(1);
  Tensor z = x + y;
  (x / z).backward();
  CHECK(number(x.grad()) == 0.0625);
  CHECK(number(y.grad()) == -0.1875);
}

TEST_CASE("gradients of leaves add up over backward passes, and have memory of their own") {
  Tensor x = leaf(Numbers{1, 2}), w = leaf(Numbers{3, 4});
  Tensor upstream = from_vector<double>({10, 20});
  (x + w).backward(upstream);
  CHECK_FALSE(x.grad().shares_storage_with(w.grad()));
  CHECK_FALSE(x.grad().shares_storage_with(upstream));
  CHECK_FALSE(w.grad().shares_storage_with(upstream));
  x.grad().mul_(100);  // the user's right: nobody else sees it
  upstream.zero_();
  CHECK(numbers(w.grad()) == Numbers{10, 20});

  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
  sum(x + x).backward();
  CHECK(numbers(x.grad()) == Numbers{2, 2});
  Tensor held = x.grad();
  sum(3 * x).backward();
  CHECK(numbers(x.grad()) == Numbers{5, 5});
  CHECK(numbers(held) == Numbers{2, 2});

  // The gradient of a sum is one number repeated; the leaf's is dense all the same.
  x.zero_grad();
  x.sum().backward();
  CHECK(x.grad().is_contiguous());
  x.grad().add_(1);
  CHECK(numbers(x.grad()) == Numbers{2, 2});

  // With create_graph too: clipping one gradient must not scale another.
  x.zero_grad();
  w.zero_grad();
  (x + w).backward(ones({2}, DType::f64), true, true);
  CHECK_FALSE(x.grad().shares_storage_with(w.grad()));
}

TEST_CASE("backward of a leaf itself gives what it was given") {
  Tensor x = leaf(5);
  x.backward();
  CHECK(number(x.grad()) == 1);
  Tensor v = leaf(Numbers{1, 2});
  Tensor upstream = from_vector<double>({3, 4});
  v.backward(upstream);
  CHECK(numbers(v.grad()) == Numbers{3, 4});
  CHECK_FALSE(v.grad().shares_storage_with(upstream));
  backward({v, v}, {.grad_outputs = {upstream, upstream}});
  CHECK(numbers(v.grad()) == Numbers{9, 12});
}

TEST_CASE("backward of several outputs at once, weighted or not") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor y = x * x, z = 3 * x;
  backward({y, z, y}, {.grad_outputs = {from_vector<double>({1, 10}), from_vector<double>({1, 1}), y.detach()}});
  CHECK(numbers(x.grad()) == Numbers{2 + 3 + 2, 40 + 3 + 16});
  x.zero_grad();
  backward({x.sum(), (2 * x).sum()});
  CHECK(numbers(x.grad()) == Numbers{3, 3});
}

TEST_CASE("backward refuses what has no gradient, or no single number, and changes nothing") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor constant = ones({2}, DType::f64);
  CHECK_THROWS_AS(constant.sum().backward(), GraphError);
  CHECK_THROWS_WITH(constant.sum().backward(), Contains("requires a gradient") && Contains("set_requires_grad()"));
  CHECK_THROWS_AS((2 * x).backward(), ShapeError);
  CHECK_THROWS_WITH((2 * x).backward(), Contains("[2]") && Contains("not a single number"));
  CHECK_THROWS_WITH((2 * x).backward(ones({3}, DType::f64)), Contains("[3]") && Contains("[2]"));
  CHECK_THROWS_AS((2 * x).backward(ones({2})), DTypeError);
  CHECK_THROWS_WITH((2 * x).backward(ones({2})), Contains("f32") && Contains("f64"));
  CHECK_THROWS_AS(backward({}), ValueError);
  CHECK_THROWS_AS(Tensor().backward(), ValueError);
  CHECK_THROWS_WITH(backward({x.sum(), x.sum()}, {.grad_outputs = {ones({}, DType::f64)}}),
                    Contains("1 gradients for 2 outputs"));
  CHECK_THROWS_AS(backward({x.sum(), constant.sum()}), GraphError);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a second backward through a freed graph is an error with both remedies") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor loss = (x * x).sum();
  loss.backward();
  CHECK_THROWS_AS(loss.backward(), GraphError);
  CHECK_THROWS_WITH(loss.backward(), Contains("earlier backward") && Contains("retain_graph") && Contains("detach()"));
  CHECK(numbers(x.grad()) == Numbers{2, 4});  // counted once

  Tensor again = (x * x).sum();
  again.backward({}, true);
  again.backward({}, true);
  again.backward();
  CHECK(numbers(x.grad()) == Numbers{8, 16});
  CHECK_THROWS_AS(again.backward(), GraphError);
}

TEST_CASE("a state carried from step to step needs detach(), which stops the gradient") {
  Tensor w = leaf(2), start = leaf(1);
  Tensor state = start * w;
  (state * state).backward();
  CHECK_THROWS_AS((state * w).backward(), GraphError);
  start.zero_grad();
  w.zero_grad();
  Tensor detached = state.detach();
  CHECK_FALSE(detached.requires_grad());
  (detached * w).backward();
  CHECK(number(w.grad()) == 2);
  CHECK_FALSE(start.grad().defined());
}

TEST_CASE("a saved tensor that was changed in place is an error with its versions, through a view too") {
  Tensor x = leaf(Numbers{0, 0});
  Tensor y = exp(x);
  CHECK_THROWS_AS(y.mul_(2), GraphError);  // a computed tensor is never written in place
  y.detach().mul_(2);
  CHECK_THROWS_AS(y.sum().backward(), GraphError);
  CHECK_THROWS_WITH(y.sum().backward(), Contains("exp") && Contains("[2]") && Contains("saved at version 0") &&
                                            Contains("now at version 1"));
  CHECK_FALSE(x.grad().defined());

  Tensor factor = from_vector<double>({3, 4});
  Tensor product = (x * factor).sum();
  factor[Range(1)].zero_();
  CHECK_THROWS_WITH(product.backward(), Contains("mul") && Contains("changed in place"));

  Tensor squared = (x * x).sum();
  {
    NoGrad no_grad;
    x.add_(1);
  }
  CHECK_THROWS_AS(squared.backward(), GraphError);
  (x * x).sum().backward();
  CHECK(numbers(x.grad()) == Numbers{2, 2});

  Tensor shifted = (x + factor).sum();  // the sum needs neither: the change does no harm
  factor.zero_();
  shifted.backward();
  CHECK(numbers(x.grad()) == Numbers{3, 3});
}

TEST_CASE("a leaf that requires a gradient is written in place inside NoGrad only") {
  Tensor x = leaf(Numbers{1, 2});
  CHECK_THROWS_AS(x.add_(1), GraphError);
  CHECK_THROWS_AS(x.fill_(1), GraphError);
  CHECK_THROWS_AS(x.copy_(zeros({2}, DType::f64)), GraphError);
  CHECK_THROWS_AS(x[0].zero_(), GraphError);
  CHECK_THROWS_WITH(x.mul_(2), Contains("mul_") && Contains("[2]") && Contains("NoGrad"));
  CHECK(numbers(x) == Numbers{1, 2});
  CHECK(x.version() == 0);
  NoGrad no_grad;
  x.add_(1);
  x[0].zero_();
  CHECK(numbers(x) == Numbers{0, 3});
  CHECK(x.version() == 2);
}

TEST_CASE("writing a tensor that requires a gradient into another one would lose it, and is refused") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor kept = zeros({2}, DType::f64);
  CHECK_THROWS_AS(kept.copy_(x), GraphError);
  CHECK_THROWS_AS(kept.add_(2 * x), GraphError);
  CHECK_THROWS_AS(kept.add_(x, 0.5), GraphError);
  CHECK_THROWS_WITH(kept.mul_(x), Contains("mul_") && Contains("detach()"));
  CHECK(numbers(kept) == Numbers{0, 0});
  kept.add_(x.detach());
  NoGrad no_grad;
  kept.add_(x);
  CHECK(numbers(kept) == Numbers{2, 4});
}

TEST_CASE("set_grad takes a gradient of the tensor's shape and dtype") {
  Tensor x = leaf(Numbers{1, 2});
  x.set_grad(from_vector<double>({5, 6}));
  sum(x).backward();
  CHECK(numbers(x.grad()) == Numbers{6, 7});
  CHECK_THROWS_AS(x.set_grad(ones({3}, DType::f64)), ShapeError);
  CHECK_THROWS_AS(x.set_grad(ones({2})), DTypeError);
  CHECK(numbers(x.grad()) == Numbers{6, 7});
  x.set_grad({});
  CHECK_FALSE(x.grad().defined());
  x.set_grad(full({}, 3, DType::f64).expand({2}));  // repeats elements: adding to it must not write to them twice
  sum(x).backward();
  CHECK(numbers(x.grad()) == Numbers{4, 4});
}

TEST_CASE("requires_grad: floating leaves only, and a computed tensor keeps it") {
  CHECK_THROWS_AS(ones({2}, DType::i64).set_requires_grad(), DTypeError);
  CHECK_THROWS_AS(ones({2}, DType::bf16).set_requires_grad(), DTypeError);
  Tensor x = leaf(1);
  Tensor y = 2 * x;
  CHECK(y.requires_grad());
  CHECK_FALSE(y.is_leaf());
  CHECK_THROWS_AS(y.set_requires_grad(false), GraphError);
  x.set_requires_grad(false);
  CHECK_FALSE((2 * x).requires_grad());
  CHECK_FALSE((x > 0).requires_grad());
}

TEST_CASE("the gradient of a broadcast operand has the operand's shape") {
  Tensor row = ones({1, 4}, DType::f64).set_requires_grad();
  sum(ones({3, 4}, DType::f64) + row).backward();
  CHECK(row.grad().shape() == Shape{1, 4});
  CHECK(numbers(row.grad()) == Numbers(4, 3));
  Tensor left = ones({2, 3}, DType::f64).set_requires_grad(), right = ones({4, 3, 2}, DType::f64).set_requires_grad();
  sum(matmul(left, right)).backward();
  CHECK(left.grad().shape() == Shape{2, 3});
  CHECK(numbers(left.grad()) == Numbers(6, 8));
  CHECK(right.grad().shape() == Shape{4, 3, 2});
  CHECK(numbers(right.grad()) == Numbers(24, 2));
}

TEST_CASE("NoGrad nests, ends with its scope, and ends with an exception") {
  Tensor x = leaf(1);
  {
    NoGrad outer;
    {
      NoGrad inner;
      CHECK_FALSE(grad_enabled());
      GradMode again(true);
      CHECK((2 * x).requires_grad());
    }
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE((2 * x).requires_grad());
  }
  CHECK(grad_enabled());
  try {
    NoGrad no_grad;
    (void)matmul(ones({2, 3}), ones({2, 3}));
    FAIL("the shapes do not fit");
  } catch (const ShapeError&) {
  }
  CHECK(grad_enabled());
}

}  // namespace graph_test
