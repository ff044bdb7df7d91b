// Tied weights: one parameter in two places is counted, saved, clipped, stepped and averaged once.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/regard.hpp>

namespace tied_test {

using namespace regard;
using namespace regard::layers;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

/// A language model whose table of tokens is its output matrix too; `listed_twice` names it in two places.
struct Tied : Layer {
  Embedding tokens{6, 4};
  TransformerEncoderLayer block{4, 2, {.hidden = 6}};
  bool listed_twice;
  explicit Tied(bool twice = false) : listed_twice(twice) {}
  Tensor operator()(const Tensor& ids) const { return linear(block(tokens(ids)), tokens.weight); }
  void members(Members& m) override {
    m("tokens", tokens);
    m("block", block);
    if (listed_twice) m("output", tokens.weight);
  }
};

/// The same with a matrix of its own for the output.
struct Untied : Layer {
  Embedding tokens{6, 4};
  TransformerEncoderLayer block{4, 2, {.hidden = 6}};
  Parameter output;
  explicit Untied(const Tied& tied) : tokens(tied.tokens), block(tied.block), output(tied.tokens.weight) {}
  Tensor operator()(const Tensor& ids) const { return linear(block(tokens(ids)), output); }
  void members(Members& m) override {
    m("tokens", tokens);
    m("block", block);
    m("output", output);
  }
};

const Tensor& ids() {
  static const Tensor list = from_vector<int64_t>({0, 1, 2, 3, 4, 5, 1, 3}, {2, 4});
  return list;
}
Tensor loss_of(const auto& model) { return cross_entropy(model(ids()).reshape({8, 6}), ids().reshape({8})); }
Tied made(bool twice = false) {
  manual_seed(2);
  return Tied(twice);
}
constexpr int64_t kBlock = 4 * (4 * 4 + 4) + (4 * 6 + 6) + (6 * 4 + 4) + 2 * 8;

}  // namespace

TEST_CASE("tied weights are counted, listed and saved once, under the first name") {
  for (bool twice : {false, true}) {
    Tied model = made(twice);
    CHECK(model.parameter_count() == 6 * 4 + kBlock);
    CHECK(model.parameters().size() == 17);
    const StateDict state = model.state_dict();
    CHECK(state.size() == 17);
    CHECK(state.contains("tokens.weight"));
    CHECK_FALSE(state.contains("output"));
    const auto path = std::filesystem::temp_directory_path() / "regard_tied_test.safetensors";
    save_safetensors(path, state);
    Tied other(twice);
    CHECK_FALSE(equal(other.tokens.weight, model.tokens.weight));
    CHECK(other.load_state_dict(load_safetensors(path)).complete());
    std::filesystem::remove(path);
    CHECK(equal(other(ids()), model(ids())));
    // A copy is tied in itself.
    Tied copy = model;
    copy.tokens.weight.tensor().detach().fill_(0);
    CHECK(equal(copy(ids()), zeros({2, 4, 6})));
    CHECK_FALSE(equal(model(ids()), zeros({2, 4, 6})));
  }
}

TEST_CASE("tied weights: the gradient is the sum of both places', and clipped once") {
  Tied tied = made();
  tied.to(DType::f64);
  Untied untied(tied);
  loss_of(tied).backward();
  loss_of(untied).backward();
  CHECK(allclose(tied.tokens.weight.grad(), untied.tokens.weight.grad() + untied.output.grad(), 1e-12, 1e-15));
  double squares = 0;
  for (const Tensor& p : tied.parameters()) squares += sum(square(p.grad())).item<double>();
  Tensors twice = tied.parameters();
  twice.push_back(tied.tokens.weight);
  const Tensor before = tied.tokens.weight.grad().clone();
  CHECK(clip_grad_norm(twice, 0.1) == Approx(std::sqrt(squares)).epsilon(1e-12));
  CHECK(allclose(tied.tokens.weight.grad(), before * (0.1 / (std::sqrt(squares) + 1e-6)), 1e-12, 0));
  REQUIRE_THAT(made(), passes_gradcheck({ids()}));
}

TEST_CASE("tied weights: every optimizer steps them once, and keeps one state") {
  using Make = std::function<std::unique_ptr<Optimizer>(const Tensors&, const Layer&)>;
  const std::vector<std::pair<std::string, Make>> optimizers = {
      {"SGD",
       [](const Tensors& p, const Layer&) {
         return std::make_unique<SGD>(p, SGDOptions{0.1, 0.9});
       }},
      {"AdamW", [](const Tensors& p, const Layer&) { return std::make_unique<AdamW>(p, 0.1); }},
      {"Lion", [](const Tensors& p, const Layer&) { return std::make_unique<Lion>(p, 0.1); }},
      {"Adafactor", [](const Tensors& p, const Layer&) { return std::make_unique<Adafactor>(p, 0.1); }},
      {"MuonWithAdamW", [](const Tensors&, const Layer& m) { return std::make_unique<MuonWithAdamW>(m); }},
      {"by groups",
       [](const Tensors&, const Layer& m) { return std::make_unique<AdamW>(decay_groups(m, AdamWOptions{})); }}};
  for (const auto& [name, make] : optimizers) {
    INFO(name);
    Tied once = made(false), twice = made(true);
    Tensors list = twice.parameters();
    list.push_back(twice.tokens.weight);  // as who lists layers' parameters by hand may do
    auto one = make(once.parameters(), once), other = make(list, twice);
    for (int i = 0; i < 3; ++i) {
      for (auto [model, optimizer] : {std::pair{&once, one.get()}, {&twice, other.get()}}) {
        optimizer->zero_grad();
        loss_of(*model).backward();
        optimizer->step();
      }
    }
    CHECK(equal(once.tokens.weight, twice.tokens.weight));
    CHECK(equal(once(ids()), twice(ids())));
    const StateDict a = one->state_dict(), b = other->state_dict();
    REQUIRE(a.size() == b.size());
    for (const auto& [key, tensor] : a) {
      INFO(key);
      CHECK(equal(tensor, b.at(key)));
    }
    // It resumes.
    Tied resumed = twice;
    auto third = make(resumed.parameters(), resumed);
    third->load_state_dict(b);
    for (auto [model, optimizer] : {std::pair{&resumed, third.get()}, {&twice, other.get()}}) {
      optimizer->zero_grad();
      loss_of(*model).backward();
      optimizer->step();
    }
    CHECK(equal(resumed.tokens.weight, twice.tokens.weight));
  }
}

TEST_CASE("tied weights: averaged once, and applied in both places") {
  Tied model = made(true);
  ExponentialMovingAverage ema(model, {.decay = 0.5});
  CHECK(ema.averages().size() == 17);
  const Tensor first = model.tokens.weight.detach().clone();
  model.tokens.weight.tensor().detach().mul_(3);
  ema.update();
  CHECK(allclose(ema.averages().at("tokens.weight"), first * 2.0));
  const Tensor own = model.tokens.weight.detach().clone();
  Tied expected = made(true);
  expected.tokens.weight.tensor().detach().copy_(first * 2.0);
  {
    auto applied = ema.apply();
    CHECK(allclose(model(ids()), expected(ids()), 1e-5, 1e-6));
  }
  CHECK(equal(model.tokens.weight, own));
}

TEST_CASE("tied weights: with LoRA beside them, and with recomputed blocks") {
  Tied model = made(true), plain = model;
  const Tensors adapters = add_lora(model, {.rank = 2});
  CHECK(adapters.size() == 2 * 6);
  CHECK_FALSE(model.tokens.weight.requires_grad());
  loss_of(model).backward();
  CHECK_FALSE(model.tokens.weight.grad().defined());
  for (const Tensor& p : adapters) CHECK(p.grad().defined());
  merge_lora(model);
  CHECK(allclose(model(ids()), plain(ids()), 1e-5, 1e-6));
  CHECK(model.state_dict().size() == 17);

  // The head inside of a recomputed part: its matrix is listed among the parameters.
  Tied again = plain;
  loss_of(plain).backward();
  auto part = [&again](const Tensors& in) { return linear(again.block(in[0]), again.tokens.weight); };
  Tensors used = again.block.parameters();
  used.push_back(again.tokens.weight);
  Tensor logits = checkpoint(part, {again.tokens(ids())}, used);
  cross_entropy(logits.reshape({8, 6}), ids().reshape({8})).backward();
  const auto expected = plain.named_parameters(), got = again.named_parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    INFO(got[i].first);
    CHECK(equal(expected[i].second.grad(), got[i].second.grad()));
  }
  Tensor lost = checkpoint(part, {again.tokens(ids())}, again.block.parameters());
  CHECK_THROWS_WITH(sum(lost).backward(), Contains("[6, 4]") && Contains("among the parameters"));
}

}  // namespace tied_test
