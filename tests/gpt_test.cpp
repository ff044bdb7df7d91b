// GPT: its shapes, weights, gradients, its cached call, and what it says about wrong calls.
#include <catch2/catch.hpp>

#include <cmath>
#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/layers/models/gpt.hpp>
#include <regard/regard.hpp>

namespace gpt_test {

using namespace regard;
using layers::GPT;
using layers::GPTOptions;
using layers::PositionKind;

namespace {

GPTOptions tiny(PositionKind positions = PositionKind::learned) {
  return {.vocabulary = 7, .context = 6, .width = 8, .heads = 2, .layers = 2, .positions = positions};
}

Tensor some_ids(const Shape& shape, uint64_t seed = 3) {
  Generator generator(seed);
  return randint(0, 7, shape, DType::i64, generator);
}

// Weights large enough that the model's answers differ.
void stir(GPT& model, uint64_t seed = 9) {
  Generator generator(seed);
  NoGrad no_grad;
  for (const Tensor& p : model.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.3);
}

struct Variant {
  const char* name;
  GPTOptions options;
};

std::vector<Variant> variants() {
  GPTOptions grouped = tiny(PositionKind::rotary);
  grouped.heads = 4;
  grouped.key_value_heads = 2;
  grouped.bias = false;
  grouped.tied = false;
  return {{"learned", tiny()},
          {"rotary", tiny(PositionKind::rotary)},
          {"alibi", tiny(PositionKind::alibi)},
          {"grouped, rotary, no bias, untied", grouped}};
}

}  // namespace

TEST_CASE("GPT: parameters are those of GPT-2's count, and start as GPT-2's") {
  manual_seed(1);
  GPT model({.vocabulary = 50257, .context = 1024, .width = 96, .heads = 4, .layers = 8});
  const int64_t width = 96, block = 12 * width * width + 13 * width;
  CHECK(model.parameter_count() == 50257 * width + 1024 * width + 8 * block + 2 * width);
  for (const auto& [name, parameter] : model.named_parameters()) {
    INFO(name);
    const bool residual = name.ends_with("attention.output.weight") || name.ends_with("feed_forward.down.weight");
    if (name.ends_with("bias")) {
      CHECK(allclose(parameter, zeros_like(parameter)));
    } else if (parameter.dim() == 1) {
      CHECK(allclose(parameter, ones_like(parameter)));
    } else {
      const double wanted = residual ? 0.02 / 4 : 0.02;
      CHECK(std::sqrt(parameter.detach().var().item<double>()) == Approx(wanted).epsilon(0.05));
      CHECK(std::abs(parameter.detach().mean().item<double>()) < 0.1 * wanted);
    }
  }
}

TEST_CASE("GPT: a tied head is one parameter in two places") {
  manual_seed(2);
  GPT tied(tiny());
  GPTOptions options = tiny();
  options.tied = false;
  GPT untied(options);
  CHECK(untied.parameter_count() - tied.parameter_count() == 7 * 8);
  CHECK_FALSE(tied.state_dict().contains("head.weight"));
  CHECK(untied.state_dict().contains("head.weight"));

  // An id that is not read still gets a gradient: through the head alone.
  const Tensor ids = from_vector<int64_t>({1, 2, 3}, {1, 3}), targets = from_vector<int64_t>({2, 3, 4}, {1, 3});
  tied.loss(ids, targets).backward();
  CHECK(tied.tokens.weight.grad()[6].norm().item<double>() > 0);
  untied.loss(ids, targets).backward();
  CHECK(untied.tokens.weight.grad()[6].norm().item<double>() == 0);

  // Stepped once: the first step of AdamW moves every element by lr.
  tied.zero_grad();
  tied.loss(ids, targets).backward();
  const Tensor before = tied.tokens.weight.tensor().detach().clone();
  optim::AdamW(tied.parameters(), {.lr = 1e-3, .weight_decay = 0}).step();
  CHECK((tied.tokens.weight.tensor().detach() - before).abs().max().item<double>() == Approx(1e-3).epsilon(1e-2));
}

TEST_CASE("GPT: gradients of every parameter, in each variant") {
  for (const Variant& variant : variants()) {
    INFO(variant.name);
    manual_seed(4);
    GPT model(variant.options);
    stir(model);
    const Tensor ids = some_ids({2, 4}), targets = some_ids({2, 4}, 5);
    const auto loss = [&](GPT& m, const Tensors& in) { return m.loss(in[0], targets); };
    const GradcheckReport report = gradcheck(model, {ids}, loss, {.fast = true});
    CAPTURE(report);
    CHECK(report.passed());
  }
}

TEST_CASE("GPT: dropout is where GPT-2 has it") {
  GPTOptions options = tiny();
  options.dropout = 0.25;
  const GPT model(options);
  CHECK(model.drop.p == 0.25);
  for (const auto& block : model.blocks) {
    CHECK(block.attention.dropout == 0.25);
    CHECK(block.drop.p == 0.25);
    CHECK(block.feed_forward.drop.p == 0);  // a branch drops what it gives, nothing inside
  }
}

TEST_CASE("GPT: blocks that are computed again in backward change no bit, dropout included") {
  for (Variant variant : variants()) {
    INFO(variant.name);
    variant.options.dropout = 0.2;
    manual_seed(14);
    GPT plain(variant.options);
    variant.options.recompute = true;
    GPT recomputed(variant.options);
    recomputed.load_state_dict(plain.state_dict());
    const Tensor ids = some_ids({2, 5}), targets = some_ids({2, 5}, 6);
    manual_seed(15);
    const Tensor a = plain.loss(ids, targets);
    manual_seed(15);
    const Tensor b = recomputed.loss(ids, targets);
    CHECK(equal(a, b));
    a.backward();
    b.backward();
    const auto theirs = recomputed.named_parameters();
    for (size_t i = 0; const auto& [name, parameter] : plain.named_parameters()) {
      INFO(name);
      CHECK(equal(parameter.grad(), theirs[i++].second.grad()));
    }
  }
}

TEST_CASE("GPT: a token's scores depend on no later token, and on every earlier one") {
  for (const Variant& variant : variants()) {
    INFO(variant.name);
    manual_seed(5);
    GPT model(variant.options);
    stir(model);
    model.eval();
    NoGrad no_grad;
    Tensor ids = from_vector<int64_t>({1, 2, 3, 4, 5}, {1, 5}), other = from_vector<int64_t>({1, 2, 6, 4, 5}, {1, 5});
    const Tensor a = model(ids), b = model(other);
    CHECK(a.shape() == Shape{1, 5, 7});
    CHECK(equal(a.slice(1, 0, 2), b.slice(1, 0, 2)));
    for (int64_t t = 2; t < 5; ++t) CHECK((a.select(1, t) - b.select(1, t)).abs().max().item<double>() > 1e-4);
    // Order matters: positions are told apart.
    const Tensor swapped = model(from_vector<int64_t>({2, 1, 3, 4, 5}, {1, 5}));
    CHECK((a.select(1, 4) - swapped.select(1, 4)).abs().max().item<double>() > 1e-5);
    // Without a batch: the same.
    CHECK(allclose(model(ids.squeeze(0)), a.squeeze(0), 1e-6, 1e-6));
  }
}

TEST_CASE("GPT: cached scores equal those of the whole sequence to 1e-5, whatever the pieces") {
  for (const Variant& variant : variants()) {
    for (DType dtype : {DType::f32, DType::f64}) {
      INFO(variant.name << ", " << dtype);
      manual_seed(6);
      GPT model(variant.options);
      stir(model);
      model.to(dtype);
      model.eval();
      NoGrad no_grad;
      const Tensor ids = some_ids({3, 6});
      const Tensor whole = model(ids);
      const double largest = whole.abs().max().item<double>();
      for (const std::vector<int64_t>& pieces :
           std::vector<std::vector<int64_t>>{{1, 1, 1, 1, 1, 1}, {4, 1, 1}, {2, 3, 1}, {6}}) {
        std::vector<layers::KeyValueCache> caches = model.caches();
        Tensors scores;
        int64_t begin = 0;
        for (int64_t piece : pieces) {
          scores.push_back(model(ids.slice(1, begin, begin + piece), caches));
          begin += piece;
        }
        CHECK(caches.front().length == 6);
        const double difference = (cat(scores, 1) - whole).abs().max().item<double>();
        CHECK(difference <= (dtype == DType::f32 ? 1e-5 : 1e-12) * largest);
      }
    }
  }
}

TEST_CASE("GPT: what it refuses, and in which words") {
  using Catch::Contains;
  manual_seed(7);
  GPT model(tiny());
  CHECK_THROWS_WITH(model(some_ids({2, 7})), Contains("7 tokens is longer than the 6 positions"));
  CHECK_THROWS_AS(model(some_ids({2, 7})), ShapeError);
  CHECK_THROWS_AS(model(from_vector<int64_t>({1, 7})), IndexError);
  CHECK_THROWS_AS(model(from_vector<int64_t>({1, -1})), IndexError);
  CHECK_THROWS_AS(model(zeros({1, 3})), DTypeError);
  CHECK_THROWS_AS(model(some_ids({1, 2, 3})), ShapeError);
  CHECK_THROWS_AS(model(Tensor()), Error);
  // Rotary and ALiBi models have no table to run out of.
  CHECK(GPT(tiny(PositionKind::rotary))(some_ids({1, 9})).shape() == Shape{1, 9, 7});
  CHECK(GPT(tiny(PositionKind::alibi))(some_ids({1, 9})).shape() == Shape{1, 9, 7});
  {
    NoGrad no_grad;
    std::vector<layers::KeyValueCache> caches = model.caches();
    model(some_ids({1, 4}), caches);
    CHECK_THROWS_WITH(model(some_ids({1, 3}), caches), Contains("behind 4 tokens") && Contains("7 tokens"));
    CHECK(caches.front().length == 4);
    std::vector<layers::KeyValueCache> too_few(1);
    CHECK_THROWS_WITH(model(some_ids({1, 3}), too_few), Contains("1 caches for 2 blocks"));

    // The second block refuses: the first one has read nothing either.
    std::vector<layers::KeyValueCache> mixed = model.caches(), of_two = model.caches();
    model(some_ids({1, 2}), mixed);
    model(some_ids({2, 2}), of_two);
    const layers::KeyValueCache right = mixed[1];
    mixed[1] = of_two[1];
    CHECK_THROWS_AS(model(some_ids({1, 3}), mixed), ShapeError);
    CHECK(mixed[0].length == 2);
    CHECK(mixed[1].length == 2);
    mixed[1] = right;
    const Tensor ids = cat({some_ids({1, 2}), some_ids({1, 3})}, 1);
    CHECK(allclose(model(some_ids({1, 3}), mixed), model(ids).slice(1, 2), 1e-5, 1e-6));
    mixed[1].truncate(1);
    CHECK_THROWS_WITH(model(some_ids({1, 1}), mixed), Contains("the caches hold 5 tokens and 1"));
  }
  const auto with = [](auto change) {
    GPTOptions options = tiny();
    change(options);
    return options;
  };
  CHECK_THROWS_WITH(GPT(GPTOptions{}), Contains("vocabulary"));
  CHECK_THROWS_WITH(GPT(with([](GPTOptions& o) { o.context = 0; })), Contains("context"));
  CHECK_THROWS_WITH(GPT(with([](GPTOptions& o) { o.heads = 3; })), Contains("divisible"));
  CHECK_THROWS_WITH(GPT(with([](GPTOptions& o) { o.layers = 0; })), Contains("layers"));
  CHECK_THROWS_AS(GPT(with([](GPTOptions& o) { o.dropout = 2; })), ValueError);
  CHECK_THROWS_AS(GPT(with([](GPTOptions& o) { o.key_value_heads = 3; })), ValueError);
}

TEST_CASE("GPT: a copy is a model of its own, with the same answers") {
  manual_seed(8);
  GPT model(tiny());
  stir(model);
  model.eval();
  NoGrad no_grad;
  const Tensor ids = some_ids({2, 5});
  const Tensor before = model(ids);
  GPT copy = model;
  CHECK(equal(copy(ids), before));
  stir(copy);
  CHECK(equal(model(ids), before));
  copy = model;
  CHECK(equal(copy(ids), before));
}

}  // namespace gpt_test
