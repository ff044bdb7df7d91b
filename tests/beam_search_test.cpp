// Beam search against an exhaustive search, greedy search, and cases with known answers.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/examples/common/random.hpp>
#include <regard/layers/models/beam_search.hpp>

namespace beam_search_test {

using namespace regard;  // NOLINT(google-build-using-namespace)
using layers::beam_search;
using layers::greedy_search;
using layers::Hypothesis;
using layers::SearchOptions;

namespace {

constexpr int64_t start_token = 1, end_token = 2;

/// A model whose logits depend on the source and on all that was said, through a hash. It keeps what every row has
/// said, so that a search that mixes rows up gets other logits.
class HashedModel {
 public:
  HashedModel(uint64_t seed, int64_t vocabulary) : seed_(seed), vocabulary_(vocabulary) {}

  std::vector<double> logits(const std::vector<int64_t>& said) const {  // the source, the start token, ...
    uint64_t hash = seed_;
    for (int64_t token : said) hash = examples::mix_bits(hash ^ static_cast<uint64_t>(token + 1));
    std::vector<double> result;
    for (int64_t token = 0; token < vocabulary_; ++token) {
      hash = examples::mix_bits(hash);
      result.push_back(4 * static_cast<double>(hash >> 11) * 0x1p-53);
    }
    return result;
  }

  layers::SearchStep step(int64_t sources) {
    said_.clear();
    for (int64_t source = 0; source < sources; ++source) said_.push_back({source});
    calls_ = 0;
    return [this](const std::vector<int64_t>& rows, const std::vector<int64_t>& tokens) {
      ++calls_;
      std::vector<std::vector<int64_t>> next;
      std::vector<double> all;
      for (size_t i = 0; i < rows.size(); ++i) {
        next.push_back(said_.at(static_cast<size_t>(rows[i])));
        next.back().push_back(tokens[i]);
        for (double logit : logits(next.back())) all.push_back(logit);
      }
      said_ = next;
      return from_vector(all, {static_cast<int64_t>(rows.size()), vocabulary_});
    };
  }

  int calls() const { return calls_; }
  int64_t vocabulary() const { return vocabulary_; }

 private:
  uint64_t seed_;
  int64_t vocabulary_;
  std::vector<std::vector<int64_t>> said_;
  int calls_ = 0;
};

/// Every sequence that a source can come to, best first.
class Exhaustive {
 public:
  Exhaustive(const HashedModel& model, int64_t max_length, double alpha)
      : model_(model), max_length_(max_length), alpha_(alpha) {}

  std::vector<Hypothesis> all(int64_t source) {
    found_.clear();
    visit({source, start_token}, {}, 0);
    std::stable_sort(found_.begin(), found_.end(), [](const Hypothesis& a, const Hypothesis& b) {
      return a.ended != b.ended ? a.ended : a.score > b.score;
    });
    return found_;
  }

 private:
  void visit(const std::vector<int64_t>& said, const std::vector<int64_t>& tokens, double log_probability) {
    const std::vector<double> logits = model_.logits(said);
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit);
    const auto length = static_cast<int64_t>(tokens.size()) + 1;
    const double penalty = std::pow((5.0 + static_cast<double>(length)) / 6.0, alpha_);
    for (int64_t token = 0; token < model_.vocabulary(); ++token) {
      const double total = log_probability + logits[static_cast<size_t>(token)] - std::log(sum);
      std::vector<int64_t> next = tokens, next_said = said;
      if (token != end_token) next.push_back(token);
      next_said.push_back(token);
      if (token == end_token || length == max_length_)
        found_.push_back({next, total, total / penalty, token == end_token});
      else
        visit(next_said, next, total);
    }
  }

  const HashedModel& model_;
  int64_t max_length_;
  double alpha_;
  std::vector<Hypothesis> found_;
};

void check_same(const std::vector<Hypothesis>& found, const std::vector<Hypothesis>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("hypothesis " << i);
    CHECK(found[i].tokens == expected[i].tokens);
    CHECK(found[i].ended == expected[i].ended);
    CHECK(found[i].log_probability == Approx(expected[i].log_probability).epsilon(1e-12));
    CHECK(found[i].score == Approx(expected[i].score).epsilon(1e-12));
  }
}

/// Logits by what was said since the start token, for models that are written down.
layers::SearchStep written(const std::map<std::vector<int64_t>, std::vector<double>>& probabilities) {
  auto said = std::make_shared<std::vector<std::vector<int64_t>>>();
  return [=](const std::vector<int64_t>& rows, const std::vector<int64_t>& tokens) {
    std::vector<std::vector<int64_t>> next;
    std::vector<double> all;
    for (size_t i = 0; i < rows.size(); ++i) {
      next.push_back(said->empty() ? std::vector<int64_t>{} : said->at(static_cast<size_t>(rows[i])));
      if (!said->empty()) next.back().push_back(tokens[i]);
      for (double p : probabilities.at(next.back())) all.push_back(std::log(p));
    }
    *said = next;
    return from_vector(all, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(all.size() / rows.size())});
  };
}

}  // namespace

TEST_CASE("a beam as wide as all sequences finds what an exhaustive search finds") {
  for (uint64_t seed : {1, 2, 3}) {
    for (double alpha : {0.0, 0.6, 1.5}) {
      HashedModel model(seed, 4);
      Exhaustive exhaustive(model, 4, alpha);
      const auto everything = exhaustive.all(0).size();
      CHECK(everything == 1 + 3 + 9 + 27 + 81);
      for (int64_t n_best : {int64_t{1}, int64_t{5}, int64_t{200}}) {
        INFO("seed " << seed << ", alpha " << alpha << ", n_best " << n_best);
        const SearchOptions options{.max_length = 4, .beam = 200, .n_best = n_best, .length_penalty = alpha};
        const auto found = beam_search(model.step(3), 3, options);
        REQUIRE(found.size() == 3);
        for (int64_t source = 0; source < 3; ++source) {
          auto expected = exhaustive.all(source);
          expected.resize(std::min<size_t>(expected.size(), static_cast<size_t>(n_best)));
          check_same(found[static_cast<size_t>(source)], expected);
        }
      }
    }
  }
}

TEST_CASE("a beam of one is greedy search, and greedy search takes the likeliest token each time") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    HashedModel model(seed, 6);
    const SearchOptions options{.max_length = 7, .beam = 1, .length_penalty = seed % 2 ? 1.0 : 0.0};
    const auto greedy = greedy_search(model.step(5), 5, options);
    const auto beam = beam_search(model.step(5), 5, options);
    REQUIRE(greedy.size() == 5);
    REQUIRE(beam.size() == 5);
    for (int64_t source = 0; source < 5; ++source) {
      INFO("seed " << seed << ", source " << source);
      const Hypothesis& one = greedy[static_cast<size_t>(source)];
      check_same(beam[static_cast<size_t>(source)], {one});
      std::vector<int64_t> said = {source, start_token};
      for (size_t length = 0; length < 7; ++length) {
        const auto logits = model.logits(said);
        const int64_t best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        if (best == end_token) break;
        said.push_back(best);
      }
      CHECK(std::vector<int64_t>(said.begin() + 2, said.end()) == one.tokens);
      CHECK(one.ended == (one.tokens.size() < 7));
    }
  }
}

TEST_CASE("the sources of a beam search do not touch one another") {
  HashedModel model(5, 7);
  const SearchOptions options{.max_length = 9, .beam = 3, .n_best = 3, .length_penalty = 0.6};
  const auto together = beam_search(model.step(4), 4, options);
  for (int64_t source = 0; source < 4; ++source) {
    HashedModel alone(5, 7);
    auto step = alone.step(source + 1);  // the rows of others are never asked for
    const auto found = beam_search(
        [&, first = true](const std::vector<int64_t>& rows, const std::vector<int64_t>& tokens) mutable {
          if (!first) return step(rows, tokens);
          first = false;
          return step({source}, tokens);
        },
        1, options);
    INFO("source " << source);
    check_same(found[0], together[static_cast<size_t>(source)]);
  }
}

TEST_CASE("every hypothesis has the probability of its tokens") {
  HashedModel model(11, 6);
  for (int64_t beam : {2, 3, 5}) {
    for (const auto& source : beam_search(model.step(1), 1, {.max_length = 8, .beam = beam, .n_best = beam})) {
      for (const Hypothesis& one : source) {
        std::vector<int64_t> said = {0, start_token}, tokens = one.tokens;
        if (one.ended) tokens.push_back(end_token);
        double total = 0;
        for (int64_t token : tokens) {
          const auto logits = model.logits(said);
          double sum = 0;
          for (double logit : logits) sum += std::exp(logit);
          total += logits[static_cast<size_t>(token)] - std::log(sum);
          said.push_back(token);
        }
        CHECK(one.log_probability == Approx(total).epsilon(1e-12));
      }
      for (size_t i = 1; i < source.size(); ++i)
        CHECK((source[i - 1].ended > source[i].ended || source[i - 1].score >= source[i].score));
    }
  }
}

TEST_CASE("a beam finds what greedy search misses") {
  // 3 looks better at first, but nothing good follows it; 4 is followed by the end for certain.
  const auto model = written({{{}, {0, 0, 0, 0.6, 0.4}},
                              {{3}, {0.25, 0.25, 0.1, 0.2, 0.2}},
                              {{4}, {0, 0, 1, 0, 0}},
                              {{3, 0}, {0, 0, 1, 0, 0}},
                              {{3, 1}, {0, 0, 1, 0, 0}}});
  const SearchOptions options{.max_length = 3, .beam = 2};
  const auto greedy = greedy_search(model, 1, options);
  CHECK(greedy[0].tokens == std::vector<int64_t>{3, 0});
  CHECK(greedy[0].log_probability == Approx(std::log(0.15)));
  const auto model_again =
      written({{{}, {0, 0, 0, 0.6, 0.4}}, {{3}, {0.25, 0.25, 0.1, 0.2, 0.2}}, {{4}, {0, 0, 1, 0, 0}}});
  const auto beam = beam_search(model_again, 1, options);
  REQUIRE(beam[0].size() == 1);
  CHECK(beam[0][0].tokens == std::vector<int64_t>{4});
  CHECK(beam[0][0].ended);
  CHECK(beam[0][0].log_probability == Approx(std::log(0.4)));
}

TEST_CASE("the length penalty divides by ((5 + n) / 6)^alpha") {
  const auto make = [] { return written({{{}, {0, 0, 0.5, 0.5}}, {{3}, {0, 0, 0, 1}}, {{3, 3}, {0, 0, 0.9, 0.1}}}); };
  // end at once: log 0.5 over 1 token; 3 3 end: log 0.45 over 3 tokens.
  const auto plain = beam_search(make(), 1, {.max_length = 3, .beam = 2, .n_best = 2});
  CHECK(plain[0][0].tokens.empty());
  CHECK(plain[0][0].score == Approx(std::log(0.5)));
  const auto longer = beam_search(make(), 1, {.max_length = 3, .beam = 2, .n_best = 2, .length_penalty = 1});
  REQUIRE(longer[0].size() == 2);
  CHECK(longer[0][0].tokens == std::vector<int64_t>{3, 3});
  CHECK(longer[0][0].score == Approx(std::log(0.45) / (8.0 / 6.0)));
  CHECK(longer[0][1].score == Approx(std::log(0.5)));
}

TEST_CASE("a beam search stops when nothing better can come") {
  // The end has 0.9 at once; all else together can have no more than 0.1.
  int calls = 0;
  const layers::SearchStep step = [&](const std::vector<int64_t>& rows, const std::vector<int64_t>&) {
    ++calls;
    std::vector<double> all;
    for (size_t i = 0; i < rows.size(); ++i)
      for (double p : {0.05, 0.0, 0.9, 0.05}) all.push_back(std::log(p));
    return from_vector(all, {static_cast<int64_t>(rows.size()), 4});
  };
  CHECK(beam_search(step, 2, {.max_length = 50, .beam = 3})[0][0].tokens.empty());
  CHECK(calls == 1);
  calls = 0;  // the second best needs another step, the third (of equals) too
  const auto three = beam_search(step, 1, {.max_length = 50, .beam = 3, .n_best = 3});
  REQUIRE(three[0].size() == 3);
  CHECK(three[0][1].tokens == std::vector<int64_t>{0});
  CHECK(three[0][2].tokens == std::vector<int64_t>{3});
  CHECK(calls == 2);
}

TEST_CASE("searches exclude tokens of probability zero and say what is wrong") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto constant = [](std::vector<double> logits) -> layers::SearchStep {
    return [logits](const std::vector<int64_t>& rows, const std::vector<int64_t>&) {
      std::vector<double> all;
      for (size_t i = 0; i < rows.size(); ++i) all.insert(all.end(), logits.begin(), logits.end());
      return from_vector(all, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(logits.size())});
    };
  };
  const auto only = constant({-infinity, -infinity, 0, -infinity});
  CHECK(beam_search(only, 1, {.beam = 4, .n_best = 4})[0].size() == 1);  // fewer than asked for
  const auto never = constant({-infinity, -infinity, -infinity, 0});
  const auto cut = beam_search(never, 1, {.max_length = 3, .beam = 2});
  CHECK(cut[0][0].tokens == std::vector<int64_t>{3, 3, 3});
  CHECK_FALSE(cut[0][0].ended);

  const auto nan = constant({0, 0, std::nan(""), 0});
  CHECK_THROWS_WITH(beam_search(nan, 1), Catch::Contains("beam_search") && Catch::Contains("token 2 in row 0 is nan"));
  CHECK_THROWS_AS(greedy_search(nan, 1), ValueError);
  CHECK_THROWS_AS(beam_search(constant({0, infinity, 0}), 1), ValueError);
  CHECK_THROWS_WITH(beam_search(constant({-infinity, -infinity, -infinity}), 1),
                    Catch::Contains("excludes every token"));
  CHECK_THROWS_WITH(beam_search(constant({0, 0}), 1), Catch::Contains("end token 2"));
  const layers::SearchStep wrong = [](const auto&, const auto&) { return zeros({7, 4}); };
  CHECK_THROWS_AS(beam_search(wrong, 2), ShapeError);
  CHECK_THROWS_WITH(beam_search(wrong, 2), Catch::Contains("[7, 4]") && Catch::Contains("[2, vocabulary]"));
  const layers::SearchStep integers = [](const auto&, const auto&) { return zeros({2, 4}, DType::i64); };
  CHECK_THROWS_AS(beam_search(integers, 2), DTypeError);
  const auto good = constant({0, 0, 0, 0});
  CHECK_THROWS_AS(beam_search(good, 0), ValueError);
  CHECK_THROWS_WITH(beam_search(good, 1, {.beam = 0}), Catch::Contains("beam 0"));
  CHECK_THROWS_WITH(beam_search(good, 1, {.beam = 2, .n_best = 3}), Catch::Contains("n_best 3"));
  CHECK_THROWS_AS(beam_search(good, 1, {.max_length = 0}), ValueError);
  CHECK_THROWS_AS(beam_search(good, 1, {.length_penalty = -1}), ValueError);
  CHECK_THROWS_AS(beam_search(good, 1, {.end = -1}), ValueError);
}

TEST_CASE("among equals the earlier sequence and the lower token come first") {
  const layers::SearchStep equal_step = [](const std::vector<int64_t>& rows, const std::vector<int64_t>&) {
    return zeros({static_cast<int64_t>(rows.size()), 5});
  };
  const auto found = beam_search(equal_step, 1, {.max_length = 2, .beam = 3, .n_best = 3});
  REQUIRE(found[0].size() == 3);
  CHECK(found[0][0].tokens.empty());  // the end at once
  CHECK(found[0][0].ended);
  CHECK(found[0][1].tokens == std::vector<int64_t>{0, 0});
  CHECK(found[0][2].tokens == std::vector<int64_t>{0, 1});
  CHECK(greedy_search(equal_step, 1, {.max_length = 2})[0].tokens == std::vector<int64_t>{0, 0});
}

}  // namespace beam_search_test
