// Initialisers: the distributions that they draw from.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace init_test {

using namespace regard;
using namespace regard::layers;

namespace {

// The mean of a normal distribution of mean 0 and std 1 cut off outside [low, high], both below 0.
double mean_of_tail(double low, double high) {
  double mass = 0, moment = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = low + (high - low) * (i + 0.5) / 200000;
    const double density = std::exp(0.5 * (high * high - x * x));
    mass += density;
    moment += density * x;
  }
  return moment / mass;
}

}  // namespace

TEST_CASE("trunc_normal_: mean and spread of what is left of the distribution") {
  Generator generator(1);
  Tensor x = zeros({100000}, DType::f64);
  init::trunc_normal_(x, 1, 0.5, 0, 2, generator);
  CHECK(min(x).item<double>() >= 0);
  CHECK(max(x).item<double>() <= 2);
  CHECK(mean(x).item<double>() == Approx(1).margin(0.006));
  CHECK(x.var().item<double>() == Approx(0.25 * 0.773741).epsilon(0.02));  // of [-2, 2] for std 1: 0.773741
}

TEST_CASE("trunc_normal_: far in either tail, and without bounds") {
  for (const auto& [low, high] : {std::pair{-3.0, -2.0}, {-9.0, -8.0}, {-12.0, -10.0}, {-30.0, -20.0}}) {
    CAPTURE(low, high);
    const double expected = mean_of_tail(low, high);
    Generator generator(2), same(2);
    Tensor below = zeros({20000}, DType::f64), above = zeros({20000}, DType::f64);
    init::trunc_normal_(below, 0, 1, low, high, generator);
    init::trunc_normal_(above, 0, 1, -high, -low, same);
    CHECK(mean(below).item<double>() == Approx(expected).epsilon(0.003));
    CHECK(equal(above, -below));
    const std::vector<double> values = below.to_vector<double>();
    CHECK(std::set<double>(values.begin(), values.end()).size() > 19900);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  Generator generator(3);
  Tensor x = zeros({100000}, DType::f64);
  init::trunc_normal_(x, 0, 1, -infinity, infinity, generator);
  CHECK(all(isfinite(x)).item<bool>());
  CHECK(x.var().item<double>() == Approx(1).epsilon(0.03));
}

}  // namespace init_test
