// grad(): gradients of chosen tensors, second derivatives, gradients of ops of one's own.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace graph_grad_test {

using namespace regard;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

Tensor leaf(double value) { return full({}, value, DType::f64).set_requires_grad(); }
Tensor leaf(const Numbers& values) { return from_vector<double>(values).set_requires_grad(); }
double number(const Tensor& x) { return x.item<double>(); }
Numbers numbers(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("grad() leaves the leaves' own gradients alone") {
  Tensor x = leaf(Numbers{1, 2}), w = leaf(Numbers{3, 4});
  Tensors grads = grad((x * w).sum(), {x});
  REQUIRE(grads.size() == 1);
  CHECK(numbers(grads[0]) == Numbers{3, 4});
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("grad() of inputs that stand twice, of a leaf itself, and of the output itself") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor y = x * x;
  Tensors grads = grad(y.sum(), {x, y, x});
  CHECK(numbers(grads[0]) == Numbers{2, 4});
  CHECK(numbers(grads[1]) == Numbers{1, 1});
  CHECK(numbers(grads[2]) == Numbers{2, 4});
  CHECK_FALSE(grads[0].shares_storage_with(grads[2]));
  Tensor s = leaf(3);
  CHECK(number(grad(s, {s})[0]) == 1);
  Tensor t = 2 * s;
  CHECK(number(grad(t, {t})[0]) == 1);
}

TEST_CASE("grad() gives each input elements of its own: writing to one changes no other") {
  Tensor x = leaf(Numbers{1, 2}), w = leaf(Numbers{3, 4});
  Tensor upstream = from_vector<double>({5, 6});
  Tensors grads = grad(x + w, {x, w}, {.grad_outputs = {upstream}});
  grads[0].mul_(100);
  CHECK(numbers(grads[1]) == Numbers{5, 6});
  CHECK(numbers(upstream) == Numbers{5, 6});
  Tensors whole = grad(x.sum(), {x});  // no view of one number repeated
  whole[0].add_(1);
  CHECK(numbers(whole[0]) == Numbers{2, 2});
}

TEST_CASE("gradients of a 16-bit copy that is used twice and expanded are summed in f32") {
  for (DType dtype : {DType::bf16, DType::f16}) {
    Tensor x = ones({1000}).set_requires_grad();
    Tensor stored = x.to(dtype);
    Tensor y = stored.to(DType::f32).sum() + 2 * stored.expand({3, 1000}).to(DType::f32).sum();
    for (bool create_graph : {false, true}) {
      Tensor g = grad(y, {x}, {.create_graph = create_graph, .retain_graph = true})[0];
      CHECK(g.to_vector<float>() == std::vector<float>(1000, 7));
    }
  }
}

TEST_CASE("grad() of a tensor in the middle, and on from there with backward") {
  Tensor x = leaf(Numbers{1, 2});
  Tensor h = x * x;
  Tensor loss = (h * h).sum();
  Tensors at_h = grad(loss, {h});
  CHECK(numbers(at_h[0]) == Numbers{2, 8});
  h.backward(at_h[0]);  // what lies below h was not used, so it is still there
  CHECK(numbers(x.grad()) == Numbers{4, 32});
  CHECK_THROWS_AS(h.backward(at_h[0]), GraphError);
}

TEST_CASE("grad() of one branch frees that branch only") {
  Tensor x = leaf(2), w = leaf(3);
  Tensor trunk = x * x;
  Tensor first = trunk * w, second = trunk * w * w;
  first.backward();
  CHECK(number(w.grad()) == 4);
  // The trunk is gone, but w's gradient does not need it.
  CHECK(number(grad(second, {w}, {.retain_graph = true})[0]) == 24);
  CHECK_THROWS_WITH(grad(second, {x}), Contains("earlier backward"));
}

TEST_CASE("grad() of an input that the output does not depend on: an error, or undefined where allowed") {
  Tensor x = leaf(1), other = leaf(1);
  CHECK_THROWS_AS(grad(2 * x, {other}), GraphError);
  CHECK_THROWS_WITH(grad(2 * x, {x, other}), Contains("input 1") && Contains("allow_unused"));
  Tensors grads = grad(2 * x, {x, other}, {.allow_unused = true});
  CHECK(number(grads[0]) == 2);
  CHECK_FALSE(grads[1].defined());
  CHECK_THROWS_WITH(grad(2 * x, {ones({}, DType::f64)}), Contains("does not require a gradient"));
  CHECK_THROWS_AS(grad(2 * x, {Tensor()}), ValueError);
  CHECK_THROWS_AS(grad(Tensors{}, {x}), ValueError);
}

TEST_CASE("grad() weighs outputs that are no single numbers") {
  Tensor x = leaf(Numbers{1, 2});
  CHECK_THROWS_AS(grad(x * x, {x}), ShapeError);
  CHECK(numbers(grad(x * x, {x}, {.grad_outputs = {from_vector<double>({1, 10})}})[0]) == Numbers{2, 40});
  Tensor y = x * x, z = 3 * x;
  Tensors both = grad(Tensors{y, z}, {x}, {.grad_outputs = {ones({2}, DType::f64), ones({2}, DType::f64)}});
  CHECK(numbers(both[0]) == Numbers{5, 7});
  // A weight that needs a gradient itself leaves no graph behind unless asked for one.
  Tensor weight = leaf(Numbers{1, 1});
  CHECK_FALSE(grad(x + 0, {x}, {.grad_outputs = {weight}})[0].requires_grad());
  Tensor kept = grad(x * x, {x}, {.grad_outputs = {weight}, .create_graph = true})[0];
  CHECK(numbers(grad(kept.sum(), {weight})[0]) == Numbers{2, 4});
}

TEST_CASE("create_graph: second and third derivatives") {
  Tensor x = leaf(3);
  Tensor y = x * x * x;
  Tensor first = grad(y, {x}, {.create_graph = true})[0];
  Tensor second = grad(first, {x}, {.create_graph = true})[0];
  Tensor third = grad(second, {x})[0];
  CHECK(number(first) == 27);
  CHECK(number(second) == 18);
  CHECK(number(third) == 6);
  CHECK_FALSE(third.requires_grad());

  // exp saves its own output, which must come back as part of the graph.
  Tensor e = exp(x);
  Tensor d1 = grad(e, {x}, {.create_graph = true})[0];
  Tensor d2 = grad(d1, {x}, {.create_graph = true})[0];
  CHECK(number(d2) == number(e));
  CHECK(number(grad(d2, {x})[0]) == number(e));
}

TEST_CASE("create_graph in backward(): a leaf's gradient is part of a graph, and keeps it when more is added") {
  Tensor x = leaf(3);
  (x * x * x).backward({}, true, true);
  CHECK(x.grad().requires_grad());
  (5 * x).backward();
  CHECK(number(x.grad()) == 32);
  CHECK(number(grad(x.grad(), {x})[0]) == 18);
  x.zero_grad();  // its graph leads back to x
}

TEST_CASE("the first derivative has the same bits with and without create_graph") {
  manual_seed(3);
  Tensor x = randn({7, 9}).set_requires_grad(), w = randn({9, 5}).set_requires_grad();
  auto loss = [&] { return (tanh(matmul(x, w)) + softmax(matmul(x, w), -1)).sum(); };
  Tensors plain = grad(loss(), {x, w});
  Tensors recorded = grad(loss(), {x, w}, {.create_graph = true});
  CHECK(equal(plain[0], recorded[0].detach()));
  CHECK(equal(plain[1], recorded[1].detach()));
}

namespace {

struct Counted {
  int calls = 0;
  Tensor operator()(const Tensor& x) {
    return custom_op(
        "counted", {x}, [](const Tensors& in) { return 2 * in[0]; },
        [this](const Tensors&, const Tensor& g) {
          ++calls;
          return Tensors{2 * g};
        });
  }
};

}  // namespace

TEST_CASE("gradients that nobody asks for are not computed") {
  Counted first, second;
  Tensor x = leaf(1), y = leaf(1);
  Tensor loss = first(x) * second(y);
  CHECK(number(grad(loss, {y})[0]) == 4);
  CHECK(first.calls == 0);
  CHECK(second.calls == 1);
  CHECK_FALSE(first(ones({}, DType::f64)).requires_grad());
  {
    NoGrad no_grad;
    CHECK_FALSE(first(x).requires_grad());
  }
}

TEST_CASE("a gradient of a wrong dtype, shape or number is an error that names the op") {
  Tensor x = leaf(Numbers{1, 2});
  auto returning = [&](const Tensors& grads) {
    return custom_op(
               "wrong", {x}, [](const Tensors& in) { return 2 * in[0]; },
               [grads](const Tensors&, const Tensor&) { return grads; })
        .sum();
  };
  CHECK_THROWS_AS(returning({ones({2})}).backward(), DTypeError);
  CHECK_THROWS_WITH(returning({ones({2})}).backward(), Contains("wrong") && Contains("f32") && Contains("f64"));
  CHECK_THROWS_AS(returning({ones({3}, DType::f64)}).backward(), ShapeError);
  CHECK_THROWS_WITH(returning({ones({3}, DType::f64)}).backward(),
                    Contains("wrong") && Contains("[3]") && Contains("[2]"));
  CHECK_THROWS_AS(returning({}).backward(), GraphError);
  CHECK_THROWS_WITH(returning({}).backward(), Contains("wrong") && Contains("0 gradients for 1 inputs"));
  CHECK_FALSE(x.grad().defined());
  // In the broadcast shape it is summed up.
  returning({ones({3, 2}, DType::f64)}).backward();
  CHECK(numbers(x.grad()) == Numbers{3, 3});
}

TEST_CASE("an op that gives no gradient: grad() says so, backward leaves it undefined") {
  Tensor x = leaf(1);
  auto stop = [&] {
    return custom_op(
        "stop", {x}, [](const Tensors& in) { return 2 * in[0]; },
        [](const Tensors&, const Tensor&) { return Tensors{Tensor()}; });
  };
  stop().backward();
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(grad(stop(), {x}), Contains("input 0") && Contains("gave none"));
  CHECK_FALSE(grad(stop(), {x}, {.allow_unused = true})[0].defined());
  (stop() + 3 * x).backward();  // the other path still counts
  CHECK(number(x.grad()) == 3);
}

TEST_CASE("an op of one's own has second derivatives, and may return its input") {
  Tensor x = leaf(2);
  auto cube = [](const Tensor& in) {
    return custom_op(
        "cube", {in}, [](const Tensors& i) { return i[0] * i[0] * i[0]; },
        [](const Tensors& i, const Tensor& g) { return Tensors{3 * i[0] * i[0] * g}; });
  };
  Tensor first = grad(cube(x), {x}, {.create_graph = true})[0];
  CHECK(number(first) == 12);
  CHECK(number(grad(first, {x})[0]) == 12);
  Tensor same = custom_op(
      "same", {x}, [](const Tensors& i) { return i[0]; },
      [](const Tensors&, const Tensor& g) { return Tensors{7 * g}; });
  CHECK(x.is_leaf());
  CHECK(number(grad(same, {x})[0]) == 7);
  CHECK_THROWS_AS(custom_op(
                      "nothing", {x}, [](const Tensors&) { return Tensor(); },
                      [](const Tensors&, const Tensor& g) { return Tensors{g}; }),
                  ValueError);
}

TEST_CASE("an op with several outputs of which some are unused") {
  Tensor x = leaf(Numbers{1, 2, 3, 4});
  Tensors parts = x.split(2);
  (parts[1] * parts[1]).sum().backward();
  CHECK(numbers(x.grad()) == Numbers{0, 0, 6, 8});
  auto [values, indices] = max(x * x, 0);
  CHECK_FALSE(indices.requires_grad());
  x.zero_grad();
  values.backward();
  CHECK(numbers(x.grad()) == Numbers{0, 0, 0, 8});
}

}  // namespace graph_grad_test
