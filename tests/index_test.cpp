// Reading and adding at indices: values, gradients with duplicates, and indices out of range.
#include <catch2/catch.hpp>

#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>

namespace index_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

Tensor numbers(const Numbers& values, const Shape& shape) { return from_vector<double>(values, shape); }
Tensor indices(const std::vector<int64_t>& values, const Shape& shape) { return from_vector<int64_t>(values, shape); }

Numbers gradient(const Tensor& y, const Tensor& x, const Tensor& weights) {
  return grad(y, {x}, {.grad_outputs = {weights}, .retain_graph = true})[0].to_vector<double>();
}

}  // namespace

TEST_CASE("duplicate indices accumulate in the gradient") {
  Tensor upstream = numbers({.2, .3}, {2});
  Tensor x = numbers({.1}, {1}).set_requires_grad();
  Tensor twice = indices({0, 0}, {2});
  CHECK(gradient(gather(x, 0, twice), x, upstream) == Numbers{.5});
  CHECK(gradient(index_select(x, 0, twice), x, upstream) == Numbers{.5});
  Tensor weight = numbers({.1}, {1, 1}).set_requires_grad();
  CHECK(gradient(embedding(twice, weight), weight, upstream.view({2, 1})) == Numbers{.5});
}

TEST_CASE("gather and scatter_add along each dimension, with gradients of gradients") {
  Tensor x = arange(6, DType::f64).view({2, 3}).set_requires_grad();
  Tensor index = indices({2, 0, 1, 1}, {2, 2});
  Tensor y = gather(x, 1, index);
  CHECK(y.to_vector<double>() == Numbers{2, 0, 4, 4});
  CHECK(gather(x, 0, indices({1, 0, 1}, {1, 3})).to_vector<double>() == Numbers{3, 1, 5});
  CHECK(gather(x.transpose(0, 1), 0, index.transpose(0, 1)).to_vector<double>() == Numbers{2, 4, 0, 4});

  Tensor weights = numbers({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  Tensor first = grad(y, {x}, {.grad_outputs = {weights}, .create_graph = true})[0];
  CHECK(first.to_vector<double>() == Numbers{2, 0, 1, 0, 7, 0});
  CHECK(gradient(first, weights, x.detach()) == Numbers{2, 0, 4, 4});

  // Only the part of the source that the index covers is added.
  Tensor source = numbers({1, 2, 9, 3, 4, 9}, {2, 3}).set_requires_grad();
  Tensor z = scatter_add(x, 1, index, source);
  CHECK(z.to_vector<double>() == Numbers{2, 1, 3, 3, 11, 5});
  CHECK(gradient(z, source, x.detach()) == Numbers{2, 0, 0, 4, 4, 0});
  CHECK(gradient(z, x, x.detach()) == Numbers{0, 1, 2, 3, 4, 5});
}

TEST_CASE("index_select and index_add are each other's gradient") {
  Tensor x = arange(6, DType::f64).view({2, 3}).set_requires_grad();
  Tensor index = indices({2, 0, 2}, {3});
  Tensor y = index_select(x, -1, index);
  CHECK(y.to_vector<double>() == Numbers{2, 0, 2, 5, 3, 5});
  CHECK(gradient(y, x, numbers({1, 2, 3, 4, 5, 6}, {2, 3})) == Numbers{2, 0, 4, 5, 0, 10});
  CHECK(index_select(x, 0, zeros({0}, DType::i64)).shape() == Shape{0, 3});
  Tensor source = numbers({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad();
  Tensor z = index_add(x, 1, index, source);
  CHECK(z.to_vector<double>() == Numbers{2, 1, 6, 8, 4, 15});
  CHECK(gradient(z, source, x.detach()) == Numbers{2, 0, 2, 5, 3, 5});
}

TEST_CASE("embedding: ids of any shape; the padding row gets no gradient, in the second derivative neither") {
  Tensor weight = arange(6, DType::f64).view({3, 2}).set_requires_grad();
  Tensor ids = indices({2, 1, 1, 0}, {2, 2});
  Tensor y = embedding(ids, weight, 1);
  CHECK(y.shape() == Shape{2, 2, 2});
  CHECK(y.to_vector<double>() == Numbers{4, 5, 2, 3, 2, 3, 0, 1});
  CHECK(embedding(scalar_tensor(2), weight).to_vector<double>() == Numbers{4, 5});

  Tensor upstream = arange(1, 9, 1, DType::f64).view({2, 2, 2}).set_requires_grad();
  Tensor first = grad(y, {weight}, {.grad_outputs = {upstream}, .create_graph = true})[0];
  CHECK(first.to_vector<double>() == Numbers{7, 8, 0, 0, 1, 2});
  CHECK(gradient(first, upstream, weight.detach()) == Numbers{4, 5, 0, 0, 0, 0, 0, 1});
  CHECK(gradient(embedding(ids, weight), weight, upstream.detach()) == Numbers{7, 8, 8, 10, 1, 2});
}

TEST_CASE("embedding gradients have the same bits for every number of threads") {
  Tensor weight = randn({50, 300}).set_requires_grad();
  Tensor ids = randint(0, 50, {40, 50});
  Tensor upstream = randn({40, 50, 300});
  int64_t before = num_threads();
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    results.push_back(grad(embedding(ids, weight), {weight}, {.grad_outputs = {upstream}})[0].to_vector<float>());
  }
  set_num_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("one_hot: classes given or from the largest id") {
  CHECK(one_hot(indices({0, 3, 1}, {3})).to_vector<int64_t>() ==
        std::vector<int64_t>{1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0});
  CHECK(one_hot(indices({1, 0}, {1, 2}), 3).shape() == Shape{1, 2, 3});
  CHECK(one_hot(zeros({0}, DType::i64), 3).shape() == Shape{0, 3});
  CHECK_THROWS_WITH(one_hot(indices({0, 3}, {2}), 3), Contains("id 3") && Contains("[0, 3)"));
  CHECK_THROWS_AS(one_hot(indices({-1}, {1})), IndexError);
  CHECK_THROWS_AS(one_hot(zeros({0}, DType::i64)), ValueError);
  CHECK_THROWS_AS(one_hot(ones({2})), DTypeError);
}

TEST_CASE("an index out of range is an error that names entry and position") {
  Tensor x = zeros({4, 5});
  CHECK_THROWS_AS(gather(x, 1, indices({0, 1, 7}, {1, 3})), IndexError);
  CHECK_THROWS_WITH(gather(x, 1, indices({0, 1, 7}, {1, 3})),
                    Contains("gather: index 7 at position [0, 2] is outside [0, 5) of dimension 1"));
  CHECK_THROWS_WITH(gather(x, 0, indices({0, 1, -1, 2}, {2, 2})), Contains("index -1 at position [1, 0]"));
  CHECK_THROWS_WITH(index_select(x, 1, indices({0, 5}, {2})), Contains("index 5 at position [1]"));
  CHECK_THROWS_WITH(scatter_add(x, 0, indices({4}, {1, 1}), ones({1, 1})), Contains("index 4 at position [0, 0]"));
  CHECK_THROWS_WITH(index_add(x, 0, indices({-2}, {1}), ones({1, 5})), Contains("index -2 at position [0]"));
  CHECK_THROWS_WITH(embedding(indices({0, 1, 4, 2}, {2, 2}), x),
                    Contains("id 4 at position [1, 0]") && Contains("weight has 4 rows"));
  CHECK(x.to_vector<float>() == std::vector<float>(20, 0.0F));  // nothing was added
}

TEST_CASE("indexing: shapes and dtypes that do not fit are errors") {
  Tensor x = zeros({4, 5});
  CHECK_THROWS_AS(gather(x, 1, ones({1, 5})), DTypeError);
  CHECK_THROWS_AS(embedding(ones({2}), x), DTypeError);
  CHECK_THROWS_WITH(gather(x, 1, zeros({5, 1}, DType::i64)), Contains("[5, 1]") && Contains("dimension 0"));
  CHECK_THROWS_AS(gather(x, 1, zeros({5}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(index_select(x, 0, zeros({1, 1}, DType::i64)), ShapeError);
  CHECK_THROWS_AS(index_add(x, 0, zeros({2}, DType::i64), ones({3, 5})), ShapeError);
  CHECK_THROWS_AS(scatter_add(x, 0, zeros({3, 5}, DType::i64), ones({2, 5})), ShapeError);
  CHECK_THROWS_AS(scatter_add(x, 0, zeros({1, 5}, DType::i64), ones({1, 5}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(embedding(zeros({2}, DType::i64), zeros({5})), ShapeError);
  CHECK_THROWS_AS(embedding(zeros({2}, DType::i64), x, 4), ValueError);
}

}  // namespace index_test
