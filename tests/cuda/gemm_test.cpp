// Matrix products on a GPU: against the CPU's, over sizes, strides and batches, with all epilogues.
// How cuBLASLt is asked for them: host_gemm_test.cpp.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include <regard/autograd/backend/cuda/gemm_batch.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

#include "gemm_problems.hpp"

namespace gemm_test {

using namespace regard;
using namespace gemm_problems;
using gemm_problems::nan;  // and not the C library's function

namespace {

struct Strides2 {
  int64_t row, column;
};
Strides2 rows_dense(int64_t columns) { return {columns, 1}; }
Strides2 columns_dense(int64_t rows) { return {1, rows}; }

struct Problem {
  DType dtype = DType::f32;
  int64_t m = 1, n = 1, k = 1;
  Strides2 a{}, b{}, c{};
  double alpha = 1, beta = 0;
  std::vector<int64_t> a_offsets{}, b_offsets{}, c_offsets{0};  // empty: null
  int64_t shift = 0;  // of all matrices: elements by which they are off a buffer's beginning
};

int64_t reach(int64_t rows, int64_t columns, Strides2 strides, const std::vector<int64_t>& offsets) {
  int64_t last = 0;
  for (int64_t offset : offsets) last = std::max(last, offset);
  return last + std::max<int64_t>(rows - 1, 0) * strides.row + std::max<int64_t>(columns - 1, 0) * strides.column + 1;
}

// All of c's memory, what lies between its matrices too, as CPU and GPU leave it.
void check_product(const Problem& p) {
  CAPTURE(p.dtype, p.m, p.n, p.k, p.a.row, p.a.column, p.b.row, p.b.column, p.c.row, p.c.column, p.alpha, p.beta,
          p.c_offsets.size(), p.shift);
  const Tensor a = numbers(p.shift + reach(p.m, p.k, p.a, p.a_offsets), p.dtype, 1);
  const Tensor b = numbers(p.shift + reach(p.k, p.n, p.b, p.b_offsets), p.dtype, 2);
  const int64_t c_size = p.shift + reach(p.m, p.n, p.c, p.c_offsets);
  const Tensor c = p.beta == 0 ? full({c_size}, nan, p.dtype) : numbers(c_size, p.dtype, 3);
  const auto run = [&](Device device) {
    const DType dtype = computed_in(p.dtype, device);
    const Tensor left = a.to(dtype).to(device), right = b.to(dtype).to(device), result = c.clone().to(dtype).to(device);
    const auto list = [](const std::vector<int64_t>& offsets) { return offsets.empty() ? nullptr : offsets.data(); };
    const GemmBatch batch{static_cast<int64_t>(p.c_offsets.size()), list(p.a_offsets), list(p.b_offsets),
                          list(p.c_offsets)};
    const auto at = [&](const Tensor& x) { return static_cast<char*>(x.raw_data()) + p.shift * element_size(dtype); };
    kernels(device).gemm(dtype, p.m, p.n, p.k, p.alpha, at(left), p.a.row, p.a.column, at(right), p.b.row, p.b.column,
                         p.beta, at(result), p.c.row, p.c.column, batch);
    return result;
  };
  CHECK(difference(run(cpu()), run(cuda())) <= tolerance(p.dtype, p.k));
}

}  // namespace

TEST_CASE("cuda gemm: sizes and orders") {
  const int64_t sizes[][3] = {{1, 1, 1}, {1, 7, 5}, {7, 1, 5}, {3, 4, 1}, {1, 1, 40}, {17, 33, 29}, {64, 48, 96}};
  for (DType dtype : dtypes)
    for (const auto& [m, n, k] : sizes)
      for (int orders = 0; orders < 8; ++orders) {
        Problem p{.dtype = dtype, .m = m, .n = n, .k = k};
        p.a = orders & 1 ? columns_dense(m) : rows_dense(k);
        p.b = orders & 2 ? columns_dense(k) : rows_dense(n);
        p.c = orders & 4 ? columns_dense(m) : rows_dense(n);
        check_product(p);
      }
  check_product({.m = 260, .n = 300, .k = 200, .a = {200, 1}, .b = {300, 1}, .c = {300, 1}});
}

TEST_CASE("cuda gemm: leading dimensions, factors, and memory that is off its beginning") {
  for (DType dtype : dtypes)
    for (int64_t shift : {0, 1, 2})
      for (double beta : {0.0, 1.0, -0.5}) {
        check_product({dtype, 9, 6, 11, {15, 1}, {8, 1}, {10, 1}, 0.75, beta, {}, {}, {0}, shift});
        check_product({dtype, 9, 6, 11, {1, 12}, {1, 14}, {1, 13}, -2, beta, {}, {}, {0}, shift});
      }
}

TEST_CASE("cuda gemm: strides that cuBLASLt does not take") {
  for (DType dtype : dtypes)
    for (double beta : {0.0, 0.5}) {
      check_product({dtype, 6, 5, 7, {14, 2}, {5, 1}, {5, 1}, 1, beta});  // every second column
      check_product({dtype, 6, 5, 7, {7, 1}, {3, 25}, {5, 1}, 1, beta});  // both beyond 1
      check_product({dtype, 6, 5, 7, {7, 1}, {5, 1}, {12, 2}, 1, beta});  // of the result
      check_product({dtype, 6, 5, 7, {7, 1}, {5, 1}, {3, 19}, 1, beta});
      check_product({dtype, 6, 5, 7, {0, 0}, {5, 1}, {5, 1}, 1, beta});  // one number
      check_product({dtype, 6, 5, 7, {0, 1}, {1, 0}, {5, 1}, 1, beta});  // one row, one column
      check_product({dtype, 6, 5, 7, {1, 0}, {0, 1}, {1, 6}, 1, beta});
      check_product({dtype, 6, 5, 7, {1, 1}, {2, 1}, {5, 1}, 1, beta});  // windows that overlap
      check_product({dtype, 1, 5, 7, {0, 3}, {5, 1}, {0, 2}, 1, beta});  // of a single row
      check_product({dtype, 6, 1, 7, {7, 1}, {3, 0}, {4, 0}, 1, beta});  // of a single column
      check_product({dtype, 6, 1, 7, {7, 1}, {0, 5}, {4, 0}, 1, beta});
    }
}

TEST_CASE("cuda gemm: nothing to multiply") {
  for (DType dtype : dtypes)
    for (double beta : {0.0, 1.0, 3.0}) {
      check_product({dtype, 3, 4, 0, {0, 1}, {4, 1}, {6, 1}, 1, beta});
      check_product({dtype, 3, 4, 0, {0, 1}, {4, 1}, {2, 9}, 1, beta, {0, 0}, {}, {0, 1}});
      check_product({dtype, 3, 4, 5, {5, 1}, {4, 1}, {4, 1}, 0, beta});  // alpha is 0
    }
  check_product({.m = 0, .n = 4, .k = 5, .a = {5, 1}, .b = {4, 1}, .c = {4, 1}});
  check_product({.m = 3, .n = 0, .k = 5, .a = {5, 1}, .b = {0, 1}, .c = {0, 1}});
  // What alpha = 0 hides is not read.
  const Tensor hidden = full({4}, nan).to(cuda()), c = ones({4}).to(cuda());
  const GemmBatch none{0, nullptr, nullptr, nullptr}, one;
  kernels(cuda()).gemm(DType::f32, 2, 2, 2, 1, hidden.raw_data(), 2, 1, hidden.raw_data(), 2, 1, 1, c.raw_data(), 2, 1,
                       none);
  kernels(cuda()).gemm(DType::f32, 2, 2, 2, 0, hidden.raw_data(), 2, 1, hidden.raw_data(), 2, 1, 2, c.raw_data(), 2, 1,
                       one);
  CHECK(c.to(cpu()).to_vector<float>() == std::vector<float>(4, 2.0F));
}

// ---- Batches

namespace {

std::vector<int64_t> even(int64_t count, int64_t step) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < count; ++i) offsets.push_back(i * step);
  return offsets;
}
std::vector<int64_t> two_levels(int64_t outer, int64_t inner, int64_t outer_step, int64_t inner_step) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = 0; j < inner; ++j) offsets.push_back(i * outer_step + j * inner_step);
  return offsets;
}

}  // namespace

TEST_CASE("cuda gemm: batches") {
  for (DType dtype : dtypes)
    for (double beta : {0.0, 1.0}) {
      const Problem p{dtype, 5, 6, 7, {7, 1}, {6, 1}, {6, 1}, 0.5, beta};
      const auto with = [&](std::vector<int64_t> a, std::vector<int64_t> b, std::vector<int64_t> c) {
        Problem q = p;
        q.a_offsets = std::move(a);
        q.b_offsets = std::move(b);
        q.c_offsets = std::move(c);
        return q;
      };
      check_product(with(even(4, 35), even(4, 42), even(4, 30)));
      check_product(with(even(4, 35), {}, even(4, 30)));
      check_product(with({}, even(4, 43), even(4, 31)));
      check_product(with({3}, {5}, {7}));
      check_product(with({70, 0, 35}, {0, 0, 42}, {0, 60, 30}));  // in no order
      check_product(with(even(6, 35), two_levels(3, 2, 0, 42), even(6, 30)));
      check_product(with(two_levels(5, 2, 70, 36), even(10, 42), even(10, 30)));

      // Heads within rows, as attention has them: [N, T, H, D] seen as [N, H, T, D].
      Problem heads{dtype, 4, 4, 3, {9, 1}, {1, 9}, {4, 1}, 1, beta};
      heads.a_offsets = heads.b_offsets = two_levels(5, 3, 36, 3);
      heads.c_offsets = even(15, 16);
      check_product(heads);
      Problem into_heads{dtype, 4, 3, 4, {4, 1}, {9, 1}, {9, 1}, 1, beta};
      into_heads.a_offsets = even(15, 16);
      into_heads.b_offsets = into_heads.c_offsets = two_levels(5, 3, 36, 3);
      check_product(into_heads);

      // Copies are needed, of one operand for all, and of all.
      Problem copied = with({0, 0, 0}, even(3, 80), even(3, 90));
      copied.a = {0, 2};
      copied.b = {13, 2};
      copied.c = {3, 17};
      check_product(copied);
    }
}

TEST_CASE("cuda gemm: a batch's runs") {
  const auto runs = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b, const std::vector<int64_t>& c) {
    return cuda_backend::even_runs(
        {static_cast<int64_t>(c.size()), a.empty() ? nullptr : a.data(), b.empty() ? nullptr : b.data(), c.data()});
  };
  using Three = std::array<int64_t, 3>;
  const auto one = runs(even(8, 10), {}, even(8, 30));
  REQUIRE(one.size() == 1);
  CHECK(one[0].count == 8);
  CHECK(one[0].step == Three{10, 0, 30});
  const auto few_heads = runs(two_levels(8, 3, 100, 10), two_levels(8, 3, 100, 10), even(24, 30));
  REQUIRE(few_heads.size() == 3);
  CHECK(few_heads[2].count == 8);
  CHECK(few_heads[2].start == Three{20, 20, 60});
  CHECK(few_heads[2].step == Three{100, 100, 90});
  const auto many_heads = runs(two_levels(3, 8, 100, 10), {}, even(24, 30));
  REQUIRE(many_heads.size() == 3);
  CHECK(many_heads[1].count == 8);
  CHECK(many_heads[1].start == Three{100, 0, 240});
  CHECK(runs({0, 1, 5, 6, 7, 20}, {}, even(6, 30)).size() == 3);
  CHECK(runs({5, 4, 3}, {}, even(3, 30)).size() == 3);
  CHECK(runs({}, {}, {0, 0, 0}).size() == 3);  // one after the other into the same
  CHECK(runs({}, {}, {}).empty());
}

// ---- Epilogues

namespace {

constexpr UnaryOp activations[] = {UnaryOp::relu, UnaryOp::gelu,    UnaryOp::gelu_tanh,
                                   UnaryOp::silu, UnaryOp::sigmoid, UnaryOp::tanh};
constexpr BinaryOp gradients[] = {BinaryOp::relu_grad_y, BinaryOp::gelu_grad_x,    BinaryOp::gelu_tanh_grad_x,
                                  BinaryOp::silu_grad_x, BinaryOp::sigmoid_grad_y, BinaryOp::tanh_grad_y};

}  // namespace

TEST_CASE("cuda gemm: epilogues, in all combinations") {
  for (DType dtype : dtypes) {
    for (int parts = 0; parts < 8; ++parts)
      for (bool activate : {false, true}) {
        Wanted w{.bias = (parts & 1) != 0, .before = (parts & 2) != 0, .residual = (parts & 4) != 0};
        if (activate) w.activation = UnaryOp::gelu;
        check_epilogue(dtype, 4, 8, 5, w);
        check_epilogue(dtype, 3, 5, 7, w);
      }
    for (size_t i = 0; i < std::size(activations); ++i) {
      check_epilogue(dtype, 5, 7, 6, {.bias = true, .before = true, .activation = activations[i]});
      check_epilogue(dtype, 5, 8, 6, {.activation_grad = gradients[i], .activation_again = activations[i]});
      check_epilogue(dtype, 5, 7, 6, {.residual = true, .activation_grad = gradients[i]});
    }
    check_epilogue(dtype, 5, 7, 6, {.activation_again = UnaryOp::silu});
    // Of several activations: nothing in Regard asks for it, and the row allows it.
    check_epilogue(dtype, 5, 7, 6,
                   {.bias = true,
                    .before = true,
                    .residual = true,
                    .activation = UnaryOp::gelu,
                    .activation_grad = BinaryOp::silu_grad_x,
                    .activation_again = UnaryOp::tanh});
    check_epilogue(dtype, 5, 7, 6,
                   {.residual = true, .activation = UnaryOp::gelu, .activation_grad = BinaryOp::silu_grad_x});
  }
  CHECK_THROWS_AS(check_epilogue(DType::f32, 2, 2, 2, {.activation = UnaryOp::gelu, .activation_again = UnaryOp::exp}),
                  ValueError);
}

TEST_CASE("cuda gemm: biases, dense or not, and where cuBLASLt cannot add them") { check_biases(); }

TEST_CASE("cuda gemm: tf32 and bf16 are within their precision, and nothing is without being asked") {
  const Tensor a = matrix(64, 40, 1), b = matrix(40, 48, 2);
  const Tensor exact = matmul(a.to(DType::f64), b.to(DType::f64));
  const auto of = [&](MatmulPrecision precision) {
    const MatmulPrecisionScope scope(precision);
    return difference(product(a.to(cuda()), b.to(cuda())), exact);
  };
  CHECK(difference(product(a.to(cuda()), b.to(cuda())), exact) < 2e-5);
  CHECK(of(MatmulPrecision::f32) < 2e-5);
  CHECK(of(MatmulPrecision::tf32) < 0.03);
  CHECK(of(MatmulPrecision::bf16) < 0.25);
}

TEST_CASE("cuda gemm: from several threads") {
  const Tensor a = matrix(6, 7, 1), b = matrix(7, 8, 2), expected = matmul(a, b);
  std::vector<double> errors(4, 1);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < errors.size(); ++t)
    threads.emplace_back([&, t] {
      try {
        double worst = 0;
        for (int i = 0; i < 5; ++i) {
          const std::vector<float> got = product(a.to(cuda()), b.to(cuda())).to_vector<float>();
          const std::vector<float> right = expected.to_vector<float>();
          for (size_t j = 0; j < got.size(); ++j) worst = std::max<double>(worst, std::abs(got[j] - right[j]));
        }
        errors[t] = worst;
      } catch (const std::exception&) {  // the error stays 1
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (double error : errors) CHECK(error < 1e-5);
}

}  // namespace gemm_test
