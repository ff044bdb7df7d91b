// Learning-rate schedules: values at every step, beyond the end, and after loading.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>

namespace schedule_test {

using namespace regard;
using namespace regard::optim;

namespace {

SGD optimizer_of(double lr) { return SGD({ones({1}).set_requires_grad()}, {.lr = lr}); }

/// The rates that `count` steps of training use.
std::vector<double> rates(Schedule& schedule, const Optimizer& optimizer, int count) {
  std::vector<double> list;
  for (int i = 0; i < count; ++i) {
    list.push_back(optimizer.lr());
    schedule.step();
  }
  return list;
}

void check_close(const std::vector<double>& got, const std::vector<double>& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == Approx(wanted[i]).margin(5e-7));
  }
}

}  // namespace

TEST_CASE("the cosine schedule stays at its minimum after the end") {
  SGD optimizer = optimizer_of(0.5);
  Cosine schedule(optimizer, {.total_steps = 5});
  check_close(rates(schedule, optimizer, 8), {0.5, 0.452254, 0.327254, 0.172746, 0.047746, 0, 0, 0});
  SGD above = optimizer_of(0.5);
  Cosine raised(above, {.total_steps = 5, .min_lr = 0.1});
  check_close(rates(raised, above, 8), {0.5, 0.1 + 0.4 * 0.904508, 0.1 + 0.4 * 0.654508, 0.1 + 0.4 * 0.345492,
                                        0.1 + 0.4 * 0.095492, 0.1, 0.1, 0.1});
}

TEST_CASE("linear warm-up wastes no step at zero, and stays at the full rate") {
  SGD optimizer = optimizer_of(1);
  LinearWarmup schedule(optimizer, {.warmup_steps = 4});
  CHECK(rates(schedule, optimizer, 7) == std::vector<double>{0.25, 0.5, 0.75, 1, 1, 1, 1});
  SGD none = optimizer_of(1);
  LinearWarmup at_once(none, {.warmup_steps = 0});
  CHECK(rates(at_once, none, 2) == std::vector<double>{1, 1});
}

TEST_CASE("warm-up then cosine: continuous, and never negative") {
  SGD optimizer = optimizer_of(1);
  WarmupCosine schedule(optimizer, {.warmup_steps = 4, .total_steps = 8});
  check_close(rates(schedule, optimizer, 10), {0.25, 0.5, 0.75, 1, 1, 0.853553, 0.5, 0.146447, 0, 0});
  for (int64_t step = 0; step < 1000; ++step) REQUIRE(schedule.lr_at(step, 1) >= 0);
}

TEST_CASE("constant and step schedules") {
  SGD optimizer = optimizer_of(0.5);
  Constant half(optimizer, {.factor = 0.5});
  CHECK(rates(half, optimizer, 3) == std::vector<double>{0.25, 0.25, 0.25});
  SGD other = optimizer_of(1);
  Step steps(other, {.step_size = 2, .gamma = 0.5});
  CHECK(rates(steps, other, 6) == std::vector<double>{1, 1, 0.5, 0.5, 0.25, 0.25});
}

TEST_CASE("a schedule computes each group's rate from the rate it was given at first") {
  Tensor a = ones({1}).set_requires_grad(), b = ones({1}).set_requires_grad();
  SGD optimizer({{{a}, {.lr = 1}}, {{b}, {.lr = 0.1}}});
  LinearWarmup schedule(optimizer, {.warmup_steps = 2});
  CHECK(optimizer.lr(0) == 0.5);
  CHECK(optimizer.lr(1) == 0.05);
  optimizer.set_lr(7);
  schedule.step();
  CHECK(optimizer.lr(0) == 1);
  CHECK(optimizer.lr(1) == 0.1);
}

TEST_CASE("a loaded schedule goes on where it was") {
  SGD optimizer = optimizer_of(1e-3), resumed = optimizer_of(1e-3);
  Cosine schedule(optimizer, {.total_steps = 100});
  for (int i = 0; i < 45; ++i) schedule.step();
  Cosine again(resumed, {.total_steps = 100});
  again.load_state_dict(schedule.state_dict());
  again.load_state_dict(schedule.state_dict());
  CHECK(again.current_step() == 45);
  CHECK(resumed.lr() == optimizer.lr());
  CHECK(resumed.lr() == Approx(5.782172e-4).epsilon(1e-6));
  CHECK(rates(again, resumed, 60) == rates(schedule, optimizer, 60));
  CHECK_THROWS_AS(again.load_state_dict({}), ValueError);
  CHECK_THROWS_AS(again.load_state_dict({{"step", scalar_tensor(-1)}}), ValueError);
  CHECK_THROWS_AS(again.load_state_dict({{"step", zeros({2}, DType::i64)}}), ValueError);
  CHECK_THROWS_AS(again.load_state_dict({{"step", scalar_tensor(1)}, {"more", scalar_tensor(1)}}), ValueError);
  CHECK(again.current_step() == 105);
}

TEST_CASE("schedules refuse lengths and rates that make no sense") {
  SGD optimizer = optimizer_of(1);
  CHECK_THROWS_AS(Cosine(optimizer, {.total_steps = 0}), ValueError);
  CHECK_THROWS_AS(Cosine(optimizer, {.total_steps = 5, .min_lr = -1}), ValueError);
  CHECK_THROWS_AS(LinearWarmup(optimizer, {.warmup_steps = -1}), ValueError);
  CHECK_THROWS_AS(Step(optimizer, {.step_size = 0}), ValueError);
  CHECK_THROWS_AS(Step(optimizer, {.step_size = 1, .gamma = -1}), ValueError);
  CHECK_THROWS_AS(WarmupCosine(optimizer, {.warmup_steps = 5, .total_steps = 5}), ValueError);
  CHECK_THROWS_AS(Constant(optimizer, {.factor = -1}), ValueError);
  CHECK_THROWS_AS(Constant(optimizer, {.factor = std::nan("")}), ValueError);
  CHECK(optimizer.lr() == 1);
}

}  // namespace schedule_test
