// What stands for matrix instructions in tests: that elements are where PTX's documentation has them, and that misuse
// is found.
#include <catch2/catch.hpp>

#include <cuda_runtime.h>

#include <vector>

#include <regard/autograd/backend/cuda/matrix.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/regard.hpp>

#include "../cuda_host/fibers.hpp"

namespace host_matrix_test {

using namespace regard;
using namespace regard::cuda_backend;
using Catch::Matchers::Contains;

/// c [16, 8] = 1 + a [16, 16] b, with b [16, 8], or its transpose [8, 16]. a and b come from shared memory.
template <class E>
__global__ void product(float* c, const E* a, const E* b, bool transposed) {
  E *left = dynamic_shared<E>(), *right = left + 256;
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) left[i] = a[i];
  for (int i = lane; i < 128; i += 32) right[i] = b[i];
  __syncwarp();
  uint32_t left_words[4], words[4];
  load_matrices(left_words, left + lane % 16 * 16 + lane / 16 * 8);
  // The last two matrices are the first two again.
  if (transposed)
    load_matrices(words, right + lane % 8 * 16 + lane / 8 % 2 * 8);
  else
    load_transposed_matrices(words, right + lane % 16 * 8);
  float sums[4]{1, 1, 1, 1};
  multiply_add<E>(sums, left_words, {words[0], words[1]});
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

template <class E>
__global__ void odd_address(E*) {
  uint32_t words[4];
  load_matrices(words, dynamic_shared<E>() + threadIdx.x * 8 + 1);
}
__global__ void half_a_warp(float*) {
  float c[4]{};
  if (threadIdx.x < 16) multiply_add<bfloat16>(c, {0, 0, 0, 0}, {0, 0});
}
__global__ void different_functions(float*) {
  float c[4]{};
  if (threadIdx.x < 16)
    multiply_add<bfloat16>(c, {0, 0, 0, 0}, {0, 0});
  else
    __syncwarp();
}

TEST_CASE("cuda host: products of matrices") {
  Generator generator(1);
  const auto check = [&]<class E>(E, DType dtype) {
    const Tensor a = randn({16, 16}, {}, generator).to(dtype), b = randn({16, 8}, {}, generator).to(dtype);
    const Tensor want = 1 + matmul(a.to(DType::f64), b.to(DType::f64));
    for (bool transposed : {false, true}) {
      const Tensor left = a.to(cuda()), right = (transposed ? b.t().contiguous() : b).to(cuda());
      const Tensor c = empty({16, 8}, cuda());
      launch("product", stream_of(c), {dim3(1), dim3(32), 384 * sizeof(E)}, product<E>, device_pointer<float>(c),
             device_pointer<const E>(left), device_pointer<const E>(right), transposed);
      INFO(dtype << " transposed " << transposed);
      CHECK(allclose(c.to(cpu()).to(DType::f64), want, 1e-5, 1e-5));
    }
  };
  check(bfloat16{}, DType::bf16);
  check(float16{}, DType::f16);
}

TEST_CASE("cuda host: rows at odd addresses and lanes that stay away from a matrix instruction are found") {
  const Tensor x = empty({1}, cuda());
  float* const none = nullptr;
  CHECK_THROWS_AS(launch("odd", stream_of(x), {dim3(1), dim3(32), 1024}, odd_address<float16>, nullptr), DeviceError);
  CHECK_THAT(cuda_host::last_report(), Contains("no multiple of 16"));
  CHECK_THROWS_AS(launch("half", stream_of(x), {dim3(1), dim3(32)}, half_a_warp, none), DeviceError);
  CHECK_THAT(cuda_host::last_report(), Contains("wait in mma.sync"));
  CHECK_THROWS_AS(launch("few", stream_of(x), {dim3(1), dim3(16)}, half_a_warp, none), DeviceError);
  CHECK_THAT(cuda_host::last_report(), Contains("fewer"));
  CHECK_THROWS_AS(launch("two", stream_of(x), {dim3(1), dim3(32)}, different_functions, none), DeviceError);
  CHECK_THAT(cuda_host::last_report(), Contains("different functions"));
}

}  // namespace host_matrix_test
