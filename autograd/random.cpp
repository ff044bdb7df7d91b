#include <regard/autograd/random.hpp>

#include <cmath>
#include <string>
#include <utility>

#include <regard/autograd/backend/entry_check.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/philox.hpp>

namespace regard {

std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter) { return detail::philox_element(seed, counter); }

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(uint64_t seed) { default_generator().set_state(seed, 0); }

namespace {

void check_floating_option(const char* op, TensorOptions options) {
  check<DTypeError>(computes(options.dtype, options.device), op, "makes f32 and f64, on GPUs bf16 and f16 too, not ",
                    options.dtype, "; make f32 and use to(DType::", options.dtype, ")");
}

}  // namespace

Tensor rand(const Shape& shape, TensorOptions options, Generator& generator) {
  check_floating_option("rand", options);
  Tensor y = empty(shape, options);
  kernels(y).uniform(y, 0, 1, generator.seed(), generator.reserve(y.numel()));
  return y;
}

Tensor randn(const Shape& shape, TensorOptions options, Generator& generator) {
  check_floating_option("randn", options);
  Tensor y = empty(shape, options);
  kernels(y).normal(y, 0, 1, generator.seed(), generator.reserve(y.numel()));
  return y;
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options, Generator& generator) {
  check<ValueError>(low < high, "randint", "low ", low, " should be below high ", high);
  Tensor y = empty(shape, TensorOptions(DType::i64, options.device));
  kernels(y).randint(y, low, high, generator.seed(), generator.reserve(y.numel()));
  return y.to(options.dtype);
}

Tensor randperm(int64_t n, TensorOptions options, Generator& generator) {
  check<ValueError>(n >= 0, "randperm", "n is ", n, ", should not be negative");
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
  // Fisher and Yates: position i swaps with one of i ... n - 1, chosen by counter offset + i.
  uint64_t seed = generator.seed(), offset = generator.reserve(n);
  for (int64_t i = 0; i < n; ++i) {
    std::array<uint32_t, 4> bits = philox(seed, offset + static_cast<uint64_t>(i));
    uint64_t step = detail::scale_bits(uint64_t{bits[0]} << 32 | bits[1], static_cast<uint64_t>(n - i));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i) + step]);
  }
  return from_vector<int64_t>(order, {n}).to(options.device).to(options.dtype);
}

Tensor bernoulli(const Tensor& p, Generator& generator) {
  check_defined("bernoulli", "p", p);
  check_floating("bernoulli", "p", p);
  NoGrad no_grad;
  const char* demand = "every element of p should be in [0, 1]";  // NaN is in no range
  if (p.device() != cpu()) {
    check_entries_later(p, {.low = 0,
                            .high = 1,
                            .raises = EntryCheck::Raises::value_error,
                            .names = EntryCheck::Names::nothing,
                            .before = std::string("bernoulli: ") + demand});
  } else if (p.numel() > 0) {
    check<ValueError>(all(logical_and(p >= 0, p <= 1)).item<bool>(), "bernoulli", demand);
  }
  Tensor y = empty(p.shape(), TensorOptions(p.dtype(), p.device()));
  kernels(y).bernoulli(y, p, generator.seed(), generator.reserve(y.numel()));
  return no_derivative(y);
}

void uniform_(const Tensor& x, double low, double high, Generator& generator) {
  check_defined("uniform_", "x", x);
  check_floating("uniform_", "x", x);
  check<ValueError>(std::isfinite(high - low) && low <= high, "uniform_", "low ", low, " and high ", high,
                    " should be finite, and low at most high");
  check_writable("uniform_", x);
  kernels(x).uniform(x, low, high, generator.seed(), generator.reserve(x.numel()));
  x.impl()->storage->bump_version();
}

void normal_(const Tensor& x, double mean, double std, Generator& generator) {
  check_defined("normal_", "x", x);
  check_floating("normal_", "x", x);
  check<ValueError>(std::isfinite(mean) && std::isfinite(std) && std >= 0, "normal_", "mean ", mean, " and std ", std,
                    " should be finite, and std not negative");
  check_writable("normal_", x);
  kernels(x).normal(x, mean, std, generator.seed(), generator.reserve(x.numel()));
  x.impl()->storage->bump_version();
}

}  // namespace regard
