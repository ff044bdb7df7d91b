// Gradient accumulation: several smaller batches give the step of one.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/sequential.hpp>
#include <regard/optim/accumulate.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>

namespace accumulate_test {

using namespace regard;
using namespace regard::layers;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

Sequential made() {
  manual_seed(3);
  Sequential model(Linear(5, 8), layers::Tanh(), Linear(8, 4));
  model.to(DType::f64);
  return model;
}

struct Data {
  Tensor x, y;
  Data() {
    Generator generator(4);
    x = randn({12, 5}, DType::f64, generator);
    y = randint(0, 4, {12}, DType::i64, generator);
  }
};

void compare(const Layer& a, const Layer& b, bool gradients) {
  const auto one = a.named_parameters(), other = b.named_parameters();
  REQUIRE(one.size() == other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].first);
    if (gradients)
      CHECK(allclose(one[i].second.grad(), other[i].second.grad(), 1e-12, 1e-15));
    else
      CHECK(allclose(one[i].second, other[i].second, 1e-10, 1e-12));
  }
}

}  // namespace

TEST_CASE("accumulation: even and uneven micro-batches give the gradients, the norm and the step of one batch") {
  const Data data;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{4, 4, 4}, {1, 6, 2, 3}, {12}}) {
    Sequential whole = made(), parts = made();
    AdamW one(whole.parameters(), 0.1), other(parts.parameters(), 0.1);
    GradientAccumulation accumulation(parts.parameters());
    for (int step = 0; step < 3; ++step) {
      one.zero_grad();
      Tensor loss = cross_entropy(whole(data.x), data.y);
      loss.backward();
      other.zero_grad();
      int64_t at = 0;
      for (int64_t size : sizes) {
        Tensor x = data.x.narrow(0, at, size), y = data.y.narrow(0, at, size);
        accumulation.backward(cross_entropy(parts(x), y), static_cast<double>(size));
        at += size;
      }
      CHECK(accumulation.items() == 12);
      CHECK(accumulation.finish() == Approx(loss.item<double>()).epsilon(1e-12));
      CHECK(accumulation.items() == 0);
      compare(whole, parts, true);
      // Clipping sees the gradients of the whole batch.
      const double norm = clip_grad_norm(whole.parameters(), 0.05);
      CHECK(norm > 0.05);
      CHECK(clip_grad_norm(parts.parameters(), 0.05) == Approx(norm).epsilon(1e-12));
      compare(whole, parts, true);
      one.step();
      other.step();
      compare(whole, parts, false);
    }
  }
}

TEST_CASE("accumulation: tokens that count weigh, ignored targets do not") {
  const Data data;
  Sequential whole = made(), parts = made();
  Tensor y = data.y.clone();
  for (int64_t i : {0, 1, 2, 3, 5, 9}) y[i].fill_(-100);  // the first four are a whole micro-batch
  Tensor loss = cross_entropy(whole(data.x), y);
  loss.backward();
  GradientAccumulation accumulation(parts.parameters());
  for (int64_t at = 0; at < 12; at += 4) {
    const Tensor targets = y.narrow(0, at, 4);
    const auto counted = sum(targets != -100).item<double>();
    accumulation.backward(cross_entropy(parts(data.x.narrow(0, at, 4)), targets), counted);
  }
  CHECK(accumulation.items() == 6);
  CHECK(accumulation.finish() == Approx(loss.item<double>()).epsilon(1e-12));
  compare(whole, parts, true);
}

TEST_CASE("accumulation: by hand, where the number of items is known beforehand") {
  const Data data;
  Sequential whole = made(), parts = made();
  cross_entropy(whole(data.x), data.y).backward();
  for (auto [at, size] : {std::pair<int64_t, int64_t>{0, 5}, {5, 7}})
    (cross_entropy(parts(data.x.narrow(0, at, size)), data.y.narrow(0, at, size)) * (static_cast<double>(size) / 12.0))
        .backward();
  compare(whole, parts, true);
}

TEST_CASE("accumulation: mistakes are errors, and a parameter listed twice is divided once") {
  Tensor w = full({2}, 3.0, DType::f64).set_requires_grad(), unused = ones({2}).set_requires_grad();
  GradientAccumulation accumulation({w, w, unused});
  CHECK_THROWS_WITH(accumulation.finish(), Contains("finish() without items"));
  CHECK_THROWS_AS(accumulation.backward(w * w), ShapeError);
  CHECK_THROWS_AS(accumulation.backward(sum(w), -1), ValueError);
  CHECK_THROWS_AS(accumulation.backward(sum(w), std::nan("")), ValueError);
  CHECK_FALSE(w.grad().defined());
  accumulation.backward(sum(w * w) / 2.0, 0);
  CHECK_FALSE(w.grad().defined());
  accumulation.backward(sum(w * w) / 2.0, 3);
  accumulation.backward(sum(w * w), 1);
  const Tensor held = w.grad();
  CHECK(accumulation.finish() == (3 * 9 + 18) / 4.0);
  CHECK(w.grad().to_vector<double>() == std::vector<double>{15.0 / 4, 15.0 / 4});
  CHECK(held.to_vector<double>() == std::vector<double>{15, 15});
  CHECK_FALSE(unused.grad().defined());
  CHECK_THROWS_WITH(accumulation.backward(sum(w)), Contains("zero_grad()"));
  w.zero_grad();
  accumulation.backward(sum(w));
  CHECK(accumulation.finish() == 6);
  // Given up half-way: nothing of it is left.
  w.zero_grad();
  accumulation.backward(sum(w * w), 5);
  CHECK_THROWS_AS(accumulation.backward(w * w), ShapeError);
  w.zero_grad();
  accumulation.backward(sum(w), 2);
  CHECK(accumulation.items() == 2);
  CHECK(accumulation.finish() == 6);
  CHECK(w.grad().to_vector<double>() == std::vector<double>{1, 1});
  CHECK_THROWS_AS(GradientAccumulation(Tensors{}), ValueError);
  CHECK_THROWS_AS(GradientAccumulation({Tensor()}), ValueError);
}

}  // namespace accumulate_test
