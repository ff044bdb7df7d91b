// What a first program does, and where it would go wrong without a word.
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/regard.hpp>

namespace regard {

// `x[0] = y` looks like a write and would be none.
static_assert(!std::is_assignable_v<Tensor, Tensor>);
static_assert(!std::is_assignable_v<Tensor, const Tensor&>);
static_assert(std::is_assignable_v<Tensor&, Tensor>);
static_assert(std::is_assignable_v<Tensor&, const Tensor&>);
static_assert(std::is_nothrow_move_constructible_v<Tensor> && std::is_nothrow_move_assignable_v<Tensor>);

TEST_CASE("item() of any integer type is exact") {
  const Tensor id = full({}, int64_t{(1 << 24) + 1});
  CHECK(id.item<int>() == (1 << 24) + 1);
  CHECK(id.item<unsigned>() == (1 << 24) + 1);
  CHECK(id.item<size_t>() == (1 << 24) + 1);
  CHECK(id.item<long long>() == (1 << 24) + 1);
  CHECK(full({}, 123456789.0, DType::f64).item<int>() == 123456789);
  CHECK(full({}, -2.5).item<int>() == -2);
  CHECK(full({}, true).item<int>() == 1);
}

TEST_CASE("from_vector takes numbers of every type") {
  const Tensor labels = from_vector(std::vector<int>{3, -1, 2});
  CHECK(labels.dtype() == DType::i64);
  CHECK(labels.to_vector<int64_t>() == std::vector<int64_t>{3, -1, 2});
  CHECK(from_vector(std::vector<uint8_t>{0, 255}, {2, 1}).shape() == Shape{2, 1});
  CHECK(from_vector(std::vector<uint8_t>{0, 255}).to_vector<int64_t>() == std::vector<int64_t>{0, 255});
  CHECK_THROWS_AS(from_vector(std::vector<int>{1, 2, 3}, {2, 2}), ShapeError);
}

TEST_CASE("arange with a start and a dtype") {
  const Tensor x = arange(2, 5, DType::f64);
  CHECK(x.dtype() == DType::f64);
  CHECK(x.to_vector<double>() == std::vector<double>{2, 3, 4});
}

TEST_CASE("A model that was moved from throws when it is called") {
  layers::Linear layer(3, 2);
  layers::Linear moved = std::move(layer);
  CHECK(moved(ones({1, 3})).shape() == Shape{1, 2});
  std::string message;
  try {
    layer(ones({1, 3}));  // NOLINT(bugprone-use-after-move)
  } catch (const ValueError& error) {
    message = error.what();
  }
  CHECK(message ==
        "linear: argument 'weight' is an undefined tensor: give it a value first (in a layer that cannot "
        "describe itself: was it moved from?)");
}

TEST_CASE("After a description that failed, errors name the layers around it as before") {
  struct Nameless : layers::Layer {
    Tensor operator()(const Tensor& x) const {
      layers::LayerScope scope(*this);
      return matmul(x, x);
    }
    void members(layers::Members&) override {}
    std::string describe() const override { fail<ValueError>("describe", "no name"); }
  };
  struct Outer : layers::Layer {
    Nameless inner;
    Tensor operator()(const Tensor& x) const {
      layers::LayerScope scope(*this);
      CHECK_THROWS_WITH(inner(x), Catch::Contains("cannot describe itself"));
      return matmul(x, x);
    }
    void members(layers::Members& m) override { m("inner", inner); }
    std::string describe() const override { return "Outer(1)"; }
  };
  CHECK_THROWS_WITH(Outer()(ones({2, 3})), Catch::Contains("(in Outer(1))"));
}

TEST_CASE("A parameter reads like a tensor") {
  layers::Linear layer(3, 2);
  const Tensor& weight = layer.weight;
  CHECK(equal(layer.weight.sum(), weight.sum()));
  CHECK(equal(layer.weight.sum(0, true), weight.sum(0, true)));
  CHECK(equal(layer.weight.mean(), weight.mean()));
  CHECK(equal(layer.weight.mean({0, 1}), weight.mean({0, 1})));
  CHECK(equal(layer.weight.norm(), weight.norm()));
  CHECK(equal(layer.weight.abs(), weight.abs()));
  CHECK(equal(layer.weight.reshape({-1}), weight.flatten()));
  CHECK(equal(layer.weight.flatten(), weight.flatten()));
  CHECK(equal(layer.weight.matmul(ones({3})), weight.matmul(ones({3}))));
  CHECK(layer.weight.unsqueeze(0).shape() == Shape{1, 2, 3});
  CHECK(layer.weight.expand({4, 2, 3}).shape() == Shape{4, 2, 3});
  CHECK(layer.weight.to(DType::f64).dtype() == DType::f64);
  layer.weight.register_hook([](const Tensor& grad) { return grad * 2; });
  layer.weight.sum().backward();
  CHECK(equal(layer.weight.grad(), full({2, 3}, 2.0)));
}

TEST_CASE("A shape or strides of a temporary tensor live on, in a range-for too") {
  int64_t product = 1;
  for (int64_t size : zeros({2, 3}).shape()) product *= size;
  CHECK(product == 6);
  const Shape& shape = ones({4, 5}).shape();
  CHECK(shape == Shape{4, 5});
}

TEST_CASE("Lists in braces take any integer; keepdim takes no number") {
  const std::vector<float> rows(3);
  const int width = 2;
  CHECK(zeros({rows.size(), width}).shape() == Shape{3, 2});
  STATIC_REQUIRE(std::is_constructible_v<Flag, bool>);
  STATIC_REQUIRE(!std::is_constructible_v<Flag, int>);
}

TEST_CASE("x += y makes x a handle on the sum and leaves what shared its elements") {
  Tensor x = ones({2}), same = x, w = ones({2}).set_requires_grad();
  x += w;
  x *= 3;
  sum(x).backward();
  CHECK(equal(x.detach(), full({2}, 6.0f)));
  CHECK(equal(same, ones({2})));
  CHECK(equal(w.grad(), full({2}, 3.0f)));
}

TEST_CASE("Empty functions are refused where they are given") {
  Tensor w = ones({2}).set_requires_grad();
  CHECK_THROWS_AS(w.register_hook({}), ValueError);
  CHECK_THROWS_AS(custom_op("mine", {w}, nullptr, nullptr), ValueError);
}

}  // namespace regard
