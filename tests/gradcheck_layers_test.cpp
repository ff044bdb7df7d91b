// Gradient checks of layers.
#include <catch2/catch.hpp>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/attention.hpp>
#include <regard/layers/dropout.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/gradcheck.hpp>
#include <regard/layers/linear.hpp>

namespace gradcheck_layers_test {

using namespace regard;
using Catch::Contains;

namespace {

const GradcheckOptions fast = {.fast = true};

struct Scale : layers::Layer {
  layers::Parameter factor{full({3}, 1.5)};
  double gradient_factor = 1;
  Tensor operator()(const Tensor& x) {  // not const, as a user may write it
    double wrong = gradient_factor;
    return custom_op(
        "scale", {x, factor}, [](const Tensors& in) { return in[0] * in[1]; },
        [wrong](const Tensors& in, const Tensor& g) {
          return Tensors{g * in[1], g * in[0] * wrong};
        });
  }
  void members(layers::Members& m) override { m("factor", factor); }
};

struct Outer : layers::Layer {
  layers::Linear first{3, 3};
  std::vector<Scale> scales = std::vector<Scale>(2);
  Tensor operator()(const Tensor& x) { return scales[1](scales[0](first(x))); }
  void members(layers::Members& m) override {
    m("first", first);
    m("scales", scales);
  }
};

}  // namespace

TEST_CASE("gradcheck of layers: inputs and all parameters are checked, on a copy in f64") {
  manual_seed(4);
  layers::Linear linear(3, 2);
  Tensor x = randn({4, 3});
  GradcheckReport report = gradcheck(linear, {x});
  CHECK(report);
  CHECK(report.checked == 8 * (12 + 6 + 2));
  CHECK(linear.weight.dtype() == DType::f32);
  CHECK_FALSE(linear.weight.grad().defined());
  CHECK_FALSE(x.requires_grad());
  REQUIRE_THAT(linear, passes_gradcheck({x}));
  REQUIRE_THAT(linear, passes_gradgradcheck({x}));
  linear.weight.set_requires_grad(false);
  CHECK(gradcheck(linear, {x}).checked == 8 * (12 + 2));
  // f64 inputs of the caller's do not begin to require a gradient.
  Tensor y = randn({4, 3}, DType::f64);
  CHECK(gradcheck(linear, {y}));
  CHECK_FALSE(y.requires_grad());

  layers::Embedding embedding(5, 3);
  CHECK(gradcheck(embedding, {from_vector<int64_t>({1, 1, 4})}).checked == 9 * 15);
}

TEST_CASE("gradcheck of layers: a wrong gradient of a parameter is named by its path") {
  Outer layer;
  Tensor x = randn({2, 3});
  CHECK(gradcheck(layer, {x}));
  CHECK(gradgradcheck(layer, {x}));
  layer.scales[1].gradient_factor = 1.01;
  GradcheckReport report = gradcheck(layer, {x});
  CHECK_FALSE(report);
  CHECK(report.failed == 6);
  for (const GradcheckFailure& failure : report.failures) CHECK(failure.input == "scales.1.factor");
  CHECK_THAT(report.to_string(), Contains("by scales.1.factor[") && Contains("wrong gradient"));
  GradcheckReport projected = gradcheck(layer, {x}, fast);
  CHECK_FALSE(projected);
  CHECK_THAT(projected.to_string(), Contains("by scales.1.factor"));
}

TEST_CASE("gradcheck of layers: attention, with one to three inputs and calls of one's own") {
  manual_seed(6);
  layers::MultiHeadAttention attention(4, 2);
  Tensor x = randn({2, 3, 4}), memory = randn({2, 5, 4});
  CHECK(gradcheck(attention, {x}));
  CHECK(gradcheck(attention, {x, memory, memory}, fast));
  CHECK(gradgradcheck(attention, {x}, fast));
  auto causal = [](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); };
  CHECK(gradcheck(attention, {x}, causal));
  CHECK(gradgradcheck(attention, {x}, causal, fast));
  auto with_weights = [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0], in[0], in[0]); };
  CHECK(gradcheck(attention, {x}, with_weights, fast));
  CHECK_THROWS_WITH(gradcheck(attention, {x, memory}), Contains("cannot be called with 2 tensors"));
}

TEST_CASE("gradcheck of layers: one that drops in training mode is told from a wrong gradient") {
  layers::Dropout drop(0.3);
  Tensor x = randn({10});
  CHECK_THROWS_WITH(gradcheck(drop, {x}), Contains("not deterministic") && Contains("eval()"));
  drop.eval();
  CHECK(gradcheck(drop, {x}));
}

}  // namespace gradcheck_layers_test
