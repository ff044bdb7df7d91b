// Hooks, backward inside backward, and exceptions in the middle of one.
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace graph_hooks_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

Tensor leaf(double value) { return full({}, value, DType::f64).set_requires_grad(); }
double number(const Tensor& x) { return x.item<double>(); }

}  // namespace

TEST_CASE("a hook sees the whole gradient once, and may replace it") {
  Tensor x = leaf(2);
  Tensor y = 3 * x;
  Numbers seen;
  y.register_hook([&](const Tensor& g) {
    seen.push_back(number(g));
    return 10 * g;
  });
  (2 * y + 5 * y).backward();
  CHECK(seen == Numbers{7});
  CHECK(number(x.grad()) == 210);

  Tensor z = leaf(1);
  z.register_hook([&](const Tensor& g) {
    seen.push_back(number(g));
    return Tensor();  // keeps it
  });
  (z + z).backward();
  CHECK(seen == Numbers{7, 2});
  CHECK(number(z.grad()) == 2);
}

TEST_CASE("hooks run in the order of their registration, each on what the one before returned") {
  Tensor x = leaf(1);
  x.register_hook([](const Tensor& g) { return g + 1; });
  x.register_hook([](const Tensor& g) { return g * 10; });
  Tensor y = 2 * x;
  y.register_hook([](const Tensor& g) { return g + 2; });
  y.register_hook([](const Tensor& g) { return g * 3; });
  y.backward();
  CHECK(number(x.grad()) == ((1 + 2) * 3 * 2 + 1) * 10);
}

TEST_CASE("a hook on one output of an op with several") {
  Tensor x = from_vector<double>({1, 2, 3, 4}).set_requires_grad();
  Tensors parts = x.split(2);
  parts[1].register_hook([](const Tensor& g) { return 100 * g; });
  (parts[0] + parts[1]).sum().backward();
  CHECK(x.grad().to_vector<double>() == Numbers{1, 1, 100, 100});
}

TEST_CASE("a removed hook is not called; removal works inside the hook and twice") {
  Tensor x = leaf(1);
  int calls = 0;
  HookHandle once;
  once = x.register_hook([&](const Tensor&) {
    ++calls;
    once.remove();
    return Tensor();
  });
  int others = 0;
  x.register_hook([&](const Tensor&) {
    ++others;
    return Tensor();
  });
  (2 * x).backward();
  (2 * x).backward();
  once.remove();
  CHECK(calls == 1);
  CHECK(others == 2);

  Tensor y = 2 * x;
  HookHandle handle = y.register_hook([&](const Tensor& g) { return 0 * g; });
  handle.remove();
  x.zero_grad();
  y.backward();
  CHECK(number(x.grad()) == 2);
  HookHandle().remove();
}

TEST_CASE("a hook that returns another shape or dtype is an error") {
  Tensor x = leaf(1);
  HookHandle handle = x.register_hook([](const Tensor&) { return ones({2}, DType::f64); });
  CHECK_THROWS_AS((2 * x).backward(), ShapeError);
  CHECK_THROWS_WITH((2 * x).backward(), Contains("hook") && Contains("[2]"));
  handle.remove();
  handle = x.register_hook([](const Tensor&) { return ones({}); });
  CHECK_THROWS_WITH((2 * x).backward(), Contains("f32") && Contains("f64"));
  handle.remove();
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_AS(ones({}).register_hook([](const Tensor& g) { return g; }), GraphError);
}

TEST_CASE("hooks apply in grad() too, at leaves and in the middle; accumulation hooks do not") {
  Tensor x = leaf(1);
  x.register_hook([](const Tensor& g) { return g * 10; });
  x.register_post_accumulate_grad_hook([](const Tensor&) { FAIL("nothing is accumulated"); });
  Tensor y = 2 * x;
  y.register_hook([](const Tensor& g) { return g + 1; });
  Tensors grads = grad(3 * y, {x, y});
  CHECK(number(grads[1]) == 4);
  CHECK(number(grads[0]) == 80);
}

TEST_CASE("post-accumulate hooks run after the gradient is there, and may use it up") {
  Tensor x = leaf(1);
  Numbers seen;
  std::vector<std::string> order;
  x.register_hook([&](const Tensor&) {
    order.emplace_back("gradient");
    return Tensor();
  });
  x.register_post_accumulate_grad_hook([&](const Tensor& l) {
    order.emplace_back("accumulated");
    seen.push_back(number(l.grad()));
  });
  (2 * x).backward();
  (3 * x + x).backward();
  CHECK(seen == Numbers{2, 6});
  CHECK(order == std::vector<std::string>{"gradient", "accumulated", "gradient", "accumulated"});

  // An optimizer's step in the hook: the gradient is freed before backward ends.
  HookHandle handle = x.register_post_accumulate_grad_hook([](const Tensor& l) {
    NoGrad no_grad;
    l.add_(l.grad(), -0.5);
    l.zero_grad();
  });
  x.zero_grad();
  (x * x).backward();
  CHECK(number(x) == 0);
  CHECK_FALSE(x.grad().defined());
  handle.remove();
  CHECK_THROWS_AS((2 * x).register_post_accumulate_grad_hook([](const Tensor&) {}), GraphError);
  CHECK_THROWS_AS(ones({}).register_post_accumulate_grad_hook([](const Tensor&) {}), GraphError);
}

TEST_CASE("recording is off inside hooks, unless create_graph is on") {
  Tensor x = leaf(1);
  std::vector<bool> recording;
  x.register_hook([&](const Tensor&) {
    recording.push_back(grad_enabled());
    return Tensor();
  });
  (x * x).backward();
  (x * x).backward({}, true, true);
  x.zero_grad();  // its graph leads back to x
  CHECK(recording == std::vector<bool>{false, true});
  CHECK(grad_enabled());
  // What a hook returns leaves no graph in the gradient.
  Tensor y = leaf(2), w = leaf(3);
  y.register_hook([&](const Tensor& g) {
    GradMode mode(true);
    return w * g;
  });
  (2 * y).backward();
  CHECK(number(y.grad()) == 6);
  CHECK_FALSE(y.grad().requires_grad());
}

TEST_CASE("backward inside a hook, through a graph of its own") {
  Tensor x = leaf(2), w = leaf(3);
  x.register_hook([&](const Tensor& g) {
    GradMode mode(true);
    (w * w * g).backward();
    return Tensor();
  });
  Tensor y = x * x;
  (y * y).backward();
  CHECK(number(x.grad()) == 32);
  CHECK(number(w.grad()) == 6 * 32);
  CHECK(grad_enabled());
}

TEST_CASE("backward inside an op's gradient: computing a part again instead of keeping it") {
  Tensor x = leaf(0.5), w = leaf(1.5);
  auto part = [](const Tensor& a, const Tensor& b) { return tanh(a * b) * b; };
  auto recomputed = [&](const Tensor& a, const Tensor& b) {
    return custom_op(
        "recomputed", {a, b}, [&](const Tensors& in) { return part(in[0], in[1]); },
        [&](const Tensors& in, const Tensor& g) {
          GradMode mode(true);
          Tensors inner = {in[0].detach().set_requires_grad(), in[1].detach().set_requires_grad()};
          return grad(part(inner[0], inner[1]), inner, {.grad_outputs = {g}});
        });
  };
  Tensors expected = grad(part(part(x, w), w), {x, w});
  Tensors got = grad(recomputed(recomputed(x, w), w), {x, w});
  CHECK(number(got[0]) == number(expected[0]));
  CHECK(number(got[1]) == number(expected[1]));
}

TEST_CASE("an exception in the middle of backward reaches the caller, leaks nothing and breaks nothing") {
  Tensor x = leaf(2);
  const MemoryStats before = memory_stats();
  {
    Tensor y = x * x;
    Tensor failing = custom_op(
        "failing", {y}, [](const Tensors& in) { return 2 * in[0]; },
        [](const Tensors&, const Tensor&) -> Tensors { throw std::runtime_error("no gradient today"); });
    Tensor loss = exp(failing) + y;
    CHECK_THROWS_WITH(loss.backward(), "no gradient today");
    CHECK(grad_enabled());
    CHECK_FALSE(x.grad().defined());
    CHECK_THROWS_AS(loss.backward(), GraphError);  // a part of it was used
  }
  {
    Tensor y = x * x;
    y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("a hook that fails"); });
    CHECK_THROWS_WITH((3 * y).backward(), "a hook that fails");
    CHECK_THROWS_WITH((3 * y).backward({}, true, true), "a hook that fails");
  }
  CHECK(memory_stats().live_nodes == before.live_nodes);
  CHECK(memory_stats().live_storages == before.live_storages);
  CHECK(memory_stats().bytes == before.bytes);
  (x * x).backward();
  CHECK(number(x.grad()) == 4);
}

TEST_CASE("an exception in the forward function of an op of one's own leaves recording as it was") {
  Tensor x = leaf(2);
  CHECK_THROWS_AS(custom_op(
                      "failing", {x}, [](const Tensors&) -> Tensor { throw std::runtime_error("stop"); },
                      [](const Tensors&, const Tensor& g) { return Tensors{g}; }),
                  std::runtime_error);
  CHECK(grad_enabled());
}

}  // namespace graph_hooks_test
