// Lion, Adafactor, Muon and MuonWithAdamW: formulas by hand, state, resuming, what they refuse.
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/norm.hpp>
#include <regard/layers/sequential.hpp>
#include <regard/optim/adafactor.hpp>
#include <regard/optim/lion.hpp>
#include <regard/optim/muon.hpp>
#include <regard/optim/schedule.hpp>

namespace optimizers_test {

using namespace regard;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<double>;

bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    auto found = b.find(name);
    if (found == b.end() || found->second.dtype() != tensor.dtype() || !equal(found->second, tensor)) return false;
  }
  return true;
}

Tensor numbers(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Generator generator(seed);
  return randn(shape, dtype, generator);
}

/// A model with matrices, an embedding, biases and norms.
struct Model : layers::Layer {
  layers::Embedding tokens{6, 4};
  layers::Linear hidden{4, 7};
  layers::LayerNorm norm{7};
  layers::Linear head{7, 6};
  Tensor operator()(const Tensor& ids) const { return head(norm(tanh(hidden(tokens(ids))))); }
  void members(layers::Members& m) override {
    m("tokens", tokens);
    m("hidden", hidden);
    m("norm", norm);
    m("head", head);
  }
};

const Tensor& ids() {
  static const Tensor list = from_vector<int64_t>({0, 1, 2, 3, 4, 5, 1, 3}, {8});
  return list;
}

using Maker = std::function<std::unique_ptr<Optimizer>(const Model&)>;
Tensors matrices_of(const Model& model) { return {model.hidden.weight, model.head.weight}; }

struct Case {
  const char* name;
  Maker make;
};
std::vector<Case> makers() {
  return {
      {"Lion",
       [](const Model& m) {
         return std::make_unique<Lion>(decay_groups(m, LionOptions{.lr = 0.01, .weight_decay = 0.1}));
       }},
      {"Adafactor", [](const Model& m) { return std::make_unique<Adafactor>(m.parameters(), 0.05); }},
      {"Muon", [](const Model& m) { return std::make_unique<Muon>(matrices_of(m), 0.02); }},
      {"MuonWithAdamW",
       [](const Model& m) {
         return std::make_unique<MuonWithAdamW>(
             m, MuonWithAdamWOptions{.muon = {.lr = 0.02}, .adamw = {.lr = 0.01}, .adamw_names = {"head"}});
       }},
  };
}

double step(const Model& model, Optimizer& optimizer) {
  optimizer.zero_grad();
  Tensor loss = cross_entropy(model(ids()), ids());
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

Model made(uint64_t seed) {
  manual_seed(seed);
  return Model();
}

}  // namespace

TEST_CASE("Lion by hand: the sign of the blend is the step, decay stands beside it") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tensor x = from_vector<double>({1, 1, 1, -2}, {4}).to(dtype).set_requires_grad();
    Lion optimizer({x}, {.lr = 0.1, .betas = {0.9, 0.5}, .weight_decay = 0.5});
    x.set_grad(from_vector<double>({4, -4, 0, 0.001}, {4}).to(dtype));
    optimizer.step();  // the first moment starts at 0
    const Numbers one = x.to_vector<double>(), expected = {0.95 - 0.1, 0.95 + 0.1, 0.95, -1.9 - 0.1};
    for (size_t i = 0; i < 4; ++i) CHECK(one[i] == Approx(expected[i]).epsilon(1e-6));
    // m is 2 now; 0.9 * 2 + 0.1 * -20 is below 0, 0.9 * 2 - 0.1 * 17 above.
    x.set_grad(from_vector<double>({-20, 17, 0, 0}, {4}).to(dtype));
    optimizer.step();
    const Numbers two = x.to_vector<double>();
    CHECK(two[0] == Approx(0.95 * 0.85 + 0.1).epsilon(1e-6));
    CHECK(two[1] == Approx(0.95 * 1.05 + 0.1).epsilon(1e-6));
    CHECK(two[2] == Approx(0.95 * 0.95).epsilon(1e-6));
  }
  // NaN is seen; an odd length runs through the vector's tail.
  Tensor x = ones({7}).set_requires_grad();
  x.set_grad(from_vector<float>({1, 1, 1, 1, 1, 1, NAN}, {7}));
  Lion({x}, 1).step();
  CHECK(x[5].item<float>() == 0);
  CHECK(std::isnan(x[6].item<float>()));
}

TEST_CASE("Muon: a step is close to orthogonal, whatever the gradient's scale and shape") {
  for (Shape shape : {Shape{4, 4}, Shape{3, 8}, Shape{8, 3}})
    for (double size : {1e-3, 1e3}) {
      Tensor x = zeros(shape, DType::f64).set_requires_grad();
      x.set_grad(numbers(shape, 3, DType::f64) * size);
      Muon({x}, {.lr = 1, .weight_decay = 0}).step();
      INFO(shape << " " << size);
      const double factor = std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
      Tensor u = x.detach() / factor;
      Tensor gram = shape[0] < shape[1] ? matmul(u, u.t()) : matmul(u.t(), u);
      // The iteration brings singular values into about [0.7, 1.2]: their squares' sum is near the rank.
      const double rank = static_cast<double>(std::min(shape[0], shape[1]));
      const double trace = sum(gram * eye(gram.size(0), DType::f64)).item<double>();
      CHECK(trace > 0.4 * rank);
      CHECK(trace < 1.5 * rank);
      // It goes downhill.
      CHECK(sum(x.detach() * x.grad()).item<double>() < 0);
    }
  Tensor x = zeros({2, 8}, DType::f64).set_requires_grad(), y = zeros({2, 8}, DType::f64).set_requires_grad();
  for (const Tensor& p : {x, y}) p.set_grad(numbers({2, 8}, 3, DType::f64));
  Muon({x}, {.lr = 1, .weight_decay = 0}).step();
  Muon({y}, {.lr = 1, .weight_decay = 0, .scale = MuonScale::match_rms_adamw}).step();
  CHECK(allclose(y.detach(), x.detach() * (0.2 * std::sqrt(8.0)), 1e-12, 0));
  // A gradient of zeros makes no step, and no NaN.
  Tensor still = ones({2, 2}).set_requires_grad();
  still.set_grad(zeros({2, 2}));
  Muon({still}, {.lr = 1, .weight_decay = 0}).step();
  CHECK(equal(still, ones({2, 2})));
}

TEST_CASE("Adafactor keeps a row and a column of a matrix's second moment") {
  Tensor matrix = ones({5, 3}).set_requires_grad(), stack = ones({2, 5, 3}).set_requires_grad(),
         vector = ones({4}).set_requires_grad(), number = ones({}).set_requires_grad();
  Adafactor optimizer({matrix, stack, vector, number});
  for (const Tensor& p : {matrix, stack, vector, number}) p.set_grad(full(p.shape(), 0.5));
  optimizer.step();
  const StateDict state = optimizer.state_dict();
  CHECK(state.at("0.row_var").shape() == Shape{5, 1});
  CHECK(state.at("0.col_var").shape() == Shape{1, 3});
  CHECK_FALSE(state.contains("0.variance"));
  CHECK(state.at("1.row_var").shape() == Shape{2, 5, 1});
  CHECK(state.at("1.col_var").shape() == Shape{2, 1, 3});
  CHECK(state.at("2.variance").shape() == Shape{4});
  CHECK(state.at("3.variance").shape() == Shape{});
  CHECK_FALSE(state.contains("2.row_var"));
  // A gradient of equal elements steps by lr times the parameter's size.
  CHECK(allclose(matrix.detach(), full({5, 3}, 0.99)));
  CHECK(vector[0].item<float>() == Approx(0.99));
}

TEST_CASE("new optimizers train, and resume to the bit, with a schedule") {
  for (const Case& each : makers()) {
    INFO(each.name);
    const Model whole = made(1), first = made(1);
    auto optimizer = each.make(whole), half = each.make(first);
    Cosine schedule(*optimizer, {.total_steps = 30}), half_schedule(*half, {.total_steps = 30});
    double loss = 0;
    const double at_first = step(whole, *optimizer);
    schedule.step();
    for (int i = 1; i < 20; ++i) {
      loss = step(whole, *optimizer);
      schedule.step();
    }
    CHECK(loss < 0.9 * at_first);
    for (int i = 0; i < 9; ++i) {
      step(first, *half);
      half_schedule.step();
    }
    const Model second = first;
    auto resumed = each.make(second);
    Cosine resumed_schedule(*resumed, {.total_steps = 30});
    resumed->load_state_dict(half->state_dict());
    resumed_schedule.load_state_dict(half_schedule.state_dict());
    CHECK(same(resumed->state_dict(), half->state_dict()));
    for (int i = 9; i < 20; ++i) {
      step(second, *resumed);
      resumed_schedule.step();
    }
    CHECK(same(resumed->state_dict(), optimizer->state_dict()));
    CHECK(same(second.state_dict(), whole.state_dict()));
  }
}

TEST_CASE("new optimizers: an undefined gradient is left alone; a state that does not fit changes nothing") {
  for (const Case& each : makers()) {
    INFO(each.name);
    const Model model = made(1);
    auto optimizer = each.make(model);
    const StateDict before = model.state_dict();
    StateDict copies;
    for (const auto& [name, tensor] : before) copies.emplace(name, tensor.clone());
    optimizer->step();
    CHECK(same(model.state_dict(), copies));
    step(model, *optimizer);
    const StateDict good = optimizer->state_dict();
    for (const auto& [name, tensor] : good) {
      StateDict wrong = good;
      wrong.erase(name);
      INFO(name);
      CHECK_THROWS_AS(optimizer->load_state_dict(wrong), ValueError);
      wrong = good;
      wrong[name] = zeros({3, 1, 2});
      CHECK_THROWS_AS(optimizer->load_state_dict(wrong), ValueError);
    }
    StateDict wrong = good;
    wrong["0.other"] = zeros({1});
    CHECK_THROWS_WITH(optimizer->load_state_dict(wrong), Contains("'0.other' is unexpected"));
    CHECK(same(optimizer->state_dict(), good));
  }
}

TEST_CASE("MuonWithAdamW: matrices by Muon, embeddings, vectors and named matrices by AdamW, in one state") {
  Model model = made(1), alone = model;
  MuonWithAdamW optimizer(model,
                          {.muon = {.lr = 0.02}, .adamw = {.lr = 0.01, .weight_decay = 0.1}, .adamw_names = {"head"}});
  REQUIRE(optimizer.group_count() == 3);
  CHECK(optimizer.parameters(0).size() == 1);
  CHECK(optimizer.parameters(0)[0].impl() == model.hidden.weight.tensor().impl());
  CHECK(optimizer.parameters(1).size() == 1);
  CHECK(optimizer.parameters(1)[0].impl() == model.head.weight.tensor().impl());
  CHECK(optimizer.parameters(2).size() == 5);
  CHECK(optimizer.lr(0) == 0.02);
  CHECK(optimizer.lr(1) == 0.01);
  // The same as the two optimizers side by side.
  Muon muon({alone.hidden.weight}, 0.02);
  AdamW adamw({{{alone.head.weight}, {.lr = 0.01, .weight_decay = 0.1}},
               {{alone.tokens.weight, alone.hidden.bias, alone.norm.weight, alone.norm.bias, alone.head.bias},
                {.lr = 0.01, .weight_decay = 0}}});
  for (int i = 0; i < 4; ++i) {
    step(model, optimizer);
    alone.zero_grad();
    cross_entropy(alone(ids()), ids()).backward();
    muon.step();
    adamw.step();
  }
  CHECK(same(model.state_dict(), alone.state_dict()));
  const StateDict state = optimizer.state_dict();
  CHECK(state.contains("0.momentum_buffer"));
  CHECK_FALSE(state.contains("0.exp_avg"));
  CHECK(state.contains("1.exp_avg_sq"));
  CHECK_FALSE(state.contains("1.momentum_buffer"));
  CHECK_THROWS_WITH(MuonWithAdamW(model, {.adamw_names = {"heads"}}), Contains("'heads'"));
}

TEST_CASE("new optimizers refuse what they cannot train") {
  Tensor x = ones({2}).set_requires_grad(), matrix = ones({2, 2}).set_requires_grad();
  CHECK_THROWS_AS(Muon({matrix, x}), ShapeError);
  CHECK_THROWS_WITH(Muon({matrix, x}), Contains("Muon: parameter 1 of shape [2] is no matrix") && Contains("AdamW"));
  CHECK_THROWS_AS(MuonWithAdamW({{{x}, {}}}, {}), ShapeError);
  CHECK_THROWS_AS(MuonWithAdamW({{{matrix}, {}}}, {{{matrix}, {}}}), ValueError);
  CHECK_THROWS_AS(MuonWithAdamW(std::vector<ParameterGroup<MuonOptions>>{}, {}), ValueError);
  CHECK_THROWS_AS(Muon({matrix}, {.momentum = 1}), ValueError);
  CHECK_THROWS_AS(Muon({matrix}, {.weight_decay = -1}), ValueError);
  CHECK_THROWS_AS(Muon({matrix}, {.iterations = 0}), ValueError);
  CHECK_THROWS_AS(Muon({matrix}, -1), ValueError);
  CHECK_THROWS_AS(Lion({x}, {.betas = {1, 0.9}}), ValueError);
  CHECK_THROWS_AS(Lion({x}, {.weight_decay = -1}), ValueError);
  CHECK_THROWS_AS(Lion(Tensors{}), ValueError);
  CHECK_THROWS_AS(Adafactor({x}, {.beta2_decay = 0.5}), ValueError);
  CHECK_THROWS_AS(Adafactor({x}, {.d = 0.5}), ValueError);
  CHECK_THROWS_AS(Adafactor({x}, {.eps1 = -1}), ValueError);
  CHECK_THROWS_AS(Adafactor({2 * x}), GraphError);
}

}  // namespace optimizers_test
