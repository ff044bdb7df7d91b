// Parameters stepped inside backward().
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/bench/compare/gpt.hpp>
#include <regard/optim/accumulate.hpp>
#include <regard/optim/adafactor.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/lion.hpp>
#include <regard/optim/muon.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>

namespace step_in_backward_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

const bench::GptSizes sizes{
    .batch = 2, .length = 8, .vocabulary = 11, .width = 16, .heads = 2, .depth = 2, .tied = true};

std::unique_ptr<Optimizer> make(const std::string& name, const bench::Gpt& model) {
  const Tensors parameters = model.parameters();
  if (name == "SGD") return std::make_unique<SGD>(parameters, SGDOptions{.lr = 0.05, .momentum = 0.9});
  if (name == "Adam") return std::make_unique<Adam>(parameters, 1e-2);
  if (name == "AdamW") return std::make_unique<AdamW>(decay_groups(model, AdamWOptions{.lr = 1e-2}));
  if (name == "Lion") return std::make_unique<Lion>(parameters, 1e-3);
  if (name == "Adafactor") return std::make_unique<Adafactor>(parameters);
  return std::make_unique<MuonWithAdamW>(model);
}

/// Every parameter and all of the optimizer's state after a few steps on batches of their own.
std::vector<std::vector<double>> trained(const std::string& name, bool in_backward) {
  manual_seed(3);
  bench::Gpt model(sizes);
  auto optimizer = make(name, model);
  WarmupCosine schedule(*optimizer, {.warmup_steps = 2, .total_steps = 8});
  if (in_backward) optimizer->step_in_backward();
  for (int step = 0; step < 5; ++step) {
    const Tensor ids = randint(0, sizes.vocabulary, {sizes.batch, sizes.length});
    const Tensor loss = model.loss(ids, ids);
    if (!in_backward) optimizer->zero_grad();
    loss.backward();
    if (!in_backward) optimizer->step();
    schedule.step();
    if (in_backward)
      for (const Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.grad().defined());
  }
  std::vector<std::vector<double>> all;
  for (const auto& [key, tensor] : model.state_dict()) all.push_back(tensor.to_vector<double>());
  for (const auto& [key, tensor] : optimizer->state_dict()) all.push_back(tensor.to_vector<double>());
  return all;
}

Tensor weight(double value) { return full({3}, value, DType::f32).set_requires_grad(); }

}  // namespace

TEST_CASE("a step inside backward() is the step after it, to the bit") {
  for (const char* name : {"SGD", "Adam", "AdamW", "Lion", "Adafactor", "MuonWithAdamW"}) {
    INFO(name);
    CHECK(trained(name, true) == trained(name, false));
  }
}

TEST_CASE("gradients of a whole model are never in memory together") {
  manual_seed(1);
  layers::Linear first(512, 512, false), second(512, 512, false), third(512, 512, false), fourth(512, 512, false);
  Tensors parameters{first.weight, second.weight, third.weight, fourth.weight};
  SGD optimizer(parameters, 0.1);
  const Tensor x = randn({1, 512});
  auto peak = [&] {
    const Tensor loss = fourth(third(second(first(x)))).sum();
    const int64_t before = memory_stats().bytes;
    reset_peak_memory();
    loss.backward();
    return memory_stats().peak_bytes - before;
  };
  const int64_t all = peak();
  optimizer.zero_grad();
  optimizer.step_in_backward();
  const int64_t one = peak();
  CHECK(all > 3 * 512 * 512 * 4);
  CHECK(one < 512 * 512 * 4 + 64 * 1024);
}

TEST_CASE("what needs all gradients together is refused while parameters are stepped inside backward()") {
  const Tensor a = weight(1), b = weight(2);
  const Tensors parameters{a, b};
  SGD optimizer(parameters, 0.5);
  GradientAccumulation accumulation(parameters);
  CHECK_FALSE(optimizer.steps_in_backward());
  optimizer.step_in_backward();
  optimizer.step_in_backward();  // once is enough
  CHECK(optimizer.steps_in_backward());
  CHECK_THROWS_WITH(clip_grad_norm(parameters, 1.0),
                    Contains("clip_grad_norm: parameter 0") && Contains("inside backward()"));
  CHECK_THROWS_WITH(clip_grad_norm_on_device(parameters, 1.0), Contains("clip_grad_norm_on_device: parameter 0"));
  CHECK_THROWS_WITH(clip_grad_value(parameters, 1.0), Contains("clip_grad_value: parameter 0"));
  CHECK_THROWS_WITH(accumulation.backward(a.sum(), 1), Contains("GradientAccumulation: parameter 0"));
  CHECK_THROWS_WITH(optimizer.step(), Contains("SGD: step()") && Contains("step_in_backward(false)"));
  SGD other({b}, 0.5);
  CHECK_THROWS_WITH(other.step_in_backward(), Contains("another optimizer"));
  CHECK_THROWS_WITH(regard::backward({(a * a).sum()}, {.create_graph = true}), Contains("create_graph"));
  a.zero_grad();

  (a * 2.0).sum().backward();
  CHECK(a.to_vector<float>() == std::vector<float>{0, 0, 0});
  optimizer.step_in_backward(false);
  CHECK_FALSE(optimizer.steps_in_backward());
  (a * 2.0).sum().backward();
  CHECK(a.to_vector<float>() == std::vector<float>{0, 0, 0});
  CHECK(clip_grad_norm(parameters, 1.0) > 1);
  other.step_in_backward();
}

TEST_CASE("stepping inside backward(): frozen parameters, earlier gradients, hooks, an optimizer that is gone") {
  const Tensor a = weight(1);
  std::vector<float> seen;
  {
    SGD optimizer({a}, 0.5);
    a.set_requires_grad(false);
    CHECK_THROWS_WITH(optimizer.step_in_backward(), Contains("parameter 0 of shape [3] is frozen"));
    a.set_requires_grad();
    a.sum().backward();  // 1, and a part of the first step
    optimizer.step_in_backward();
    a.register_hook([&](const Tensor& grad) {
      seen = grad.to_vector<float>();
      return grad * 2.0;
    });
    a.sum().backward();
    CHECK(seen == std::vector<float>{1, 1, 1});
    CHECK(a.to_vector<float>() == std::vector<float>{-0.5, -0.5, -0.5});  // 1 - 0.5 (1 + 2)
  }
  a.sum().backward();
  CHECK(a.grad().to_vector<float>() == std::vector<float>{2, 2, 2});
  CHECK(a.to_vector<float>() == std::vector<float>{-0.5, -0.5, -0.5});
}

TEST_CASE("a parameter that is used once more behind detach() is no silent fault inside backward()") {
  const Tensor a = weight(2), x = weight(1);
  SGD optimizer({a}, 0.5);
  optimizer.step_in_backward();
  // The product's gradient needs a as it was, and runs after a's own gradient is complete.
  const Tensor y = x * a.detach();
  CHECK_THROWS_WITH((y * 1.0 + a).sum().backward(), Contains("changed in place"));
}

TEST_CASE("stepping inside backward(): an op whose two weights are complete at different times") {
  manual_seed(4);
  const Tensor w = randn({1024, 1024}).set_requires_grad(), v = randn({1024, 8}).set_requires_grad();
  const Tensor w2 = w.detach().clone().set_requires_grad(), v2 = v.detach().clone().set_requires_grad();
  const auto loss = [](const Tensor& w, const Tensor& v) {
    const Tensor p = square(w).sum();
    return matmul(w, v).sum() + p;
  };
  SGD inside({w, v}, 0.1), after({w2, v2}, 0.1);
  inside.step_in_backward();
  loss(w, v).backward();
  loss(w2, v2).backward();
  after.step();
  CHECK(w.to_vector<float>() == w2.to_vector<float>());
  CHECK(v.to_vector<float>() == v2.to_vector<float>());
}

}  // namespace step_in_backward_test
