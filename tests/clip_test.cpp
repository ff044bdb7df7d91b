// Clipping of gradients by norm and by value.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/sgd.hpp>

namespace clip_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

/// A parameter of zeros with this gradient.
Tensor with_grad(const Tensor& grad) {
  Tensor x = zeros(grad.shape(), grad.dtype()).set_requires_grad();
  x.set_grad(grad);
  return x;
}
/// A hundred parameters of one element, each with the gradient `value`.
Tensors hundred(float value) {
  Tensors list;
  for (int i = 0; i < 100; ++i) list.push_back(with_grad(full({1}, value)));
  return list;
}
std::vector<float> gradients(const Tensors& parameters) {
  std::vector<float> list;
  for (const Tensor& parameter : parameters)
    for (float value : parameter.grad().to_vector<float>()) list.push_back(value);
  return list;
}

}  // namespace

TEST_CASE("clip_grad_norm scales all gradients by their common norm") {
  Tensors parameters = hundred(1);
  CHECK(clip_grad_norm(parameters, 1) == 10);
  for (float value : gradients(parameters)) CHECK(value == Approx(0.1F).epsilon(1e-6));
  parameters = hundred(1);
  CHECK(clip_grad_norm(parameters, 20) == 10);  // below the limit: to the bit as before
  CHECK(gradients(parameters) == std::vector<float>(100, 1));
  CHECK(clip_grad_norm(parameters, 0) == 10);
  CHECK(gradients(parameters) == std::vector<float>(100, 0));
}

TEST_CASE("clip_grad_norm of gradients whose squares overflow f32") {
  Tensors parameters = hundred(1e20F);
  CHECK(clip_grad_norm(parameters, 1) == Approx(1e21).epsilon(1e-6));
  for (float value : gradients(parameters)) CHECK(value == Approx(0.1F).epsilon(1e-5));
  Tensors one = {with_grad(full({1000}, 1e25F))};
  CHECK(clip_grad_norm(one, 1) == Approx(std::sqrt(1000.0) * 1e25).epsilon(1e-6));
}

TEST_CASE(
    "clip_grad_norm of infinite or NaN gradients returns the norm and leaves them; an option names the parameter") {
  for (float bad : {inf, -inf, std::nanf("")}) {
    Tensors parameters = hundred(1);
    parameters[7].set_grad(full({1}, bad));
    CAPTURE(bad);
    const double norm = clip_grad_norm(parameters, 1);
    CHECK_FALSE(std::isfinite(norm));
    CHECK(std::isnan(norm) == std::isnan(bad));
    std::vector<float> after = gradients(parameters);
    CHECK((after[7] == bad || (std::isnan(bad) && std::isnan(after[7]))));
    after[7] = 1;
    CHECK(after == std::vector<float>(100, 1));
    const ClipOptions strict{.error_if_nonfinite = true};
    CHECK_THROWS_AS(clip_grad_norm(parameters, 1, strict), ValueError);
    CHECK_THROWS_WITH(clip_grad_norm(parameters, 1, strict), Contains("parameter 7"));
    std::vector<std::pair<std::string, Tensor>> named;
    for (size_t i = 0; i < parameters.size(); ++i) named.emplace_back("blocks." + std::to_string(i), parameters[i]);
    CHECK_THROWS_WITH(clip_grad_norm(named, 1, strict), Contains("blocks.7") && Contains("not finite"));
    CHECK(parameters[0].grad().item<float>() == 1);
  }
}

TEST_CASE("clip_grad_norm_on_device returns the norm as a tensor, and scales by it") {
  for (float value : {1.0F, 1e20F, 0.0F}) {
    const Tensors parameters = hundred(value), others = hundred(value);
    const Tensor norm = clip_grad_norm_on_device(parameters, 0.7);
    CHECK(norm.shape() == Shape{});
    CHECK(norm.dtype() == DType::f64);
    CHECK_FALSE(norm.requires_grad());
    CHECK(norm.item<double>() == clip_grad_norm(others, 0.7));
    CHECK(gradients(parameters) == gradients(others));
  }
  Tensors parameters = hundred(1);
  CHECK(clip_grad_norm_on_device(parameters, inf).item<double>() == 10);
  CHECK(gradients(parameters) == std::vector<float>(100, 1));
  parameters[7].set_grad(full({1}, std::nanf("")));
  CHECK(std::isnan(clip_grad_norm_on_device(parameters, 1).item<double>()));
  CHECK(parameters[0].grad().item<float>() == 1);
  CHECK(clip_grad_norm_on_device({}, 1).item<double>() == 0);
  CHECK_THROWS_AS(clip_grad_norm_on_device(parameters, -1), ValueError);
  CHECK_THROWS_AS(clip_grad_norm_on_device({Tensor()}, 1), ValueError);
}

TEST_CASE("the norm of many gradients has the same bits on any number of threads, and as the norms of each give it") {
  Generator generator(5);
  Tensors parameters;
  for (DType dtype : {DType::f32, DType::f64})
    for (int64_t size : {3, 0, 8192, 8193, 1, 40000, 100, 7})
      parameters.push_back(with_grad(randn({size}, dtype, generator)));
  const int threads = num_threads();
  double squares = 0;
  for (const Tensor& parameter : parameters) {
    const Tensor y = empty({}, DType::f64), grad = parameter.grad();
    kernels(y).norm_squared(y, {&grad, 1});
    squares += y.item<double>();
  }
  for (int count : {1, 3}) {
    set_num_threads(count);
    const double norm = clip_grad_norm(parameters, inf);
    set_num_threads(threads);
    CHECK(norm == std::sqrt(squares));
  }
}

TEST_CASE("clip_grad_norm of zero, missing and no gradients") {
  Tensors parameters = hundred(0);
  CHECK(clip_grad_norm(parameters, 1) == 0);
  CHECK(gradients(parameters) == std::vector<float>(100, 0));
  for (const Tensor& parameter : parameters) parameter.zero_grad();
  CHECK(clip_grad_norm(parameters, 1) == 0);
  CHECK_FALSE(parameters[0].grad().defined());
  CHECK(clip_grad_norm(Tensors{}, 1) == 0);
  parameters[3].set_grad(full({1}, 4.0));
  CHECK(clip_grad_norm(parameters, 1) == 4);
  CHECK(parameters[3].grad().item<float>() == Approx(1));
  CHECK_THROWS_AS(clip_grad_norm(parameters, -1), ValueError);
  CHECK_THROWS_AS(clip_grad_norm(parameters, std::nan("")), ValueError);
  CHECK_THROWS_AS(clip_grad_norm(Tensors{Tensor()}, 1), ValueError);
}

TEST_CASE("a tied parameter counts once, in its norm and in its scaling") {
  Tensor x = with_grad(from_vector<float>({3, 4}));
  CHECK(clip_grad_norm(Tensors{x, x}, 1) == 5);
  CHECK(x.grad().to_vector<float>()[0] == Approx(0.6F));
  // Two parameters that were given one gradient: each has its own, scaled once.
  Tensor grad = from_vector<float>({3, 4}), a = zeros({2}).set_requires_grad(), b = zeros({2}).set_requires_grad();
  a.set_grad(grad);
  b.set_grad(grad);
  CHECK(clip_grad_norm(Tensors{a, b}, 5) == Approx(5 * std::sqrt(2.0)));
  CHECK(a.grad().to_vector<float>()[0] == Approx(3 / std::sqrt(2.0)));
  CHECK(b.grad().to_vector<float>()[0] == Approx(3 / std::sqrt(2.0)));
}

TEST_CASE("clipping gradients of any strides, of both dtypes at once, and of create_graph") {
  Tensor turned = with_grad(from_vector<float>({3, 0, 0, 4}, {2, 2}).t());
  Tensor repeated = with_grad(full({}, 6.0, DType::f64).expand({4}));
  CHECK(clip_grad_norm(Tensors{turned, repeated}, 1.3) == 13);
  CHECK(turned.grad().to_vector<float>()[3] == Approx(0.4F));
  CHECK(repeated.grad().to_vector<double>()[2] == Approx(0.6));
  repeated.set_grad(full({}, 6.0, DType::f64).expand({4}));
  clip_grad_value({repeated}, 2);
  CHECK(repeated.grad().to_vector<double>() == std::vector<double>(4, 2));

  Tensor x = zeros({2}).set_requires_grad(), w = zeros({2}).set_requires_grad();
  (x + w).backward(from_vector<float>({3, 4}), false, true);
  CHECK(clip_grad_norm(Tensors{x, w}, 5) == Approx(5 * std::sqrt(2.0)));
  CHECK(x.grad().to_vector<float>()[1] == Approx(4 / std::sqrt(2.0)));
  CHECK(w.grad().to_vector<float>()[1] == Approx(4 / std::sqrt(2.0)));
}

TEST_CASE("clip_grad_value holds every element within the limit, and keeps NaN") {
  Tensor x = with_grad(from_vector<float>({-3, -0.5F, 0, 2, inf, -inf, std::nanf("")}));
  clip_grad_value({x}, 1);
  std::vector<float> after = x.grad().to_vector<float>();
  CHECK(std::isnan(after[6]));
  after.pop_back();
  CHECK(after == std::vector<float>{-1, -0.5F, 0, 1, 1, -1});
  CHECK_THROWS_AS(clip_grad_value({x}, -1), ValueError);
}

TEST_CASE("step_if_finite steps only where the norm is finite") {
  Tensor x = with_grad(full({1}, 2.0));
  SGD optimizer({x}, {.lr = 1});
  x.set_grad(full({1}, inf));
  CHECK_FALSE(step_if_finite(optimizer, clip_grad_norm(optimizer.parameters(), 1)));
  CHECK_FALSE(step_if_finite(optimizer, std::nan("")));
  CHECK(x.item<float>() == 0);
  x.set_grad(full({1}, 2.0));
  CHECK(step_if_finite(optimizer, clip_grad_norm(optimizer.parameters(), 10)));
  CHECK(x.item<float>() == -2);
}

}  // namespace clip_test
