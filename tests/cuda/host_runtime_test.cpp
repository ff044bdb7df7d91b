// The runtime that stands for a GPU in tests: that kernels behave on it, and that it finds what is wrong with them.
#include <catch2/catch.hpp>

#include <cuda_runtime.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <vector>

#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/regard.hpp>

#include "../cuda_host/fibers.hpp"

namespace host_runtime_test {

using namespace regard;
using namespace regard::cuda_backend;
using Catch::Matchers::Contains;

// The sum of a block's 128 numbers, by warps and then through shared memory.
__global__ void block_sum(float* sums, const float* x) {
  __shared__ float parts[4];
  float sum = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_down_sync(0xffffffffU, sum, static_cast<unsigned>(offset));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = parts[0] + parts[1] + parts[2] + parts[3];
}

__global__ void half_waits(int*) {
  if (threadIdx.x < 7) __syncthreads();
}
__global__ void reversed_without_barrier(float* y) {
  __shared__ float line[64];
  line[threadIdx.x] = static_cast<float>(threadIdx.x);
  y[threadIdx.x] = line[63 - threadIdx.x];
}
__global__ void reads_outside_of_mask(float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffU, 1.0F, 16);
}
__global__ void last_writes(int* y) { *y = static_cast<int>(threadIdx.x); }
__global__ void nothing(int*) {}
__global__ void write_at(float* y, int64_t at) { y[at] = 1; }

TEST_CASE("cuda host: warps, shared memory and barriers add up") {
  std::vector<float> numbers(3 * 128);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const Tensor x = from_vector<float>(numbers, {3, 128}).to(cuda());
  const Tensor sums = empty({3}, cuda());
  for (auto order : {cuda_host::Order::forward, cuda_host::Order::backward}) {
    cuda_host::set_order(order);
    launch("block_sum", stream_of(x), {dim3(3), dim3(128)}, block_sum,
           sums.raw_data() ? device_pointer<float>(sums) : nullptr, device_pointer<float>(x));
    CHECK(sums.to_vector<float>() == std::vector<float>{8128, 24512, 40896});
  }
  cuda_host::set_order(cuda_host::Order::alternating);
}

TEST_CASE("cuda host: a barrier that not all threads reach is reported") {
  CHECK_THROWS_WITH(
      launch("half", stream_of(cuda()), {dim3(1), dim3(32)}, half_waits, nullptr),
      Contains("half: CUDA") && Contains("7 of 32 threads wait in __syncthreads") && Contains("25 have returned"));
}

TEST_CASE("cuda host: what lacks a barrier goes wrong in one order or the other") {
  const Tensor y = empty({64}, cuda());
  std::vector<float> right(64);
  for (size_t i = 0; i < 64; ++i) right[i] = static_cast<float>(63 - i);
  int wrong = 0;
  for (auto order : {cuda_host::Order::forward, cuda_host::Order::backward}) {
    cuda_host::set_order(order);
    launch("reversed", stream_of(y), {dim3(1), dim3(64)}, reversed_without_barrier, device_pointer<float>(y));
    wrong += y.to_vector<float>() != right ? 1 : 0;
  }
  cuda_host::set_order(cuda_host::Order::alternating);
  CHECK(wrong > 0);
}

TEST_CASE("cuda host: a shuffle from a lane outside of its mask is reported") {
  const Tensor y = empty({16}, cuda());
  CHECK_THROWS_WITH(
      launch("shuffle", stream_of(y), {dim3(1), dim3(32)}, reads_outside_of_mask, device_pointer<float>(y)),
      Contains("a lane reads from one outside of the mask"));
}

TEST_CASE("cuda host: threads run in either order in turn, whatever other kernels run between") {
  const Tensor y = zeros({1}, DType::i64).to(cuda());
  std::vector<int64_t> last;
  for (int i = 0; i < 4; ++i) {
    launch("last", stream_of(y), {dim3(1), dim3(8)}, last_writes, reinterpret_cast<int*>(y.raw_data()));
    launch("nothing", stream_of(y), {dim3(1), dim3(8)}, nothing, nullptr);
    last.push_back(y.to_vector<int64_t>()[0]);
  }
  CHECK((last == std::vector<int64_t>{7, 0, 7, 0} || last == std::vector<int64_t>{0, 7, 0, 7}));
}

// What `act` prints before it dies of a signal; "alive" where it does not.
template <class F>
std::string last_words(F act) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    for (int number : {SIGSEGV, SIGABRT}) signal(number, SIG_DFL);
    cuda_host::set_guard(cuda_host::Guard::always);
    act();
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t got; (got = read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? text : "alive";
}

TEST_CASE("cuda host: memory outside of a buffer cannot be touched") {
  const Tensor y = empty({32}, cuda());  // 128 bytes: a multiple of 16
  const auto write = [&](int64_t at) {
    return last_words([&, at] {
      cuda_host::install_fault_handler();
      launch("write", stream_of(y), {dim3(1), dim3(1)}, write_at, device_pointer<float>(y), at);
    });
  };
  CHECK(write(31) == "alive");
  CHECK_THAT(write(32), Contains("0 bytes behind the end of a buffer of 128 bytes") &&
                            Contains("block (0, 0, 0), thread (0, 0, 0)"));
  CHECK_THAT(write(-1024), Contains("bytes before a buffer of 128 bytes"));
}

TEST_CASE("cuda host: code on the CPU cannot touch the GPU's memory") {
  const Tensor y = ones({32}, cuda());
  CHECK_THAT(last_words([&] {
               cuda_host::install_fault_handler();
               y.fill_(1);
               static_cast<float*>(y.raw_data())[0] = 2;
             }),
             Contains("code on the CPU touched the GPU's memory"));
  CHECK(y.to_vector<float>() == std::vector<float>(32, 1.0F));
}

}  // namespace host_runtime_test
