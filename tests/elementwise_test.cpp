// Arithmetic, functions of one tensor, activations, comparisons, selection, promotion and copies.
#include <catch2/catch.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/tensor.hpp>

namespace elementwise_test {

using namespace regard;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

Tensor leaf(const std::vector<double>& values, const Shape& shape) {
  return from_vector<double>(values, shape).set_requires_grad();
}
Tensor leaf32(const std::vector<float>& values) { return from_vector<float>(values).set_requires_grad(); }

// Distance in units of the last place of the right value, rounded to a float; subnormals have the smallest unit.
double ulps(float value, double right) {
  const auto rounded = static_cast<float>(right);
  if (std::isnan(rounded) || std::isnan(value)) return std::isnan(rounded) == std::isnan(value) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(value)) return rounded == value ? 0 : 1e9;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(rounded == 0 ? 1e-45F : rounded), -126) - 23);
  return std::abs(static_cast<double>(value) - right) / unit;
}

// Floats of every exponent and sign, subnormals, infinities and NaN among them, and a fine grid about zero.
std::vector<float> sweep() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x7f800000U; bits += 33331) {
    values.push_back(std::bit_cast<float>(bits));
    values.push_back(-values.back());
  }
  for (int i = -60000; i <= 60000; ++i) values.push_back(static_cast<float>(i) * 2.5e-4F);
  for (int i = -60000; i <= 60000; ++i) values.push_back(static_cast<float>(i) * 1.7e-3F);
  for (uint32_t bits = 1; bits < 1000; ++bits) values.push_back(std::bit_cast<float>(bits));
  for (float special : {infinity, -infinity, not_a_number, 0.0F, -0.0F, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::lowest(), 88.72283F, 88.72284F, -87.33654F, -103.97F})
    values.push_back(special);
  return values;
}

double largest_error(const std::function<Tensor(const Tensor&)>& f, const std::function<double(double)>& right,
                     float low = -infinity, float high = infinity) {
  const std::vector<float> x = sweep(), y = f(from_vector<float>(x)).to_vector<float>();
  double worst = 0;
  float where_worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] < low || x[i] > high) continue;
    const double error = ulps(y[i], right(x[i]));
    if (error > worst) worst = error, where_worst = x[i];
  }
  UNSCOPED_INFO("largest error " << worst << " ulp at " << where_worst);
  return worst;
}

double sigmoid_right(double x) { return 1 / (1 + std::exp(-x)); }
// At minus infinity the limit, 0.
double silu_right(double x) { return x < -1e30 ? 0 : x * sigmoid_right(x); }
double gelu_right(double x) { return x < -1e30 ? 0 : x * 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double gelu_tanh_argument(double x) { return 2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }

// Each element's gradient against central differences, first order, and second order of the gradient's sum.
void check_gradient(const std::function<Tensor(const Tensor&)>& f, const std::vector<double>& at, double tolerance) {
  const int64_t n = static_cast<int64_t>(at.size());
  const auto gradient = [&](const std::vector<double>& values, bool second) {
    Tensor x = leaf(values, {n});
    Tensor weights = from_vector<double>(std::vector<double>(at.size(), 1.5));
    Tensor first = grad(sum(mul(f(x), weights)), {x}, {.create_graph = second})[0];
    if (!second) return first.to_vector<double>();
    return grad(sum(first), {x}, {.allow_unused = true})[0].to_vector<double>();
  };
  const double step = 1e-5;
  const std::vector<double> first = gradient(at, false), second = gradient(at, true);
  for (size_t i = 0; i < at.size(); ++i) {
    std::vector<double> plus = at, minus = at;
    plus[i] += step;
    minus[i] -= step;
    const double slope =
        (f(from_vector<double>(plus)).to_vector<double>()[i] - f(from_vector<double>(minus)).to_vector<double>()[i]) /
        (2 * step) * 1.5;
    const double curve = (gradient(plus, false)[i] - gradient(minus, false)[i]) / (2 * step);
    CAPTURE(at[i]);
    CHECK(first[i] == Approx(slope).epsilon(tolerance).margin(tolerance));
    CHECK(second[i] == Approx(curve).epsilon(tolerance).margin(tolerance));
  }
}

}  // namespace

// ---- Accuracy

TEST_CASE("f32 functions are accurate over the whole range", "[elementwise]") {
  SECTION("exp") {
    CHECK(largest_error([](const Tensor& x) { return exp(x); }, [](double x) { return std::exp(x); }) < 1.1);
  }
  SECTION("log") {
    CHECK(largest_error([](const Tensor& x) { return log(x); }, [](double x) { return std::log(x); }) < 1.4);
  }
  SECTION("tanh") {
    CHECK(largest_error([](const Tensor& x) { return tanh(x); }, [](double x) { return std::tanh(x); }) < 2);
  }
  SECTION("sigmoid") {
    CHECK(largest_error([](const Tensor& x) { return sigmoid(x); }, sigmoid_right) < 3);
  }
  SECTION("erf") {
    CHECK(largest_error([](const Tensor& x) { return erf(x); }, [](double x) { return std::erf(x); }) < 1.6);
  }
  SECTION("gelu") {
    CHECK(largest_error([](const Tensor& x) { return gelu(x); }, gelu_right) < 4.6);
  }
  SECTION("silu") {
    CHECK(largest_error([](const Tensor& x) { return silu(x); }, silu_right) < 3.1);
  }
  SECTION("sin") {
    CHECK(largest_error([](const Tensor& x) { return sin(x); }, [](double x) { return std::sin(x); }) < 1);
  }
  SECTION("cos") {
    CHECK(largest_error([](const Tensor& x) { return cos(x); }, [](double x) { return std::cos(x); }) < 1);
  }
  SECTION("sqrt") {
    CHECK(largest_error([](const Tensor& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }) <= 0.5);
  }
  SECTION("rsqrt") {
    CHECK(largest_error([](const Tensor& x) { return rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }) < 1.5);
  }
  SECTION("reciprocal") {
    CHECK(largest_error([](const Tensor& x) { return reciprocal(x); }, [](double x) { return 1 / x; }) <= 0.5);
  }
  SECTION("square") {
    CHECK(largest_error([](const Tensor& x) { return square(x); }, [](double x) { return x * x; }) <= 0.5);
  }
}

TEST_CASE("f32 tanh gelu and activations' gradients are accurate", "[elementwise]") {
  std::vector<float> x;
  for (int i = -60000; i <= 60000; ++i) x.push_back(static_cast<float>(i) * 5e-4F);
  const auto check = [&](const std::vector<float>& y, const std::function<double(double)>& right, double tolerance) {
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double r = right(x[i]);
      worst = std::max(worst, std::abs(y[i] - r) / std::max(1.0, std::abs(r)));
    }
    CHECK(worst < tolerance);
  };
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& f) {
    Tensor leaf = leaf32(x);
    return grad(sum(f(leaf)), {leaf})[0].to_vector<float>();
  };
  check(
      gelu(from_vector<float>(x), GeluApproximation::tanh).to_vector<float>(),
      [](double v) { return v * sigmoid_right(gelu_tanh_argument(v)); }, 4e-7);
  check(
      gradient([](const Tensor& v) { return gelu(v); }),
      [](double v) {
        return 0.5 * std::erfc(-v / std::numbers::sqrt2) + v * std::exp(-v * v / 2) / std::sqrt(2 * std::numbers::pi);
      },
      3e-7);
  check(
      gradient([](const Tensor& v) { return gelu(v, GeluApproximation::tanh); }),
      [](double v) {
        const double s = sigmoid_right(gelu_tanh_argument(v));
        return s + v * s * (1 - s) * 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * v * v);
      },
      1e-6);
  check(
      gradient([](const Tensor& v) { return silu(v); }),
      [](double v) {
        const double s = sigmoid_right(v);
        return s * (1 + v * (1 - s));
      },
      4e-7);
  check(
      gradient([](const Tensor& v) { return tanh(v); }), [](double v) { return 1 - std::tanh(v) * std::tanh(v); },
      3e-7);
  check(
      gradient([](const Tensor& v) { return sigmoid(v); }),
      [](double v) { return sigmoid_right(v) * (1 - sigmoid_right(v)); }, 3e-7);
}

TEST_CASE("activations at infinities and NaN", "[elementwise]") {
  const Tensor x = from_vector<float>({infinity, -infinity, not_a_number});
  for (DType dtype : {DType::f32, DType::f64}) {
    for (auto f :
         {+[](const Tensor& v) { return gelu(v); }, +[](const Tensor& v) { return gelu(v, GeluApproximation::tanh); },
          +[](const Tensor& v) { return silu(v); }, +[](const Tensor& v) { return relu(v); }}) {
      Tensor v = x.to(dtype).set_requires_grad();
      const Tensor y = f(v);
      const auto values = y.to_vector<float>();
      CHECK(values[0] == infinity);
      CHECK(values[1] == 0);
      CHECK(std::isnan(values[2]));
      const auto gradient = grad(sum(y), {v})[0].to_vector<float>();
      CHECK(gradient[0] == 1);
      CHECK(gradient[1] == 0);
    }
  }
}

TEST_CASE("an element's bits do not depend on its place, the strides or the length", "[elementwise]") {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(static_cast<float>(i - 500) * 0.0137F);
  const Tensor x = from_vector<float>(values);
  const Tensor wide = stack({x, x}, 1);  // [1000, 2]
  for (auto f : {+[](const Tensor& v) { return exp(v); }, +[](const Tensor& v) { return tanh(v); },
                 +[](const Tensor& v) { return gelu(v); }, +[](const Tensor& v) { return silu(v); },
                 +[](const Tensor& v) { return erf(v); }, +[](const Tensor& v) { return v * 1.7F + v; }}) {
    const auto whole = f(x).to_vector<float>();
    CHECK(f(wide.select(1, 1)).to_vector<float>() == whole);
    for (int64_t start : {1, 3, 17, 999}) {
      const auto part = f(x.slice(0, start)).to_vector<float>();
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + start));
      CHECK(f(x[start]).item<float>() == whole[static_cast<size_t>(start)]);
    }
  }
}

// ---- Values

TEST_CASE("the two definitions of gelu", "[elementwise]") {
  const Tensor x = from_vector<double>({1, -2});
  CHECK(gelu(x).to_vector<double>()[0] == Approx(0.841345).epsilon(1e-6));
  CHECK(gelu(x).to_vector<double>()[1] == Approx(-0.0455003).epsilon(1e-5));
  CHECK(gelu(x, GeluApproximation::tanh).to_vector<double>()[0] == Approx(0.841192).epsilon(1e-6));
  CHECK(gelu(x, GeluApproximation::tanh).to_vector<double>()[1] == Approx(-0.0454023).epsilon(1e-5));
  double largest = 0, at = 0;
  for (double v = 0; v < 6; v += 0.001) {
    const double gap = std::abs(gelu(scalar_tensor(v, DType::f64)).item<double>() -
                                gelu(scalar_tensor(v, DType::f64), GeluApproximation::tanh).item<double>());
    if (gap > largest) largest = gap, at = v;
  }
  CHECK(largest == Approx(4.73e-4).epsilon(0.01));
  CHECK(at == Approx(2.70).epsilon(0.01));
}

TEST_CASE("powers and roots at zero", "[elementwise]") {
  const auto gradient_at_zero = [](const std::function<Tensor(const Tensor&)>& f) {
    Tensor x = leaf({0}, {1});
    return grad(sum(f(x)), {x})[0].item<double>();
  };
  CHECK(gradient_at_zero([](const Tensor& x) { return pow(x, 2); }) == 0);
  CHECK(gradient_at_zero([](const Tensor& x) { return pow(x, 3); }) == 0);
  CHECK(gradient_at_zero([](const Tensor& x) { return pow(x, 1); }) == 1);
  CHECK(gradient_at_zero([](const Tensor& x) { return pow(x, 0); }) == 0);
  CHECK(std::isinf(gradient_at_zero([](const Tensor& x) { return sqrt(x); })));
  CHECK(gradient_at_zero([](const Tensor& x) { return abs(x); }) == 0);
  CHECK(gradient_at_zero([](const Tensor& x) { return relu(x); }) == 0);

  Tensor base = leaf({0, 0, 2, 0}, {4}), exponent = leaf({2, 1, 0, 0}, {4});
  const Tensors both = grad(sum(pow(base, exponent)), {base, exponent}, {.create_graph = true});
  CHECK(both[0].to_vector<double>() == std::vector<double>{0, 1, 0, 0});
  CHECK(both[1].to_vector<double>() == std::vector<double>{0, 0, std::log(2.0), 0});
  for (const Tensor& second : grad(sum(both[0]) + sum(both[1]), {base, exponent}))
    for (double value : second.to_vector<double>()) CHECK(std::isfinite(value));
}

TEST_CASE("a broadcast operand's gradient is reduced to its shape", "[elementwise]") {
  Tensor a = ones({3, 4}).set_requires_grad(), b = ones({1, 4}).set_requires_grad();
  sum(a + b).backward();
  CHECK(b.grad().shape() == Shape{1, 4});
  CHECK(b.grad().to_vector<float>() == std::vector<float>(4, 3));

  Tensor left = ones({2, 3}, DType::f64).set_requires_grad(), right = ones({4, 3, 2}, DType::f64).set_requires_grad();
  sum(matmul(left, right)).backward();
  CHECK(left.grad().shape() == Shape{2, 3});
  CHECK(left.grad().to_vector<double>() == std::vector<double>(6, 8));
  CHECK(right.grad().to_vector<double>() == std::vector<double>(24, 2));

  for (auto f :
       {+[](const Tensor&x, const Tensor&y) { return x - y; }, +[](const Tensor&x, const Tensor&y) { return x * y; },
        +[](const Tensor&x, const Tensor&y) { return x / y; },
        +[](const Tensor&x, const Tensor&y) { return pow(x, y); },
        +[](const Tensor&x, const Tensor&y) { return maximum(x, y); },
        +[](const Tensor&x, const Tensor&y) { return minimum(x, y); }}) {
    Tensor x = leaf({1, 2, 3}, {3, 1}), y = leaf({2, 3}, {2});
    const Tensor z = f(x, y);
    CHECK(z.shape() == Shape{3, 2});
    const Tensors grads = grad(sum(z), {x, y});
    CHECK(grads[0].shape() == Shape{3, 1});
    CHECK(grads[1].shape() == Shape{2});
  }
}

TEST_CASE("selection keeps the other side's NaN and infinity out of the gradient", "[elementwise]") {
  Tensor x = leaf32({1, infinity});
  sum(masked_fill(x, from_vector<int64_t>({0, 1}), 0)).backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 0});

  Tensor a = leaf32({1, infinity, not_a_number}), b = leaf32({not_a_number, 2, 3});
  const Tensor chosen = from_vector<float>({1, 0, 0}) != 0;
  const Tensor upstream = from_vector<float>({1, infinity, infinity});
  sum(mul(where(chosen, a, b), upstream)).backward();
  CHECK(a.grad().to_vector<float>() == std::vector<float>{1, 0, 0});
  CHECK(b.grad().to_vector<float>() == std::vector<float>{0, infinity, infinity});

  // exp overflows on the side that is not chosen: choose inside it as well.
  Tensor big = leaf32({100});
  const Tensor small = big <= 0;
  const Tensor safe = where(small, exp(where(small, big, 0)), add(big, 1));
  CHECK(grad(sum(safe), {big})[0].item<float>() == 1);
}

TEST_CASE("maximum and minimum: NaN wins, a tie halves the gradient", "[elementwise]") {
  Tensor a = leaf32({1, 2, 3, not_a_number}), b = leaf32({1, 3, 2, 1});
  const Tensor larger = maximum(a, b);
  CHECK(std::isnan(larger.to_vector<float>()[3]));
  CHECK(std::isnan(minimum(b, a).to_vector<float>()[3]));
  const Tensors grads = grad(sum(larger.narrow(0, 0, 3)), {a, b});
  CHECK(grads[0].narrow(0, 0, 3).to_vector<float>() == std::vector<float>{0.5F, 0, 1});
  CHECK(grads[1].narrow(0, 0, 3).to_vector<float>() == std::vector<float>{0.5F, 1, 0});
}

TEST_CASE("clamp passes the gradient between its bounds, and NaN", "[elementwise]") {
  Tensor x = leaf32({-2, -0.5F, 0.5F, 2, not_a_number});
  const Tensor y = clamp(x, -1, 1);
  CHECK(y.narrow(0, 0, 4).to_vector<float>() == std::vector<float>{-1, -0.5F, 0.5F, 1});
  CHECK(std::isnan(y.to_vector<float>()[4]));
  CHECK(grad(sum(y), {x})[0].to_vector<float>() == std::vector<float>{0, 1, 1, 0, 0});
  CHECK(clamp(x, 0).to_vector<float>()[3] == 2);
  CHECK(clamp(from_vector<int64_t>({-5, 5}), std::nullopt, 3).to_vector<int64_t>() == std::vector<int64_t>{-5, 3});
  CHECK_THROWS_AS(clamp(x, std::nullopt), ValueError);
  CHECK_THROWS_AS(clamp(from_vector<int64_t>({1}), 0.5), DTypeError);
}

TEST_CASE("gradients of elementwise functions, first and second order", "[elementwise]") {
  const std::vector<double> at{-2.3, -0.7, 0.4, 1.9}, positive{0.3, 0.9, 2.1};
  using F = std::function<Tensor(const Tensor&)>;
  for (const F& f : std::vector<F>{[](const Tensor& x) { return exp(x); },
                                   [](const Tensor& x) { return tanh(x); },
                                   [](const Tensor& x) { return sigmoid(x); },
                                   [](const Tensor& x) { return gelu(x); },
                                   [](const Tensor& x) { return gelu(x, GeluApproximation::tanh); },
                                   [](const Tensor& x) { return silu(x); },
                                   [](const Tensor& x) { return erf(x); },
                                   [](const Tensor& x) { return sin(x); },
                                   [](const Tensor& x) { return cos(x); },
                                   [](const Tensor& x) { return square(x); },
                                   [](const Tensor& x) { return reciprocal(x); },
                                   [](const Tensor& x) { return pow(x, 3); },
                                   [](const Tensor& x) { return x * x * 2 - 1 / x + (3 - x) / 2 + -x; },
                                   [](const Tensor& x) { return relu(x) * x; },
                                   [](const Tensor& x) { return abs(x) * x; },
                                   [](const Tensor& x) { return clamp(x, -1, 1) * x; },
                                   [](const Tensor& x) { return maximum(x, sin(x)) * minimum(x, cos(x)); },
                                   [](const Tensor& x) { return where(x > 0, x * x, exp(x)); },
                                   [](const Tensor& x) { return masked_fill(x * x, x < 0, 7); },
                                   [](const Tensor& x) { return pow(1.7, x); }})
    check_gradient(f, at, 1e-6);
  for (const F& f :
       std::vector<F>{[](const Tensor& x) { return log(x); }, [](const Tensor& x) { return sqrt(x); },
                      [](const Tensor& x) { return rsqrt(x); }, [](const Tensor& x) { return pow(x, -1.5); },
                      [](const Tensor& x) { return pow(x, 0.5); }, [](const Tensor& x) { return pow(x, x); },
                      [](const Tensor& x) { return x / (x + 1); }})
    check_gradient(f, positive, 1e-6);
}

TEST_CASE("strided, expanded, empty and zero-dimensional operands", "[elementwise]") {
  const Tensor x = arange(24.0, DType::f64).view({2, 3, 4});
  const Tensor moved = x.permute({2, 0, 1});  // [4, 2, 3]
  const Tensor row = from_vector<double>({1, 10, 100}).expand({4, 2, 3});
  const auto y = (moved * row).to_vector<double>();
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 2; ++j)
      for (int64_t k = 0; k < 3; ++k)
        CHECK(y[static_cast<size_t>((i * 2 + j) * 3 + k)] ==
              static_cast<double>(j * 12 + k * 4 + i) * std::pow(10.0, static_cast<double>(k)));
  CHECK((x[1] + 1).to_vector<double>()[0] == 13);
  const Tensor large = arange(70.0 * 90).view({70, 90});  // large enough to be laid along first
  const auto across = (large.t() * 2 + large.t() / large.t().clone().add_(1)).to_vector<float>();
  const auto along = (large.t().clone() * 2 + large.t().clone() / (large.t().clone() + 1)).to_vector<float>();
  CHECK(across == along);
  CHECK(exp(large.t() * 1e-3F).to_vector<float>() == exp((large * 1e-3F).t()).to_vector<float>());
  CHECK(exp(zeros({0, 3})).shape() == Shape{0, 3});
  CHECK((zeros({0, 3}) + zeros({3})).shape() == Shape{0, 3});
  CHECK((zeros({2, 0}) * 2).numel() == 0);
  CHECK((scalar_tensor(2.0) * scalar_tensor(3.0)).item<float>() == 6);
  CHECK(where(zeros({0}) > 0, zeros({0}), 1).numel() == 0);
  CHECK_THROWS_AS(zeros({2, 3}) + zeros({2}), ShapeError);
}

TEST_CASE("large tensors: the same values as small pieces", "[elementwise]") {
  const Tensor x = arange(0.0, 300000.0, 1.0) * 1e-4F;
  const auto whole = tanh(x * 2 - 3).to_vector<float>();
  for (int64_t at : {int64_t{0}, int64_t{8191}, int64_t{8192}, int64_t{32768}, int64_t{299990}}) {
    const auto part = tanh(x.slice(0, at, at + 10) * 2 - 3).to_vector<float>();
    for (size_t i = 0; i < part.size(); ++i) CHECK(part[i] == whole[static_cast<size_t>(at) + i]);
  }
}

// ---- Dtypes

TEST_CASE("promotion of dtypes", "[elementwise]") {
  const Tensor f = full({2}, 1.5), d = full({2}, 1.5, DType::f64);
  const Tensor i = from_vector<int64_t>({7, -2}), t = full({2}, true);
  CHECK((f + 1).dtype() == DType::f32);
  CHECK((f * 2.5).dtype() == DType::f32);
  CHECK((d + 1.5F).dtype() == DType::f64);
  CHECK((f + i).to_vector<float>() == std::vector<float>{8.5F, -0.5F});
  CHECK((i * d).dtype() == DType::f64);
  CHECK((t * f).to_vector<float>() == std::vector<float>{1.5F, 1.5F});
  CHECK((i + 1).to_vector<int64_t>() == std::vector<int64_t>{8, -1});
  CHECK((i * 0.5).to_vector<float>() == std::vector<float>{3.5F, -1});
  CHECK((i * 0.5).dtype() == DType::f32);
  CHECK((i / 2).to_vector<float>() == std::vector<float>{3.5F, -1});
  CHECK((i / i).dtype() == DType::f32);
  CHECK((i + t).to_vector<int64_t>() == std::vector<int64_t>{8, -1});
  CHECK((t + t).to_vector<int64_t>() == std::vector<int64_t>{2, 2});
  CHECK((t * t).dtype() == DType::i64);
  CHECK((t + 1).to_vector<int64_t>() == std::vector<int64_t>{2, 2});
  CHECK(pow(i, 2).to_vector<int64_t>() == std::vector<int64_t>{49, 4});
  CHECK(pow(i, from_vector<int64_t>({2, 3})).to_vector<int64_t>() == std::vector<int64_t>{49, -8});
  CHECK(pow(2, from_vector<int64_t>({0, 10})).to_vector<int64_t>() == std::vector<int64_t>{1, 1024});
  CHECK(maximum(i, from_vector<int64_t>({1, 1})).to_vector<int64_t>() == std::vector<int64_t>{7, 1});
  CHECK(neg(i).to_vector<int64_t>() == std::vector<int64_t>{-7, 2});
  CHECK(abs(i).to_vector<int64_t>() == std::vector<int64_t>{7, 2});
  CHECK(sign(i).to_vector<int64_t>() == std::vector<int64_t>{1, -1});
  CHECK((i > 0).to_vector<bool>() == std::vector<bool>{true, false});
  CHECK((i > -2.5).to_vector<bool>() == std::vector<bool>{true, true});
  CHECK((f == 1.5).to_vector<bool>() == std::vector<bool>{true, true});
  CHECK((full({1}, 0.1) == 0.1).item<bool>());
  CHECK(where(t, i, f).dtype() == DType::f32);
  CHECK(where(t, 1, i).dtype() == DType::i64);
  CHECK(where(t, 0.5, i).to_vector<float>() == std::vector<float>{0.5F, 0.5F});
  CHECK((from_vector<int64_t>({INT64_MAX}) == INT64_MAX).item<bool>());
  CHECK((from_vector<int64_t>({INT64_MAX}) - 1).item<int64_t>() == INT64_MAX - 1);

  Tensor weight = ones({2}).set_requires_grad();
  CHECK(grad(sum(weight * i), {weight})[0].to_vector<float>() == std::vector<float>{7, -2});
}

TEST_CASE("dtypes, devices and arguments that do not fit", "[elementwise]") {
  const Tensor f = ones({2}), d = ones({2}, DType::f64), i = from_vector<int64_t>({1, 2});
  const Tensor h = f.to(DType::bf16);
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(f + d, DTypeError);
  CHECK_THROWS_WITH(f + d, Contains("add") && Contains("f32") && Contains("f64") && Contains("to()"));
  CHECK_THROWS_AS(f == d, DTypeError);
  CHECK_THROWS_AS(where(f > 0, f, d), DTypeError);
  CHECK_THROWS_AS(h + h, DTypeError);
  CHECK_THROWS_AS(h * 2, DTypeError);
  // No kernel reads 16-bit numbers as integers.
  for (BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::maximum, BinaryOp::minimum})
    CHECK_THROWS_AS(kernels(h).binary(op, h, h, h), DTypeError);
  CHECK_THROWS_AS(exp(h), DTypeError);
  CHECK_THROWS_AS(exp(i), DTypeError);
  CHECK_THROWS_AS(gelu(i), DTypeError);
  CHECK_THROWS_AS(neg(f > 0), DTypeError);
  CHECK_THROWS_AS(pow(i, -1), ValueError);
  CHECK_THROWS_AS(pow(i, from_vector<int64_t>({1, -1})), ValueError);
  CHECK_THROWS_AS(masked_fill(i, i > 1, 0.5), DTypeError);
  CHECK_THROWS_AS(masked_fill(f, f, 0), DTypeError);
  CHECK_THROWS_AS(masked_fill(f, ones({3, 2}) > 0, 0), ShapeError);
  CHECK_THROWS_AS(where(f, f, f), DTypeError);
  CHECK_THROWS_AS(f + Tensor(), ValueError);
  CHECK_THROWS_AS(exp(Tensor()), ValueError);
  CHECK_THROWS_AS(Tensor() * 2, ValueError);
}

TEST_CASE("comparisons, logic, equal and allclose", "[elementwise]") {
  const Tensor x = from_vector<float>({1, not_a_number, infinity, -infinity}),
               y = from_vector<float>({1, not_a_number, infinity, 0});
  CHECK((x == y).to_vector<bool>() == std::vector<bool>{true, false, true, false});
  CHECK((x != y).to_vector<bool>() == std::vector<bool>{false, true, false, true});
  CHECK((x < y).to_vector<bool>() == std::vector<bool>{false, false, false, true});
  CHECK((x >= y).to_vector<bool>() == std::vector<bool>{true, false, true, false});
  CHECK((1 > x).to_vector<bool>() == std::vector<bool>{false, false, false, true});
  CHECK(isfinite(x).to_vector<bool>() == std::vector<bool>{true, false, false, false});
  const Tensor p = from_vector<int64_t>({0, 0, 2, 2}), q = from_vector<int64_t>({0, 1, 0, 1});
  CHECK(logical_and(p, q).to_vector<bool>() == std::vector<bool>{false, false, false, true});
  CHECK(logical_or(p, q).to_vector<bool>() == std::vector<bool>{false, true, true, true});
  CHECK(logical_xor(p, q).to_vector<bool>() == std::vector<bool>{false, true, true, false});
  CHECK(logical_not(p).to_vector<bool>() == std::vector<bool>{true, true, false, false});

  CHECK(equal(p, p.clone()));
  CHECK_FALSE(equal(p, q));
  CHECK_FALSE(equal(p, p.to(DType::f32)));
  CHECK_FALSE(equal(p, p.view({2, 2})));
  CHECK_FALSE(equal(x, x));
  CHECK(equal(zeros({0}), zeros({0})));
  CHECK(equal(p.to(DType::bf16), p.to(DType::bf16)));

  CHECK(allclose(x, y.clone(), 0, 0, true) == false);
  CHECK(allclose(x, x.clone(), 0, 0, true));
  CHECK_FALSE(allclose(x, x));
  CHECK_FALSE(allclose(full({1}, 1e30), full({1}, infinity)));
  CHECK_FALSE(allclose(full({1}, infinity), full({1}, -infinity)));
  CHECK(allclose(full({1}, 1.0), full({1}, 1.000001), 1e-5));
  CHECK_FALSE(allclose(full({1}, 1.0), full({1}, 1.0001), 1e-5));
  CHECK(allclose(p, p.to(DType::f64)));
}

// ---- Copies

TEST_CASE("copies between strides, transposed ones of every element size", "[elementwise]") {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64, DType::boolean}) {
    for (const Shape& shape :
         {Shape{3, 5}, Shape{64, 64}, Shape{70, 131}, Shape{2, 67, 3, 66}, Shape{1, 7}, Shape{0, 4}}) {
      const Tensor x = (arange(shape.numel()) * 7 + 3).view(shape).to(DType::f32).to(dtype);
      const int64_t last = shape.dim() - 1;
      for (int64_t dim = 0; dim < last; ++dim) {
        const Tensor transposed = x.transpose(dim, last), copy = transposed.clone();
        CHECK(copy.is_contiguous());
        CHECK(copy.to_vector<double>() == transposed.to_vector<double>());
        Tensor target = zeros(shape, dtype).transpose(dim, last);
        target.copy_(copy);
        CHECK(target.to_vector<double>() == copy.to_vector<double>());
        CHECK(transposed.to(DType::f64).to_vector<double>() == copy.to_vector<double>());
      }
    }
  }
  CHECK(from_vector<float>({1, 2}).expand({3, 2}).clone().to_vector<float>() == std::vector<float>{1, 2, 1, 2, 1, 2});
}

TEST_CASE("casts between dtypes", "[elementwise]") {
  const Tensor x = from_vector<float>({-1.7F, 0, 2.5F, 1e30F, not_a_number});
  CHECK(x.to(DType::i64).to_vector<int64_t>() == std::vector<int64_t>{-1, 0, 2, INT64_MAX, 0});
  CHECK(x.to(DType::boolean).to_vector<bool>() == std::vector<bool>{true, false, true, true, true});
  CHECK(x.narrow(0, 0, 3).to(DType::f16).to(DType::f64).to_vector<double>()[2] == 2.5);
  CHECK(x.to(DType::f32).shares_storage_with(x));

  Tensor leaf = ones({2}).set_requires_grad();
  const Tensor wide = leaf.to(DType::f64) * 3;
  const Tensor gradient = grad(sum(wide), {leaf})[0];
  CHECK(gradient.dtype() == DType::f32);
  CHECK(gradient.to_vector<float>() == std::vector<float>{3, 3});
  CHECK_FALSE(leaf.to(DType::i64).requires_grad());
  CHECK(grad(sum(leaf.clone() * 2), {leaf})[0].to_vector<float>() == std::vector<float>{2, 2});
}

}  // namespace elementwise_test
