// Layers are values: copies, moves and assignments, what optimizers hold, state dicts, modes, printing, paths in
// errors.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>

#include <regard/regard.hpp>

namespace layer_values_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

using Numbers = std::vector<float>;

Numbers numbers(const Tensor& x) { return x.to_vector<float>(); }

struct Block : Layer {
  Linear up, down;
  Dropout drop;
  Buffer scale;
  Parameter gate;
  Block(int64_t width, bool bias = true)
      : up(width, width, bias), down(width, width, bias), drop(0.5), scale(full({width}, 2.0)), gate(ones({width})) {}
  Tensor operator()(const Tensor& x) const { return x + gate * drop(down(relu(up(x)))) * scale; }
  void members(Members& m) override {
    m("up", up);
    m("down", down);
    m("drop", drop);
    m("scale", scale);
    m("gate", gate);
  }
};

struct Model : Layer {
  std::vector<Block> blocks;
  std::array<Linear, 2> heads{Linear(4, 2), Linear(4, 3)};
  std::optional<Linear> extra;
  Model() { blocks.emplace_back(4), blocks.emplace_back(4); }
  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (const Block& block : blocks) y = block(y);
    return heads[1](y);
  }
  void members(Members& m) override {
    m("blocks", blocks);
    m("heads", heads);
    m("extra", extra);
  }
};

// One parameter in two members.
struct Tied : Layer {
  Parameter table;
  Linear out;
  Tied() : table(ones({3, 2})), out(2, 2) {}
  Tensor operator()(const Tensor& ids) const { return linear(out(embedding(ids, table)), table); }
  void members(Members& m) override {
    m("input", table);
    m("output", table);
    m("out", out);
  }
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

// ---- What an optimizer holds

TEST_CASE("layers: a vector of layers that grows does not part an optimizer from its parameters") {
  std::vector<Linear> list;
  list.emplace_back(2, 2);
  list.emplace_back(2, 2, false);
  Tensors held;
  for (const Linear& layer : list)
    for (const Tensor& p : layer.parameters()) held.push_back(p);
  optim::SGD optimizer(held, {.lr = 1});
  for (int i = 0; i < 100; ++i) list.emplace_back(2, 2);  // moves the first ones many times

  const Numbers before = numbers(list[0].weight), second_before = numbers(list[1].weight);
  CHECK(held[0].impl() == list[0].weight.tensor().impl());
  sum(list[1](list[0](ones({1, 2})))).backward();
  optimizer.step();
  CHECK(numbers(list[0].weight) != before);
  CHECK(numbers(list[1].weight) != second_before);
}

TEST_CASE("layers: values assigned to a parameter are seen by an optimizer that holds it, and counted as a write") {
  Linear layer(2, 1, false);
  optim::SGD optimizer(layer.parameters(), {.lr = 0.5});
  Tensor x = ones({1, 2}).set_requires_grad();  // its gradient needs the weight
  Tensor y = sum(layer(x));
  layer.weight = full({1, 2}, 3.0);
  CHECK_THAT(message_of([&] { y.backward(); }), Contains("changed in place"));
  layer.zero_grad();
  sum(layer(ones({1, 2}))).backward();
  optimizer.step();
  CHECK(numbers(layer.weight) == Numbers{2.5, 2.5});
}

TEST_CASE("layers: moving keeps memory and handle; every assignment writes values into the memory there is") {
  Linear a(2, 3);
  const Tensor weight = a.weight;
  Linear b = std::move(a);
  CHECK(b.weight.tensor().impl() == weight.impl());

  Linear c(2, 3), d(2, 3);
  const Tensor held = c.weight;
  const void* memory = held.raw_data();
  c = b;
  CHECK(c.weight.tensor().impl() == held.impl());
  CHECK(held.raw_data() == memory);
  CHECK(numbers(held) == numbers(b.weight));
  CHECK_FALSE(c.weight.tensor().shares_storage_with(b.weight));
  c = std::move(d);
  CHECK(c.weight.tensor().impl() == held.impl());
  CHECK(held.raw_data() == memory);
  CHECK(numbers(held) != numbers(b.weight));
  c = *&c;
  CHECK(c.weight.tensor().impl() == held.impl());
}

TEST_CASE("layers: swapping and sorting layers keeps every handle") {
  std::vector<Linear> list;
  for (int i = 3; i > 0; --i) list.emplace_back(i, 2);
  const Tensor first = list[0].weight, last = list[2].weight;
  std::swap(list[0], list[2]);
  CHECK(list[0].weight.tensor().impl() == last.impl());
  CHECK(list[2].weight.tensor().impl() == first.impl());
  std::reverse(list.begin(), list.end());
  CHECK(list[0].weight.tensor().impl() == first.impl());
}

TEST_CASE("layers: layers without a bias, and empty parameters, are copied, moved and assigned") {
  Linear a(2, 3, false), b(2, 3, false);
  b = a;
  CHECK(numbers(b.weight) == numbers(a.weight));
  CHECK_FALSE(b.bias.defined());
  b = Linear(2, 3, false);
  std::vector<Linear> list;
  for (int i = 0; i < 3; ++i) list.emplace_back(2, 3, false);
  const Numbers last = numbers(list[2].weight);
  list.erase(list.begin());
  CHECK(numbers(list[1].weight) == last);
  MultiHeadAttention attention(4, 2, {.bias = false}), other(4, 2, {.bias = false});
  other = attention;
  CHECK(numbers(other.output.weight) == numbers(attention.output.weight));

  // With a bias on one side only, the layers differ: an error, and nothing is written.
  Linear with_bias(2, 3);
  const Numbers before = numbers(with_bias.bias);
  CHECK_THROWS_AS(with_bias = a, ValueError);
  CHECK(numbers(with_bias.bias) == before);
}

// ---- Copies

TEST_CASE("copying a layer: values, mode and what is frozen, but no gradient and no hook") {
  Block a(2);
  a.eval();
  a.up.weight.set_requires_grad(false);
  sum(a(ones({1, 2}))).backward();
  int calls = 0;
  a.down.weight.tensor().register_hook([&calls](const Tensor&) {
    ++calls;
    return Tensor();
  });
  REQUIRE(a.down.weight.grad().defined());

  Block b = a;
  CHECK_FALSE(b.is_training());
  CHECK_FALSE(b.drop.is_training());
  CHECK_FALSE(b.up.weight.requires_grad());
  CHECK(b.down.weight.requires_grad());
  CHECK(b.down.weight.tensor().is_leaf());
  CHECK_FALSE(b.down.weight.grad().defined());
  CHECK_FALSE(b.scale.requires_grad());
  sum(b(ones({1, 2}))).backward();
  CHECK(calls == 0);

  const Numbers before = numbers(a.down.weight);
  b.down.weight = zeros({2, 2});
  b.scale = zeros({2});
  CHECK(numbers(a.down.weight) == before);
  CHECK(numbers(a.scale) == Numbers{2, 2});
}

TEST_CASE("layers: a cast between forward and backward is an error, also of what is frozen") {
  LayerNorm norm(4);
  norm.to(DType::f64);
  norm.set_requires_grad(false);
  const Tensor x = randn({3, 4}, DType::f64).set_requires_grad();
  const Tensor y = sum(norm(x) * x);
  norm.to(DType::f32);
  CHECK_THAT(message_of([&] { y.backward(); }), Contains("layer_norm") && Contains("changed in place"));
}

TEST_CASE("assigning a Sequential copies the modes and sizes of its layers") {
  Sequential a(Dropout(0.5), Linear(2, 2)), b(Dropout(0.25), Linear(2, 2));
  b.eval();
  a = b;
  CHECK_FALSE(a.is_training());
  CHECK_FALSE(a[0].is_training());
  CHECK(a[0].describe() == "Dropout(0.25)");
  Tensor x = ones({1, 2});
  CHECK(numbers(a(x)) == numbers(b(x)));
}

TEST_CASE("copying a vector of layers, an optional one and a Sequential is deep, too") {
  Model a;
  a.extra.emplace(4, 1);
  Model b = a;
  REQUIRE(b.extra.has_value());
  b.extra->weight = zeros({1, 4});
  b.blocks[1].up.weight = zeros({4, 4});
  b.heads[0].bias = zeros({2});
  CHECK(numbers(a.extra->weight) != Numbers(4, 0));
  CHECK(numbers(a.blocks[1].up.weight) != Numbers(16, 0));
  CHECK(numbers(a.heads[0].bias) != numbers(b.heads[0].bias));

  Sequential c(Linear(2, 2), GELU(), Linear(2, 1));
  Sequential d = c;
  d[0].parameters()[0].detach().zero_();
  CHECK(numbers(c.parameters()[0]) != numbers(d.parameters()[0]));
  Sequential e = std::move(d);
  CHECK(e.size() == 3);
  const Tensor held = c.parameters()[0];
  c = e;
  CHECK(numbers(held) == Numbers(4, 0));
  CHECK_THAT(message_of([&] { c = Sequential(Linear(2, 2)); }), Contains("1 layers are assigned to 3"));
  CHECK_THAT(message_of([&] { c = Sequential(Linear(2, 2), ReLU(), Linear(2, 1)); }),
             Contains("at 1 a ReLU is assigned to a GELU"));
  CHECK_THAT(message_of([&] { c = Sequential(Linear(3, 2), GELU(), Linear(2, 1)); }),
             Contains("0.weight") && Contains("[2, 3]"));
}

// ---- Parameters and buffers

TEST_CASE("parameters: what is assigned is checked first, and copied") {
  Parameter p(ones({2, 3}));
  const Numbers before = numbers(p);
  CHECK_THAT(message_of([&] { p = zeros({3, 2}); }), Contains("[3, 2]") && Contains("[2, 3]"));
  CHECK_THAT(message_of([&] { p = zeros({1, 3}); }), Contains("[1, 3]"));  // no broadcasting
  CHECK_THAT(message_of([&] { p = p * 2.0; }), Contains("detach()") && Contains("mul"));
  CHECK_THAT(message_of([&] { p = Tensor(); }), Contains("undefined"));
  CHECK(numbers(p) == before);

  Tensor source = full({2, 3}, 2.0, DType::f64);
  p = source;  // cast
  CHECK(p.dtype() == DType::f32);
  source.fill_(9);
  CHECK(numbers(p) == Numbers(6, 2));

  Parameter square(arange(4, DType::f32).view({2, 2}));
  square = square.detach().t();  // its own memory in another order
  CHECK(numbers(square) == Numbers{0, 2, 1, 3});
  CHECK_THAT(message_of([] { Parameter q(arange(3)); }), Contains("i64"));

  Parameter late;
  CHECK_FALSE(late.defined());
  late = source;
  CHECK(late.requires_grad());
  source.fill_(1);
  CHECK(late.to_vector<double>() == std::vector<double>(6, 9));
}

TEST_CASE("buffers are saved, not trained, and hold no graph") {
  Tensor x = ones({2}).set_requires_grad();
  Buffer buffer(x * 2.0);
  CHECK_FALSE(buffer.requires_grad());
  CHECK(buffer.tensor().is_leaf());
  buffer = x * 3.0;
  CHECK(numbers(buffer) == Numbers{3, 3});
  CHECK(buffer.tensor().is_leaf());

  Block block(2);
  CHECK(block.parameters().size() == 5);
  CHECK(block.named_buffers().size() == 1);
  CHECK(block.state_dict().contains("scale"));
  Buffer positions(arange(3));
  CHECK(positions.dtype() == DType::i64);
}

TEST_CASE("a parameter made of a tensor that others hold has memory of its own") {
  Tensor x = ones({2});
  Parameter p(x);
  x.fill_(5);
  CHECK(numbers(p) == Numbers{1, 1});
  Parameter column(arange(6, DType::f32).view({3, 2}).t()[1]);
  CHECK(numbers(column) == Numbers{1, 3, 5});
  CHECK(column.is_contiguous());
}

TEST_CASE("a tied parameter that is listed twice is counted, stepped and saved once") {
  Tied tied;
  CHECK(tied.parameters().size() == 3);
  CHECK(tied.parameter_count() == 6 + 4 + 2);
  CHECK(tied.named_parameters()[0].first == "input");
  CHECK_FALSE(tied.state_dict().contains("output"));
  optim::SGD optimizer(tied.parameters(), {.lr = 1});
  sum(tied(from_vector<int64_t>({1}))).backward();
  const Numbers before = numbers(tied.table), g = numbers(tied.table.grad());
  optimizer.step();
  for (size_t i = 0; i < before.size(); ++i) CHECK(numbers(tied.table)[i] == before[i] - g[i]);

  Tied copy = tied;
  copy.table = zeros({3, 2});
  CHECK(copy.parameters().size() == 3);
  const LoadReport report = copy.load_state_dict(tied.state_dict());
  CHECK(report.complete());
  CHECK(numbers(copy.table) == numbers(tied.table));
}

// ---- State dicts

TEST_CASE("state dicts: strict loading lists everything that does not fit and changes nothing") {
  Model model;
  StateDict state;
  for (const auto& [name, tensor] : model.state_dict()) state[name] = tensor * 0.0;
  CHECK(state.contains("blocks.1.down.bias"));
  CHECK(state.contains("heads.0.weight"));
  state.erase("blocks.0.gate");
  state["surplus"] = ones({1});
  state["heads.0.weight"] = zeros({4, 2});
  state["blocks.0.scale"] = zeros({4}, DType::i64);

  const Numbers before = numbers(model.blocks[0].up.weight);
  const std::string text = message_of([&] { model.load_state_dict(state); });
  CHECK_THAT(text, Contains("missing: blocks.0.gate") && Contains("unexpected: surplus") &&
                       Contains("heads.0.weight: [4, 2] given, [2, 4] wanted") &&
                       Contains("blocks.0.scale: i64 given, f32 wanted") && Contains("nothing was loaded"));
  CHECK(numbers(model.blocks[0].up.weight) == before);

  const Numbers gate = numbers(model.blocks[0].gate);
  const LoadReport report = model.load_state_dict(state, {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"blocks.0.gate"});
  CHECK(report.unexpected == std::vector<std::string>{"surplus"});
  CHECK(report.mismatched.size() == 2);
  CHECK_FALSE(report.complete());
  CHECK(numbers(model.blocks[0].up.weight) == Numbers(16, 0));
  CHECK(numbers(model.blocks[0].gate) == gate);
}

TEST_CASE("state dicts share memory with the layer; loading copies, casts, and takes any strides") {
  Linear layer(2, 2, false);
  StateDict state = layer.state_dict();
  CHECK(state.at("weight").shares_storage_with(layer.weight));
  CHECK_FALSE(state.at("weight").requires_grad());
  const Tensor held = layer.weight;
  StateDict given{{"weight", from_vector<double>({1, 2, 3, 4}, {2, 2}).t()}};
  layer.load_state_dict(given);
  CHECK(held.impl() == layer.weight.tensor().impl());
  CHECK(numbers(held) == Numbers{1, 3, 2, 4});
  CHECK(layer.load_state_dict(layer.state_dict()).complete());  // its own memory
  CHECK(numbers(held) == Numbers{1, 3, 2, 4});
  CHECK_THAT(message_of([&] { layer.load_state_dict({{"weight", Tensor()}}); }), Contains("missing: weight"));
  given["weight"] = full({2, 2}, 0.5).to(DType::bf16);
  layer.load_state_dict(given);
  CHECK(numbers(held) == Numbers(4, 0.5));
}

// ---- dtype, mode

TEST_CASE("to(dtype) casts behind all handles and drops gradients") {
  Block block(2);
  block.eval();
  const Tensor held = block.up.weight;
  const Tensors before = block.parameters();
  sum(block(ones({1, 2}))).backward();
  block.to(DType::f64);
  CHECK(held.dtype() == DType::f64);
  CHECK(held.requires_grad());
  CHECK(block.scale.dtype() == DType::f64);
  for (const Tensor& p : before) CHECK_FALSE(p.grad().defined());
  CHECK(block.parameters()[0].impl() == held.impl());
  CHECK(block(ones({1, 2}, DType::f64)).dtype() == DType::f64);
  optim::SGD optimizer(block.parameters(), {.lr = 0.1});
  sum(block(ones({1, 2}, DType::f64))).backward();
  optimizer.step();
  block.to(DType::f32);
  CHECK(held.dtype() == DType::f32);
  CHECK_THAT(message_of([&] { block.to(DType::bf16); }), Contains("bf16") && Contains("f32 or f64"));
}

TEST_CASE("an optimizer whose state no longer matches its parameters' dtype says so") {
  Linear layer(2, 2);
  optim::Adam optimizer(layer.parameters(), {});
  sum(layer(ones({1, 2}))).backward();
  optimizer.step();
  layer.to(DType::f64);
  sum(layer(ones({1, 2}, DType::f64))).backward();
  const std::vector<double> before = layer.weight.to_vector<double>();
  CHECK_THAT(message_of([&] { optimizer.step(); }), Contains("f32") && Contains("f64"));
  CHECK(layer.weight.to_vector<double>() == before);
}

TEST_CASE("train and eval reach every layer inside") {
  Model model;
  CHECK(model.is_training());
  model.eval();
  CHECK_FALSE(model.blocks[1].drop.is_training());
  Tensor x = randn({3, 4});
  CHECK(numbers(model(x)) == numbers(model(x)));
  model.train();
  CHECK(model.blocks[0].drop.is_training());
  CHECK(numbers(model(x)) != numbers(model(x)));
  Sequential sequence(Dropout(0.5));
  sequence.eval();
  CHECK_FALSE(sequence[0].is_training());
}

TEST_CASE("freezing: set_requires_grad of a layer, zero_grad") {
  Block block(2);
  block.eval();
  block.up.set_requires_grad(false);
  sum(block(ones({1, 2}))).backward();
  CHECK_FALSE(block.up.weight.grad().defined());
  CHECK(block.down.weight.grad().defined());
  block.zero_grad();
  for (const Tensor& p : block.parameters()) CHECK_FALSE(p.grad().defined());
}

// ---- Printing and paths

TEST_CASE("a layer prints as a tree with shapes and parameter counts") {
  Model model;
  std::ostringstream out;
  out << model;
  CHECK_THAT(out.str(), Contains("Model") && Contains("blocks.0: Block") && Contains("up: Linear(4, 4)") &&
                            Contains("weight: [4, 4]") && Contains("scale: [4] (buffer)") && Contains("gate: [4]") &&
                            Contains("heads.1: Linear(4, 3)") && !Contains("extra"));
  CHECK_THAT(
      TransformerEncoderLayer(8, 2, {.norm_first = false}).to_string(),
      Contains("TransformerEncoderLayer(8, 2 heads, post-norm)") && Contains("LayerNorm(8") && Contains("Dropout("));
  CHECK_THAT(Linear(1000, 1000).to_string(), Contains("1,001,000") && Contains("1,000,000"));
  CHECK_THAT(Linear(2, 3, false).to_string(), Contains("Linear(2, 3, no bias)"));
  CHECK_THAT(Sequential(GELU(), layers::Tanh(), ReLU(), SiLU(), layers::Sigmoid()).to_string(),
             Contains("Sequential") && Contains("0: GELU") && Contains("1: Tanh") && Contains("4: Sigmoid"));
}

TEST_CASE("errors name the layer: by type before a walk, by path after one, wherever it was moved") {
  Model model;
  model.blocks[1].up = Linear(4, 4);
  Linear alone(128, 64);
  CHECK_THAT(message_of([&] {
               alone(ones({16, 127}));
             }),
             Contains("linear") && Contains("[16, 127]") && Contains("[64, 128]") && Contains("(in Linear(128, 64))"));
  model.parameters();
  CHECK_THAT(message_of([&] { model.heads[1](ones({2, 5})); }), Contains("(in heads.1)"));
  CHECK_THAT(message_of([&] { model.blocks[1].down(ones({2, 5})); }), Contains("(in blocks.1.down)"));
  Linear moved = std::move(model.heads[1]);
  CHECK(moved.path() == "heads.1");
  Linear copy = moved;
  CHECK(copy.path().empty());
  CHECK_THAT(message_of([&] { copy(ones({2, 5})); }), Contains("(in Linear(4, 3))"));

  TransformerEncoderLayer block(4, 2);
  block.parameters();
  CHECK_THAT(message_of([&] { block(ones({2, 3, 5})); }), Contains("norm1"));
  CHECK_THAT(message_of([&] { block.attention(ones({2, 3, 5})); }), Contains("attention.query"));
}

TEST_CASE("members: names must be there once and hold no dot") {
  struct Bad : Layer {
    Parameter a = Parameter(ones({1})), b = Parameter(ones({1}));
    std::string first, second;
    Bad(std::string x, std::string y) : first(std::move(x)), second(std::move(y)) {}
    void members(Members& m) override {
      m(first, a);
      m(second, b);
    }
  };
  CHECK_THAT(message_of([] { Bad("x", "x").parameters(); }), Contains("two members are named 'x'"));
  CHECK_THAT(message_of([] { Bad("x", "a.b").parameters(); }), Contains("a.b") && Contains("no dot"));
  CHECK_THAT(message_of([] { Bad("", "y").parameters(); }), Contains("must not be empty"));
  CHECK(Bad("x", "y").parameters().size() == 2);
}

TEST_CASE("buffers that are computed have f64 accuracy in f64, and the same f32 bits as ever") {
  const SinusoidalPositionalEncoding made(40, 6);
  SinusoidalPositionalEncoding positions = made;  // a copy knows the values, too
  const Numbers single = numbers(positions.table);
  positions.to(DType::f64);
  CHECK(positions.state_dict().at("table").dtype() == DType::f64);
  const std::vector<double> full = positions.table.to_vector<double>();
  double largest = 0;
  for (size_t t = 0; t < 40; ++t)
    for (size_t i = 0; i < 6; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i - i % 2) / 6.0);
      const double right = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
      largest = std::max(largest, std::abs(full[t * 6 + i] - right));
      CHECK(single[t * 6 + i] == static_cast<float>(right));
    }
  CHECK(largest < 1e-15);
  positions.to(DType::f32);
  CHECK(numbers(positions.table) == single);

  // Values that were loaded are kept.
  SinusoidalPositionalEncoding other(40, 6);
  other.load_state_dict({{"table", full_like(made.table, 0.1)}});
  other.to(DType::f64);
  CHECK(other.table[0][0].item<double>() == static_cast<double>(0.1f));
  CHECK_THROWS_WITH(Buffer::computed(ones({2})), Contains("f64"));
}

}  // namespace layer_values_test
