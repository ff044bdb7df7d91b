// SGD, Adam and AdamW: their formulas, which parameters they touch, and state that saves and loads.
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/layers/linear.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/lion.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>

namespace optim_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

/// A parameter with this value and gradient.
Tensor parameter(double value, double grad, DType dtype = DType::f64) {
  Tensor x = full({}, value, dtype).set_requires_grad();
  x.set_grad(full({}, grad, dtype));
  return x;
}
double number(const Tensor& x) { return x.item<double>(); }
Numbers numbers(const Tensor& x) { return x.to_vector<double>(); }

/// Whether two state dicts hold the same bits.
bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    auto found = b.find(name);
    if (found == b.end() || found->second.dtype() != tensor.dtype() || !equal(found->second, tensor)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("Adam adds eps to the root of the bias-corrected second moment") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tensor small = parameter(0, 1e-8, dtype), plain = parameter(0, 1, dtype);
    Adam({small, plain}, {.lr = 1}).step();
    CAPTURE(dtype);
    CHECK(number(small) == Approx(-0.5).epsilon(1e-5));
    CHECK(number(plain) == Approx(-0.99999999).epsilon(dtype == DType::f64 ? 1e-14 : 1e-6));
  }
}

TEST_CASE("AdamW's decay is lr times weight_decay times the parameter; Adam's goes through the gradient") {
  Tensor a = parameter(1, 0), b = parameter(2, 0.5);
  AdamW decoupled({a}, {.lr = 0.1, .weight_decay = 0.01});
  decoupled.step();
  CHECK(number(a) == Approx(0.999).epsilon(1e-14));
  decoupled.step();
  CHECK(number(a) == Approx(0.998001).epsilon(1e-14));
  AdamW({b}, {.lr = 0.1, .weight_decay = 0.1}).step();
  CHECK(number(b) == Approx(1.88).epsilon(1e-8));

  Tensor c = parameter(1, 0), d = parameter(2, 0.5);
  Adam({c}, {.lr = 0.1, .weight_decay = 0.01}).step();
  CHECK(number(c) == Approx(0.9).epsilon(1e-6));
  Adam({d}, {.lr = 0.1, .weight_decay = 0.1}).step();
  CHECK(number(d) == Approx(1.9).epsilon(1e-7));
}

TEST_CASE("SGD: momentum, dampening, Nesterov and weight decay by hand") {
  Tensor x = parameter(1, 2);
  SGD momentum({x}, {.lr = 0.1, .momentum = 0.5, .dampening = 0.25});
  momentum.step();  // the first v is g
  CHECK(number(x) == Approx(1 - 0.1 * 2));
  momentum.step();  // v = 0.5 * 2 + 0.75 * 2
  CHECK(number(x) == Approx(0.8 - 0.1 * 2.5));
  Tensor y = parameter(1, 2);
  SGD nesterov({y}, {.lr = 0.1, .momentum = 0.5, .nesterov = true});
  nesterov.step();  // g + 0.5 v
  CHECK(number(y) == Approx(1 - 0.1 * 3));
  Tensor z = parameter(1, 2);
  SGD({z}, {.lr = 0.1, .weight_decay = 0.5}).step();
  CHECK(number(z) == Approx(1 - 0.1 * 2.5));
}

TEST_CASE("an undefined gradient is no zero gradient: the parameter is left out entirely") {
  Tensor used = parameter(1, 0.5), unused = full({}, 1.0, DType::f64).set_requires_grad();
  SGD sgd({used, unused}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  sgd.step();
  sgd.step();
  CHECK(number(unused) == 1);
  CHECK(unused.version() == 0);
  CHECK(sgd.state_dict().at("0.step").item<int64_t>() == 2);
  CHECK(sgd.state_dict().at("1.step").item<int64_t>() == 0);
  CHECK_FALSE(sgd.state_dict().contains("1.momentum_buffer"));

  // A zero gradient is one: decay applies, then momentum.
  unused.set_grad(full({}, 0.0, DType::f64));
  sgd.step();
  CHECK(number(unused) == Approx(0.99));
  sgd.step();
  CHECK(number(unused) == Approx(0.99 - 0.1 * (0.9 * 0.1 + 0.1 * 0.99)));
  sgd.zero_grad();
  CHECK_FALSE(used.grad().defined());
  const double before = number(used);
  sgd.step();
  CHECK(number(used) == before);
  CHECK(sgd.state_dict().at("0.step").item<int64_t>() == 4);

  Tensor late = full({}, 1.0, DType::f64).set_requires_grad();
  Adam adam({used, late}, {.lr = 0.1});
  used.set_grad(full({}, 1.0, DType::f64));
  for (int i = 0; i < 5; ++i) adam.step();
  late.set_grad(full({}, 1.0, DType::f64));
  adam.step();  // the first step of `late`, with the first step's bias correction
  CHECK(number(late) == Approx(0.9));
}

TEST_CASE("optimizers take gradients of any strides") {
  const Tensor dense = from_vector<double>({1, 2, 3, 4, 5, 6}, {2, 3});
  auto strided = [&] { return dense.t().contiguous().t(); };
  auto run = [&](const auto& make, const Tensor& grad) {
    Tensor x = ones({2, 3}, DType::f64).set_requires_grad();
    auto optimizer = make(x);
    for (int i = 0; i < 3; ++i) {
      x.set_grad(grad);
      optimizer->step();
    }
    return numbers(x);
  };
  auto sgd = [](const Tensor& x) { return std::make_unique<SGD>(Tensors{x}, SGDOptions{.lr = 0.1, .momentum = 0.9}); };
  auto adam = [](const Tensor& x) { return std::make_unique<Adam>(Tensors{x}); };
  auto adamw = [](const Tensor& x) { return std::make_unique<AdamW>(Tensors{x}); };
  CHECK(run(sgd, strided()) == run(sgd, dense));
  CHECK(run(adam, strided()) == run(adam, dense));
  CHECK(run(adamw, strided()) == run(adamw, dense));
  Tensor expanded = full({}, 2.0, DType::f64).expand({2, 3});
  CHECK(run(adamw, expanded) == run(adamw, expanded.contiguous()));
}

TEST_CASE("a step is seen by the engine: a graph that saved the parameter is not used with its new value") {
  Tensor x = full({}, 3.0).set_requires_grad();
  Tensor loss = x * x;
  x.set_grad(ones({}));
  SGD({x}).step();
  CHECK_THROWS_AS(loss.backward(), GraphError);
}

TEST_CASE("parameter groups have options and learning rates of their own") {
  Tensor a = parameter(1, 0), b = parameter(1, 0), c = parameter(1, 0);
  AdamW optimizer({{{a, b}, {.lr = 0.1, .weight_decay = 0.5}}, {{c}, {.lr = 0.2, .weight_decay = 0}}});
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.parameters(0).size() == 2);
  CHECK(optimizer.lr(1) == 0.2);
  optimizer.step();
  CHECK(number(a) == Approx(0.95));
  CHECK(number(b) == Approx(0.95));
  CHECK(number(c) == 1);
  optimizer.set_lr(1, 0);
  optimizer.step();
  CHECK(number(a) == Approx(0.475));
  CHECK(optimizer.lr(1) == 0.2);
  CHECK(optimizer.initial_lr(0) == 0.1);
  optimizer.set_lr(0.3);
  CHECK(optimizer.lr(0) == 0.3);
  CHECK(optimizer.lr(1) == 0.3);
  CHECK_THROWS_AS(optimizer.set_lr(-1), ValueError);
  CHECK_THROWS_AS(optimizer.set_lr(std::nan(""), 0), ValueError);
  CHECK_THROWS(optimizer.set_lr(0.1, 2));
  CHECK_THROWS_AS(AdamW({{{a}, {}}, {{a}, {}}}), ValueError);
}

TEST_CASE("a parameter listed twice, as tied weights are, takes one step") {
  Tensor x = parameter(1, 1);
  SGD optimizer({x, x}, {.lr = 0.1});
  CHECK(optimizer.parameters().size() == 1);
  optimizer.step();
  CHECK(number(x) == Approx(0.9));

  manual_seed(1);
  layers::Linear layer(3, 3, false);
  Tensor in = ones({1, 3});
  linear(layer(in), layer.weight).sum().backward();  // the same matrix twice: its gradients are added up
  CHECK(layer.weight.grad().defined());
  CHECK(layer.parameters().size() == 1);
}

TEST_CASE("optimizers refuse what they cannot train") {
  Tensor x = ones({2}).set_requires_grad();
  CHECK_THROWS_AS(SGD(Tensors{}), ValueError);
  CHECK_THROWS_WITH(Adam(Tensors{}), Contains("Adam") && Contains("no parameters"));
  CHECK_THROWS_AS(AdamW(std::vector<ParameterGroup<AdamWOptions>>{}), ValueError);
  CHECK_THROWS_AS(SGD(std::vector<ParameterGroup<SGDOptions>>{{{x}, {}}, {Tensors{}, {}}}), ValueError);
  CHECK_THROWS_AS(SGD({2 * x}), GraphError);
  CHECK_THROWS_WITH(SGD({2 * x}), Contains("mul") && Contains("leaves"));
  CHECK_THROWS_AS(SGD({Tensor()}), ValueError);
  CHECK_THROWS_AS(SGD({ones({2}, DType::i64)}), DTypeError);
  CHECK_THROWS_AS(SGD({ones({2, 3}).t()}), ValueError);
  CHECK_THROWS_AS(SGD({x}, {.lr = -1}), ValueError);
  CHECK_THROWS_AS(SGD({x}, {.lr = std::nan("")}), ValueError);
  CHECK_THROWS_AS(SGD({x}, {.momentum = -0.1}), ValueError);
  CHECK_THROWS_AS(SGD({x}, {.nesterov = true}), ValueError);
  CHECK_THROWS_AS(Adam({x}, {.betas = {0.9, 1.0}}), ValueError);
  CHECK_THROWS_AS(AdamW({x}, {.eps = -1}), ValueError);
  CHECK_THROWS_AS(AdamW({x}, {.weight_decay = -1}), ValueError);
}

TEST_CASE("many parameters step together, to the bit as each would alone, on any number of threads") {
  // Sizes around vectors and the chunks of threads; both dtypes; some take their first step later than others.
  const auto train = [](const std::string& name, bool together) {
    Tensors parameters;
    Generator generator(3);
    for (DType dtype : {DType::f32, DType::f64})
      for (int64_t size : {1, 0, 7, 16, 33, 8192, 1, 20001, 8191, 500})
        parameters.push_back(randn({size}, dtype, generator).set_requires_grad());
    std::vector<std::unique_ptr<Optimizer>> optimizers;
    const auto make = [&](const Tensors& list) -> std::unique_ptr<Optimizer> {
      if (name == "SGD") return std::make_unique<SGD>(list, SGDOptions{.lr = 0.1});
      if (name == "momentum") return std::make_unique<SGD>(list, SGDOptions{.lr = 0.1, .momentum = 0.9});
      if (name == "Adam") return std::make_unique<Adam>(list, AdamOptions{.lr = 0.1, .weight_decay = 0.1});
      if (name == "AdamW") return std::make_unique<AdamW>(list, AdamWOptions{.lr = 0.1});
      return std::make_unique<Lion>(list, LionOptions{.lr = 0.1, .weight_decay = 0.1});
    };
    if (together)
      optimizers.push_back(make(parameters));
    else
      for (const Tensor& parameter : parameters) optimizers.push_back(make({parameter}));
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < parameters.size(); ++i)
        if (step > 0 || i % 3 != 1)
          parameters[i].set_grad(randn(parameters[i].shape(), parameters[i].dtype(), generator));
      for (const auto& optimizer : optimizers) optimizer->step();
    }
    std::vector<Numbers> values;
    for (const Tensor& parameter : parameters) values.push_back(numbers(parameter));
    return values;
  };
  const int threads = num_threads();
  for (const char* name : {"SGD", "momentum", "Adam", "AdamW", "Lion"}) {
    INFO(name);
    set_num_threads(1);
    const std::vector<Numbers> alone = train(name, false), one_thread = train(name, true);
    set_num_threads(3);
    const std::vector<Numbers> three_threads = train(name, true);
    set_num_threads(threads);
    CHECK(one_thread == alone);
    CHECK(three_threads == alone);
  }
}

TEST_CASE("after a layer changed its dtype its optimizer says so, and changes nothing") {
  layers::Linear layer(3, 2), other(3, 2);
  AdamW optimizer({{{layer.weight}, {}}, {{other.weight}, {}}});
  auto backward_both = [&](DType dtype) {
    sum(layer(ones({1, 3}, dtype))).backward();
    sum(other(ones({1, 3}))).backward();
  };
  backward_both(DType::f32);
  optimizer.step();
  layer.to(DType::f64);
  optimizer.zero_grad();
  optimizer.step();  // nothing has a gradient
  backward_both(DType::f64);
  const Numbers before = numbers(other.weight);
  CHECK_THROWS_AS(optimizer.step(), DTypeError);
  CHECK_THROWS_WITH(optimizer.step(), Contains("AdamW") && Contains("f64") && Contains("f32") && Contains("to()"));
  CHECK(numbers(other.weight) == before);
  AdamW fresh({layer.weight});
  fresh.step();
}

TEST_CASE("an optimizer sees values assigned to a layer's parameters, and a moved layer") {
  layers::Linear layer(1, 1, false);
  SGD optimizer(layer.parameters(), {.lr = 1});
  layer.weight = full({1, 1}, 5.0);
  std::vector<layers::Linear> list;
  list.push_back(std::move(layer));
  for (int i = 0; i < 8; ++i) list.emplace_back(1, 1, false);  // the vector grows, and moves its layers
  sum(list[0](ones({1, 1}))).backward();
  optimizer.step();
  CHECK(list[0].weight.item<float>() == 4);
}

namespace {

/// A small regression, its optimizer and its schedule.
struct Training {
  explicit Training(uint64_t seed) {
    manual_seed(seed);
    weight = randn({4, 3}).set_requires_grad();
    bias = randn({3}).set_requires_grad();
    unused = ones({2}).set_requires_grad();
    optimizer = std::make_unique<AdamW>(std::vector<ParameterGroup<AdamWOptions>>{
        {{weight}, {.lr = 1e-3, .weight_decay = 0.1}}, {{bias, unused}, {.lr = 5e-4, .weight_decay = 0}}});
    schedule = std::make_unique<Cosine>(*optimizer, CosineOptions{.total_steps = 100});
  }
  void step(int64_t number) {
    Generator generator(static_cast<uint64_t>(number));
    Tensor x = randn({5, 4}, {}, generator), y = randn({5, 3}, {}, generator);
    optimizer->zero_grad();
    mse_loss(tanh(matmul(x, weight) + bias), y).backward();
    optimizer->step();
    schedule->step();
  }
  Tensor weight, bias, unused;
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<Cosine> schedule;
};

}  // namespace

TEST_CASE("training resumes to the bit, whichever of optimizer and schedule is loaded first") {
  Training whole(1), first(1);
  for (int64_t i = 0; i < 60; ++i) whole.step(i);
  for (int64_t i = 0; i < 45; ++i) first.step(i);
  CHECK(first.optimizer->lr() == Approx(5.782172e-4).epsilon(1e-6));
  for (bool optimizer_first : {true, false}) {
    Training second(99);
    {
      NoGrad no_grad;
      second.weight.copy_(first.weight);
      second.bias.copy_(first.bias);
    }
    if (optimizer_first) second.optimizer->load_state_dict(first.optimizer->state_dict());
    second.schedule->load_state_dict(first.schedule->state_dict());
    if (!optimizer_first) second.optimizer->load_state_dict(first.optimizer->state_dict());
    CAPTURE(optimizer_first);
    CHECK(second.schedule->current_step() == 45);
    CHECK(second.optimizer->lr(0) == first.optimizer->lr(0));
    CHECK(second.optimizer->lr(1) == first.optimizer->lr(1));
    CHECK(second.optimizer->lr(0) == Approx(5.782172e-4).epsilon(1e-6));
    for (int64_t i = 45; i < 60; ++i) second.step(i);
    CHECK(equal(second.weight, whole.weight));
    CHECK(equal(second.bias, whole.bias));
    CHECK(same(second.optimizer->state_dict(), whole.optimizer->state_dict()));
  }
}

TEST_CASE("loading an optimizer's state replaces it: twice is as once, and memory stays the same") {
  Training one(1), two(2);
  for (int64_t i = 0; i < 3; ++i) one.step(i);
  for (int64_t i = 0; i < 7; ++i) two.step(i);
  const StateDict state = one.optimizer->state_dict();
  two.optimizer->load_state_dict(state);
  CHECK(same(two.optimizer->state_dict(), state));
  const MemoryStats before = memory_stats();
  two.optimizer->load_state_dict(state);
  CHECK(same(two.optimizer->state_dict(), state));
  CHECK(memory_stats().bytes == before.bytes);
  CHECK(memory_stats().live_storages == before.live_storages);
  // The loaded state is a copy: training on does not reach into the dict.
  two.step(3);
  CHECK_FALSE(same(two.optimizer->state_dict(), state));
  CHECK(state.at("0.step").item<int64_t>() == 3);
  CHECK(same(one.optimizer->state_dict(), state));
  CHECK_FALSE(state.contains("2.exp_avg"));  // of the parameter that has taken no step
}

TEST_CASE("loading a state that does not fit is an error that names what, and changes nothing") {
  Training training(1);
  for (int64_t i = 0; i < 3; ++i) training.step(i);
  const StateDict good = training.optimizer->state_dict();
  auto refused = [&](const StateDict& state, const std::string& words) {
    CHECK_THROWS_AS(training.optimizer->load_state_dict(state), ValueError);
    CHECK_THROWS_WITH(training.optimizer->load_state_dict(state), Contains(words));
    CHECK(same(training.optimizer->state_dict(), good));
  };
  StateDict state = good;
  state.erase("1.step");
  refused(state, "'1.step' is missing");
  state = good;
  state["7.step"] = scalar_tensor(1);
  refused(state, "'7.step' is unexpected");
  state = good;
  state["0.exp_avg"] = zeros({3, 4});
  refused(state, "[3, 4]");
  state = good;
  state.erase("0.exp_avg");
  refused(state, "only 1 of the 2");
  state.erase("0.exp_avg_sq");
  refused(state, "'0.exp_avg' is missing");
  state = good;
  state["0.step"] = scalar_tensor(-1);
  refused(state, "-1");
  state = good;
  state["0.step"] = zeros({2}, DType::i64);
  refused(state, "single number");
  state = good;
  state["group.0.lr"] = scalar_tensor(std::nan(""));
  refused(state, "learning rates");
  state = good;
  state["0.exp_avg"] = Tensor();
  refused(state, "'0.exp_avg' is missing");
  refused({}, "missing");

  // Another optimizer's state, even where its names would do.
  Tensor x = parameter(1, 1);
  SGD plain({x});
  plain.step();
  Adam adam({x});
  CHECK_THROWS_AS(adam.load_state_dict(plain.state_dict()), ValueError);
  SGD momentum({x}, {.momentum = 0.9});
  CHECK_THROWS_AS(momentum.load_state_dict(plain.state_dict()), ValueError);
  SGD again({x});
  again.load_state_dict(plain.state_dict());
  CHECK(same(again.state_dict(), plain.state_dict()));
}

}  // namespace optim_test
