// Loss scaling: the scale's way up and down, steps that are left out, state, errors.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include <regard/regard.hpp>

namespace grad_scaler_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

Tensor parameter(double value = 1) { return full({3}, value).set_requires_grad(); }
void set_grad(const Tensor& p, double value) { p.set_grad(full({3}, value)); }

}  // namespace

TEST_CASE("grad scaler: the steps are those without it") {
  // Powers of two change exponents alone.
  const auto trained = [](bool scaled) {
    manual_seed(1);
    layers::Sequential model(layers::Linear(6, 8), layers::GELU(), layers::Linear(8, 3));
    AdamW optimizer(model.parameters(), {.lr = 0.01});
    GradScaler scaler({.init_scale = 1024, .growth_interval = 2, .enabled = scaled});
    Generator generator(2);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      scaler.scale(square(model(randn({5, 6}, {}, generator))).mean()).backward();
      if (step == 3) scaler.unscale(optimizer);
      CHECK(scaler.step(optimizer));
      scaler.update();
    }
    CHECK(scaler.current_scale() == (scaled ? 4096 : 1));
    std::vector<float> all;
    for (const Tensor& p : model.parameters())
      for (float v : p.to_vector<float>()) all.push_back(v);
    return all;
  };
  CHECK(trained(true) == trained(false));
}

TEST_CASE("grad scaler: the loss is multiplied, gradients are divided") {
  for (double scale : {65536.0, 3.0, 1.0, 0.25, 1e30}) {
    GradScaler scaler({.init_scale = scale});
    const Tensor p = parameter();
    SGD optimizer({p}, {.lr = 1});
    const Tensor loss = (p * 2).sum();
    CHECK(scaler.scale(loss).item<double>() == Approx(6 * scale));
    scaler.scale(loss).backward();
    CHECK(p.grad().to_vector<float>()[1] == Approx(2 * scale));
    scaler.unscale(optimizer);
    CHECK(p.grad().to_vector<float>()[1] == Approx(2).epsilon(1e-7));
    CHECK(scaler.step(optimizer));
    CHECK(p.to_vector<float>()[2] == Approx(-1).epsilon(1e-6));
  }
}

TEST_CASE("grad scaler: a step whose gradients are not finite is left out, and the scale falls") {
  GradScaler scaler({.init_scale = 64, .growth_interval = 2});
  const Tensor p = parameter(), q = parameter();
  SGD optimizer({p, q}, {.lr = 1});
  const auto step = [&](float gradient) {
    set_grad(p, 64);
    set_grad(q, 0);
    q.grad()[2].fill_(gradient);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  };
  CHECK(step(1));
  CHECK(scaler.current_scale() == 64);
  for (float bad : {infinity, -infinity, std::nanf("")}) {
    const std::vector<float> before = p.to_vector<float>();
    const double scale = scaler.current_scale();
    CHECK_FALSE(step(bad));
    CHECK(p.to_vector<float>() == before);
    CHECK(scaler.current_scale() == scale / 2);
  }
  CHECK(scaler.current_scale() == 8);
  CHECK(step(1));
  CHECK(scaler.current_scale() == 8);  // counted from the change
  CHECK(step(1));
  CHECK(scaler.current_scale() == 16);
}

TEST_CASE("grad scaler: the scale stays a positive number that f32 holds") {
  const Tensor p = parameter();
  SGD optimizer({p}, {.lr = 1});
  GradScaler large({.init_scale = 2e38, .growth_interval = 1});
  set_grad(p, 1);
  large.step(optimizer);
  large.update();
  CHECK(large.current_scale() == 2e38);
  GradScaler small({.init_scale = 0x1p-125});
  for (int i = 0; i < 3; ++i) {
    set_grad(p, infinity);
    CHECK_FALSE(small.step(optimizer));
    small.update();
  }
  CHECK(small.current_scale() == 0x1p-126);
}

TEST_CASE("grad scaler: several optimizers share one") {
  GradScaler scaler({.init_scale = 4});
  const Tensor p = parameter(), q = parameter();
  SGD one({p}, {.lr = 1}), other({q}, {.lr = 1});
  set_grad(p, 4);
  set_grad(q, infinity);
  CHECK(scaler.step(one));
  CHECK_FALSE(scaler.step(other));
  scaler.update();
  CHECK(p.to_vector<float>()[0] == 0);
  CHECK(q.to_vector<float>()[0] == 1);
  CHECK(scaler.current_scale() == 2);
}

TEST_CASE("grad scaler: unscaled gradients are clipped") {
  GradScaler scaler({.init_scale = 1024});
  const Tensor p = parameter();
  SGD optimizer({p}, {.lr = 1});
  scaler.scale((p * 4).sum()).backward();
  scaler.unscale(optimizer);
  CHECK(clip_grad_norm({p}, 1.0) == Approx(std::sqrt(48.0)));
  CHECK(scaler.step(optimizer));
  CHECK(p.to_vector<float>()[0] == Approx(1 - 1 / std::sqrt(3.0)).epsilon(1e-5));
}

TEST_CASE("grad scaler: its state goes on where it was") {
  GradScaler scaler({.init_scale = 32, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  const Tensor p = parameter();
  SGD optimizer({p}, {.lr = 1});
  const auto step = [&](GradScaler& with) {
    set_grad(p, 1);
    with.step(optimizer);
    with.update();
  };
  step(scaler);
  step(scaler);
  GradScaler loaded;
  loaded.load_state_dict(scaler.state_dict());
  CHECK(loaded.current_scale() == 32);
  CHECK(loaded.options().backoff_factor == 0.25);
  step(loaded);
  CHECK(loaded.current_scale() == 128);

  StateDict state = scaler.state_dict();
  CHECK(state.size() == 5);
  state["scale"] = full({}, 0.0);
  CHECK_THROWS_WITH(loaded.load_state_dict(state), Contains("the scale 0 must be positive"));
  state = scaler.state_dict();
  state.erase("growth_tracker");
  CHECK_THROWS_WITH(loaded.load_state_dict(state), Contains("'growth_tracker' is missing"));
  state = scaler.state_dict();
  state["growth_tracker"] = scalar_tensor(3);
  CHECK_THROWS_WITH(loaded.load_state_dict(state), Contains("must lie between 0 and growth_interval, 3"));
  state = scaler.state_dict();
  state.emplace("more", zeros({}));
  CHECK_THROWS_WITH(loaded.load_state_dict(state), Contains("'more' is unexpected"));
  state = scaler.state_dict();
  state["scale"] = zeros({2});
  CHECK_THROWS_WITH(loaded.load_state_dict(state), Contains("single number"));
  CHECK(loaded.current_scale() == 128);
  CHECK(GradScaler({.enabled = false}).state_dict().empty());
}

TEST_CASE("grad scaler: what is called in the wrong order says so") {
  GradScaler scaler;
  const Tensor p = parameter();
  SGD optimizer({p}, {.lr = 1});
  CHECK_THROWS_WITH(scaler.update(), Contains("call step(optimizer) before"));
  CHECK_THROWS_WITH(scaler.step(optimizer), Contains("no parameter of the optimizer has a gradient"));
  set_grad(p, 1);
  scaler.unscale(optimizer);
  CHECK_THROWS_WITH(scaler.unscale(optimizer), Contains("unscaled already"));
  CHECK_THROWS_WITH(scaler.set_scale(2), Contains("call update() before"));
  CHECK(scaler.step(optimizer));
  CHECK_THROWS_WITH(scaler.step(optimizer), Contains("taken already"));
  CHECK_THROWS_WITH(scaler.unscale(optimizer), Contains("taken already"));
  scaler.update();
  scaler.set_scale(8);
  CHECK(scaler.current_scale() == 8);
  CHECK_THROWS_AS(scaler.set_scale(-1), ValueError);
  CHECK_THROWS_AS(scaler.scale(Tensor()), ValueError);
  optimizer.step_in_backward();
  set_grad(p, 1);
  CHECK_THROWS_AS(scaler.step(optimizer), GraphError);
}

TEST_CASE("grad scaler: options out of range") {
  CHECK_THROWS_AS(GradScaler({.init_scale = 0}), ValueError);
  CHECK_THROWS_AS(GradScaler({.init_scale = infinity}), ValueError);
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), ValueError);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), ValueError);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 0}), ValueError);
  CHECK_THROWS_AS(GradScaler({.growth_interval = 0}), ValueError);
}

}  // namespace grad_scaler_test
