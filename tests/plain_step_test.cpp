// The step that the benchmarks compare the engine with, written by hand, is the engine's step.
#include <catch2/catch.hpp>
#include <regard/bench/compare/plain_step.hpp>
#include <regard/regard.hpp>

namespace plain_step_test {

using namespace regard;

TEST_CASE("a training step written by hand gives the losses of the engine's step") {
  const auto sizes =
      GENERATE(bench::GptSizes{.batch = 16, .length = 16, .vocabulary = 16, .width = 32, .heads = 4, .depth = 2},
               bench::GptSizes{.batch = 2, .length = 5, .vocabulary = 11, .width = 12, .heads = 3, .depth = 1});
  manual_seed(1);
  bench::Gpt model(sizes);
  Tensor ids = randint(0, sizes.vocabulary, {sizes.batch, sizes.length});
  Tensor targets = randint(0, sizes.vocabulary, {sizes.batch, sizes.length});
  bench::PlainGpt plain(sizes, model.state_dict());

  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  plain.set_lr(1e-2);
  float first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {  // later losses hold every gradient and every update before them
    Tensor loss = model.loss(ids, targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<float>();
    if (step == 0) first = last;
    INFO("step " << step);
    REQUIRE(plain.step(ids.data<int64_t>(), targets.data<int64_t>()) == Approx(last).epsilon(1e-4));
  }
  REQUIRE(last < 0.8F * first);  // it learns, so that the updates count
}

}  // namespace plain_step_test
