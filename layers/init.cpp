#include <regard/layers/init.hpp>

#include <algorithm>
#include <cmath>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::layers::init {

namespace {

// The x with normal distribution function p, 0 < p < 1: a start near it, then Halley's steps. In the tail p is
// exp(-x^2 / 2) but for a factor, and the start from that is close enough; in the middle the logistic quantile is.
double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1 - p);
  double x = p < 0.01 ? -std::sqrt(-2 * std::log(p)) : std::log(p / (1 - p)) / 1.702;
  for (int i = 0; i < 60; ++i) {
    double error = 0.5 * std::erfc(-x / std::sqrt(2.0)) - p;
    double density = std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    double u = error / density;
    double step = u / (1 + x * u / 2);  // Halley's rule
    x -= step;
    if (std::abs(step) < 1e-14 * (1 + std::abs(x))) break;
  }
  return x;
}

}  // namespace

Fans fans(const Tensor& weight) {
  check_defined("init", "weight", weight);
  check<ShapeError>(weight.dim() >= 2, "init", "a weight of shape ", weight.shape(),
                    " has no fan in and out: two dimensions or more are needed, [out, in, ...]");
  int64_t rest = 1;
  for (int64_t i = 2; i < weight.dim(); ++i) rest *= weight.size(i);
  return {weight.size(1) * rest, weight.size(0) * rest};
}

void constant_(const Tensor& x, double value) {
  NoGrad no_grad;
  x.fill_(value);
}
void zeros_(const Tensor& x) { constant_(x, 0); }
void ones_(const Tensor& x) { constant_(x, 1); }
void uniform_(const Tensor& x, double low, double high, Generator& generator) {
  NoGrad no_grad;
  regard::uniform_(x, low, high, generator);
}
void normal_(const Tensor& x, double mean, double std, Generator& generator) {
  NoGrad no_grad;
  regard::normal_(x, mean, std, generator);
}

void trunc_normal_(const Tensor& x, double mean, double std, double low, double high, Generator& generator) {
  check<ValueError>(std > 0 && low < high, "trunc_normal_", "std ", std, " must be positive, and low ", low,
                    " below high ", high);
  NoGrad no_grad;
  // An interval above the mean is drawn as its mirror image below, where the distribution function keeps its digits.
  const double sign = low > mean ? -1 : 1, bounds[] = {sign * (low - mean) / std, sign * (high - mean) / std};
  auto cumulative = [](double at) { return 0.5 * std::erfc(-at / std::sqrt(2.0)); };
  double from = cumulative(std::min(bounds[0], bounds[1])), to = cumulative(std::max(bounds[0], bounds[1]));
  check<ValueError>(to - from > 1e-300, "trunc_normal_", "[", low, ", ", high, "] is too far from the mean ", mean,
                    " for a std of ", std);
  Tensor draws = rand(x.shape(), DType::f64, generator);
  double* data = draws.data<double>();
  for (int64_t i = 0; i < draws.numel(); ++i) {
    double p = std::clamp(from + (to - from) * data[i], 1e-300, 1 - 1e-16);
    data[i] = std::clamp(mean + sign * std * normal_quantile(p), low, high);
  }
  x.copy_(draws.to(x.device()));
}

void xavier_uniform_(const Tensor& weight, double gain, Generator& generator) {
  Fans fan = fans(weight);
  double bound = gain * std::sqrt(6.0 / static_cast<double>(fan.in + fan.out));
  init::uniform_(weight, -bound, bound, generator);
}
void xavier_normal_(const Tensor& weight, double gain, Generator& generator) {
  Fans fan = fans(weight);
  init::normal_(weight, 0, gain * std::sqrt(2.0 / static_cast<double>(fan.in + fan.out)), generator);
}
void kaiming_uniform_(const Tensor& weight, double slope, Generator& generator) {
  double bound = std::sqrt(6.0 / ((1 + slope * slope) * static_cast<double>(fans(weight).in)));
  init::uniform_(weight, -bound, bound, generator);
}
void kaiming_normal_(const Tensor& weight, double slope, Generator& generator) {
  init::normal_(weight, 0, std::sqrt(2.0 / ((1 + slope * slope) * static_cast<double>(fans(weight).in))), generator);
}

}  // namespace regard::layers::init
