// What the graph keeps alive, when it lets go of it, and that neither needs a deep stack.
#include <pthread.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace graph_memory_test {

using namespace regard;

namespace {

Tensor leaf(double value) { return full({}, value, DType::f64).set_requires_grad(); }

/// y = x times `factor`, `length` times over.
Tensor chain(const Tensor& x, int length, const Tensor& factor = {}) {
  Tensor y = x;
  for (int i = 0; i < length; ++i) y = factor.defined() ? y * factor : y * 1.0;
  return y;
}

/// Runs `work` on a thread with a stack of 512 KiB; an exception is thrown on to the caller.
void on_small_stack(std::function<void()> work) {
  struct Job {
    std::function<void()> work;
    std::exception_ptr error;
  } job{std::move(work), nullptr};
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 512 * 1024) == 0);
  pthread_t thread{};
  auto run = [](void* argument) -> void* {
    auto* job = static_cast<Job*>(argument);
    try {
      job->work();
    } catch (...) {
      job->error = std::current_exception();
    }
    job->work = nullptr;
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &job) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (job.error) std::rethrow_exception(job.error);
}

/// Nodes, storages and bytes that are alive.
std::vector<int64_t> alive() {
  MemoryStats stats = memory_stats();
  return {stats.live_nodes, stats.live_storages, stats.bytes};
}

#ifdef REGARD_SANITIZE
constexpr int kLong = 200'000;  // a million takes a minute with sanitizers
#else
constexpr int kLong = 1'000'000;
#endif
constexpr int kDeep = 100'000;  // six bytes of stack a level would be too many for 512 KiB
constexpr int64_t kMiB = 1024 * 1024;

}  // namespace

TEST_CASE("a chain of a million ops: backward and release, on a stack of 512 KiB") {
  const auto before = alive();
  double gradient = 0;
  on_small_stack([&] {
    Tensor x = leaf(3);
    Tensor y = chain(x, kLong);
    y.backward();
    gradient = x.grad().item<double>();
  });
  CHECK(gradient == 1);
  CHECK(alive() == before);
}

TEST_CASE("a chain of a million ops dropped without backward, on a stack of 512 KiB") {
  const auto before = alive();
  on_small_stack([] { chain(leaf(3), kLong); });
  CHECK(alive() == before);
}

TEST_CASE("deep graphs are released from wherever the last handle is") {
  const auto before = alive();
  on_small_stack([] {
    // Every op keeps its input: the chain goes through saved tensors too.
    { chain(leaf(1), kDeep, leaf(1)); }
    {  // from an op's saved tensor
      Tensor outer;
      {
        Tensor deep = chain(leaf(1), kDeep);
        outer = leaf(2) * deep;
      }
      outer = {};
    }
    {  // from what a leaf's hook captured
      Tensor x = leaf(1);
      Tensor deep = chain(leaf(1), kDeep);
      x.register_hook([deep](const Tensor&) { return Tensor(); });
      deep = {};
      x = {};
    }
    {  // from what an op of one's own captured
      Tensor x = leaf(1);
      Tensor deep = chain(leaf(1), kDeep);
      Tensor y = custom_op(
          "keeps", {x}, [](const Tensors& in) { return 2 * in[0]; },
          [deep](const Tensors&, const Tensor& g) { return Tensors{g * deep}; });
      deep = {};
      y.backward();
    }
    {  // from an exception, and from a backward that one ended
      struct Carrier : std::runtime_error {
        explicit Carrier(Tensor value) : std::runtime_error("carries a tensor"), tensor(std::move(value)) {}
        Tensor tensor;
      };
      try {
        throw Carrier(chain(leaf(1), kDeep));
      } catch (const Carrier&) {
      }
      Tensor x = leaf(1);
      x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("stop"); });
      try {
        chain(x, kDeep).backward();
      } catch (const std::runtime_error&) {
      }
    }
    {  // from leaves' own gradients, which have graphs that lead back to the leaves: zero_grad() parts them
      Tensor x = leaf(1), factor = leaf(1);
      chain(x, kDeep / 10, factor).backward({}, true, true);
      x.zero_grad();
      factor.zero_grad();
    }
    {  // twice differentiated
      Tensor x = leaf(1);
      Tensor first = grad(chain(x, kDeep / 10, x), {x}, {.create_graph = true})[0];
      grad(first, {x});
    }
  });
  CHECK(alive() == before);
}

TEST_CASE("ops that save their own output make no reference cycle: forward alone leaves nothing behind") {
  manual_seed(1);
  Tensor x = randn({4, 6}).set_requires_grad();
  Tensor weight = ones({6}).set_requires_grad();
  const std::vector<std::function<Tensor()>> forwards = {
      [&] { return softmax(x, -1); },
      [&] { return log_softmax(x, -1); },
      [&] { return exp(x); },
      [&] { return sigmoid(x); },
      [&] { return tanh(x); },
      [&] { return sqrt(abs(x)); },
      [&] { return dropout(x, 0.5); },
      [&] { return max(x, 1).first; },
      [&] { return logsumexp(x, 1); },
      [&] { return layer_norm(x, {6}, weight); },
      [&] { return norm(x); },
      [&] { return x.split(2)[0]; },
      [&] { return scaled_dot_product_attention(x, x, x); },
      [&] {
        return custom_op(
            "own", {x}, [](const Tensors& in) { return in[0]; },
            [](const Tensors& in, const Tensor& g) { return Tensors{g * in[0]}; });
      },
  };
  const auto before = alive();
  for (size_t i = 0; i < forwards.size(); ++i) {
    for (int step = 0; step < 100; ++step) {
      forwards[i]();
      CAPTURE(i, step);
      REQUIRE(alive() == before);
    }
  }
}

TEST_CASE("backward, second derivatives and hooks leave nothing behind") {
  manual_seed(1);
  Tensor x = randn({4, 6}).set_requires_grad();
  const auto before = alive();
  for (int step = 0; step < 20; ++step) {
    Tensor y = softmax(exp(x) * x, -1);
    y.register_hook([](const Tensor& g) { return 2 * g; });
    Tensor first = grad((y * y).sum(), {x}, {.create_graph = true})[0];
    first.sum().backward();
    x.zero_grad();
    y = first = {};
    REQUIRE(alive() == before);
  }
}

TEST_CASE("no buffer is allocated for the gradient of a constant") {
  Tensor constant = empty({4096, 4096});  // 64 MiB
  constant.fill_(0.5);
  Tensor parameter = ones({4096, 1}).set_requires_grad();
  const int64_t before = memory_stats().bytes;
  reset_peak_memory();
  Tensor loss = matmul(constant, parameter).sum();
  loss.backward();
  CHECK(parameter.grad().shape() == Shape{4096, 1});
  CHECK(parameter.grad().to_vector<float>() == std::vector<float>(4096, 2048));
  CHECK(memory_stats().peak_bytes - before < kMiB);

  reset_peak_memory();
  Tensor row = ones({1, 4096}).set_requires_grad();
  matmul(row, constant).sum().backward();
  CHECK(row.grad().to_vector<float>() == std::vector<float>(4096, 2048));
  CHECK(memory_stats().peak_bytes - before < kMiB);
}

TEST_CASE("gradients in the middle are freed as soon as they are used") {
  Tensor x = zeros({kMiB / 4}).set_requires_grad();  // 1 MiB
  Tensor y = x;
  for (int i = 0; i < 30; ++i) y = -y;
  Tensor loss = y.sum();
  y = {};
  const int64_t before = memory_stats().bytes;
  reset_peak_memory();
  loss.backward();
  CHECK(memory_stats().peak_bytes - before <= 3 * kMiB);
  CHECK(memory_stats().bytes - before <= kMiB + 64);  // x.grad()
}

TEST_CASE("saved tensors are freed as backward passes, unless the graph is retained") {
  Tensor x = zeros({kMiB / 4}).set_requires_grad();
  auto build = [&](int64_t& half) {
    Tensor y = x;
    for (int i = 0; i < 16; ++i) {
      y = tanh(y);
      if (i == 7)
        y.register_hook([&half](const Tensor&) {
          half = memory_stats().bytes;
          return Tensor();
        });
    }
    return y.sum();
  };
  const int64_t empty = memory_stats().bytes;
  int64_t half = 0, end = 0;
  HookHandle handle = x.register_hook([&](const Tensor&) {
    end = memory_stats().bytes;
    return Tensor();
  });
  Tensor loss = build(half);
  CHECK(memory_stats().bytes - empty >= 16 * kMiB);
  loss.backward();
  CHECK(half - empty <= 11 * kMiB);
  CHECK(half - empty >= 8 * kMiB);
  CHECK(end - empty <= 3 * kMiB);
  x.zero_grad();
  loss = build(half);
  loss.backward({}, true);
  CHECK(end - empty >= 16 * kMiB);
}

TEST_CASE("a leaf's gradient does not keep a larger one alive") {
  Tensor small = zeros({1}).set_requires_grad(), large = zeros({kMiB}).set_requires_grad();
  const int64_t before = memory_stats().bytes;
  cat({small, large}).sum().backward();
  large.zero_grad();
  CHECK(small.grad().to_vector<float>() == std::vector<float>{1});
  CHECK(memory_stats().bytes - before < 1024);
}

}  // namespace graph_memory_test
