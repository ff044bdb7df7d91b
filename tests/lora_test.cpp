// LoRA: adapters inside Linear layers.
#include <catch2/catch.hpp>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/checkpoint.hpp>
#include <regard/layers/gradcheck.hpp>
#include <regard/layers/lora.hpp>
#include <regard/layers/sequential.hpp>
#include <regard/layers/transformer.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/sgd.hpp>

namespace lora_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

struct Model : Layer {
  std::vector<TransformerEncoderLayer> blocks;
  Linear head{8, 3};
  Model() {
    blocks.emplace_back(8, 2, TransformerLayerOptions{.hidden = 12});
    blocks.emplace_back(8, 2, TransformerLayerOptions{.hidden = 12});
  }
  Tensor operator()(const Tensor& x) const {
    Tensor h = x;
    for (const auto& block : blocks) h = block(h);
    return head(h);
  }
  void members(Members& m) override {
    m("blocks", blocks);
    m("head", head);
  }
};

Tensor numbers(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Generator generator(seed);
  return randn(shape, dtype, generator);
}

Model made(uint64_t seed) {
  manual_seed(seed);
  return Model();
}

void train(const Model& model, const Tensors& parameters, int steps) {
  optim::AdamW optimizer(parameters, 0.02);
  const Tensor x = numbers({2, 4, 8}, 50), y = numbers({2, 4, 3}, 51);
  for (int i = 0; i < steps; ++i) {
    model.zero_grad();
    mse_loss(model(x), y).backward();
    optimizer.step();
  }
}

std::vector<std::string> names_of(const StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) names.push_back(name);
  return names;
}

double distance(const Tensor& a, const Tensor& b) { return max(abs(a.detach() - b.detach())).item<double>(); }

}  // namespace

TEST_CASE("LoRA: y = W x + b + alpha / rank B A x, by hand") {
  Linear layer(2, 3);
  layer.weight = from_vector<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  layer.bias = from_vector<float>({0.5, 0, -1}, {3});
  add_lora(layer, {.rank = 1, .alpha = 3});
  layer.lora->a = from_vector<float>({1, -2}, {1, 2});
  layer.lora->b = from_vector<float>({2, 0, -1}, {3, 1});
  const Tensor y = layer(from_vector<float>({1, 3}, {1, 2}));  // a x = -5, times 3: -15
  CHECK(y.to_vector<double>() == std::vector<double>{7.5 - 30, 15, 22 + 15});
  CHECK(layer.lora->weight_change().to_vector<double>() == std::vector<double>{6, -12, 0, 0, -3, 6});
}

TEST_CASE("LoRA: new adapters change nothing; then they alone are trained") {
  const Model plain = made(1);
  Model model = plain;
  const Tensor x = numbers({2, 4, 8}, 2);
  const Tensors adapters = add_lora(model, {.rank = 2, .alpha = 4});
  CHECK(equal(model(x), plain(x)));
  const size_t linears = 2 * 6 + 1;
  CHECK(adapters.size() == 2 * linears);
  CHECK(lora_parameters(model).size() == 2 * linears);
  CHECK(lora_parameters(model)[0].first == "blocks.0.attention.query.lora.a");
  int64_t trained = 0;
  for (const auto& [name, p] : model.named_parameters()) {
    INFO(name);
    CHECK(p.requires_grad() == (name.find(".lora.") != std::string::npos));
    if (p.requires_grad()) trained += p.numel();
  }
  CHECK(trained == 2 * 2 * (4 * (8 + 8) + 2 * (8 + 12)) + 2 * (8 + 3));
  CHECK(model.parameter_count() == plain.parameter_count() + trained);

  train(model, adapters, 5);
  CHECK(distance(model(x), plain(x)) > 1e-3);
  const auto before = plain.named_parameters();
  StateDict after = model.state_dict();
  for (const auto& [name, p] : before) {
    INFO(name);
    CHECK(equal(after.at(name), p));
  }
  for (const auto& [name, p] : lora_parameters(model)) {
    INFO(name);
    CHECK(p.grad().defined());
  }
}

TEST_CASE("LoRA: merging gives a plain model with the same output; removing gives the former one") {
  const Model plain = made(1);
  Model model = plain;
  const Tensor x = numbers({2, 4, 8}, 2);
  train(model, add_lora(model, {.rank = 3, .alpha = 6}), 10);
  Model removed = model;
  const Tensor expected = model(x);
  REQUIRE(distance(expected, plain(x)) > 1e-2);
  merge_lora(model);
  CHECK(distance(model(x), expected) < 1e-6 * (1 + max(abs(expected)).item<double>()));
  CHECK(names_of(model.state_dict()) == names_of(plain.state_dict()));
  CHECK(lora_parameters(model).empty());
  CHECK_FALSE(model.head.weight.requires_grad());
  model.set_requires_grad(true);
  train(model, model.parameters(), 1);
  CHECK_THROWS_WITH(merge_lora(model), Contains("merge_lora") && Contains("no adapters"));
  remove_lora(removed);
  CHECK(equal(removed(x), plain(x)));
  CHECK_THROWS_AS(remove_lora(removed), ValueError);

  // In f64 the difference is that of f64.
  Model wide = plain;
  wide.to(DType::f64);
  for (const Tensor& p : add_lora(wide, {.rank = 2})) {
    CHECK(p.dtype() == DType::f64);
    NoGrad no_grad;
    p.copy_(numbers(p.shape(), 9, DType::f64));
  }
  const Tensor before = wide(x.to(DType::f64));
  merge_lora(wide);
  CHECK(distance(wide(x.to(DType::f64)), before) < 1e-12 * (1 + max(abs(before)).item<double>()));
}

TEST_CASE("LoRA: adapters where patterns say, in any container") {
  Model model = made(1);
  CHECK(add_lora(model, {.rank = 2, .names = {"query", "value"}}).size() == 2 * 4);
  CHECK(model.blocks[1].attention.query.lora);
  CHECK_FALSE(model.blocks[1].attention.key.lora);
  CHECK_FALSE(model.head.lora);
  CHECK(add_lora(model, {.rank = 2, .names = {"head"}}).size() == 2 * 5);  // all that there are now
  CHECK(model.blocks[0].attention.query.lora->a.requires_grad() == true);

  Sequential sequence(Linear(4, 4), Linear(4, 2, false));
  CHECK(add_lora(sequence, {.names = {"1"}}).size() == 2);
  CHECK(lora_parameters(sequence)[0].first == "1.lora.a");
  Linear alone(4, 2);
  CHECK(add_lora(alone).size() == 2);
  CHECK(lora_parameters(alone)[1].first == "lora.b");
  // A part of a model that was walked before: paths count from the part.
  Model whole = made(1);
  whole.parameters();
  CHECK(add_lora(whole.blocks[1], {.names = {"attention.*"}}).size() == 8);
  CHECK(lora_parameters(whole.blocks[1])[0].first == "attention.query.lora.a");
  CHECK(lora_parameters(whole)[0].first == "blocks.1.attention.query.lora.a");
}

TEST_CASE("LoRA: what cannot be is an error, and nothing is changed") {
  Model model = made(1);
  auto refused = [&](const LoraOptions& options, const std::string& words) {
    CHECK_THROWS_AS(add_lora(model, options), ValueError);
    CHECK_THROWS_WITH(add_lora(model, options), Contains(words));
    CHECK(lora_parameters(model).empty());
    for (const Tensor& p : model.parameters()) CHECK(p.requires_grad());
  };
  refused({.names = {"query", "queries"}}, "'queries' names no Linear layer; there are blocks.0.attention.query");
  refused({.names = {}}, "no names");
  refused({.rank = 0}, "rank 0");
  refused({.alpha = 0}, "alpha 0");
  refused({.dropout = 1.5}, "1.5");
  ReLU none;
  CHECK_THROWS_WITH(add_lora(none), Contains("no Linear"));
  add_lora(model, {.names = {"head"}});
  CHECK_THROWS_WITH(add_lora(model), Contains("'head' has an adapter already"));
  CHECK(lora_parameters(model).size() == 2);
}

TEST_CASE("LoRA: gradients, through dropout and recomputation too") {
  manual_seed(1);
  Linear layer(4, 3);
  add_lora(layer, {.rank = 2, .alpha = 3});
  {
    NoGrad no_grad;
    layer.lora->b.tensor().copy_(numbers({3, 2}, 4));
  }
  const Tensor x = numbers({2, 4}, 3, DType::f64);
  REQUIRE_THAT(layer, passes_gradcheck({x}));  // the frozen weight is left out
  layer.set_requires_grad(true);
  REQUIRE_THAT(layer, passes_gradcheck({x}));
  REQUIRE_THAT(layer, passes_gradgradcheck({x}));

  Linear dropping(4, 3);
  add_lora(dropping, {.rank = 2, .alpha = 3, .dropout = 0.5});
  {
    NoGrad no_grad;
    dropping.lora->b.tensor().copy_(numbers({3, 2}, 4));
  }
  const Tensor in = numbers({5, 4}, 6);
  manual_seed(1);
  const Tensor one = dropping(in);
  manual_seed(2);
  CHECK_FALSE(equal(dropping(in), one));
  manual_seed(1);
  Tensor again = checkpoint(dropping, in);
  CHECK(equal(again, one));
  sum(square(one)).backward();
  const Tensor expected = dropping.lora->a.grad();
  dropping.zero_grad();
  sum(square(again)).backward();
  CHECK(equal(dropping.lora->a.grad(), expected));
  dropping.eval();
  const Tensor plain = dropping(in);
  CHECK(equal(dropping(in), plain));
  merge_lora(dropping);
  CHECK(distance(dropping(in), plain) < 1e-6);
}

TEST_CASE("LoRA: adapters are saved and loaded by themselves") {
  const Model plain = made(1);
  Model model = plain;
  const Tensor x = numbers({2, 4, 8}, 2);
  train(model, add_lora(model, {.rank = 3, .alpha = 5, .names = {"attention.*", "head"}}), 3);
  const auto path = std::filesystem::temp_directory_path() / "regard_lora_test.safetensors";
  save_safetensors(path, lora_state_dict(model));
  const StateDict state = load_safetensors(path);
  std::filesystem::remove(path);
  CHECK(state.size() == 3 * 9);
  CHECK(state.at("head.lora.alpha").item<double>() == 5);

  Model fresh = plain;  // without adapters: it gets those that the state holds
  load_lora(fresh, state);
  CHECK(equal(fresh(x), model(x)));
  CHECK(fresh.head.lora->rank() == 3);
  CHECK_FALSE(fresh.head.weight.requires_grad());
  CHECK(fresh.head.lora->a.requires_grad());
  Model second = plain;  // with the same adapters, of another alpha
  add_lora(second, {.rank = 3, .alpha = 1, .names = {"attention.*", "head"}});
  load_lora(second, state);
  CHECK(equal(second(x), model(x)));

  // The whole model's state holds the adapters too.
  second.load_state_dict(model.state_dict());
  CHECK(equal(second(x), model(x)));

  auto refused = [&](Model& target, const StateDict& wrong, const std::string& words) {
    const Tensor before = target(x);
    CHECK_THROWS_AS(load_lora(target, wrong), ValueError);
    CHECK_THROWS_WITH(load_lora(target, wrong), Contains(words));
    CHECK(equal(target(x), before));
  };
  Model bare = plain, other = plain, few = plain;
  add_lora(other, {.rank = 2, .names = {"attention.*", "head"}});
  add_lora(few, {.rank = 3, .names = {"head"}});
  StateDict wrong = state;
  wrong.erase("head.lora.b");
  refused(bare, wrong, "missing: head.lora.b");
  wrong = state;
  wrong["tail.lora.a"] = zeros({3, 8});
  refused(bare, wrong, "unexpected: tail.lora.a");
  refused(bare, {}, "empty");
  refused(other, state, "of another shape: blocks.0.attention.query.lora.a [3, 8]");
  refused(few, state, "unexpected: blocks.0.attention.key.lora.a");
  refused(model, {{"head.lora.a", state.at("head.lora.a")}}, "missing");
  wrong = state;
  wrong["head.lora.a"] = zeros({3, 7});
  refused(bare, wrong, "head.lora.a [3, 7]");
  CHECK(lora_parameters(bare).empty());
  for (const Tensor& p : bare.parameters()) CHECK(p.requires_grad());
}

TEST_CASE("LoRA: a Linear with an adapter copies, moves, casts, prints and switches mode as one") {
  manual_seed(1);
  Linear layer(4, 3);
  add_lora(layer, {.rank = 2, .alpha = 8, .dropout = 0.25});
  const Tensor x = numbers({2, 4}, 2);
  {
    NoGrad no_grad;
    layer.lora->b.tensor().copy_(numbers({3, 2}, 3));
  }
  layer.eval();
  const Tensor expected = layer(x);
  CHECK_FALSE(layer.lora->is_training());
  CHECK_FALSE(layer.lora->drop.is_training());

  Linear copy = layer;
  CHECK(equal(copy(x), expected));
  CHECK_FALSE(copy.lora->a.tensor().shares_storage_with(layer.lora->a));
  CHECK(copy.lora->a.requires_grad());
  CHECK_FALSE(copy.weight.requires_grad());
  copy.lora->b.tensor().detach().fill_(0);
  CHECK(equal(layer(x), expected));
  const Tensor handle = copy.lora->b;
  copy = layer;  // values into the memory there is
  CHECK(equal(copy(x), expected));
  CHECK(handle.impl() == copy.lora->b.tensor().impl());

  const Tensor a = layer.lora->a;
  Linear moved = std::move(layer);
  CHECK(equal(moved(x), expected));
  CHECK(moved.lora->a.tensor().impl() == a.impl());
  CHECK_FALSE(layer.lora);  // NOLINT(bugprone-use-after-move)
  layer = std::move(moved);
  CHECK(layer.lora->a.tensor().impl() == a.impl());
  Linear other(4, 3);
  add_lora(other, {.rank = 2});
  const Tensor theirs = other.lora->a;
  std::swap(layer, other);
  CHECK(other.lora->a.tensor().impl() == a.impl());
  CHECK(layer.lora->a.tensor().impl() == theirs.impl());
  std::swap(layer, other);
  std::vector<Linear> list;
  list.push_back(std::move(layer));
  for (int i = 0; i < 5; ++i) list.emplace_back(4, 3);  // grows, and moves
  CHECK(equal(list[0](x), expected));
  CHECK(list[0].lora->a.tensor().impl() == a.impl());

  list[0].to(DType::f64);
  CHECK(allclose(list[0](x.to(DType::f64)), expected.to(DType::f64), 1e-5, 1e-6));
  CHECK(list[0].describe() == "Linear(4, 3, LoRA of rank 2)");
  std::ostringstream text;
  text << list[0];
  CHECK_THAT(text.str(), Contains("lora: LoraAdapter(rank 2, alpha 8, dropout 0.25)") && Contains("a: [2, 4]") &&
                             Contains("alpha: [] (buffer)"));
  CHECK(list[1].describe() == "Linear(4, 3)");
}

TEST_CASE("Linear: an assignment that does not fit changes nothing") {
  const Tensor x = numbers({2, 4}, 2);
  Linear with(4, 3), without(4, 3, false), wide(5, 3), adapted(4, 3);
  add_lora(adapted, {.rank = 2});
  Linear ranked = adapted;
  remove_lora(ranked);
  add_lora(ranked, {.rank = 3});
  auto refused = [&](Linear& to, const Linear& from, const std::string& words) {
    const Tensor weight = to.weight.clone();
    const bool training = to.is_training();
    CHECK_THROWS_WITH(to = from, Contains("Linear") && Contains(words));
    Linear copy = from;
    CHECK_THROWS_AS(to = std::move(copy), Error);
    CHECK(equal(to.weight, weight));
    CHECK(to.is_training() == training);
  };
  without.eval();
  refused(with, without, "Linear(4, 3, no bias) is assigned to Linear(4, 3): one has a bias");
  refused(without, with, "one has a bias");
  refused(with, wide, "the widths differ");
  refused(with, adapted, "one has an adapter");
  refused(adapted, with, "one has an adapter");
  refused(adapted, ranked, "ranks");
  Linear source(4, 3);
  with = source;
  CHECK(equal(with(x), source(x)));
  const Linear& itself = with;
  with = itself;
  CHECK(equal(with(x), source(x)));
  Linear taken = std::move(with);
  with = source;  // NOLINT: one that was moved from gets values of its own
  CHECK(equal(with(x), source(x)));
  CHECK_FALSE(with.weight.tensor().shares_storage_with(source.weight));
}

}  // namespace lora_test
