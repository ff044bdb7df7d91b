// How cuBLASLt is asked for matrix products. The stand-in for it checks its arguments and counts.
#include <catch2/catch.hpp>

#include <cublasLt.h>

#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/backend/cuda/cublas.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

#include "gemm_problems.hpp"

namespace host_gemm_test {

using namespace regard;
using namespace gemm_problems;
using Catch::Matchers::Contains;

TEST_CASE("cuda host gemm: biases are cuBLASLt's where it can add them") {
  const int64_t before = cuda_host::blas_counts().with_bias;
  check_biases();
  const int64_t with = cuda_host::blas_counts().with_bias;
  CHECK(with == before + 4 * 3 * 4);
  cuda_host::set_blas_bias(false);
  check_biases();
  // Products of kinds seen before keep their algorithm: these are new.
  for (DType dtype : dtypes) {
    const int64_t former = cuda_host::blas_counts().with_bias;
    check_epilogue(dtype, 11, 13, 6, {.bias = true});
    check_epilogue(dtype, 11, 13, 6, {.bias = true, .before = true, .activation = UnaryOp::silu, .bias_stride = 2});
    CHECK(cuda_host::blas_counts().with_bias == former);
  }
  cuda_host::set_blas_bias(true);
}

TEST_CASE("cuda host gemm: tf32 and bf16 where they are asked for, and only there") {
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

TEST_CASE("cuda host gemm: an algorithm is chosen once for each kind of product") {
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

TEST_CASE("cuda host gemm: deep products have a workspace") {
  const Tensor a = matrix(4, 2048, 1), b = matrix(2048, 4, 2);
  const int64_t before = cuda_host::blas_counts().with_workspace;
  for (int i = 0; i < 2; ++i) CHECK(difference(product(a.to(cuda()), b.to(cuda())), matmul(a, b)) < 2e-4);
  CHECK(cuda_host::blas_counts().with_workspace == before + 2);
}

TEST_CASE("cuda host gemm: bf16 and f16 operands, summed in f32") {
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

TEST_CASE("cuda host gemm: what cuBLASLt refuses is an error that names the op") {
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

}  // namespace host_gemm_test
