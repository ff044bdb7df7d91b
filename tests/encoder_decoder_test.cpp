// EncoderDecoder: masks, caches, gradients, and searches over it.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <regard/autograd/gradcheck_catch.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>
#include <regard/layers/gradcheck.hpp>
#include <regard/layers/models/encoder_decoder.hpp>
#include <regard/optim/adam.hpp>

namespace encoder_decoder_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using layers::EncoderDecoder;
using layers::EncoderDecoderOptions;

namespace {

EncoderDecoderOptions tiny() {
  return {.source_vocabulary = 7,
          .target_vocabulary = 6,
          .max_source = 8,
          .max_target = 9,
          .width = 8,
          .heads = 2,
          .encoder_layers = 2,
          .decoder_layers = 2};
}

std::vector<std::pair<std::string, EncoderDecoderOptions>> variants() {
  std::vector<std::pair<std::string, EncoderDecoderOptions>> all = {{"as usual", tiny()}};
  const auto add = [&](const char* name) -> EncoderDecoderOptions& { return all.emplace_back(name, tiny()).second; };
  add("post-norm").norm_first = false;
  add("learned positions").learned_positions = true;
  add("its own head").tie_output = false;
  EncoderDecoderOptions& shared = add("shared embeddings");
  shared.share_embeddings = true;
  shared.target_vocabulary = shared.source_vocabulary;
  EncoderDecoderOptions& other = add("shared, its own head, relu, one decoder layer");
  other.share_embeddings = true;
  other.target_vocabulary = other.source_vocabulary;
  other.tie_output = false;
  other.activation = layers::Activation::relu;
  other.decoder_layers = 1;
  other.hidden = 12;
  return all;
}

// Two sources, of five tokens and of three, and two targets.
const Tensor source = from_vector<int64_t>({3, 4, 5, 6, 2, 5, 3, 2, 0, 0}, {2, 5});
const Tensor source_mask = from_vector<bool>({true, true, true, true, true, true, true, true, false, false}, {2, 5});
const Tensor target = from_vector<int64_t>({1, 3, 4, 5, 1, 5, 5, 0}, {2, 4});

Tensor rows_of(const Tensor& x, int64_t row) { return x.slice(0, row, row + 1); }

}  // namespace

TEST_CASE("EncoderDecoder gives logits, weights over the source, and names for its parts") {
  manual_seed(1);
  for (const auto& [name, options] : variants()) {
    INFO(name);
    EncoderDecoder model(options);
    model.eval();
    const Tensor logits = model(source, target, source_mask);
    CHECK(logits.shape() == Shape{2, 4, options.target_vocabulary});
    const auto [again, weights] = model.forward_with_weights(source, target, source_mask);
    CHECK(allclose(again, logits, 1e-5, 1e-6));
    REQUIRE(static_cast<int64_t>(weights.size()) == options.decoder_layers);
    for (const Tensor& one : weights) {
      CHECK(one.shape() == Shape{2, 2, 4, 5});
      CHECK(allclose(one.sum(-1), ones({2, 2, 4}), 1e-5, 1e-6));
      CHECK(equal(one[1].slice(2, 3), zeros({2, 4, 2})));  // padding
    }
    const StateDict state = model.state_dict();
    CHECK(state.contains("target_tokens.weight") == !options.share_embeddings);
    CHECK(state.contains("head.weight") == !options.tie_output);
    CHECK(state.contains("encoder_norm.weight") == options.norm_first);
    CHECK(state.contains("source_positions.weight") == options.learned_positions);
    CHECK(state.contains("decoder.0.cross_attention.query.weight"));
    // A copy says the same; a model of the same options takes the state.
    EncoderDecoder copy = model;
    CHECK(equal(copy(source, target, source_mask), logits));
    EncoderDecoder loaded(options);
    loaded.eval();
    CHECK(loaded.load_state_dict(state).complete());
    CHECK(equal(loaded(source, target, source_mask), logits));
  }
}

TEST_CASE("EncoderDecoder passes gradcheck in each of its variants") {
  manual_seed(2);
  for (const auto& [name, options] : variants()) {
    INFO(name);
    EncoderDecoder model(options);
    CHECK_THAT(model, passes_gradcheck({source, target, source_mask}, {.fast = true}));
  }
}

TEST_CASE("EncoderDecoder: every parameter gets a gradient, a tied one from both its places") {
  manual_seed(3);
  for (const auto& [name, options] : variants()) {
    INFO(name);
    EncoderDecoder model(options);
    cross_entropy(model(source, target, source_mask).view({-1, options.target_vocabulary}),
                  from_vector<int64_t>({3, 4, 5, 2, 5, 5, 2, -100}))
        .backward();
    for (const auto& [path, parameter] : model.named_parameters()) {
      INFO(path);
      REQUIRE(parameter.grad().defined());
      CHECK(parameter.grad().abs().sum().item<double>() > 0);
    }
  }
}

TEST_CASE("EncoderDecoder: padding changes nothing, and no token sees what comes later") {
  manual_seed(4);
  EncoderDecoder model(tiny());
  model.to(DType::f64);
  model.eval();
  const Tensor logits = model(source, target, source_mask);
  const Tensor alone = model(rows_of(source, 1).slice(1, 0, 3), rows_of(target, 1).slice(1, 0, 3));
  CHECK(allclose(alone, rows_of(logits, 1).slice(1, 0, 3), 1e-10, 1e-12));
  Tensor other_padding = source.clone();
  other_padding[1].slice(0, 3).fill_(6);
  CHECK(equal(model(other_padding, target, source_mask), logits));
  Tensor other_end = target.clone();
  other_end.slice(1, 3).fill_(3);
  const Tensor changed = model(source, other_end, source_mask);
  CHECK(equal(changed.slice(1, 0, 3), logits.slice(1, 0, 3)));
  CHECK_FALSE(allclose(changed.slice(1, 3), logits.slice(1, 3)));
}

TEST_CASE("EncoderDecoder: steps with caches give what the whole target gives") {
  manual_seed(5);
  for (const auto& [name, options] : variants()) {
    INFO(name);
    EncoderDecoder model(options);
    model.to(DType::f64);
    model.eval();
    const Tensor logits = model(source, target, source_mask);
    auto state = model.start(source, source_mask);
    for (int64_t at = 0; at < 4; ++at)
      CHECK(allclose(model.step(target.slice(1, at, at + 1), state), logits.slice(1, at, at + 1), 1e-10, 1e-12));
    CHECK(state.length == 4);
    if (state.caches.size() > 1) {  // a layer that refuses: those before it have read nothing either
      auto broken = model.start(source, source_mask);
      model.step(target.slice(1, 0, 2), broken);
      const auto right = broken.caches[1];
      broken.caches[1].self.reorder(from_vector<int64_t>({0}));
      CHECK_THROWS_AS(model.step(target.slice(1, 2), broken), ShapeError);
      CHECK(broken.caches[0].self.length == 2);
      CHECK(broken.length == 2);
      broken.caches[1] = right;
      CHECK(allclose(model.step(target.slice(1, 2), broken), logits.slice(1, 2), 1e-10, 1e-12));
    }
    auto at_once = model.start(source, source_mask);
    CHECK(allclose(model.step(target.slice(1, 0, 3), at_once), logits.slice(1, 0, 3), 1e-10, 1e-12));
    CHECK(allclose(model.step(target.slice(1, 3), at_once), logits.slice(1, 3), 1e-10, 1e-12));
  }
}

TEST_CASE("EncoderDecoder: a decoding state's rows can be left out, repeated and brought into another order") {
  manual_seed(6);
  EncoderDecoder model(tiny());
  model.to(DType::f64);
  model.eval();
  auto state = model.start(source, source_mask);
  model.step(from_vector<int64_t>({1, 1}, {2, 1}), state);
  state.reorder({0, 0, 1});  // one more row of the first source
  model.step(from_vector<int64_t>({3, 4, 5}, {3, 1}), state);
  state.reorder({1, 0, 2});  // within the sources
  model.step(from_vector<int64_t>({4, 5, 3}, {3, 1}), state);
  state.reorder({2, 1});
  CHECK(state.sources == std::vector<int64_t>{1, 0});
  const Tensor last = model.step(from_vector<int64_t>({5, 5}, {2, 1}), state);
  const Tensor first = model(rows_of(source, 1).slice(1, 0, 3), from_vector<int64_t>({1, 5, 3, 5}, {1, 4}));
  const Tensor second = model(rows_of(source, 0), from_vector<int64_t>({1, 3, 5, 5}, {1, 4}));
  CHECK(allclose(last[0][0], first[0][3], 1e-10, 1e-12));
  CHECK(allclose(last[1][0], second[0][3], 1e-10, 1e-12));
  CHECK_THROWS_AS(state.reorder({2}), IndexError);
}

TEST_CASE("beam search over an EncoderDecoder finds what trying every target finds") {
  manual_seed(7);
  EncoderDecoder model({.source_vocabulary = 7,
                        .target_vocabulary = 4,
                        .max_source = 8,
                        .max_target = 4,
                        .width = 8,
                        .heads = 2,
                        .encoder_layers = 1,
                        .decoder_layers = 2});
  model.to(DType::f64);
  model.eval();
  for (const auto& [name, parameter] : model.named_parameters())  // far from even, so that the order is clear
    if (name != "target_tokens.weight") parameter.detach().mul_(2);
  constexpr int64_t end = 2, max_length = 3;
  const layers::SearchOptions options{
      .end = end, .max_length = max_length, .beam = 60, .n_best = 60, .length_penalty = 0.6};
  const auto found = layers::beam_search(model.search_step(source, source_mask), 2, options);
  NoGrad no_grad;
  for (int64_t row = 0; row < 2; ++row) {
    INFO("source " << row);
    std::map<std::vector<int64_t>, double> scores;  // of every target of three tokens, cut at its end token
    for (int64_t code = 0; code < 64; ++code) {
      const std::vector<int64_t> tokens = {code / 16, code / 4 % 4, code % 4};
      const Tensor logits = model(rows_of(source, row), from_vector<int64_t>({1, tokens[0], tokens[1]}, {1, 3}),
                                  rows_of(source_mask, row));
      const Tensor log_probabilities = logits.log_softmax(-1);
      double total = 0;
      std::vector<int64_t> said;
      for (int64_t i = 0; i < max_length; ++i) {
        said.push_back(tokens[static_cast<size_t>(i)]);
        total += log_probabilities[0][i][said.back()].item<double>();
        if (said.back() == end) break;
      }
      scores[said] = total / std::pow((5.0 + static_cast<double>(said.size())) / 6.0, 0.6);
    }
    std::vector<std::pair<std::vector<int64_t>, double>> expected(scores.begin(), scores.end());
    CHECK(expected.size() == 1 + 3 + 9 + 27);
    std::sort(expected.begin(), expected.end(), [](const auto& a, const auto& b) {
      const bool a_ended = a.first.back() == end, b_ended = b.first.back() == end;
      return a_ended != b_ended ? a_ended : a.second > b.second;
    });
    const auto& ours = found[static_cast<size_t>(row)];
    REQUIRE(ours.size() == expected.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      std::vector<int64_t> tokens = ours[i].tokens;
      if (ours[i].ended) tokens.push_back(end);
      CHECK(tokens == expected[i].first);
      CHECK(ours[i].score == Approx(expected[i].second).epsilon(1e-9));
    }
  }
}

TEST_CASE("EncoderDecoder says what does not fit") {
  EncoderDecoder model(tiny());
  model.eval();
  const Tensor long_source = zeros({1, 9}, DType::i64), long_target = zeros({1, 10}, DType::i64);
  CHECK_THROWS_WITH(model(long_source, target), Catch::Contains("[1, 9]") && Catch::Contains("max_source 8"));
  CHECK_THROWS_AS(model(long_source, target), ShapeError);
  CHECK_THROWS_WITH(model(rows_of(source, 0), long_target), Catch::Contains("max_target 9"));
  CHECK_THROWS_AS(model(source[0], target), ShapeError);
  CHECK_THROWS_AS(model(source, from_vector<int64_t>({1, 6, 1, 1}, {2, 2})), IndexError);
  CHECK_THROWS_AS(model(from_vector<int64_t>({7, 1}, {2, 1}), target), IndexError);
  auto state = model.start(source, source_mask);
  CHECK_THROWS_WITH(model.step(zeros({3, 1}, DType::i64), state), Catch::Contains("state's 2"));
  model.step(zeros({2, 8}, DType::i64), state);
  CHECK_THROWS_AS(model.step(zeros({2, 2}, DType::i64), state), ShapeError);
  CHECK(state.length == 8);

  const auto with = [](auto change) {
    EncoderDecoderOptions options = tiny();
    change(options);
    return options;
  };
  CHECK_THROWS_WITH(EncoderDecoder(with([](auto& o) { o.share_embeddings = true; })),
                    Catch::Contains("one vocabulary"));
  CHECK_THROWS_AS(EncoderDecoder(with([](auto& o) { o.target_vocabulary = 0; })), ValueError);
  CHECK_THROWS_AS(EncoderDecoder(with([](auto& o) { o.encoder_layers = 0; })), ValueError);
  CHECK_THROWS_AS(EncoderDecoder(with([](auto& o) { o.heads = 3; })), ValueError);
  CHECK_THROWS_AS(EncoderDecoder(with([](auto& o) { o.max_target = 0; })), ValueError);
}

TEST_CASE("EncoderDecoder learns to say short sequences backwards") {
  manual_seed(8);
  EncoderDecoder model({.source_vocabulary = 7,
                        .target_vocabulary = 7,
                        .max_source = 5,
                        .max_target = 5,
                        .width = 32,
                        .heads = 2,
                        .encoder_layers = 1,
                        .decoder_layers = 1});
  optim::AdamW optimizer(model.parameters(), {.lr = 5e-3});
  double loss_value = 0;
  for (int step = 0; step < 400; ++step) {
    const Tensor symbols = randint(3, 7, {32, 4});
    const Tensor backwards = symbols.flip(1);
    const Tensor told = cat({ones({32, 1}, DType::i64), backwards}, 1);
    const Tensor following = cat({backwards, full({32, 1}, 2)}, 1);
    const Tensor loss = cross_entropy(model(symbols, told).view({-1, 7}), following.reshape({-1}));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  CHECK(loss_value < 0.1);
  model.eval();
  const Tensor symbols = randint(3, 7, {20, 4});
  const auto found = layers::greedy_search(model.search_step(symbols), 20, {.max_length = 5});
  int right = 0;
  for (int64_t row = 0; row < 20; ++row) {
    std::vector<int64_t> expected = symbols[row].to_vector<int64_t>();
    std::reverse(expected.begin(), expected.end());
    right += found[static_cast<size_t>(row)].tokens == expected;
  }
  CHECK(right >= 18);
}

}  // namespace encoder_decoder_test
