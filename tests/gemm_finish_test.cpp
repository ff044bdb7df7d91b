// Products with what is done to them in the cache against one step after the other, and products whose packed operands
// the threads share: the same bits.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/threads.hpp>
#include <vector>

namespace gemm_finish_test {

using namespace regard;
using cpu_backend::gemm;
using cpu_backend::gemm_finished;
using cpu_backend::Matrix;
using cpu_backend::Product;
using cpu_backend::tiled_gemm;

namespace {

struct ThreadCount {
  explicit ThreadCount(int count) : before(num_threads()) { set_num_threads(count); }
  ~ThreadCount() { set_num_threads(before); }
  int before;
};

template <class T>
std::vector<T> random_numbers(int64_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> numbers(static_cast<size_t>(count));
  for (T& number : numbers) number = static_cast<T>(uniform(random));
  return numbers;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("large GEMMs that share packed operands have the bits of one piece", "[gemm]", float, double) {
  std::mt19937 random(21);
  // Long k, many rows (A packed by the pieces), many columns, ragged everywhere; f64 below what BLIS does.
  const int64_t shapes[][3] = {
      {301, 471, 1100}, {509, 333, 1024}, {12001, 150, 70}, {250, 3205, 300}, {3105, 257, 130}};
  for (const auto& [m, n, k] : shapes) {
    const std::vector<TestType> a = random_numbers<TestType>(m * k, random),
                                b = random_numbers<TestType>(k * n, random);
    const std::vector<TestType> before = random_numbers<TestType>(m * n, random);
    for (int layout = 0; layout < 3; ++layout) {
      const Matrix<const TestType> left{a.data(), layout == 2 ? 1 : k, layout == 2 ? m : 1};
      const Matrix<const TestType> right{b.data(), layout == 1 ? 1 : n, layout == 1 ? k : 1};
      std::vector<TestType> expected = before;
      const Matrix<const TestType> d{expected.data(), n, 1};
      tiled_gemm(TestType())
          .multiply(
              Product<TestType>{m, n, k, TestType(1), left, right, TestType(0.5), d, {expected.data(), n, 1}, nullptr});
      for (const int threads : {1, 2, 3, 4}) {
        const ThreadCount scope(threads);
        std::vector<TestType> c = before;
        gemm<TestType>(m, n, k, 1, left, right, TestType(0.5), {c.data(), n, 1});
        CAPTURE(m, n, k, layout, threads);
        CHECK(same_bits(c, expected));
      }
    }
  }
}

TEMPLATE_TEST_CASE("a GEMM's epilogue has the bits of one step after the other", "[gemm]", float, double) {
  std::mt19937 random(22);
  const int64_t shapes[][3] = {{1, 1, 1},      {1, 300, 70},   {3, 50, 40},     {4, 37, 300},
                               {7, 5, 0},      {50, 1, 33},    {90, 3, 40},     {13, 33, 600},
                               {121, 259, 65}, {64, 129, 128}, {260, 200, 515}, {530, 611, 700}};
  const auto& table = kernels(Device());
  const DType dtype = dtype_of<TestType>();
  for (const auto& [m, n, k] : shapes) {
    const auto a = random_numbers<TestType>(m * k, random), b = random_numbers<TestType>(n * k, random);
    const auto bias = random_numbers<TestType>(2 * n, random), x = random_numbers<TestType>(m * n, random);
    const auto residual = random_numbers<TestType>(m * n, random);
    const auto at = [&, rows = m, columns = n](const std::vector<TestType>& values) {
      return from_blob(const_cast<TestType*>(values.data()), Shape{rows, columns});
    };
    // Bias as what is there already, then every step as an op.
    std::vector<TestType> before(static_cast<size_t>(m * n));
    for (size_t i = 0; i < before.size(); ++i) before[i] = bias[2 * (i % static_cast<size_t>(n))];
    gemm<TestType>(m, n, k, 1, {a.data(), k, 1}, {b.data(), 1, k}, 1, {before.data(), n, 1});
    std::vector<TestType> after(before.size()), gradient(before.size()), activated(before.size()), sum(before.size());
    table.unary(UnaryOp::gelu, at(after), at(before));
    table.binary(BinaryOp::silu_grad_x, at(gradient), at(x), at(after));
    table.unary(UnaryOp::silu, at(activated), at(x));
    table.binary(BinaryOp::add, at(sum), at(residual), at(gradient));

    for (const int threads : {1, 3}) {
      const ThreadCount scope(threads);
      std::vector<TestType> c(before.size()), kept(before.size()), again(before.size());
      GemmEpilogue epilogue{.bias = bias.data(), .bias_stride = 2, .before = kept.data()};
      epilogue.activation = UnaryOp::gelu;
      epilogue.activation_grad = BinaryOp::silu_grad_x;
      epilogue.x = x.data();
      epilogue.activation_again = UnaryOp::silu;
      epilogue.activated = again.data();
      epilogue.residual = residual.data();
      table.gemm_epilogue(dtype, m, n, k, a.data(), k, 1, b.data(), 1, k, c.data(), epilogue);
      CAPTURE(m, n, k, threads);
      CHECK(same_bits(c, sum));
      CHECK(same_bits(kept, before));
      CHECK(same_bits(again, activated));
    }
  }
}

TEMPLATE_TEST_CASE("a GEMM adds a matrix of any strides", "[gemm]", float, double) {
  std::mt19937 random(23);
  const int64_t shapes[][3] = {{2, 3, 4}, {1, 90, 40}, {90, 2, 40}, {40, 70, 50}, {130, 150, 1100}};
  for (const auto& [m, n, k] : shapes) {
    const auto a = random_numbers<TestType>(m * k, random), b = random_numbers<TestType>(n * k, random);
    const auto d = random_numbers<TestType>(2 * (m + 1) * (n + 1), random);
    const Matrix<const TestType> addends[] = {{d.data(), 0, 1},     {d.data(), 0, 2}, {d.data(), 1, 0},
                                              {d.data(), n + 1, 1}, {d.data(), 1, m}, {d.data(), 2 * n, 2},
                                              {d.data(), 0, 0}};
    for (const auto& addend : addends) {
      for (const bool by_columns : {false, true}) {
        const int64_t row = by_columns ? 1 : n, column = by_columns ? m : 1;
        std::vector<TestType> expected(static_cast<size_t>(m * n)), c(expected.size());
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            expected[static_cast<size_t>(i * row + j * column)] =
                addend.data[i * addend.row_stride + j * addend.column_stride];
          }
        }
        gemm<TestType>(m, n, k, 1, {a.data(), k, 1}, {b.data(), n, 1}, 1, {expected.data(), row, column});
        gemm_finished<TestType>(m, n, k, {a.data(), k, 1}, {b.data(), n, 1}, addend, {c.data(), row, column}, nullptr);
        CAPTURE(m, n, k, addend.row_stride, addend.column_stride, by_columns);
        CHECK(same_bits(c, expected));
      }
    }
  }
}

}  // namespace gemm_finish_test
