// Parameter groups by rule, names by pattern, and learning rates given as numbers.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/names.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>
#include <regard/optim/adafactor.hpp>
#include <regard/optim/groups.hpp>
#include <regard/optim/lion.hpp>
#include <regard/optim/muon.hpp>
#include <regard/optim/sgd.hpp>

namespace groups_test {

using namespace regard;
using namespace regard::layers;
using namespace regard::optim;
using Catch::Matchers::Contains;

namespace {

/// A small language model with a tied head: tokens.weight is both table and output matrix.
struct Model : Layer {
  Embedding tokens{7, 4};
  LearnedPositionalEncoding positions{5, 4};
  std::vector<TransformerEncoderLayer> blocks;
  LayerNorm norm{4};

  Model() {
    blocks.emplace_back(4, 2);
    blocks.emplace_back(4, 2);
  }
  Tensor operator()(const Tensor& ids) const {
    Tensor h = positions(tokens(ids));
    for (const auto& block : blocks) h = block(h);
    return linear(norm(h), tokens.weight);
  }
  void members(Members& m) override {
    m("tokens", tokens);
    m("positions", positions);
    m("blocks", blocks);
    m("norm", norm);
    m("head", tokens.weight);
  }
};

std::vector<std::string> names_of(const Layer& model, const Tensors& tensors) {
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors)
    for (const auto& [name, parameter] : model.named_parameters())
      if (parameter.impl() == tensor.impl()) names.push_back(name);
  return names;
}
bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("names: patterns fit whole names and their ends from a dot on") {
  CHECK(name_matches("bias", "bias"));
  CHECK(name_matches("bias", "blocks.0.norm.bias"));
  CHECK_FALSE(name_matches("bias", "unbias"));
  CHECK_FALSE(name_matches("bias", "a.unbias"));
  CHECK_FALSE(name_matches("bias", "bias.x"));
  CHECK(name_matches("*.bias", "norm.bias"));
  CHECK(name_matches("blocks.?.norm*.weight", "model.blocks.0.norm1.weight"));
  CHECK_FALSE(name_matches("blocks.?.norm*.weight", "blocks.10.norm1.weight"));
  CHECK(name_matches("blocks.*", "blocks.0.norm"));
  CHECK(name_matches("*", "anything.at.all"));
  CHECK(name_matches("*", "x"));
  CHECK(name_matches("a*b*c", "aXbbXbc"));
  CHECK_FALSE(name_matches("a*b*c", "aXbbX"));
  CHECK(name_matches("**", "x.y"));
  CHECK_FALSE(name_matches("", ""));
  CHECK_FALSE(name_matches("", "x"));
  CHECK_FALSE(name_matches("?", "xy"));
  CHECK_FALSE(name_matches(std::string(40, '*') + "b", std::string(2000, 'a')));
  CHECK(list_names({"a", "b", "c"}, 2) == "a, b and 1 more");
  CHECK(list_names({}) == "");
}

TEST_CASE("groups: matrices decay; biases, norms and embeddings do not, unless asked for") {
  Model model;
  auto groups = decay_groups(model, AdamWOptions{.lr = 0.3, .weight_decay = 0.1});
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].options.weight_decay == 0.1);
  CHECK(groups[1].options.weight_decay == 0);
  CHECK(groups[1].options.lr == 0.3);
  for (const Tensor& p : groups[0].parameters) CHECK(p.dim() == 2);
  auto decayed = names_of(model, groups[0].parameters), rest = names_of(model, groups[1].parameters);
  CHECK(decayed.size() == 2 * 6);  // four projections and two of the feed-forward network
  CHECK(contains(decayed, "blocks.1.attention.query.weight"));
  CHECK(contains(rest, "blocks.1.attention.query.bias"));
  CHECK(contains(rest, "norm.weight"));
  CHECK(contains(rest, "tokens.weight"));
  CHECK(contains(rest, "positions.weight"));
  CHECK(decayed.size() + rest.size() == model.parameters().size());
  AdamW optimizer(groups);
  CHECK(optimizer.group_count() == 2);

  groups = decay_groups(model, AdamWOptions{}, {.embeddings = true, .no_decay = {"up.weight"}});
  decayed = names_of(model, groups[0].parameters);
  CHECK(decayed.size() == 2 * 5 + 2);
  CHECK(contains(decayed, "tokens.weight"));
  CHECK_FALSE(contains(decayed, "blocks.0.feed_forward.up.weight"));
  CHECK_THROWS_WITH(decay_groups(model, AdamWOptions{}, {.no_decay = {"down.weights"}}),
                    Contains("decay_groups") && Contains("'down.weights' fits no parameter"));

  Linear bare(3, 3, false);  // nothing in the second group
  CHECK(decay_groups(bare, LionOptions{.weight_decay = 1}).size() == 1);
  ReLU nothing;
  CHECK_THROWS_WITH(decay_groups(nothing, AdamWOptions{}), Contains("no parameters"));
}

TEST_CASE("groups: rules by name and by function; the first that fits takes a parameter") {
  Model model;
  auto is_small = [](const std::string&, const Tensor& p) { return p.dim() < 2; };
  auto groups = parameter_groups<AdamWOptions>(model, {{{"tokens.*", "positions.weight"}, {.lr = 1}},
                                                       {"norm*.*", {.lr = 2}},
                                                       {is_small, {.lr = 3, .weight_decay = 0}},
                                                       {"*", {.lr = 4}}});
  REQUIRE(groups.size() == 4);
  CHECK(names_of(model, groups[0].parameters) == std::vector<std::string>{"tokens.weight", "positions.weight"});
  CHECK(groups[0].options.lr == 1);
  CHECK(groups[1].parameters.size() == 2 * 2 * 2 + 2);
  CHECK(groups[2].parameters.size() == 2 * 6);
  CHECK(groups[3].parameters.size() == 2 * 6);
  CHECK(groups[2].options.weight_decay == 0);
  size_t total = 0;
  for (const auto& group : groups) total += group.parameters.size();
  CHECK(total == model.parameters().size());
  AdamW optimizer(groups);
  CHECK(optimizer.lr(3) == 4);

  // A rule whose parameters all went to earlier ones makes no group.
  groups = parameter_groups<AdamWOptions>(model.named_parameters(), {{"*", {}}, {"tokens.*", {.lr = 1}}});
  CHECK(groups.size() == 1);
}

TEST_CASE("groups: a rule that fits nothing, and a parameter without a rule, are errors with names") {
  Model model;
  auto refused = [&](const std::vector<GroupRule<SGDOptions>>& rules, const std::string& words) {
    CHECK_THROWS_AS(parameter_groups(model, rules), ValueError);
    CHECK_THROWS_WITH(parameter_groups(model, rules), Contains(words));
  };
  refused({{"heads.*", {}}, {"*", {}}}, "the pattern 'heads.*' fits no parameter; there are tokens.weight");
  refused({{{"tokens.*", "toukens.*"}, {}}, {"*", {}}}, "'toukens.*'");
  refused({{[](const std::string&, const Tensor& p) { return p.dim() > 5; }, {}}, {"*", {}}},
          "the function of rule 0 fits no parameter");
  refused({{"blocks.*", {}}}, "no rule takes tokens.weight, positions.weight, norm.weight, norm.bias: add a last rule");
  refused({}, "no rules");
  CHECK_THROWS_AS(parameter_groups<SGDOptions>(NamedParameters{}, {{"*", {}}}), ValueError);
}

TEST_CASE("groups: a tied parameter is in one group, under its first name") {
  Model model;
  CHECK(model.state_dict().contains("tokens.weight"));
  CHECK_FALSE(model.state_dict().contains("head"));
  size_t count = 0;
  for (const auto& group : decay_groups(model, AdamWOptions{}))
    for (const Tensor& p : group.parameters) count += p.impl() == model.tokens.weight.tensor().impl();
  CHECK(count == 1);
  CHECK(embedding_parameters(model).size() == 2);
  // Listed twice in a list of one's own too.
  NamedParameters twice = {{"a", model.tokens.weight}, {"b", model.tokens.weight}};
  auto groups = parameter_groups<SGDOptions>(twice, {{"a", {}}, {"*", {}}});
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].parameters.size() == 1);
}

TEST_CASE("optimizers take a learning rate as a plain number, and {} as the default options") {
  const Tensor x = ones({2, 2}).set_requires_grad();
  CHECK(SGD({x}, 0.5).lr() == 0.5);
  CHECK(Adam({x}, 0.5).lr() == 0.5);
  CHECK(AdamW({x}, 1).lr() == 1);
  CHECK(Lion({x}, 0.5F).lr() == 0.5);
  CHECK(Adafactor({x}, 0.5).lr() == 0.5);
  CHECK(Muon({x}, 0.5).lr() == 0.5);
  CHECK(Adam({x}, {}).lr() == 1e-3);
  CHECK(Adam({x}, {.lr = 0.25}).lr() == 0.25);
  CHECK_FALSE(std::is_constructible_v<Adam, Tensors, bool>);
}

TEST_CASE("optimizers: a parameter group that is not there is an error of Regard's") {
  const Tensor x = ones({2, 2}).set_requires_grad();
  AdamW optimizer({x}, 0.5);
  CHECK_THROWS_AS(optimizer.lr(99), IndexError);
  CHECK_THROWS_WITH(optimizer.lr(99), Contains("AdamW: there is no parameter group 99: there are 1"));
  CHECK_THROWS_AS(optimizer.initial_lr(1), IndexError);
  CHECK_THROWS_AS(optimizer.parameters(1), IndexError);
  CHECK_THROWS_AS(optimizer.set_lr(0.1, 1), IndexError);
}

}  // namespace groups_test
