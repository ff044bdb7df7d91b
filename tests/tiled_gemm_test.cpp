// The tiles, packing and dot products beneath gemm, on every instruction set that this processor has.
#include <hwy/targets.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>
#include <vector>

namespace tiled_gemm_test {

using regard::cpu_backend::gemm;
using regard::cpu_backend::Matrix;
using regard::cpu_backend::Product;

namespace {

template <class T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c,
              bool dots) {
  const auto& functions = regard::cpu_backend::tiled_gemm(T());
  const Matrix<const T> d{c.data, c.row_stride, c.column_stride};
  (dots ? functions.multiply_by_dots : functions.multiply)(Product<T>{m, n, k, alpha, a, b, beta, d, c, nullptr});
}

// Highway picks its kernels anew as if the processor had this instruction set and no better one.
struct InstructionSet {
  explicit InstructionSet(int64_t target) { hwy::GetChosenTarget().Update(target | HWY_STATIC_TARGET); }
  ~InstructionSet() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }
};

std::vector<int64_t> instruction_sets() {
  std::vector<int64_t> sets;
  for (int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) sets.push_back(rest & -rest);
  return sets;
}

enum Layout { rows, columns, wide_rows, general };

template <class T>
struct Stored {
  Stored(int64_t rows_, int64_t columns_, Layout layout, std::mt19937& random) {
    row_stride = layout == columns     ? 1
                 : layout == rows      ? columns_
                 : layout == wide_rows ? columns_ + 3
                                       : 2 * columns_ + 1;
    column_stride = layout == columns ? rows_ : layout == general ? 2 : 1;
    memory.resize(static_cast<size_t>((rows_ - 1) * row_stride + (columns_ - 1) * column_stride + 1));
    std::uniform_int_distribution<int> uniform(-8, 8);
    for (T& element : memory) element = static_cast<T>(uniform(random));
  }
  Matrix<const T> read() const { return {memory.data(), row_stride, column_stride}; }
  Matrix<T> write() { return {memory.data(), row_stride, column_stride}; }
  T& at(int64_t i, int64_t j) { return memory[static_cast<size_t>(i * row_stride + j * column_stride)]; }

  std::vector<T> memory;  // from the first element to the last: a sanitizer sees a step past either
  int64_t row_stride, column_stride;
};

// Small whole numbers: every sum is exact, in whatever order it is made, and the results have to be equal.
template <class T>
bool product_is_exact(int64_t m, int64_t n, int64_t k, Layout a_layout, Layout b_layout, Layout c_layout, T beta,
                      bool dots, std::mt19937& random) {
  Stored<T> a(m, k, a_layout, random), b(k, n, b_layout, random), c(m, n, c_layout, random);
  Stored<T> expected = c;
  std::vector<T> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < m; ++i) {
    std::fill(row.begin(), row.end(), T(0));
    for (int64_t p = 0; p < k; ++p) {
      const T element = a.at(i, p);
      for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += element * b.at(p, j);
    }
    for (int64_t j = 0; j < n; ++j) {
      T& to = expected.at(i, j);
      to = 2 * row[static_cast<size_t>(j)] + (beta == 0 ? 0 : beta * to);
    }
  }
  if (beta == 0) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) c.at(i, j) = std::numeric_limits<T>::quiet_NaN();
    }
  }
  multiply(m, n, k, T(2), a.read(), b.read(), beta, c.write(), dots);
  if (std::memcmp(c.memory.data(), expected.memory.data(), c.memory.size() * sizeof(T)) == 0) return true;
  for (size_t i = 0; i < c.memory.size(); ++i) {
    if (c.memory[i] == expected.memory[i]) continue;  // -0 is 0
    UNSCOPED_INFO("wrong at m " << m << ", n " << n << ", k " << k << ", layouts " << a_layout << " " << b_layout << " "
                                << c_layout << ", beta " << beta << ", dots " << dots << ", element " << i);
    return false;
  }
  return true;
}

}  // namespace

TEMPLATE_TEST_CASE("GEMM tiles at sizes around the tile's and the vector's", "[gemm]", float, double) {
  std::mt19937 random(11);
  for (const int64_t set : instruction_sets()) {
    const InstructionSet scope(set);
    int wrong = 0, tried = 0;
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 23, 24, 25}) {
      for (const int64_t n : {1, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 130}) {
        for (const int64_t k : {1, 2, 3, 4, 5, 7, 18}) {
          for (int each = 0; each < 4; ++each, ++tried) {
            const auto a = static_cast<Layout>(random() % 4), b = static_cast<Layout>(random() % 4);
            const auto c = static_cast<Layout>(random() % 4);
            const auto beta = static_cast<TestType>(tried % 3);
            wrong += !product_is_exact<TestType>(m, n, k, a, b, c, beta, false, random);
          }
        }
      }
    }
    CAPTURE(hwy::TargetName(set));
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("GEMM tiles at sizes around the blocks of rows, columns and k", "[gemm]", float, double) {
  std::mt19937 random(12);
  const int64_t shapes[][3] = {{13, 40, 383},  {13, 40, 384},  {13, 40, 385},  {5, 33, 769},   {9, 40, 511},
                               {9, 40, 512},   {9, 40, 513},   {9, 40, 1025},  {119, 70, 9},   {120, 70, 9},
                               {121, 70, 9},   {239, 66, 5},   {240, 66, 5},   {241, 66, 5},   {481, 35, 7},
                               {15, 1023, 3},  {15, 1025, 3},  {250, 1060, 2}, {245, 70, 400}, {40, 96, 512},
                               {40, 160, 512}, {260, 140, 512}};
  for (const int64_t set : instruction_sets()) {
    const InstructionSet scope(set);
    int wrong = 0;
    for (const auto& [m, n, k] : shapes) {
      for (const Layout a : {rows, columns, general}) {
        for (const Layout b : {rows, columns, general}) {
          wrong += !product_is_exact<TestType>(m, n, k, a, b, rows, TestType(0), false, random);
          wrong += !product_is_exact<TestType>(m, n, k, a, b, wide_rows, TestType(1), false, random);
        }
      }
    }
    CAPTURE(hwy::TargetName(set));
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("GEMM by dot products", "[gemm]", float, double) {
  std::mt19937 random(13);
  for (const int64_t set : instruction_sets()) {
    const InstructionSet scope(set);
    int wrong = 0;
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 11, 12}) {
      for (const int64_t n : {1, 2, 3, 4, 5, 9}) {
        for (const int64_t k : {1, 7, 8, 15, 16, 17, 33, 64, 100}) {
          for (const Layout a : {rows, columns, general}) {
            wrong += !product_is_exact<TestType>(m, n, k, a, columns, rows, TestType(0), true, random);
            wrong += !product_is_exact<TestType>(m, n, k, a, columns, general, TestType(3), true, random);
          }
        }
      }
    }
    CAPTURE(hwy::TargetName(set));
    CHECK(wrong == 0);
  }
}

TEMPLATE_TEST_CASE("a piece of a GEMM has the bits of the whole", "[gemm]", float, double) {
  std::mt19937 random(14);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const Layout layout : {rows, columns}) {
    const int64_t m = 61, n = 83, k = 801;
    Stored<TestType> a(m, k, rows, random), b(k, n, layout, random), whole(m, n, rows, random);
    for (TestType& element : a.memory) element = static_cast<TestType>(uniform(random));
    for (TestType& element : b.memory) element = static_cast<TestType>(uniform(random));
    Stored<TestType> parts = whole;
    multiply(m, n, k, TestType(1), a.read(), b.read(), TestType(0.5), whole.write(), false);
    for (int64_t i = 0; i < m; i += 25) {
      for (int64_t j = 0; j < n; j += 29) {
        multiply(std::min<int64_t>(25, m - i), std::min<int64_t>(29, n - j), k, TestType(1),
                 a.read().offset_by(i * a.row_stride), b.read().offset_by(j * b.column_stride), TestType(0.5),
                 parts.write().offset_by(i * parts.row_stride + j * parts.column_stride), false);
      }
    }
    CHECK(std::memcmp(whole.memory.data(), parts.memory.data(), whole.memory.size() * sizeof(TestType)) == 0);
  }
}

TEMPLATE_TEST_CASE("GEMM on every instruction set, by BLIS where Highway has no vectors", "[gemm]", float, double) {
  std::mt19937 random(15);
  for (const int64_t set : instruction_sets()) {
    const InstructionSet scope(set);
    for (const Layout b_layout : {rows, columns}) {
      const int64_t m = 70, n = 90, k = 110;
      Stored<TestType> a(m, k, rows, random), b(k, n, b_layout, random), c(m, n, rows, random);
      gemm<TestType>(m, n, k, 1, a.read(), b.read(), 0, c.write());
      int wrong = 0;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          TestType sum = 0;
          for (int64_t p = 0; p < k; ++p) sum += a.at(i, p) * b.at(p, j);
          wrong += sum != c.at(i, j);
        }
      }
      CAPTURE(hwy::TargetName(set), b_layout);
      CHECK(wrong == 0);
    }
  }
}

}  // namespace tiled_gemm_test
