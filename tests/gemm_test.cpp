// Matrix products: every layout and small size against a plain loop, and the same bits on any number of threads.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <regard/autograd/backend/cpu/gemm.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/threads.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gemm_test {

using regard::cpu_backend::gemm;
using regard::cpu_backend::gemm_batched;
using regard::cpu_backend::Matrix;
using regard::cpu_backend::parallel_for;
using regard::cpu_backend::parallel_regions_started;

namespace {

struct ThreadCount {
  explicit ThreadCount(int count) : before(regard::num_threads()) { regard::set_num_threads(count); }
  ~ThreadCount() { regard::set_num_threads(before); }
  int before;
};

// How a matrix lies in memory.
enum Layout { rows, columns, row_slice, column_slice, general, zero_rows, zero_columns, zero_both, window };
constexpr Layout writable[] = {rows, columns, row_slice, column_slice, general};
constexpr Layout readable[] = {rows,      columns,      row_slice, column_slice, general,
                               zero_rows, zero_columns, zero_both, window};

// A matrix with its memory, filled with random numbers, 7 elements in from the start.
template <class T>
struct Stored {
  Stored(int64_t rows_, int64_t columns_, Layout layout, std::mt19937& random) {
    switch (layout) {
      case rows:
        row_stride = columns_;
        break;
      case columns:
        column_stride = rows_;
        break;
      case row_slice:
        row_stride = columns_ + 5;
        break;
      case column_slice:
        column_stride = rows_ + 3;
        break;
      case general:
        row_stride = 2 * columns_ + 1, column_stride = 2;
        break;
      case zero_rows:
        row_stride = 0;
        break;
      case zero_columns:
        row_stride = 1, column_stride = 0;
        break;
      case zero_both:
        row_stride = 0, column_stride = 0;
        break;
      case window:
        row_stride = 1, column_stride = 1;
        break;
    }
    const int64_t last =
        std::max<int64_t>(rows_ - 1, 0) * row_stride + std::max<int64_t>(columns_ - 1, 0) * column_stride;
    memory.resize(static_cast<size_t>(7 + last + 1 + 7));
    std::uniform_real_distribution<double> uniform(-1, 1);
    for (T& element : memory) element = static_cast<T>(uniform(random));
  }
  Matrix<const T> read() const { return {memory.data() + 7, row_stride, column_stride}; }
  Matrix<T> write() { return {memory.data() + 7, row_stride, column_stride}; }

  std::vector<T> memory;
  int64_t row_stride = 1, column_stride = 1;
};

// The product in f64, by the definition; what it must not touch stays. Returns the largest error of an element, in
// units of what rounding k + 4 times can amount to.
template <class T>
double error_of(int64_t m, int64_t n, int64_t k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta,
                const Stored<T>& before, const Stored<T>& after) {
  std::vector<double> expected(before.memory.begin(), before.memory.end());
  std::vector<double> magnitude(expected.size(), 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, absolute = 0;
      for (int64_t p = 0; p < k; ++p) {
        const double product = static_cast<double>(a.data[i * a.row_stride + p * a.column_stride]) *
                               static_cast<double>(b.data[p * b.row_stride + j * b.column_stride]);
        sum += product;
        absolute += std::abs(product);
      }
      const auto at = static_cast<size_t>(7 + i * before.row_stride + j * before.column_stride);
      double& element = expected[at];
      magnitude[at] = std::abs(static_cast<double>(alpha)) * absolute;
      if (beta != 0) magnitude[at] += std::abs(static_cast<double>(beta) * element);
      element = (beta == 0 ? 0 : static_cast<double>(beta) * element) + static_cast<double>(alpha) * sum;
    }
  }
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto got = static_cast<double>(after.memory[i]);
    if (expected[i] == got || (std::isnan(expected[i]) && std::isnan(got))) continue;
    const double rounding = static_cast<double>(std::numeric_limits<T>::epsilon()) * static_cast<double>(k + 4);
    const double error = std::abs(expected[i] - got) / (rounding * magnitude[i]);
    if (!(error <= worst)) worst = error;
    if (std::isnan(error)) return error;
  }
  return worst;
}

template <class T>
bool product_is_right(int64_t m, int64_t n, int64_t k, Layout a_layout, Layout b_layout, Layout c_layout, T alpha,
                      T beta, std::mt19937& random, bool nan_in_c = false) {
  const Stored<T> a(m, k, a_layout, random), b(k, n, b_layout, random);
  Stored<T> c(m, n, c_layout, random);
  if (nan_in_c) std::fill(c.memory.begin(), c.memory.end(), std::numeric_limits<T>::quiet_NaN());
  const Stored<T> before = c;
  gemm<T>(m, n, k, alpha, a.read(), b.read(), beta, c.write());
  const double error = error_of<T>(m, n, k, alpha, a.read(), b.read(), beta, before, c);
  if (error <= 1) return true;
  UNSCOPED_INFO("error " << error << " at m " << m << ", n " << n << ", k " << k << ", layouts " << a_layout << " "
                         << b_layout << " " << c_layout << ", alpha " << alpha << ", beta " << beta);
  return false;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("transposed operand to GEMM: A^T times ones", "[gemm]") {
  const float a[] = {.7f, -1.3f, 2.1f, -.4f, 1.9f, -3.2f};  // [2, 3]
  const float ones[] = {1, 1, 1, 1};
  float c[6];
  gemm<float>(3, 2, 2, 1, Matrix<const float>{a, 3, 1}.transposed(), {ones, 2, 1}, 0, {c, 2, 1});
  const float expected[] = {.3f, .3f, .6f, .6f, -1.1f, -1.1f};
  for (int i = 0; i < 6; ++i) CHECK(c[i] == Approx(expected[i]).margin(1e-6));
}

TEMPLATE_TEST_CASE("transposed operand to GEMM: all transposes and slices at all small sizes", "[gemm]", float,
                   double) {
  std::mt19937 random(1);
  int wrong = 0, tried = 0;
  const auto sizes = {0, 1, 2, 3, 5, 8, 17, 33};
  const Layout stored[] = {rows, columns};
  const Layout sliced[] = {row_slice, column_slice};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        for (const auto& layouts : {stored, sliced}) {
          for (int each = 0; each < 8; ++each) {
            const TestType beta = TestType(tried % 3 == 0 ? 0 : tried % 3 == 1 ? 1 : -0.5);
            const TestType alpha = TestType(tried % 5 == 0 ? 0.75 : 1);
            wrong += !product_is_right<TestType>(m, n, k, layouts[each & 1], layouts[each >> 1 & 1], layouts[each >> 2],
                                                 alpha, beta, random);
            ++tried;
          }
        }
      }
    }
  }
  CHECK(tried == 8 * 8 * 8 * 16);
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("GEMM with zero, overlapping and general strides", "[gemm]", float, double) {
  std::mt19937 random(2);
  int wrong = 0;
  const int64_t shapes[][3] = {{1, 1, 1},  {2, 3, 4},    {1, 9, 70},    {9, 1, 70},    {5, 70, 1},
                               {17, 5, 8}, {40, 50, 60}, {1, 300, 200}, {300, 1, 200}, {61, 67, 129}};
  for (const auto& [m, n, k] : shapes) {
    for (const Layout a : readable) {
      for (const Layout b : readable) {
        for (const Layout c : writable) {
          wrong += !product_is_right<TestType>(m, n, k, a, b, c, 1, TestType(0), random);
          wrong += !product_is_right<TestType>(m, n, k, a, b, c, TestType(-1.5), TestType(0.5), random);
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("GEMM at larger odd sizes, on two threads", "[gemm]", float, double) {
  const ThreadCount scope(2);
  std::mt19937 random(3);
  int wrong = 0;
  const int64_t shapes[][3] = {{129, 131, 127}, {257, 65, 300}, {33, 515, 401}, {1, 1025, 2049}, {1025, 1, 2049},
                               {301, 299, 77},  {7, 2049, 259}, {2049, 7, 259}, {130, 400, 700}};
  for (const auto& [m, n, k] : shapes) {
    for (const Layout a : {rows, column_slice}) {
      for (const Layout b : {row_slice, columns}) {
        for (const Layout c : {rows, column_slice}) {
          wrong += !product_is_right<TestType>(m, n, k, a, b, c, 1, TestType(c == rows ? 0 : 2), random);
        }
      }
    }
  }
  wrong += !product_is_right<TestType>(200, 150, 130, general, zero_rows, general, 1, 1, random);
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("GEMM with beta 0 overwrites NaN", "[gemm]", float, double) {
  std::mt19937 random(4);
  for (const int64_t size : {1, 3, 16, 33, 64, 100, 150}) {
    for (const int64_t k : {int64_t{0}, int64_t{1}, size}) {
      for (const Layout c : writable) {
        CHECK(product_is_right<TestType>(size, size + 1, k, rows, columns, c, 1, 0, random, true));
        CHECK(product_is_right<TestType>(size, size + 1, k, rows, rows, c, 0, 0, random, true));
      }
    }
    CHECK(product_is_right<TestType>(size, size, size, rows, rows, rows, 1, 1, random, true));  // beta 1 keeps it
  }
}

TEST_CASE("GEMM carries NaN and infinity of its operands", "[gemm]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t size : {3, 40, 150}) {
    const auto count = static_cast<size_t>(size * size);
    std::vector<float> a(count, 0), b(count, 0), c(count, 0);
    a[0] = infinity;  // row 0 of the product is infinity * 0
    gemm<float>(size, size, size, 1, {a.data(), size, 1}, {b.data(), size, 1}, 0, {c.data(), size, 1});
    for (int64_t j = 0; j < size; ++j) CHECK(std::isnan(c[static_cast<size_t>(j)]));
    CHECK(c[static_cast<size_t>(size)] == 0);
  }
}

TEMPLATE_TEST_CASE("batched GEMM: offsets, a shared operand, many sizes", "[gemm]", float, double) {
  std::mt19937 random(5);
  const ThreadCount scope(2);
  const int64_t cases[][4] = {{1, 3, 4, 5}, {6, 10, 10, 64}, {64, 64, 32, 64}, {3, 130, 140, 150}, {40, 1, 1, 7}};
  for (const auto& [batch, m, n, k] : cases) {
    for (const bool shared : {false, true}) {
      const Stored<TestType> a(batch * m, k, rows, random), b(batch * n, k, row_slice, random);  // B transposed
      Stored<TestType> c(batch * m, n, row_slice, random);
      const Stored<TestType> before = c;
      std::vector<int64_t> a_offsets, b_offsets, c_offsets;
      for (int64_t i = 0; i < batch; ++i) {
        const int64_t reversed = batch - 1 - i;
        a_offsets.push_back(reversed * m * a.row_stride);
        b_offsets.push_back(i * n * b.row_stride);
        c_offsets.push_back(reversed * m * c.row_stride);
      }
      gemm_batched<TestType>(batch, a_offsets.data(), shared ? nullptr : b_offsets.data(), c_offsets.data(), m, n, k, 1,
                             a.read(), b.read().transposed(), 0, c.write());
      double worst = 0;
      for (size_t i = 0; i < static_cast<size_t>(batch); ++i) {
        Stored<TestType> one = before, got = before;
        const auto from = before.memory.begin() + c_offsets[i], to = from + m * c.row_stride;
        one.memory.assign(from, to + 7), one.memory.resize(before.memory.size());
        const auto first = c.memory.begin() + c_offsets[i];
        got.memory.assign(first, first + m * c.row_stride + 7), got.memory.resize(before.memory.size());
        // the row above and the row below belong to other products
        std::copy(got.memory.begin(), got.memory.begin() + 7, one.memory.begin());
        std::copy(got.memory.begin() + m * c.row_stride, got.memory.begin() + m * c.row_stride + 7,
                  one.memory.begin() + m * c.row_stride);
        for (int64_t row = 0; row < m; ++row) {  // between the rows nothing is written
          for (int64_t j = 0; j < n; ++j) {
            const auto at = static_cast<size_t>(7 + row * c.row_stride + j);
            if (at >= static_cast<size_t>(m * c.row_stride)) one.memory[at] = TestType(0);
          }
        }
        worst = std::max(worst,
                         error_of<TestType>(m, n, k, 1, a.read().offset_by(a_offsets[i]),
                                            b.read().offset_by(shared ? 0 : b_offsets[i]).transposed(), 0, one, got));
      }
      CAPTURE(batch, m, n, k, shared, worst);
      CHECK(worst <= 1);
    }
  }
}

TEMPLATE_TEST_CASE("result does not depend on the thread count: GEMM has equal bits on 1 to 4 threads", "[gemm]", float,
                   double) {
  const auto seed = std::random_device()();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(0, 1);
  const auto size = [&](double largest) { return static_cast<int64_t>(std::pow(largest, exponent(random))); };
  int in_parallel = 0;
  for (int round = 0; round < 250; ++round) {
    const int64_t batch = round % 3 == 0 ? size(12) : 1;
    const int64_t m = size(500), n = size(500), k = size(700);
    const Layout a_layout = readable[random() % std::size(readable)];
    const Layout b_layout = readable[random() % std::size(readable)];
    const Layout c_layout = writable[random() % std::size(writable)];
    const TestType beta = TestType(random() % 2 ? 0 : 0.3);
    const Stored<TestType> a(m, k, a_layout, random), b(k, n, b_layout, random);
    const Stored<TestType> before(m, n, c_layout, random);
    const auto each = static_cast<int64_t>(before.memory.size());
    std::vector<int64_t> c_offsets;
    for (int64_t i = 0; i < batch; ++i) c_offsets.push_back(i * each);
    std::vector<std::vector<TestType>> results;
    for (const int threads : {1, 2, 3, 4}) {
      const ThreadCount scope(threads);
      std::vector<TestType> c;
      for (int64_t i = 0; i < batch; ++i) c.insert(c.end(), before.memory.begin(), before.memory.end());
      const int64_t regions = parallel_regions_started();
      gemm_batched<TestType>(batch, nullptr, nullptr, c_offsets.data(), m, n, k, TestType(1.25), a.read(), b.read(),
                             beta, {c.data() + 7, before.row_stride, before.column_stride});
      in_parallel += threads == 2 && parallel_regions_started() > regions;
      results.push_back(std::move(c));
    }
    CAPTURE(batch, m, n, k, a_layout, b_layout, c_layout);
    for (size_t i = 1; i < results.size(); ++i) CHECK(same_bits(results[0], results[i]));
  }
  CHECK(in_parallel >= 1);  // enough of them were large enough to be shared out
}

TEST_CASE("many threads do not hurt tiny GEMMs", "[gemm][threads]") {
  std::mt19937 random(6);
  const auto best_time = [&](int64_t size, int threads) {
    const ThreadCount scope(threads);
    const Stored<float> a(size, size, rows, random), b(size, size, rows, random);
    Stored<float> c(size, size, rows, random);
    double best = 1e9;
    for (int repeat = 0; repeat < 12; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      const int calls = size <= 64 ? 20 : 1;
      for (int call = 0; call < calls; ++call) gemm<float>(size, size, size, 1, a.read(), b.read(), 0, c.write());
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls);
    }
    return best;
  };
  for (const int64_t size : {8, 16, 64}) {  // below the cutoff nothing is woken
    const int64_t before = parallel_regions_started();
    best_time(size, 4);
    CAPTURE(size);
    CHECK(parallel_regions_started() == before);
  }
  const int64_t before = parallel_regions_started();
  const double two = best_time(512, 2);
  CHECK(parallel_regions_started() > before);
  // On an idle machine two threads take about half the time; the bound leaves room for a busy one.
  CHECK(two < 2 * best_time(512, 1));
}

TEST_CASE("oversubscription: a GEMM inside a parallel loop stays on its thread", "[gemm][threads]") {
  const ThreadCount scope(2);
  std::mt19937 random(7);
  const int64_t size = 160;
  const Stored<float> a(size, size, rows, random), b(size, size, columns, random);
  Stored<float> expected(size, size, rows, random);
  gemm<float>(size, size, size, 1, a.read(), b.read(), 0, expected.write());
  std::vector<Stored<float>> results(4, expected);
  for (auto& result : results) std::fill(result.memory.begin() + 7, result.memory.end() - 7, 0.0f);

  const int64_t before = parallel_regions_started();
  CHECK_THROWS_AS(parallel_for(4, 1,
                               [&](int64_t begin, int64_t) {
                                 gemm<float>(size, size, size, 1, a.read(), b.read(), 0,
                                             results[static_cast<size_t>(begin)].write());
                                 if (begin == 3) throw std::domain_error("after the product");
                               }),
                  std::domain_error);
  CHECK(parallel_regions_started() == before + 1);
  CHECK(same_bits(results[3].memory, expected.memory));

  gemm<float>(size, size, size, 1, a.read(), b.read(), 0, results[0].write());  // outside, threads are back
  CHECK(parallel_regions_started() == before + 2);
  CHECK(same_bits(results[0].memory, expected.memory));
}

TEST_CASE("GEMM from several user threads at once", "[gemm][threads]") {
  const ThreadCount scope(2);
  std::mt19937 random(8);
  const int64_t size = 140;
  const Stored<double> a(size, size, rows, random), b(size, size, columns, random);
  Stored<double> expected(size, size, rows, random);
  std::vector<Stored<double>> results(4, expected);
  gemm<double>(size, size, size, 1, a.read(), b.read(), 0, expected.write());
  std::vector<std::thread> users;
  for (auto& result : results) {
    users.emplace_back([&] {
      for (int i = 0; i < 5; ++i) gemm<double>(size, size, size, 1, a.read(), b.read(), 0, result.write());
    });
  }
  for (std::thread& user : users) user.join();
  for (auto& result : results) CHECK(same_bits(result.memory, expected.memory));
}

TEST_CASE("BLIS architecture detection: the report names kernels and threads, and warns on generic ones",
          "[gemm][threads]") {
  const ThreadCount scope(2);
  const auto& blis = regard::cpu_backend::blis_kernels();
  const std::string report = regard::cpu_report();
  CHECK_THAT(report, Catch::StartsWith("BLIS " + blis.version + ", kernels " + blis.family));
  CHECK_THAT(report, Catch::Contains("2 threads"));
  CHECK(regard::cpu_backend::blis_architecture_number(blis.family) >= 0);
  CHECK(regard::cpu_backend::blis_architecture_number("no such family") == -1);
  if (blis.family == "generic") {
    CHECK_THAT(report, Catch::Contains("warning") && Catch::Contains("BLIS_ARCH_TYPE"));
  } else {
    CHECK_THAT(report, !Catch::Contains("warning"));
  }
  CHECK(blis.generic == (blis.family == "generic"));
}

#if defined(__linux__)
TEST_CASE("BLIS architecture detection: products are right on the generic kernels too", "[gemm][threads]") {
  if (regard::cpu_backend::blis_kernels().generic) return;  // the child below; the tests above ran on them
  const auto number = std::to_string(regard::cpu_backend::blis_architecture_number("generic"));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("BLIS_ARCH_TYPE", number.c_str(), 1);
    execl("/proc/self/exe", "generic", "transposed operand*,GEMM with*,BLIS architecture detection*", "--out",
          "/dev/null", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

}  // namespace gemm_test
