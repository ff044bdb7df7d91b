// Views, joining and cutting: which views are allowed, what they share, and what their gradients are.
#include <catch2/catch.hpp>

#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace view_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

/// 0, 1, 2, ... in f64.
Tensor counting(const Shape& shape) { return arange(shape.numel(), DType::f64).view(shape); }

/// The gradient of the only leaf `x` where y's gradient is 1, 2, 3, ...
Numbers gradient(const Tensor& y, const Tensor& x) {
  Tensor weights = arange(1, y.numel() + 1, 1, DType::f64).view(y.shape());
  return grad(y, {x}, {.grad_outputs = {weights}, .retain_graph = true})[0].to_vector<double>();
}

}  // namespace

TEST_CASE("view after a transpose: allowed where strides allow it, else an error that says reshape()") {
  Tensor x = counting({2, 3, 4}).transpose(0, 1);
  REQUIRE_THROWS_AS(x.view({3, 8}), ShapeError);
  REQUIRE_THROWS_WITH(x.view({3, 8}), Contains("[3, 2, 4]") && Contains("[4, 12, 1]") && Contains("[3, 8]") &&
                                          Contains("reshape()") && Contains("contiguous()"));
  Tensor y = x.view({3, 2, 2, 2});
  CHECK(y.shares_storage_with(x));
  CHECK(y.strides() == Strides{4, 12, 2, 1});
  CHECK(y.to_vector<double>() == x.to_vector<double>());
  Tensor copy = x.reshape({3, 8});
  CHECK_FALSE(copy.shares_storage_with(x));
  CHECK(copy.to_vector<double>() == x.contiguous().view({3, 8}).to_vector<double>());
  CHECK(counting({2, 3}).reshape({3, 2}).shape() == Shape{3, 2});
}

TEST_CASE("view: sizes of 1 never stand in the way, whatever their stride") {
  Tensor x = counting({6});
  CHECK(make_view(x, {2, 1, 3}, {3, 99, 1}, 0).view({6}).to_vector<double>() == Numbers{0, 1, 2, 3, 4, 5});
  CHECK(make_view(x, {2, 3, 1}, {3, 1, 55}, 0).view({1, 6, 1}).to_vector<double>() == Numbers{0, 1, 2, 3, 4, 5});
  CHECK(make_view(x, {1, 2, 1, 1}, {7, 1, 7, 9}, 0).view({2}).to_vector<double>() == Numbers{0, 1});
  CHECK(x.slice(0, 0, 6, 2).view({1, 3, 1}).to_vector<double>() == Numbers{0, 2, 4});
  CHECK(counting({1}).expand({4}).view({2, 2}).strides() == Strides{0, 0});
  CHECK(counting({1, 1}).view({}).item<double>() == 0);
  CHECK(zeros({0, 3}).view({3, 0, 7}).shape() == Shape{3, 0, 7});
}

TEST_CASE("view: an open size follows from the others, or is an error") {
  Tensor x = counting({2, 3, 4});
  CHECK(x.view({-1}).shape() == Shape{24});
  CHECK(x.view({4, -1, 2}).shape() == Shape{4, 3, 2});
  CHECK(zeros({0, 3}).view({-1, 3}).shape() == Shape{0, 3});
  CHECK_THROWS_WITH(x.view({-1, -1}), Contains("more than one -1"));
  CHECK_THROWS_WITH(x.view({5, -1}), Contains("24 elements") && Contains("[5, -1]"));
  CHECK_THROWS_WITH(x.view({5, 3}), Contains("24 elements") && Contains("[5, 3]"));
  CHECK_THROWS_AS(zeros({0, 3}).view({0, -1}), ShapeError);
  CHECK_THROWS_AS(x.view({-2, 12}), ShapeError);
  CHECK_THROWS_AS(x.view({int64_t{1} << 32, int64_t{1} << 32, 24}), ShapeError);
}

TEST_CASE("merging heads takes a transpose before the reshape") {
  Tensor heads = arange(1, 9, 1, DType::f64).view({1, 2, 2, 2});  // [B, H, L, D]
  Tensor merged = heads.transpose(1, 2).reshape({1, 2, 4});       // [B, L, H D]
  CHECK(merged.to_vector<double>() == Numbers{1, 2, 5, 6, 3, 4, 7, 8});
  CHECK(merged.view({1, 2, 2, 2}).transpose(1, 2).to_vector<double>() == heads.to_vector<double>());
}

TEST_CASE("the gradient of reshape after expand adds up over what was expanded") {
  Tensor x = from_vector<double>({1, 2}, {1, 2}).set_requires_grad();
  x.expand({2, 2}).reshape({4}).sum().backward();
  CHECK(x.grad().shape() == Shape{1, 2});
  CHECK(x.grad().to_vector<double>() == Numbers{2, 2});
}

TEST_CASE("expand: -1 keeps a size; errors name shapes") {
  Tensor x = counting({3, 1});
  CHECK(x.expand({2, -1, 4}).strides() == Strides{0, 1, 0});
  CHECK(x.expand({-1, 0}).shape() == Shape{3, 0});
  CHECK_THROWS_WITH(x.expand({4, 2}), Contains("[3, 1]") && Contains("[4, 2]"));
  CHECK_THROWS_AS(x.expand({3}), ShapeError);
  CHECK_THROWS_AS(x.expand({-1, 3, 1}), ShapeError);
  CHECK_THROWS_WITH(x.expand({int64_t{1} << 40, 3, int64_t{1} << 40}), Contains("too many elements"));
}

TEST_CASE("slice clamps as Python does; select and narrow name the range") {
  Tensor x = counting({5});
  CHECK(slice(x, 0, -3, -1).to_vector<double>() == Numbers{2, 3});
  CHECK(slice(x, 0, 1, 100, 3).to_vector<double>() == Numbers{1, 4});
  CHECK(slice(x, 0, -100, 2).to_vector<double>() == Numbers{0, 1});
  CHECK(slice(x, 0, 4, 2).shape() == Shape{0});
  CHECK(slice(x, 0, 0, INT64_MAX, INT64_MAX).to_vector<double>() == Numbers{0});
  CHECK_THROWS_WITH(slice(x, 0, 0, 5, -1), Contains("flip()"));
  CHECK_THROWS_AS(select(x, 0, 5), IndexError);
  CHECK_THROWS_WITH(select(x, 0, -6), Contains("-6") && Contains("[-5, 5)"));
  CHECK_THROWS_AS(narrow(x, 0, 3, 3), IndexError);
  CHECK_THROWS_AS(narrow(x, 0, 0, -1), IndexError);
  CHECK_THROWS_AS(select(scalar_tensor(1.0), 0, 0), IndexError);
}

TEST_CASE("gradients of slice, narrow and select are zeros but at their places, and differentiable") {
  Tensor x = counting({2, 4}).set_requires_grad();
  CHECK(gradient(slice(x, 1, 1, 4, 2), x) == Numbers{0, 1, 0, 2, 0, 3, 0, 4});
  CHECK(gradient(narrow(x, 1, 2, 2), x) == Numbers{0, 0, 1, 2, 0, 0, 3, 4});
  CHECK(gradient(select(x, 0, -1), x) == Numbers{0, 0, 0, 0, 1, 2, 3, 4});
  Tensor weights = counting({2, 2}).set_requires_grad();
  Tensor first = grad(slice(x, 1, 1, 4, 2), {x}, {.grad_outputs = {weights}, .create_graph = true})[0];
  CHECK(gradient(first, weights) == Numbers{2, 4, 6, 8});
}

TEST_CASE("split and chunk: pieces share the storage, cat puts them together, gradients come back whole") {
  Tensor x = counting({2, 5}).set_requires_grad();
  Tensors pieces = split(x, 2, 1);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[2].shape() == Shape{2, 1});
  CHECK(pieces[1].shares_storage_with(x));
  Tensor whole = cat(pieces, 1);
  CHECK(whole.to_vector<double>() == x.to_vector<double>());
  CHECK(gradient(whole, x) == Numbers{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  // The gradient of a piece that nobody used is zeros.
  CHECK(gradient(split(x, std::vector<int64_t>{1, 0, 3, 1}, -1)[2], x) == Numbers{0, 1, 2, 3, 0, 0, 4, 5, 6, 0});
  Tensors halves = chunk(x, 2, 1);
  CHECK(gradient(cat({halves[1], halves[0]}, 1), x) == Numbers{3, 4, 5, 1, 2, 8, 9, 10, 6, 7});
  CHECK(chunk(x, 4, 1).size() == 3);  // as in PyTorch: ceil(5 / 4) = 2 each
  CHECK(split(zeros({0, 2}), 3).size() == 1);
  CHECK_THROWS_AS(split(x, 0), ValueError);
  CHECK_THROWS_AS(split(x, std::vector<int64_t>{1, 2}, 1), ShapeError);
  CHECK_THROWS_AS(chunk(x, 0), ValueError);
}

TEST_CASE("cat: several shapes and dtypes, empty pieces, and gradients to each piece") {
  Tensor a = counting({2, 1}).set_requires_grad(), b = counting({2, 2}).set_requires_grad();
  Tensor nothing = zeros({0}, DType::f64), thin = zeros({2, 0}, DType::f64);
  Tensor y = cat({nothing, a, thin, b, a}, 1);
  CHECK(y.to_vector<double>() == Numbers{0, 0, 1, 0, 1, 2, 3, 1});
  CHECK(gradient(y, a) == Numbers{1 + 4, 5 + 8});
  CHECK(gradient(y, b) == Numbers{2, 3, 6, 7});
  CHECK(cat({arange(2), ones({1})}).dtype() == DType::f32);
  CHECK(cat({full({1}, true), arange(2)}).dtype() == DType::i64);
  CHECK_THROWS_WITH(cat({ones({1}), zeros({1}, DType::f64)}), Contains("f64 beside f32") && Contains("to()"));
  CHECK_THROWS_WITH(cat({ones({2, 3}), ones({3, 2})}), Contains("tensors[1]") && Contains("[3, 2]"));
  CHECK_THROWS_WITH(cat({scalar_tensor(1.0)}), Contains("stack()"));
  CHECK_THROWS_AS(cat({}), ValueError);
}

TEST_CASE("stack, flip, triu and tril with their gradients") {
  Tensor a = counting({2, 2}).set_requires_grad();
  Tensor y = stack({a, a.transpose(0, 1)}, -1);
  CHECK(y.to_vector<double>() == Numbers{0, 0, 1, 2, 2, 1, 3, 3});
  CHECK(gradient(y, a) == Numbers{1 + 2, 3 + 6, 5 + 4, 7 + 8});
  CHECK(flip(a, {0, -1}).to_vector<double>() == Numbers{3, 2, 1, 0});
  CHECK(gradient(flip(a, 1), a) == Numbers{2, 1, 4, 3});
  Tensor m = counting({2, 2, 3}).set_requires_grad();
  CHECK(triu(m, 1).to_vector<double>() == Numbers{0, 1, 2, 0, 0, 5, 0, 7, 8, 0, 0, 11});
  CHECK(tril(m).to_vector<double>() == Numbers{0, 0, 0, 3, 4, 0, 6, 0, 0, 9, 10, 0});
  CHECK(gradient(tril(m), m) == Numbers{1, 0, 0, 4, 5, 0, 7, 0, 0, 10, 11, 0});
  CHECK(triu(m.transpose(1, 2), INT64_MIN).to_vector<double>() == m.transpose(1, 2).to_vector<double>());
  CHECK_THROWS_AS(triu(counting({3})), ShapeError);
  CHECK_THROWS_AS(flip(a, {0, -2}), ShapeError);
}

}  // namespace view_test
