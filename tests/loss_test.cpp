// Losses: right values, gradients, extremes and mistakes.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace loss_test {

using namespace regard;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }
Tensor numbers(const std::vector<double>& list) { return from_vector<double>(list); }
Tensor classes(const std::vector<int64_t>& list) { return from_vector<int64_t>(list); }

// Cross-entropy written out over [rows, C], as the definition says it.
Tensor composed_cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  const int64_t count = logits.size(1);
  const Tensor log_p = log_softmax(logits, 1);
  const Tensor weight = options.weight.defined() ? options.weight : ones({count}, DType::f64);
  const Tensor counted = (targets != options.ignore_index).to(DType::f64);
  const Tensor hot = one_hot(where(targets == options.ignore_index, 0, targets), count).to(DType::f64);
  const double s = options.label_smoothing;
  const Tensor wanted = hot * (1 - s) + s / static_cast<double>(count);
  const Tensor losses = -sum(log_p * wanted * weight, 1) * counted;
  if (options.reduction == Reduction::none) return losses;
  if (options.reduction == Reduction::sum) return sum(losses);
  return sum(losses) / sum(sum(hot * weight, 1) * counted);
}

}  // namespace

TEST_CASE("cross-entropy of uniform and of extreme logits") {
  const Tensor logits = zeros({2, 4}).set_requires_grad();
  const Tensor loss = cross_entropy(logits, classes({1, 3}));
  CHECK(loss.item<double>() == Approx(std::log(4.0)));
  loss.backward();
  CHECK(values(logits.grad()) == std::vector<double>{0.125, -0.375, 0.125, 0.125, 0.125, 0.125, 0.125, -0.375});
  const Tensor far = from_vector<float>({1e4F, 0, -1e4F}, {1, 3});
  CHECK(cross_entropy(far, classes({0})).item<double>() == 0);
  CHECK(cross_entropy(far, classes({2})).item<double>() == Approx(2e4));
}

TEST_CASE("cross-entropy with every option equals its definition, with first and second gradients") {
  manual_seed(8);
  const int64_t rows = 40, count = 11;
  const Tensor x = randn({rows, count}, DType::f64).set_requires_grad();
  const Tensor targets = randint(0, count, {rows});
  targets.narrow(0, 3, 5).fill_(-100);
  const Tensor weight = rand({count}, DType::f64) + 0.1;
  for (double smoothing : {0.0, 0.1, 1.0})
    for (bool weighted : {false, true})
      for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
        CAPTURE(smoothing, weighted, static_cast<int>(reduction));
        const CrossEntropyOptions options{
            .weight = weighted ? weight : Tensor(), .label_smoothing = smoothing, .reduction = reduction};
        const auto all = [&](bool fused) {
          const Tensor loss = fused ? cross_entropy(x, targets, options) : composed_cross_entropy(x, targets, options);
          const Tensor first = grad(sum(square(loss)), {x}, {.create_graph = true})[0];
          const Tensor second = grad(sum(sin(first * 30.0)), {x}, {.create_graph = true})[0];
          const Tensor third = grad(sum(second * second), {x})[0];
          return Tensors{loss, first, second, third};
        };
        const Tensors fused = all(true), composed = all(false);
        for (size_t i = 0; i < fused.size(); ++i) {
          CAPTURE(i);
          CHECK(allclose(fused[i], composed[i], 1e-8, 1e-9));
        }
      }
}

TEST_CASE("cross-entropy of [C], and of [N, C, d1, d2]") {
  manual_seed(9);
  const Tensor x = randn({2, 5, 3, 4}, DType::f64).set_requires_grad();
  const Tensor targets = randint(0, 5, {2, 3, 4});
  const Tensor flat = x.permute({0, 2, 3, 1}).reshape({24, 5});
  const Tensor a = cross_entropy(x, targets), b = cross_entropy(flat, targets.reshape({24}));
  CHECK(a.item<double>() == b.item<double>());
  CHECK(allclose(grad(a, {x})[0], grad(b, {x})[0]));
  CHECK(cross_entropy(x, targets, {.reduction = Reduction::none}).shape() == Shape{2, 3, 4});
  const Tensor one = cross_entropy(numbers({0, 0}), scalar_tensor(1), {.reduction = Reduction::none});
  CHECK(one.shape() == Shape{});
  CHECK(one.item<double>() == Approx(std::log(2.0)));
}

TEST_CASE("cross-entropy where every target is ignored is 0 with gradient 0") {
  const Tensor targets = classes({-100, -100});
  for (bool nll : {false, true})
    for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      const Tensor x = from_vector<double>({1, inf, 3, 4, std::nan(""), 6}, {2, 3}).set_requires_grad();
      const Tensor loss =
          nll ? nll_loss(x, targets, {.reduction = reduction}) : cross_entropy(x, targets, {.reduction = reduction});
      for (double v : values(loss)) CHECK(v == 0);
      sum(loss).backward();
      CHECK(values(x.grad()) == std::vector<double>(6, 0.0));
    }
}

TEST_CASE("a class outside its range is an error that names index, position and range") {
  const Tensor x = zeros({2, 3});
  for (int64_t bad : {int64_t{3}, int64_t{-1}}) {
    CHECK_THROWS_AS(cross_entropy(x, classes({0, bad})), IndexError);
    CHECK_THROWS_WITH(cross_entropy(x, classes({0, bad})), Catch::Contains("target " + std::to_string(bad)) &&
                                                               Catch::Contains("position [1]") &&
                                                               Catch::Contains("[0, 3)"));
    CHECK_THROWS_AS(nll_loss(x, classes({0, bad})), IndexError);
  }
  for (int64_t ignored : {int64_t{255}, int64_t{-1}, int64_t{1}}) {
    const Tensor mean = cross_entropy(x, classes({0, ignored}), {.ignore_index = ignored});
    CHECK(mean.item<double>() == Approx(std::log(3.0)));
    const Tensor total =
        cross_entropy(x, classes({0, ignored}), {.ignore_index = ignored, .reduction = Reduction::sum});
    CHECK(total.item<double>() == Approx(std::log(3.0)));
    const Tensor each =
        cross_entropy(x, classes({0, ignored}), {.ignore_index = ignored, .reduction = Reduction::none});
    CHECK(values(each)[1] == 0);
    CHECK_THROWS_AS(cross_entropy(x, classes({5, ignored}), {.ignore_index = ignored}), IndexError);
  }
}

TEST_CASE("cross-entropy's mistakes") {
  const Tensor x = zeros({2, 3});
  CHECK_THROWS_AS(cross_entropy(x, classes({0, 1, 2})), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, zeros({2})), DTypeError);
  CHECK_THROWS_AS(cross_entropy(x, classes({0, 1}), {.weight = ones({2})}), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, classes({0, 1}), {.weight = ones({3}).set_requires_grad()}), GraphError);
  CHECK_THROWS_AS(cross_entropy(x, classes({0, 1}), {.label_smoothing = 1.5}), ValueError);
}

TEST_CASE("nll_loss of log-probabilities is cross-entropy") {
  manual_seed(10);
  const Tensor x = randn({6, 4}, DType::f64).set_requires_grad();
  const Tensor targets = classes({0, 3, -100, 2, 1, 1});
  const Tensor weight = numbers({1, 2, 3, 4});
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const Tensor a = nll_loss(log_softmax(x, 1), targets, {.weight = weight, .reduction = reduction});
    const Tensor b = cross_entropy(x, targets, {.weight = weight, .reduction = reduction});
    CHECK(allclose(a, b, 1e-12, 1e-12));
    CHECK(allclose(grad(sum(a), {x})[0], grad(sum(b), {x})[0], 1e-12, 1e-12));
  }
}

TEST_CASE("losses do not broadcast") {
  const Tensor prediction = from_vector<float>({1, 2}, {2, 1}), target = from_vector<float>({0, 1});
  CHECK_THROWS_AS(mse_loss(prediction, target), ShapeError);
  CHECK_THROWS_AS(binary_cross_entropy_with_logits(prediction, target), ShapeError);
  CHECK_THROWS_AS(kl_div(prediction, target), ShapeError);
  CHECK(mse_loss(prediction.reshape({2}), target).item<double>() == 1);
  CHECK(mse_loss(prediction.reshape({2}), target, Reduction::sum).item<double>() == 2);
}

TEST_CASE("binary cross-entropy at extremes") {
  struct Row {
    double x, y, loss, gradient;
  };
  const std::vector<Row> rows = {{0, 1, std::log(2.0), -0.5},
                                 {-100, 1, 100, -1},
                                 {100, 1, 3.7200759760208356e-44, 0},
                                 {8e7, 0, 8e7, 1},
                                 {-inf, 0, 0, 0},
                                 {-inf, 1, inf, -1}};
  for (const Row& row : rows) {
    CAPTURE(row.x, row.y);
    const Tensor x = scalar_tensor(row.x, DType::f64).set_requires_grad();
    const Tensor loss = binary_cross_entropy_with_logits(x, scalar_tensor(row.y, DType::f64));
    if (std::isinf(row.loss))
      CHECK(loss.item<double>() == row.loss);
    else
      CHECK(loss.item<double>() == Approx(row.loss).epsilon(1e-12));
    loss.backward();
    CHECK(x.grad().item<double>() == Approx(row.gradient).margin(1e-12));
    const float narrow = static_cast<float>(row.x);
    const Tensor f32 =
        binary_cross_entropy_with_logits(from_vector<float>({narrow}), from_vector<float>({static_cast<float>(row.y)}));
    if (std::isinf(row.loss))
      CHECK(f32.item<double>() == row.loss);
    else
      CHECK(f32.item<double>() == Approx(row.loss).epsilon(1e-6).margin(1e-43));
  }
}

TEST_CASE("binary cross-entropy's weights, and the gradient of its target") {
  const Tensor x = numbers({0.5, -1}), y = numbers({1, 0}).set_requires_grad();
  const auto softplus = [](double v) { return std::log1p(std::exp(v)); };
  const Tensor loss = binary_cross_entropy_with_logits(
      x, y, {.weight = numbers({2, 3}), .pos_weight = numbers({5, 5}), .reduction = Reduction::none});
  CHECK(values(loss)[0] == Approx(2 * 5 * softplus(-0.5)));
  CHECK(values(loss)[1] == Approx(3 * softplus(-1)));
  // At targets of exactly 0 and 1 the loss still depends on them: by -x.
  const Tensor plain = binary_cross_entropy_with_logits(x, y, {.reduction = Reduction::sum});
  const std::vector<double> slope = values(grad(plain, {y})[0]);
  CHECK(slope[0] == Approx(-0.5));
  CHECK(slope[1] == Approx(1));
  CHECK_THROWS_AS(binary_cross_entropy_with_logits(x, y, {.weight = ones({3}, DType::f64)}), ShapeError);
}

TEST_CASE("Kullback-Leibler divergence with a zero target has no NaN") {
  const Tensor input = numbers({std::log(0.5), std::log(0.5)}).set_requires_grad();
  const Tensor target = numbers({1, 0}).set_requires_grad();
  const Tensor loss = kl_div(input, target, Reduction::sum);
  CHECK(loss.item<double>() == Approx(std::log(2.0)));
  loss.backward();
  CHECK(values(input.grad()) == std::vector<double>{-1, 0});
  CHECK(all(isfinite(target.grad())).item<bool>());
  CHECK(kl_div(numbers({0, -inf}), numbers({1, 0}), Reduction::sum).item<double>() == 0);
  CHECK(kl_div(input, target).item<double>() == Approx(std::log(2.0) / 2));
}

TEST_CASE("mse_loss's gradients") {
  const Tensor a = numbers({1, 2}).set_requires_grad(), b = numbers({0, 4}).set_requires_grad();
  mse_loss(a, b).backward();
  CHECK(values(a.grad()) == std::vector<double>{1, -2});
  CHECK(values(b.grad()) == std::vector<double>{-1, 2});
}

}  // namespace loss_test
