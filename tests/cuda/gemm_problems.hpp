// Matrix products and their epilogues as the table of kernels has them, on the CPU and on the GPU: what gemm_test.cpp
// and host_gemm_test.cpp share.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

namespace gemm_problems {

using namespace regard;

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

inline Tensor numbers(int64_t count, DType dtype, uint64_t seed) {
  Generator generator(seed);
  if (element_size(dtype) == 2) return randn({count}, DType::f32, generator).to(dtype);
  return randn({count}, dtype, generator);
}

inline std::vector<double> values(const Tensor& x) { return x.to(cpu()).to(DType::f64).to_vector<double>(); }

// The largest difference between corresponding elements; NaN is like NaN.
inline double difference(const Tensor& x, const Tensor& y) {
  const std::vector<double> left = values(x), right = values(y);
  REQUIRE(left.size() == right.size());
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i]) && std::isnan(right[i])) continue;
    if (!(std::abs(left[i] - right[i]) <= largest)) largest = std::abs(left[i] - right[i]);  // NaN is the largest
    if (std::isnan(largest)) return std::numeric_limits<double>::infinity();
  }
  return largest;
}

// Of sums of k products of numbers of size 1. 16 bits: a few roundings of the result, which is up to some times its
// standard deviation.
inline double tolerance(DType dtype, int64_t k) {
  const double size = 4 + std::sqrt(static_cast<double>(k)) * 2;
  switch (dtype) {
    case DType::f64:
      return 1e-14 * size;
    case DType::bf16:
      return 0x1p-8 * 2 * size;
    case DType::f16:
      return 0x1p-11 * 2 * size;
    default:
      return 2e-6 * size;
  }
}

// What the CPU computes with where the GPU is given `dtype`: 16 bits widened.
inline DType computed_in(DType dtype, Device device) {
  return element_size(dtype) == 2 && device == cpu() ? DType::f32 : dtype;
}

struct Wanted {
  bool bias = false, before = false, residual = false;
  std::optional<UnaryOp> activation = {};
  std::optional<BinaryOp> activation_grad = {};
  std::optional<UnaryOp> activation_again = {};
  int64_t bias_stride = 1, bias_shift = 0;
};

inline void check_epilogue(DType dtype, int64_t m, int64_t n, int64_t k, const Wanted& w) {
  CAPTURE(dtype, m, n, k, w.bias, w.before, w.residual, w.activation.has_value(), w.activation_grad.has_value(),
          w.activation_again.has_value(), w.bias_stride, w.bias_shift);
  const Tensor a = numbers(std::max<int64_t>(m * k, 1), dtype, 1), b = numbers(std::max<int64_t>(k * n, 1), dtype, 2);
  const Tensor bias = numbers(w.bias_shift + (n - 1) * w.bias_stride + 1, dtype, 3), x = numbers(m * n, dtype, 4);
  const Tensor residual = numbers(m * n, dtype, 5);
  const auto run = [&, given = dtype](Device device) {
    const DType dtype = computed_in(given, device);
    const auto there = [&](const Tensor& t) { return t.to(dtype).to(device); };
    const Tensors in{there(a), there(b), there(bias), there(x), there(residual)};
    const Tensors out{full({m * n}, nan, dtype).to(device), full({m * n}, nan, dtype).to(device),
                      full({m * n}, nan, dtype).to(device)};
    GemmEpilogue e{.bias_stride = w.bias_stride,
                   .activation = w.activation,
                   .activation_grad = w.activation_grad,
                   .activation_again = w.activation_again};
    if (w.bias) e.bias = static_cast<char*>(in[2].raw_data()) + w.bias_shift * element_size(dtype);
    if (w.before) e.before = out[1].raw_data();
    if (w.activation_grad || w.activation_again) e.x = in[3].raw_data();
    if (w.activation_again) e.activated = out[2].raw_data();
    if (w.residual) e.residual = in[4].raw_data();
    kernels(device).gemm_epilogue(dtype, m, n, k, in[0].raw_data(), k, 1, in[1].raw_data(), 1, k, out[0].raw_data(), e);
    return out;
  };
  const Tensors expected = run(cpu()), got = run(cuda());
  for (size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    // 16 bits: the product is rounded before it is multiplied by a gradient, and again after.
    CHECK(difference(expected[i], got[i]) <= (element_size(dtype) == 2 ? 8 : 3) * tolerance(dtype, k));
  }
}

/// Epilogues with biases of all kinds.
inline void check_biases() {
  for (DType dtype : dtypes)
    for (int64_t n : {1, 4, 9})
      for (int64_t k : {0, 6}) {
        check_epilogue(dtype, 5, n, k, {.bias = true});
        check_epilogue(dtype, 1, n, k, {.bias = true, .bias_shift = 1});
        check_epilogue(dtype, 5, n, k, {.bias = true, .residual = true, .bias_stride = 3});
        check_epilogue(dtype, 5, n, k, {.bias = true, .bias_stride = 0});
        check_epilogue(dtype, 5, n, k, {.before = true, .residual = true});
        check_epilogue(dtype, 5, n, k, {.residual = true});
      }
}

inline Tensor product(const Tensor& a, const Tensor& b) {  // of dense matrices on a GPU
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const Tensor c = full({m, n}, nan, a.dtype()).to(cuda());
  kernels(c).gemm(a.dtype(), m, n, k, 1, a.raw_data(), k, 1, b.raw_data(), n, 1, 0, c.raw_data(), n, 1, {});
  return c.to(cpu());
}
inline Tensor matrix(int64_t rows, int64_t columns, uint64_t seed) {
  return numbers(rows * columns, DType::f32, seed).view({rows, columns});
}

}  // namespace gemm_problems
