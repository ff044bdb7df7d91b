// Several threads of the user's own that record and run backward at the same time.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <thread>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace graph_threads_test {

using namespace regard;

namespace {

/// Calls work(0), work(1), ... each on a thread of its own, which start together.
template <class F>
void at_once(int count, const F& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      work(i);
    });
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> gradient_of(const Tensor& x, const Tensor& w) {
  return grad((tanh(matmul(x, w)) * softmax(x, -1)).sum(), {x})[0].to_vector<float>();
}

}  // namespace

TEST_CASE("gradient mode is each thread's own") {
  Tensor x = ones({}).set_requires_grad();
  NoGrad no_grad;
  bool other = false;
  std::thread([&] {
    other = grad_enabled() && (2 * x).requires_grad();
    NoGrad inner;
  }).join();
  CHECK(other);
  CHECK_FALSE(grad_enabled());
}

TEST_CASE("two threads run backward on graphs of their own at once") {
  const MemoryStats before = memory_stats();
  std::vector<int> right(2, 0);
  at_once(2, [&](int thread) {
    Generator generator(static_cast<uint64_t>(thread));
    Tensor x = randn({9, 9}, {}, generator).set_requires_grad(), w = randn({9, 9}, {}, generator);
    const std::vector<float> expected = gradient_of(x, w);
    for (int i = 0; i < 200; ++i) {
      x.zero_grad();
      (tanh(matmul(x, w)) * softmax(x, -1)).sum().backward();
      if (x.grad().to_vector<float>() == expected) ++right[static_cast<size_t>(thread)];
    }
  });
  CHECK(right == std::vector<int>{200, 200});
  CHECK(memory_stats().live_nodes == before.live_nodes);
  CHECK(memory_stats().live_storages == before.live_storages);
}

TEST_CASE("two threads read one parameter in graphs of their own") {
  manual_seed(2);
  Tensor w = randn({9, 9}).set_requires_grad();
  const Tensor first = randn({9, 9});
  const Tensor second = randn({9, 9});
  auto work = [&](const Tensor& data) {
    Tensor x = data.clone().set_requires_grad();
    return gradient_of(x, w);
  };
  const std::vector<std::vector<float>> expected = {work(first), work(second)};
  std::vector<int> right(2, 0);
  at_once(2, [&](int thread) {
    for (int i = 0; i < 200; ++i)
      if (work(thread == 0 ? first : second) == expected[static_cast<size_t>(thread)])
        ++right[static_cast<size_t>(thread)];
  });
  CHECK(right == std::vector<int>{200, 200});
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("a graph recorded on one thread runs backward, and is released, on another") {
  const MemoryStats before = memory_stats();
  {
    Tensor x = ones({3}).set_requires_grad();
    Tensor loss;
    std::thread([&] { loss = exp(x * 2).sum(); }).join();
    std::thread([&] {
      (loss * 3).backward();  // ops recorded here stand behind those of the other thread
      loss = {};
    }).join();
    CHECK(x.grad().to_vector<float>()[0] == Approx(6 * std::exp(2.0)));
  }
  CHECK(memory_stats().live_nodes == before.live_nodes);
  CHECK(memory_stats().bytes == before.bytes);
}

}  // namespace graph_threads_test
