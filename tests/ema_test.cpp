// Exponential moving averages of weights.
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/linear.hpp>
#include <regard/optim/ema.hpp>
#include <regard/optim/sgd.hpp>

namespace ema_test {

using namespace regard;
using namespace regard::layers;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

struct Model : Layer {
  Linear first{3, 3};
  Linear second{3, 2};
  Buffer scale{ones({2})};
  Buffer count{zeros({2}, DType::i64)};
  Tensor operator()(const Tensor& x) const { return second(first(x)) * scale; }
  void members(Members& m) override {
    m("first", first);
    m("second", second);
    m("scale", scale);
    m("count", count);
  }
};

Model made(uint64_t seed) {
  manual_seed(seed);
  return Model();
}
void set(const Parameter& parameter, double value) { parameter.tensor().detach().fill_(value); }
bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a)
    if (!b.contains(name) || !equal(b.at(name), tensor)) return false;
  return true;
}
StateDict copies(const StateDict& state) {
  StateDict result;
  for (const auto& [name, tensor] : state) result.emplace(name, tensor.clone());
  return result;
}

}  // namespace

TEST_CASE("averages: the recurrence, from the first values on") {
  Model model = made(1);
  model.to(DType::f64);
  set(model.first.bias, 1);
  ExponentialMovingAverage ema(model, {.decay = 0.9});
  double expected = 1;
  for (int i = 0; i < 5; ++i) {
    set(model.first.bias, 2.0 * i);
    ema.update();
    expected = 0.9 * expected + 0.1 * 2.0 * i;
    CHECK(ema.averages().at("first.bias")[1].item<double>() == Approx(expected).epsilon(1e-14));
  }
  CHECK(ema.updates() == 5);
  CHECK(model.first.bias[0].item<double>() == 8);  // untouched
  CHECK(ema.averages().size() == 4);
}

TEST_CASE("averages: the warm-up follows new values fast at first") {
  Model model = made(1);
  set(model.first.bias, 1);
  ExponentialMovingAverage ema(model, {.decay = 0.5, .warmup = true});
  CHECK(ema.decay_at(0) == Approx(0.1));
  CHECK(ema.decay_at(1) == Approx(2.0 / 11));
  CHECK(ema.decay_at(8) == 0.5);
  CHECK(ema.decay_at(1000) == 0.5);
  set(model.first.bias, 11);
  ema.update();
  CHECK(ema.averages().at("first.bias")[0].item<float>() == Approx(10));
}

TEST_CASE("averages: applied within a scope, and the model's own values after it, whatever happens") {
  Model model = made(1);
  ExponentialMovingAverage ema(model, {.decay = 0.5});
  for (const Tensor& p : model.parameters()) p.detach().fill_(3);
  ema.update();
  const StateDict own = copies(model.state_dict()), average = ema.averages();
  const Tensor handle = model.first.weight;
  {
    auto applied = ema.apply();
    CHECK(equal(model.first.weight, average.at("first.weight")));
    CHECK(handle.impl() == model.first.weight.tensor().impl());
    CHECK(equal(model.scale, ones({2})));
    CHECK_THROWS_WITH(ema.update(), Contains("while the averages are applied"));
    CHECK_THROWS_WITH(ema.apply(), Contains("applied already"));
    auto handed_on = std::move(applied);
    CHECK(equal(model.second.bias, average.at("second.bias")));
  }
  CHECK(same(model.state_dict(), own));
  try {
    auto applied = ema.apply();
    throw std::runtime_error("evaluation failed");
  } catch (const std::runtime_error&) {
  }
  CHECK(same(model.state_dict(), own));
  auto applied = ema.apply();
  applied.restore();
  CHECK(same(model.state_dict(), own));
  applied.restore();
  ema.update();
  CHECK(same(model.state_dict(), own));
  // A graph that saved the weights notices.
  Tensor loss = sum(square(model(ones({1, 3}).set_requires_grad())));
  { auto again = ema.apply(); }
  CHECK_THROWS_AS(loss.backward(), GraphError);
}

TEST_CASE("averages: an optimizer trains on beside them; memory stays the same") {
  Model model = made(1);
  SGD optimizer(model.parameters(), 0.1);
  ExponentialMovingAverage ema(model, {.decay = 0.8});
  auto step = [&] {
    optimizer.zero_grad();
    sum(square(model(ones({1, 3})))).backward();
    optimizer.step();
    ema.update();
    auto applied = ema.apply();
  };
  for (int i = 0; i < 3; ++i) step();
  const auto before = memory_stats();
  for (int i = 0; i < 3; ++i) step();
  CHECK(memory_stats().bytes == before.bytes);
  CHECK(memory_stats().live_nodes == before.live_nodes);
}

TEST_CASE("averages: buffers by choice") {
  Model model = made(1);
  ExponentialMovingAverage with(model, {.decay = 0.5, .buffers = true}), without(model, {.decay = 0.5});
  model.scale = full({2}, 3.0);
  with.update();
  without.update();
  CHECK(with.averages().at("scale").to_vector<double>() == std::vector<double>{2, 2});
  CHECK_FALSE(without.averages().contains("scale"));
  CHECK_FALSE(with.averages().contains("count"));
  auto applied = with.apply();
  CHECK(model.scale.to_vector<double>() == std::vector<double>{2, 2});
}

TEST_CASE("averages: copied into another model") {
  Model model = made(1), other = made(2);
  ExponentialMovingAverage ema(model, {.decay = 0.5});
  set(model.first.bias, 9);
  ema.update();
  ema.copy_to(other);
  CHECK(equal(other.first.bias, ema.averages().at("first.bias")));
  CHECK(equal(other.second.weight, model.second.weight));
  Linear unlike(3, 3), wide(4, 3);
  CHECK_THROWS_WITH(ema.copy_to(unlike), Contains("copy_to") && Contains("'weight'"));
  ExponentialMovingAverage small(unlike);
  CHECK_THROWS_WITH(small.copy_to(wide), Contains("'weight' has shape [3, 4] in the model, its average [3, 3]"));
}

TEST_CASE("averages resume to the bit; a state that does not fit changes nothing") {
  auto train = [](Model& model, ExponentialMovingAverage& ema, int from, int to) {
    for (int i = from; i < to; ++i) {
      Generator generator(static_cast<uint64_t>(i));
      for (const Tensor& p : model.parameters()) p.detach().copy_(randn(p.shape(), {}, generator));
      ema.update();
    }
  };
  const EmaOptions options{.decay = 0.9, .warmup = true};
  Model whole = made(1), first = made(1), second = made(5);
  ExponentialMovingAverage a(whole, options), b(first, options), c(second, options);
  train(whole, a, 0, 20);
  train(first, b, 0, 8);
  const StateDict state = b.state_dict();
  c.load_state_dict(state);
  CHECK(c.updates() == 8);
  train(second, c, 8, 20);
  CHECK(same(c.state_dict(), a.state_dict()));
  CHECK(same(b.state_dict(), state));

  auto refused = [&](const StateDict& wrong, const std::string& words) {
    CHECK_THROWS_AS(b.load_state_dict(wrong), ValueError);
    CHECK_THROWS_WITH(b.load_state_dict(wrong), Contains(words));
    CHECK(same(b.state_dict(), state));
  };
  StateDict wrong = state;
  wrong.erase("average.second.bias");
  refused(wrong, "'average.second.bias' is missing");
  wrong["average.second.bias"] = zeros({3});
  refused(wrong, "[3]");
  wrong = state;
  wrong["average.third.bias"] = zeros({3});
  refused(wrong, "'average.third.bias' is unexpected");
  wrong = state;
  wrong["updates"] = scalar_tensor(-1);
  refused(wrong, "-1");
  wrong.erase("updates");
  refused(wrong, "updates");
}

TEST_CASE("averages: mistakes are errors") {
  Model model = made(1);
  CHECK_THROWS_AS(ExponentialMovingAverage(model, {.decay = 1}), ValueError);
  CHECK_THROWS_AS(ExponentialMovingAverage(model, {.decay = -0.1}), ValueError);
  ExponentialMovingAverage ema(model);
  model.to(DType::f64);
  CHECK_THROWS_AS(ema.update(), DTypeError);
  CHECK_THROWS_WITH(ema.apply(), Contains("'first.weight' is f64 now, its average f32"));
}

}  // namespace ema_test
