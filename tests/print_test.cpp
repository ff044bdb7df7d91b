// How tensors read in print.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>

namespace print_test {

using namespace regard;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("printing single numbers") {
  CHECK(full({}, 2.5).to_string() == "2.5000  Tensor([], f32)");
  CHECK(full({}, 3).to_string() == "3  Tensor([], i64)");
  CHECK(full({}, true).to_string() == "true  Tensor([], bool)");
  CHECK(full({}, -3.0, DType::f64).to_string() == "-3.  Tensor([], f64)");
  CHECK(full({1, 1}, 3).to_string() == "[[3]]  Tensor([1, 1], i64)");
}

TEST_CASE("printing small tensors: whole numbers without digits, columns aligned") {
  CHECK(from_vector<float>({1, -2, 3}).to_string() == "[ 1., -2.,  3.]  Tensor([3], f32)");
  CHECK(from_vector<float>({0.5F, -12.25F, 3}).to_string() == "[  0.5000, -12.2500,   3.0000]  Tensor([3], f32)");
  CHECK(from_vector<float>({-0.0F, 0}).to_string() == "[-0.,  0.]  Tensor([2], f32)");
  CHECK(full({2}, 0.1, DType::f16).to_string() == "[0.1000, 0.1000]  Tensor([2], f16)");
  CHECK(ones({2}, DType::bf16).to_string() == "[1., 1.]  Tensor([2], bf16)");
  CHECK(from_vector<double>({1, 2, 3, 4, 5, 6}, {2, 3}).to_string() ==
        "[[1., 2., 3.],\n"
        " [4., 5., 6.]]\n"
        "Tensor([2, 3], f64)");
  CHECK(arange(12).view({2, 3, 2}).to_string() ==
        "[[[ 0,  1],\n"
        "  [ 2,  3],\n"
        "  [ 4,  5]],\n"
        "\n"
        " [[ 6,  7],\n"
        "  [ 8,  9],\n"
        "  [10, 11]]]\n"
        "Tensor([2, 3, 2], i64)");
  CHECK(arange(8).view({2, 2, 1, 2}).to_string() ==
        "[[[[0, 1]],\n"
        "\n"
        "  [[2, 3]]],\n"
        "\n"
        "\n"
        " [[[4, 5]],\n"
        "\n"
        "  [[6, 7]]]]\n"
        "Tensor([2, 2, 1, 2], i64)");
}

TEST_CASE("printing a view shows its own elements") {
  CHECK(arange(6).view({2, 3}).t()[Range(1)].to_string() ==
        "[[1, 4],\n"
        " [2, 5]]\n"
        "Tensor([2, 2], i64)");
  CHECK(full({}, 7).expand({3}).to_string() == "[7, 7, 7]  Tensor([3], i64)");
}

TEST_CASE("printing NaN and infinities") {
  CHECK(from_vector<float>({1, std::nanf(""), inf, -inf}).to_string() == "[  1.,  nan,  inf, -inf]  Tensor([4], f32)");
  CHECK(from_vector<float>({1.5F, std::nanf(""), inf, -inf}, {2, 2}).to_string() ==
        "[[1.5000,    nan],\n"
        " [   inf,   -inf]]\n"
        "Tensor([2, 2], f32)");
  CHECK(from_vector<float>({std::nanf("")}).to_string() == "[nan]  Tensor([1], f32)");
}

TEST_CASE("printing numbers that are far apart, very large or very small: scientific") {
  CHECK(from_vector<float>({1e-5F, 1, 100}).to_string() == "[1.0000e-05, 1.0000e+00, 1.0000e+02]  Tensor([3], f32)");
  CHECK(from_vector<float>({1e7F, 1}).to_string() == "[1.0000e+07, 1.0000e+00]  Tensor([2], f32)");
  CHECK(from_vector<double>({1e300, -1e-300}).to_string() == "[ 1.0000e+300, -1.0000e-300]  Tensor([2], f64)");
  CHECK(full({2}, 999999.0).to_string() == "[999999., 999999.]  Tensor([2], f32)");
}

TEST_CASE("printing booleans and the largest integers exactly") {
  CHECK(from_vector<bool>({true, false, true, true}, {2, 2}).to_string() ==
        "[[ true, false],\n"
        " [ true,  true]]\n"
        "Tensor([2, 2], bool)");
  CHECK(from_vector<int64_t>({INT64_MAX, -1}).to_string() ==
        "[9223372036854775807,                  -1]  Tensor([2], i64)");
}

TEST_CASE("printing empty and undefined tensors") {
  CHECK(zeros({0}).to_string() == "[]  Tensor([0], f32)");
  CHECK(zeros({2, 0, 3}, DType::i64).to_string() == "[]  Tensor([2, 0, 3], i64)");
  CHECK(Tensor().to_string() == "Tensor(undefined)");
}

TEST_CASE("printing a large tensor shows its edges") {
  CHECK(arange(2000).to_string() == "[   0,    1,    2, ..., 1997, 1998, 1999]  Tensor([2000], i64)");
  CHECK(arange(3000).view({50, 60}).to_string() ==
        "[[   0,    1,    2, ...,   57,   58,   59],\n"
        " [  60,   61,   62, ...,  117,  118,  119],\n"
        " [ 120,  121,  122, ...,  177,  178,  179],\n"
        " ...,\n"
        " [2820, 2821, 2822, ..., 2877, 2878, 2879],\n"
        " [2880, 2881, 2882, ..., 2937, 2938, 2939],\n"
        " [2940, 2941, 2942, ..., 2997, 2998, 2999]]\n"
        "Tensor([50, 60], i64)");
  CHECK(ones({1, 1001}).to_string() == "[[1., 1., 1., ..., 1., 1., 1.]]  Tensor([1, 1001], f32)");
  const std::string deep = ones({100, 100, 2}).to_string();
  CHECK(deep.find(" ...,\n\n [[1., 1.],\n") != std::string::npos);
  // Elements that are not shown do not change how those that are look.
  Tensor hidden = ones({2000});
  hidden[1000].fill_(1e-9);
  CHECK(hidden.to_string() == "[1., 1., 1., ..., 1., 1., 1.]  Tensor([2000], f32)");
  CHECK(arange(1000).to_string().find("...") == std::string::npos);
}

TEST_CASE("printing says where a tensor stands in the graph") {
  Tensor x = ones({2}).set_requires_grad();
  CHECK(x.to_string() == "[1., 1.]  Tensor([2], f32, requires_grad)");
  CHECK((x * 2).to_string() == "[2., 2.]  Tensor([2], f32, from mul)");
  CHECK((x * 2).detach().to_string() == "[2., 2.]  Tensor([2], f32)");
  std::ostringstream out;
  out << x;
  CHECK(out.str() == x.to_string());
}

}  // namespace print_test
