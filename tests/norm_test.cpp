// Layer norm and RMS norm.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>

namespace norm_test {

using namespace regard;

namespace {

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

Tensor composed_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor d = x - mean(x, -1, true);
  return d * rsqrt(mean(square(d), -1, true) + eps) * weight + bias;
}
Tensor composed_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * rsqrt(mean(square(x), -1, true) + eps) * weight;
}

}  // namespace

TEST_CASE("layer norm keeps its digits where the mean is large") {
  const std::vector<std::pair<double, double>> cases = {
      {0, -1.34164}, {100, -1.3415}, {1000, -1.3415}, {10000, -1.3313}};
  for (const auto& [base, expected] : cases) {
    std::vector<float> row;
    for (int i = 0; i < 16; ++i) row.push_back(static_cast<float>(base + i * 1e-3));
    const Tensor x = from_vector<float>(row);
    // In f64 over the same rounded numbers, with case and reference apart by rounding alone.
    const Tensor wide = x.to(DType::f64);
    const Tensor y = layer_norm(x, {16}), reference = layer_norm(wide, {16});
    CAPTURE(base);
    CHECK(values(y)[0] == Approx(values(reference)[0]).epsilon(1e-5));
    CHECK(values(y)[0] == Approx(expected).epsilon(1e-4));
  }
  const std::vector<double> y = values(layer_norm(from_vector<float>({40000, 40001, 40002, 40003}), {4}));
  const double expected[] = {-1.341635, -0.447212, 0.447212, 1.341635};
  for (size_t i = 0; i < 4; ++i) CHECK(y[i] == Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("layer norm and RMS norm equal their composed forms, with first and second gradients") {
  manual_seed(5);
  for (int64_t width : {1, 3, 8, 37}) {
    const Tensor x = randn({150, width}, DType::f64).set_requires_grad();
    const Tensor w = randn({width}, DType::f64).set_requires_grad();
    const Tensor b = randn({width}, DType::f64).set_requires_grad();
    const Tensor upstream = randn({150, width}, DType::f64).set_requires_grad();
    for (bool rms : {false, true}) {
      CAPTURE(width, rms);
      const auto both = [&](bool fused) {
        Tensor y;
        if (rms)
          y = fused ? rms_norm(x, {width}, w, 1e-3) : composed_rms_norm(x, w, 1e-3);
        else
          y = fused ? layer_norm(x, {width}, w, b, 1e-3) : composed_layer_norm(x, w, b, 1e-3);
        Tensors out{y};
        const Tensors first = grad(sum(y * upstream), {x, w}, {.create_graph = true});
        out.insert(out.end(), first.begin(), first.end());
        const Tensor scalar = sum(sin(first[0])) + sum(sin(first[1]));
        for (const Tensor& second : grad(scalar, {x, w, upstream}, {.create_graph = true})) out.push_back(second);
        return out;
      };
      const Tensors fused = both(true), composed = both(false);
      for (size_t i = 0; i < fused.size(); ++i) {
        CAPTURE(i);
        CHECK(allclose(fused[i], composed[i], 1e-8, 1e-9));
      }
    }
  }
}

TEST_CASE("norms over several dimensions, permuted and expanded inputs, without weight") {
  manual_seed(6);
  const Tensor x = randn({4, 5, 6});
  for (const Tensor& each : {x, x.permute({0, 2, 1}), x.narrow(0, 0, 1).expand({3, 5, 6})}) {
    const Shape last{each.size(1), each.size(2)};
    const Tensor y = layer_norm(each, last);
    CHECK(y.shape() == each.shape());
    CHECK(allclose(mean(y, {1, 2}), zeros({each.size(0)}), 0, 1e-6));
    CHECK(allclose(var(y, {1, 2}, false), ones({each.size(0)}), 1e-4, 0));
    CHECK(allclose(mean(square(rms_norm(each, last)), {1, 2}), ones({each.size(0)}), 1e-5, 0));
  }
}

TEST_CASE("layer norm's gradients have the same bits for every number of threads") {
  manual_seed(7);
  const Tensor x = randn({1000, 96}).set_requires_grad(), w = randn({96}).set_requires_grad(),
               b = randn({96}).set_requires_grad(), g = randn({1000, 96});
  const int before = num_threads();
  std::vector<std::vector<float>> all;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    std::vector<float> bits;
    for (const Tensor& each : grad(layer_norm(x, {96}, w, b), {x, w, b}, {.grad_outputs = {g}}))
      for (float v : each.to_vector<float>()) bits.push_back(v);
    all.push_back(bits);
  }
  set_num_threads(before);
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
}

TEST_CASE("layer norm under a plain sum has gradient 0 and under a weighted sum has not") {
  const Tensor x = from_vector<double>({1, 2, 4}).set_requires_grad();
  const std::vector<double> flat = values(grad(sum(layer_norm(x, {3})), {x})[0]);
  for (double v : flat) CHECK(v == Approx(0).margin(1e-12));
  const std::vector<double> slope = values(grad(sum(layer_norm(x, {3}) * from_vector<double>({1, 0, 0})), {x})[0]);
  CHECK(std::abs(slope[0]) > 0.01);
}

TEST_CASE("norms of constant rows, of no rows, and mistakes in their arguments") {
  CHECK(values(layer_norm(full({1, 4}, 7.0), {4})) == std::vector<double>{0, 0, 0, 0});
  const Tensor zero = zeros({2, 3}).set_requires_grad();
  const Tensor y = rms_norm(zero, {3});
  CHECK(values(y) == std::vector<double>(6, 0.0));
  sum(y).backward();
  CHECK(all(isfinite(zero.grad())).item<bool>());
  CHECK(layer_norm(zeros({0, 4}), {4}).shape() == Shape{0, 4});
  const Tensor w = ones({4}).set_requires_grad();
  sum(layer_norm(zeros({0, 4}), {4}, w)).backward();
  CHECK(values(w.grad()) == std::vector<double>{0, 0, 0, 0});
  CHECK_THROWS_AS(layer_norm(ones({2, 3}), {4}), ShapeError);
  CHECK_THROWS_AS(layer_norm(ones({2, 3}), {3}, ones({2})), ShapeError);
  CHECK_THROWS_AS(rms_norm(ones({2, 3}), {3}, ones({3}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(rms_norm(ones({2, 3}), {3}, {}, -1), ValueError);
}

}  // namespace norm_test
