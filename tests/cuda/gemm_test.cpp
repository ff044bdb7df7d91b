// Matrix products on a GPU: against the CPU's, over sizes, strides and batches, with all epilogues; and how cuBLASLt is
// asked for them. The test's stand-in for it checks its arguments.
#include <catch2/catch.hpp>

#include <cublasLt.h>

#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include <regard/autograd/backend/cuda/cublas.hpp>
#include <regard/autograd/backend/cuda/gemm_batch.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

namespace gemm_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

Tensor numbers(int64_t count, DType dtype, uint64_t seed) {
  Generator generator(seed);
  if (element_size(dtype) == 2) return randn({count}, DType::f32, generator).to(dtype);
  return randn({count}, dtype, generator);
}

std::vector<double> values(const Tensor& x) { return x.to(cpu()).to(DType::f64).to_vector<double>(); }

// The largest difference between corresponding elements; NaN is like NaN.
double difference(const Tensor& x, const Tensor& y) {
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
double tolerance(DType dtype, int64_t k) {
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
DType computed_in(DType dtype, Device device) {
  return element_size(dtype) == 2 && device == cpu() ? DType::f32 : dtype;
}

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

struct Wanted {
  bool bias = false, before = false, residual = false;
  std::optional<UnaryOp> activation = {};
  std::optional<BinaryOp> activation_grad = {};
  std::optional<UnaryOp> activation_again = {};
  int64_t bias_stride = 1, bias_shift = 0;
};

void check_epilogue(DType dtype, int64_t m, int64_t n, int64_t k, const Wanted& w) {
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

TEST_CASE("cuda gemm: biases, dense or not, and where cuBLASLt cannot add them") {
  const auto all = [] {
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
  };
  const int64_t before = cuda_host::blas_counts().with_bias;
  all();
  const int64_t with = cuda_host::blas_counts().with_bias;
  CHECK(with == before + 4 * 3 * 4);
  cuda_host::set_blas_bias(false);
  all();
  // Products of kinds seen before keep their algorithm: these are new.
  for (DType dtype : dtypes) {
    const int64_t former = cuda_host::blas_counts().with_bias;
    check_epilogue(dtype, 11, 13, 6, {.bias = true});
    check_epilogue(dtype, 11, 13, 6, {.bias = true, .before = true, .activation = UnaryOp::silu, .bias_stride = 2});
    CHECK(cuda_host::blas_counts().with_bias == former);
  }
  cuda_host::set_blas_bias(true);
}

// ---- How cuBLASLt is asked

namespace {

Tensor product(const Tensor& a, const Tensor& b) {  // of dense matrices on a GPU
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const Tensor c = full({m, n}, nan, a.dtype()).to(cuda());
  kernels(c).gemm(a.dtype(), m, n, k, 1, a.raw_data(), k, 1, b.raw_data(), n, 1, 0, c.raw_data(), n, 1, {});
  return c.to(cpu());
}
Tensor matrix(int64_t rows, int64_t columns, uint64_t seed) {
  return numbers(rows * columns, DType::f32, seed).view({rows, columns});
}

}  // namespace

TEST_CASE("cuda gemm: tf32 and bf16 where they are asked for, and only there") {
  const Tensor a = matrix(8, 40, 1), b = matrix(40, 12, 2);
  const auto exact = [](const Tensor& x, const Tensor& y) { return matmul(x.to(DType::f64), y.to(DType::f64)); };
  const auto to_bf16 = [](const Tensor& x) { return x.to(DType::bf16).to(DType::f32); };
  const auto to_tf32 = [](const Tensor& x) {
    std::vector<float> numbers = x.to_vector<float>();
    for (float& number : numbers) {
      const float scaled = std::ldexp(1.0F, std::ilogb(number) - 10);
      number = std::nearbyint(number / scaled) * scaled;
    }
    return from_vector<float>(numbers, x.shape());
  };
  const auto of = [&](MatmulPrecision precision) {
    const MatmulPrecisionScope scope(precision);
    return product(a.to(cuda()), b.to(cuda()));
  };
  CHECK(difference(product(a.to(cuda()), b.to(cuda())), exact(a, b)) < 1e-5);
  CHECK(difference(of(MatmulPrecision::f32), exact(a, b)) < 1e-5);
  CHECK(difference(of(MatmulPrecision::tf32), exact(to_tf32(a), to_tf32(b))) < 1e-5);
  CHECK(difference(of(MatmulPrecision::tf32), exact(a, b)) > 1e-4);
  CHECK(difference(of(MatmulPrecision::bf16), exact(to_bf16(a), to_bf16(b))) < 1e-5);
  CHECK(difference(of(MatmulPrecision::bf16), exact(a, b)) > 1e-3);
  const Tensor wide = a.to(DType::f64), other = b.to(DType::f64);
  const MatmulPrecisionScope scope(MatmulPrecision::bf16);
  CHECK(difference(product(wide.to(cuda()), other.to(cuda())), matmul(wide, other)) < 1e-13);
}

TEST_CASE("cuda gemm: an algorithm is chosen once for each kind of product") {
  const Tensor a = matrix(3, 19, 1).to(cuda()), b = matrix(19, 5, 2).to(cuda());
  const auto choices = [&](const Tensor& left, int64_t m, const Tensor& c, const Tensor& bias) {
    const int64_t before = cuda_host::blas_counts().choices;
    kernels(c).gemm_epilogue(DType::f32, m, 5, 19, left.raw_data(), 19, 1, b.raw_data(), 5, 1, c.raw_data(),
                             {.bias = bias.raw_data()});
    return cuda_host::blas_counts().choices - before;
  };
  const auto shifted = [](const Tensor& x, int64_t by) {
    const Tensor more = zeros({x.numel() + by}).to(cuda());
    return make_view(more, x.shape(), contiguous_strides(x.shape()), by);
  };
  const Tensor c = zeros({3, 5}).to(cuda()), bias = zeros({8}).to(cuda());
  CHECK(choices(a, 3, c, bias) == 1);
  CHECK(choices(a, 3, c, bias) == 0);
  CHECK(choices(a, 2, c, bias) == 1);
  for (int i = 0; i < 2; ++i) {  // aligned to 4 bytes instead of 16
    CHECK(choices(shifted(a, 1), 3, c, bias) == (i == 0 ? 1 : 0));
    CHECK(choices(a, 3, shifted(c, 1), bias) == (i == 0 ? 1 : 0));
  }
  const Tensor first = zeros({16}).to(cuda());  // aligned to 64 bytes: at the end of a page
  CHECK(choices(a, 3, c, first) == 1);
  CHECK(choices(a, 3, c, bias) == 0);
  {
    const MatmulPrecisionScope scope(MatmulPrecision::tf32);
    CHECK(choices(a, 3, c, bias) == 1);
  }
  CHECK(choices(a, 3, c, bias) == 0);
}

TEST_CASE("cuda gemm: deep products have a workspace") {
  const Tensor a = matrix(4, 2048, 1), b = matrix(2048, 4, 2);
  const int64_t before = cuda_host::blas_counts().with_workspace;
  for (int i = 0; i < 2; ++i) CHECK(difference(product(a.to(cuda()), b.to(cuda())), matmul(a, b)) < 2e-4);
  CHECK(cuda_host::blas_counts().with_workspace == before + 2);
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

TEST_CASE("cuda gemm: bf16 and f16 operands, summed in f32") {
  const int64_t m = 5, n = 6, k = 40;
  const Tensor a = matrix(k, m, 1), b = matrix(k, n, 2),
               bias = matrix(1, m, 3);  // by columns: [m, k], transposed [n, k]
  for (DType dtype : {DType::bf16, DType::f16}) {
    const auto rounded = [&](const Tensor& x) { return x.to(dtype); };
    const Tensor left = rounded(a).to(cuda()), right = rounded(transpose(b, 0, 1).contiguous()).to(cuda());
    const Tensor added = rounded(bias).to(cuda()), d = empty({n, m}, dtype).to(cuda());
    cuda_backend::BlasProduct p{.dtype = dtype, .rows = m, .columns = n, .depth = k};
    p.a = {left.raw_data(), m};
    p.b = {right.raw_data(), k};
    p.c = p.d = d.raw_data();
    p.leading = m;
    p.bias = added.raw_data();
    REQUIRE(cuda_backend::blas_multiply("test", cuda_backend::stream_of(d), p));
    const auto wide = [&](const Tensor& x) { return x.to(dtype).to(DType::f64); };
    const Tensor expected = matmul(wide(transpose(b, 0, 1)), wide(a)) + wide(bias);
    CHECK(difference(d, expected) < (dtype == DType::bf16 ? 0.07 : 0.009));
  }
}

TEST_CASE("cuda gemm: what cuBLASLt refuses is an error that names the op") {
  const Tensor x = matrix(4, 4, 1).to(cuda());
  cuda_backend::BlasProduct p{.rows = 4, .columns = 4, .depth = 4};
  p.a = {x.raw_data(), 3};
  p.b = {x.raw_data(), 4};
  const Tensor d = zeros({4, 4}).to(cuda());
  p.c = p.d = d.raw_data();
  p.leading = 4;
  CHECK_THROWS_WITH(cuda_backend::blas_multiply("product", cuda_backend::stream_of(x), p),
                    Contains("product: cuBLASLt: matrix a: the leading dimension 3 is below the rows, 4"));
  p.a.leading = 5;
  CHECK_THROWS_WITH(cuda_backend::blas_multiply("product", cuda_backend::stream_of(x), p),
                    Contains("76 bytes reach beyond its buffer, which has 64 left"));
  p.dtype = DType::i64;
  CHECK_THROWS_AS(cuda_backend::blas_multiply("product", cuda_backend::stream_of(x), p), DTypeError);
}

}  // namespace gemm_test
