// Tensors from nothing.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <regard/autograd/ops.hpp>

namespace creation_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

Numbers numbers(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("zeros, ones, full: shape, dtype and value") {
  CHECK(zeros({2, 3}).dtype() == DType::f32);
  CHECK(numbers(zeros({2, 3})) == Numbers(6, 0));
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i64, DType::boolean}) {
    CAPTURE(dtype);
    CHECK(ones({2, 2}, dtype).dtype() == dtype);
    CHECK(numbers(ones({2, 2}, dtype)) == Numbers(4, 1));
    CHECK(numbers(zeros({3}, dtype)) == Numbers(3, 0));
    CHECK(numbers(full({2}, 1, dtype)) == Numbers(2, 1));
    Tensor like = ones({2, 3}, dtype).t();
    CHECK(zeros_like(like).dtype() == dtype);
    CHECK(zeros_like(like).shape() == Shape{3, 2});
    CHECK(empty_like(like).is_contiguous());
    CHECK(numbers(ones_like(like)) == Numbers(6, 1));
    CHECK(numbers(full_like(like, 1)) == Numbers(6, 1));
  }
  CHECK(full({2}, 0.5).dtype() == DType::f32);
  CHECK(full({2}, 7).dtype() == DType::i64);
  CHECK(full({2}, true).dtype() == DType::boolean);
  CHECK(numbers(full({2}, -7)) == Numbers{-7, -7});
  CHECK(zeros({}).numel() == 1);
  CHECK(zeros({0, 3}).numel() == 0);
  CHECK(scalar_tensor(3).shape() == Shape{});
  CHECK(scalar_tensor(3, DType::f64).dtype() == DType::f64);
  CHECK(full({}, (int64_t{1} << 62) + 1).item<int64_t>() == (int64_t{1} << 62) + 1);
  CHECK_FALSE(zeros({2}).requires_grad());
}

TEST_CASE("arange: integers and floating numbers, both ways, empty") {
  CHECK(arange(5).dtype() == DType::i64);
  CHECK(arange(5).to_vector<int64_t>() == Integers{0, 1, 2, 3, 4});
  CHECK(arange(2, 5).to_vector<int64_t>() == Integers{2, 3, 4});
  CHECK(arange(2, 9, 3).to_vector<int64_t>() == Integers{2, 5, 8});
  CHECK(arange(2, 8, 3).to_vector<int64_t>() == Integers{2, 5});
  CHECK(arange(5, 0, -2).to_vector<int64_t>() == Integers{5, 3, 1});
  CHECK(arange(0, 5, -1).numel() == 0);
  CHECK(arange(5, 0).numel() == 0);
  CHECK(arange(0).shape() == Shape{0});
  CHECK(arange(INT64_MAX - 2, INT64_MAX, INT64_MAX).to_vector<int64_t>() == Integers{INT64_MAX - 2});
  CHECK(arange(0, INT64_MIN + 1, INT64_MIN).to_vector<int64_t>() == Integers{0});
  CHECK_THROWS_AS(arange(INT64_MIN, INT64_MAX), ValueError);
  CHECK(arange(3.0).dtype() == DType::f32);
  CHECK(arange(0, 1, 0.25).to_vector<float>() == std::vector<float>{0, 0.25F, 0.5F, 0.75F});
  CHECK(arange(0, 1, 0.1).numel() == 10);
  CHECK(numbers(arange(1.5, 0, -0.5)) == Numbers{1.5, 1, 0.5});
  CHECK(arange(3, DType::f64).dtype() == DType::f64);
  CHECK(numbers(arange(1, 4, 1, DType::f16)) == Numbers{1, 2, 3});
  const int64_t large = int64_t{1} << 60;
  CHECK(arange(large, large + 3).to_vector<int64_t>() == Integers{large, large + 1, large + 2});
  CHECK_THROWS_AS(arange(0, 5, 0), ValueError);
  CHECK_THROWS_AS(arange(0, 5, 0.0), ValueError);
  CHECK_THROWS_AS(arange(0.0, std::numeric_limits<double>::infinity()), ValueError);
  CHECK_THROWS_AS(arange(0.0, std::nan("")), ValueError);
  CHECK_THROWS_AS(arange(3, DType::boolean), DTypeError);
}

TEST_CASE("linspace holds both ends exactly") {
  CHECK(numbers(linspace(0, 1, 5, DType::f64)) == Numbers{0, 0.25, 0.5, 0.75, 1});
  CHECK(numbers(linspace(3, -3, 3)) == Numbers{3, 0, -3});
  CHECK(numbers(linspace(2, 7, 1)) == Numbers{2});
  CHECK(linspace(2, 7, 0).numel() == 0);
  Tensor x = linspace(0.1, 0.7, 1001, DType::f64);
  CHECK(x[0].item<double>() == 0.1);
  CHECK(x[1000].item<double>() == 0.7);
  CHECK_THROWS_AS(linspace(0, 1, -1), ValueError);
  CHECK_THROWS_AS(linspace(0, 1, 3, DType::i64), DTypeError);
}

TEST_CASE("eye, square and not") {
  CHECK(numbers(eye(2)) == Numbers{1, 0, 0, 1});
  CHECK(numbers(eye(2, 3)) == Numbers{1, 0, 0, 0, 1, 0});
  CHECK(numbers(eye(3, 2, DType::i64)) == Numbers{1, 0, 0, 1, 0, 0});
  CHECK(eye(0).shape() == Shape{0, 0});
  CHECK(eye(0, 3).shape() == Shape{0, 3});
  CHECK_THROWS_AS(eye(-1), ShapeError);
}

TEST_CASE("from_vector: every dtype; the shape must hold as many elements as are given") {
  CHECK(from_vector<float>({1, 2, 3, 4}, {2, 2}).shape() == Shape{2, 2});
  CHECK(from_vector<float>({1, 2}).dtype() == DType::f32);
  CHECK(from_vector<double>({1, 2}).dtype() == DType::f64);
  CHECK(from_vector<int64_t>({1, 2}).dtype() == DType::i64);
  CHECK(from_vector<bool>({true, false}).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK(numbers(from_vector(std::vector<bfloat16>{bfloat16(1.5F)})) == Numbers{1.5});
  CHECK(numbers(from_vector(std::vector<float16>{float16(1.5F)})) == Numbers{1.5});
  CHECK(from_vector<float>({}, {0, 4}).shape() == Shape{0, 4});
  CHECK(from_vector<float>({5}, {}).item<float>() == 5);
  CHECK_THROWS_AS(from_vector<float>({1, 2, 3}, {2, 2}), ShapeError);
  CHECK_THROWS_WITH(from_vector<float>({1, 2, 3}, {2, 2}), Contains("3 values") && Contains("[2, 2]"));
  CHECK_THROWS_AS(from_vector<float>({}, {}), ShapeError);
  CHECK_THROWS_AS(from_vector<float>({1, 2}, {-1, -2}), ShapeError);
}

TEST_CASE("shapes that cannot be: negative sizes, too many dimensions, too many elements") {
  CHECK_THROWS_AS(zeros({2, -1}), ShapeError);
  CHECK_THROWS_WITH(zeros({2, -1}), Contains("zeros") && Contains("[2, -1]"));
  CHECK_THROWS_AS(empty({-5}), ShapeError);
  CHECK_THROWS_AS(empty({int64_t{1} << 32, int64_t{1} << 32}), ShapeError);
  CHECK_THROWS_AS(empty({int64_t{1} << 62, 2}), ShapeError);
  CHECK_THROWS_AS(empty({0, int64_t{1} << 62, 4}), ShapeError);
  CHECK_THROWS_WITH(empty({int64_t{1} << 62}), Contains("too many elements"));
  CHECK(zeros({1, 1, 1, 1, 1, 1, 1, 2}).dim() == 8);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK_THROWS_AS(zeros({1, 1, 1, 1, 1, 1, 1, 2}).unsqueeze(0), ShapeError);
  CHECK_THROWS_AS(zeros_like(Tensor()), ValueError);
}

}  // namespace creation_test
