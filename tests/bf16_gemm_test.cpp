// Matrix products with operands rounded to bf16: values, bits, where they are used, and what they leave alone.
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <regard/autograd/backend/cpu/bf16_gemm.hpp>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/gemm_finish.hpp>
#include <regard/autograd/matmul_precision.hpp>
#include <regard/autograd/threads.hpp>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace bf16_gemm_test {

using regard::bf16_matmul_available;
using regard::MatmulPrecision;
using regard::MatmulPrecisionScope;
using regard::cpu_backend::bf16_gemm;
using regard::cpu_backend::gemm;
using regard::cpu_backend::gemm_batched;
using regard::cpu_backend::Matrix;

namespace {

struct ThreadCount {
  explicit ThreadCount(int count) : before(regard::num_threads()) { regard::set_num_threads(count); }
  ~ThreadCount() { regard::set_num_threads(before); }
  int before;
};

enum Layout { rows, columns, wide_rows, general };

// A matrix with its memory, from its first element to its last: a sanitizer sees a step past either.
struct Stored {
  Stored(int64_t rows_, int64_t columns_, Layout layout, std::mt19937& random) {
    row_stride = layout == columns     ? 1
                 : layout == rows      ? columns_
                 : layout == wide_rows ? columns_ + 3
                                       : 2 * columns_ + 1;
    column_stride = layout == columns ? rows_ : layout == general ? 2 : 1;
    memory.resize(static_cast<size_t>((rows_ - 1) * row_stride + (columns_ - 1) * column_stride + 1));
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& element : memory) element = uniform(random);
  }
  Matrix<const float> read() const { return {memory.data(), row_stride, column_stride}; }
  Matrix<float> write() { return {memory.data(), row_stride, column_stride}; }
  float at(int64_t i, int64_t j) const { return memory[static_cast<size_t>(i * row_stride + j * column_stride)]; }
  float& at(int64_t i, int64_t j) { return memory[static_cast<size_t>(i * row_stride + j * column_stride)]; }

  std::vector<float> memory;
  int64_t row_stride, column_stride;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// To nearest, ties to even, of a finite number.
float rounded_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

// The length of a block of k: what bf16_gemm.hpp leaves open, as bf16_gemm.cpp has it.
int64_t block_of(int64_t k) {
  const int64_t blocks = (k + 767) / 768;
  return ((k + blocks - 1) / blocks + 31) / 32 * 32;
}

// The same arithmetic in plain code: pairs along k, the odd element first, each step rounded once.
void plain_bf16_gemm(int64_t m, int64_t n, int64_t k, float alpha, const Stored& a, const Stored& b, float beta,
                     Stored& c) {
  std::vector<float> left(static_cast<size_t>(m * k)), right(static_cast<size_t>(k * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) left[static_cast<size_t>(i * k + p)] = rounded_to_bf16(a.at(i, p));
  }
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t j = 0; j < n; ++j) right[static_cast<size_t>(p * n + j)] = rounded_to_bf16(b.at(p, j));
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float& element = c.at(i, j);
      for (int64_t p0 = 0; p0 < k; p0 += block_of(k)) {
        float sum = 0;
        const int64_t end = std::min(k, p0 + block_of(k));
        const auto add = [&](int64_t p) {
          sum = std::fma(left[static_cast<size_t>(i * k + p)], right[static_cast<size_t>(p * n + j)], sum);
        };
        for (int64_t p = p0; p < end; p += 2) {
          if (p + 1 < end) add(p + 1);
          add(p);
        }
        const float factor = p0 == 0 ? beta : 1;
        const float product = alpha * sum;
        element = factor == 0 ? product : std::fma(factor, element, product);
      }
    }
  }
}

// The largest error of an element against f64, in units of what rounding can amount to.
double error_of(int64_t m, int64_t n, int64_t k, double alpha, const Stored& a, const Stored& b, double beta,
                const Stored& before, const Stored& after) {
  double worst = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t p = 0; p < k; ++p) {
        const double term = static_cast<double>(a.at(i, p)) * static_cast<double>(b.at(p, j));
        sum += term;
        magnitude += std::abs(term);
      }
      const double old = beta == 0 ? 0 : beta * static_cast<double>(before.at(i, j));
      const double bound =
          (std::exp2(-8) + std::exp2(-18) + static_cast<double>(k + 4) * std::exp2(-24)) * std::abs(alpha) * magnitude +
          std::exp2(-23) * std::abs(old);
      const double error = std::abs(old + alpha * sum - static_cast<double>(after.at(i, j))) / bound;
      if (!(error <= worst)) worst = error;
      if (std::isnan(worst)) return worst;
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("bf16 GEMM has the bits of its arithmetic in plain code", "[gemm]") {
  if (!bf16_matmul_available()) return;
  std::mt19937 random(21);
  int wrong = 0, tried = 0;
  const auto compare = [&](int64_t m, int64_t n, int64_t k, Layout a_layout, Layout b_layout, Layout c_layout) {
    const Stored a(m, k, a_layout, random), b(k, n, b_layout, random);
    Stored c(m, n, c_layout, random);
    const float beta = static_cast<float>(tried++ % 3) * 0.5F, alpha = tried % 2 == 0 ? 1.0F : 1.25F;
    Stored expected = c;
    if (beta == 0) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) c.at(i, j) = std::numeric_limits<float>::quiet_NaN();
      }
    }
    plain_bf16_gemm(m, n, k, alpha, a, b, beta, expected);
    bf16_gemm({m, n, k, alpha, a.read(), b.read(), beta, std::as_const(c).read(), c.write(), nullptr});
    if (same_bits(c.memory, expected.memory)) return;
    ++wrong;
    UNSCOPED_INFO("wrong at " << m << " x " << n << " x " << k << ", layouts " << a_layout << " " << b_layout << " "
                              << c_layout << ", alpha " << alpha << ", beta " << beta);
  };
  for (const int64_t m : {1, 2, 3, 5, 6, 11, 12, 13, 24, 25}) {
    for (const int64_t n : {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 65, 100}) {
      for (const int64_t k : {1, 2, 3, 4, 15, 16, 17, 31, 32, 33, 34, 63, 65, 100}) {
        compare(m, n, k, static_cast<Layout>(random() % 4), static_cast<Layout>(random() % 4),
                static_cast<Layout>(random() % 4));
      }
    }
  }
  const int64_t shapes[][3] = {{13, 40, 767},  {13, 40, 768}, {13, 40, 769}, {5, 33, 1600},  {239, 33, 40},
                               {240, 33, 40},  {241, 33, 40}, {481, 20, 35}, {15, 1023, 36}, {15, 1025, 36},
                               {250, 1060, 5}, {20, 20, 512}, {20, 50, 1024}};
  for (const auto& [m, n, k] : shapes) {
    for (const Layout a : {rows, columns, general}) {
      for (const Layout b : {rows, columns, general}) compare(m, n, k, a, b, wide_rows);
    }
  }
  CHECK(wrong == 0);
  CHECK(tried > 1500);
}

TEST_CASE("bf16 GEMM against f64: every layout, strides, alpha and beta", "[gemm]") {
  std::mt19937 random(22);
  const MatmulPrecisionScope scope(MatmulPrecision::bf16);
  double worst = 0;
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{65, 33, 100},
                                {128, 128, 64},
                                {37, 50, 801},
                                {16, 32, 24},
                                {32, 16, 24},
                                {15, 200, 100},
                                {200, 15, 100},
                                {70, 80, 23}}) {
    for (const Layout a_layout : {rows, columns, wide_rows, general}) {
      for (const Layout b_layout : {rows, columns, wide_rows, general}) {
        for (const Layout c_layout : {random() % 2 == 0 ? rows : columns, general}) {
          const Stored a(m, k, a_layout, random), b(k, n, b_layout, random), before(m, n, c_layout, random);
          Stored c = before;
          const float beta = random() % 2 == 0 ? 0.0F : -0.75F;
          gemm<float>(m, n, k, 1.5F, a.read(), b.read(), beta, c.write());
          worst = std::max(worst, error_of(m, n, k, 1.5, a, b, static_cast<double>(beta), before, c));
        }
      }
    }
  }
  CHECK(worst <= 1);
  if (bf16_matmul_available()) CHECK(worst > 1e-3);  // they were not computed in f32
}

TEST_CASE("bf16 GEMM has the same bits on any number of threads, in batches too", "[gemm][threads]") {
  std::mt19937 random(23);
  const MatmulPrecisionScope scope(MatmulPrecision::bf16);
  for (const auto& [batch, m, n, k] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 500, 300, 200},
                                       {1, 90, 1000, 900},
                                       {7, 64, 70, 33},
                                       {5, 130, 128, 1000}}) {
    for (const Layout b_layout : {rows, columns}) {
      const Stored a(m * batch, k, rows, random), b(k, n, b_layout, random), before(m * batch, n, rows, random);
      std::vector<int64_t> a_offsets, c_offsets;
      for (int64_t i = 0; i < batch; ++i) {
        a_offsets.push_back(i * m * k);
        c_offsets.push_back(i * m * n);
      }
      std::vector<std::vector<float>> results;
      for (const int threads : {1, 2, 3, 4}) {
        const ThreadCount count(threads);
        Stored c = before;
        gemm_batched<float>(batch, a_offsets.data(), nullptr, c_offsets.data(), m, n, k, 1, a.read(), b.read(), 0.5F,
                            c.write());
        results.push_back(c.memory);
      }
      CAPTURE(batch, m, n, k, b_layout);
      for (size_t i = 1; i < results.size(); ++i) CHECK(same_bits(results[0], results[i]));
      Stored c = before;
      for (int64_t i = 0; i < batch; ++i) {  // a batch has the bits of its parts
        gemm<float>(m, n, k, 1, a.read().offset_by(i * m * k), b.read(), 0.5F, c.write().offset_by(i * m * n));
      }
      CHECK(same_bits(results[0], c.memory));
    }
  }
}

TEST_CASE("bf16 GEMM adds a bias or another matrix, and finishes blocks as ops of their own would", "[gemm]") {
  std::mt19937 random(26);
  const MatmulPrecisionScope scope(MatmulPrecision::bf16);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{40, 35, 50}, {300, 301, 64}, {50, 1100, 900}}) {
    const Stored a(m, k, rows, random), b(k, n, columns, random), bias(1, n, rows, random), other(m, n, rows, random);
    for (const bool same_rows : {true, false}) {
      const Matrix<const float> addend = same_rows ? Matrix<const float>{bias.memory.data(), 0, 1} : other.read();
      Stored expected(m, n, rows, random), c = expected, kept = expected;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          expected.at(i, j) = addend.data[i * addend.row_stride + j * addend.column_stride];
        }
      }
      gemm<float>(m, n, k, 1, a.read(), b.read(), 1, expected.write());
      regard::cpu_backend::GemmFinish finish{reinterpret_cast<char*>(c.memory.data()), sizeof(float)};
      finish.before = reinterpret_cast<char*>(kept.memory.data());
      regard::cpu_backend::gemm_finished<float>(m, n, k, a.read(), b.read(), addend, c.write(), &finish);
      CHECK(same_bits(expected.memory, c.memory));
      CHECK(same_bits(expected.memory, kept.memory));
    }
  }
}

TEST_CASE("bf16 GEMM keeps NaN and infinity, rounds the largest numbers up, and drops denormal ones", "[gemm]") {
  if (!bf16_matmul_available()) return;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  const auto multiply = [](float x, float y) {  // x, 0, 0 ... by y, 0, 0 ...
    const int64_t m = 17, n = 33, k = 40;
    std::vector<float> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n)), c(static_cast<size_t>(m * n), 7);
    a[static_cast<size_t>(16 * k + 5)] = x;
    b[5 * static_cast<size_t>(n) + 32] = y;
    bf16_gemm({m, n, k, 1, {a.data(), k, 1}, {b.data(), n, 1}, 0, {}, {c.data(), n, 1}, nullptr});
    CHECK(c[0] == 0);
    return c.back();
  };
  CHECK(multiply(3, 0.5F) == 1.5F);
  CHECK(std::isnan(multiply(nan, 2)));
  CHECK(std::isnan(multiply(2, nan)));
  // Payloads that rounding would carry into the exponent or cut off altogether.
  CHECK(std::isnan(multiply(std::bit_cast<float>(0x7fffffffU), 2)));
  CHECK(std::isnan(multiply(std::bit_cast<float>(0x7f800001U), 2)));
  CHECK(multiply(infinity, 2) == infinity);
  CHECK(multiply(-infinity, 2) == -infinity);
  CHECK(std::isnan(multiply(infinity, 0)));
  CHECK(multiply(largest, 1) == infinity);      // to nearest: above the largest bf16
  CHECK(multiply(1 + std::exp2f(-8), 1) == 1);  // a tie, to even
  CHECK(multiply(1 + 3 * std::exp2f(-8), 1) == 1 + std::exp2f(-6));
  CHECK(multiply(1 + std::exp2f(-8) + std::exp2f(-20), 1) == 1 + std::exp2f(-7));
  CHECK(multiply(tiny, 1) == 0);
  CHECK(multiply(1, std::numeric_limits<float>::min() / 2) == 0);
}

TEST_CASE("bf16 GEMM: a setting and a scope say where, and elsewhere bits are those of f32", "[gemm]") {
  std::mt19937 random(24);
  const int64_t m = 100, n = 90, k = 80;
  const Stored a(m, k, rows, random), b(k, n, columns, random), before(m, n, rows, random);
  const auto product = [&](int64_t height = 100, int64_t depth = 80) {
    Stored c = before;
    gemm<float>(height, n, depth, 1, a.read(), b.read(), 0, c.write());
    return c.memory;
  };
  REQUIRE(regard::matmul_precision() == MatmulPrecision::f32);
  const std::vector<float> in_f32 = product(), thin = product(15), shallow = product(100, 23);
  std::vector<float> in_bf16;
  {
    const MatmulPrecisionScope scope(MatmulPrecision::bf16);
    CHECK(regard::matmul_precision() == MatmulPrecision::bf16);
    in_bf16 = product();
    CHECK(same_bits(thin, product(15)));  // too small to gain by it
    CHECK(same_bits(shallow, product(100, 23)));
    {
      const MatmulPrecisionScope inner(MatmulPrecision::f32);
      CHECK(same_bits(in_f32, product()));
    }
    std::thread([&] { CHECK(same_bits(in_f32, product())); }).join();  // a scope is this thread's
    CHECK(same_bits(in_bf16, product()));
  }
  CHECK(same_bits(in_f32, in_bf16) == !bf16_matmul_available());
  CHECK(same_bits(in_f32, product()));

  regard::set_matmul_precision(MatmulPrecision::bf16);
  CHECK(same_bits(in_bf16, product()));
  std::thread([&] { CHECK(same_bits(in_bf16, product())); }).join();
  {
    const MatmulPrecisionScope scope(MatmulPrecision::f32);
    CHECK(same_bits(in_f32, product()));
  }
  regard::set_matmul_precision(MatmulPrecision::f32);
  CHECK(same_bits(in_f32, product()));
}

TEST_CASE("bf16 GEMM: a machine without it computes in f32", "[gemm]") {
  std::mt19937 random(25);
  const int64_t m = 100, n = 90, k = 80;
  const Stored a(m, k, rows, random), b(k, n, columns, random), before(m, n, rows, random);
  for (int64_t rest = hwy::SupportedTargets() & ~HWY_AVX3 & ~HWY_AVX3_DL; rest != 0; rest &= rest - 1) {
    hwy::GetChosenTarget().Update((rest & -rest) | HWY_STATIC_TARGET);  // as if there were nothing better
    Stored plain = before, asked = before;
    gemm<float>(m, n, k, 1, a.read(), b.read(), 0, plain.write());
    const MatmulPrecisionScope scope(MatmulPrecision::bf16);
    CHECK_FALSE(bf16_matmul_available());
    gemm<float>(m, n, k, 1, a.read(), b.read(), 0, asked.write());
    CHECK(same_bits(plain.memory, asked.memory));
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace bf16_gemm_test
