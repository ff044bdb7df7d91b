// Sampling against a plain reference, and generation: the window, the cache, the stop.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <regard/layers/models/generate.hpp>
#include <regard/regard.hpp>

namespace generate_test {

using namespace regard;
using layers::Candidate;
using layers::candidates;
using layers::GPT;
using layers::SamplingOptions;

namespace {

// As one would write it down: probabilities of all tokens, those cut off set to zero. Written for clarity: sorts
// everything, and decides for each token on its own.
std::vector<double> plain_probabilities(const std::vector<double>& scores, const SamplingOptions& options) {
  const size_t n = scores.size();
  std::vector<double> p(n, 0);
  if (options.temperature == 0) {
    p[static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin())] = 1;
    return p;
  }
  const auto before = [&](size_t a, size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); };
  const auto normalise = [&](std::vector<double>& q) {
    const double sum = std::accumulate(q.begin(), q.end(), 0.0);
    for (double& value : q) value /= sum;
  };
  const double largest = *std::max_element(scores.begin(), scores.end());
  for (size_t i = 0; i < n; ++i) {
    size_t rank = 0;
    for (size_t j = 0; j < n; ++j) rank += before(j, i);
    const bool kept = options.top_k == 0 || rank < static_cast<size_t>(options.top_k);
    p[i] = kept ? std::exp((scores[i] - largest) / options.temperature) : 0;
  }
  normalise(p);
  std::vector<double> q = p;
  for (size_t i = 0; i < n; ++i) {
    double likelier = 0;  // the probability of those before it: it is kept while they have not reached top_p
    for (size_t j = 0; j < n; ++j)
      if (before(j, i)) likelier += p[j];
    if (options.top_p < 1 && likelier >= options.top_p) q[i] = 0;
  }
  normalise(q);
  return q;
}

GPT tiny_model(int64_t context = 8, layers::PositionKind positions = layers::PositionKind::learned) {
  manual_seed(21);
  GPT model({.vocabulary = 9, .context = context, .width = 8, .heads = 2, .layers = 2, .positions = positions});
  Generator generator(5);
  NoGrad no_grad;
  for (const Tensor& p : model.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.3);
  model.eval();
  return model;
}

}  // namespace

TEST_CASE("sampling: candidates are those of a plain reference, for any temperature, top-k and top-p") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int round = 0; round < 400; ++round) {
    const auto n = static_cast<int64_t>(1 + random() % 40);
    std::vector<double> scores(static_cast<size_t>(n));
    const bool coarse = round % 3 == 0;  // many equal scores
    for (double& score : scores) score = coarse ? std::floor(uniform(-3, 3)) : uniform(-6, 6);
    if (round % 7 == 0) scores[random() % scores.size()] = -HUGE_VAL;
    if (!std::any_of(scores.begin(), scores.end(), [](double s) { return std::isfinite(s); })) scores[0] = 0;
    SamplingOptions options;
    options.temperature = round % 10 == 0 ? 0 : uniform(0.05, 3);
    options.top_k = round % 2 == 0 ? 0 : static_cast<int64_t>(random() % 50);
    options.top_p = round % 4 == 0 ? 1 : uniform(0.01, 1);
    INFO("round " << round << ", temperature " << options.temperature << ", top_k " << options.top_k << ", top_p "
                  << options.top_p);

    const std::vector<double> wanted = plain_probabilities(scores, options);
    const std::vector<Candidate> found = candidates(from_vector<double>(scores, {n}), options);
    std::vector<double> got(scores.size(), 0);
    double sum = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      got.at(static_cast<size_t>(found[i].token)) = found[i].probability;
      sum += found[i].probability;
      CHECK(found[i].probability > 0);
      if (i > 0) CHECK(found[i].probability <= found[i - 1].probability);
    }
    CHECK(sum == Approx(1).epsilon(1e-12));
    if (options.top_k > 0) CHECK(std::ssize(found) <= options.top_k);
    for (size_t i = 0; i < scores.size(); ++i) CHECK(got[i] == Approx(wanted[i]).margin(1e-12));
  }
}

TEST_CASE("sampling: tokens come as often as their probabilities say, and equal seeds give equal tokens") {
  const Tensor scores = from_vector<float>({0.0F, 1.0F, 2.0F, -1.0F, 0.5F});
  const SamplingOptions options{.temperature = 1.3, .top_k = 4, .top_p = 0.95};
  const std::vector<Candidate> choices = candidates(scores, options);
  REQUIRE(choices.size() == 4);
  Generator generator(17), same(17);
  std::vector<int64_t> counts(5, 0);
  constexpr int64_t draws = 20000;
  for (int64_t i = 0; i < draws; ++i) {
    const int64_t token = layers::sample(scores, options, generator);
    REQUIRE(token == layers::sample(scores, options, same));
    ++counts[static_cast<size_t>(token)];
  }
  CHECK(counts[3] == 0);
  double chi_squared = 0;
  for (const Candidate& choice : choices) {
    const double expected = choice.probability * static_cast<double>(draws);
    const double off = static_cast<double>(counts[static_cast<size_t>(choice.token)]) - expected;
    chi_squared += off * off / expected;
  }
  CHECK(chi_squared < 16.3);  // three degrees of freedom: one in a thousand is above; the seed is fixed

  const uint64_t offset = generator.offset();
  CHECK(layers::sample(scores, {.temperature = 0}, generator) == 2);
  CHECK(generator.offset() == offset);  // greedy draws nothing
}

TEST_CASE("sampling: what it refuses") {
  using Catch::Contains;
  const Tensor scores = from_vector<float>({0.0F, 1.0F});
  CHECK_THROWS_WITH(candidates(scores, {.temperature = -1}), Contains("temperature"));
  CHECK_THROWS_WITH(candidates(scores, {.top_k = -1}), Contains("top_k"));
  CHECK_THROWS_WITH(candidates(scores, {.top_p = 0}), Contains("top_p"));
  CHECK_THROWS_WITH(candidates(scores, {.top_p = 1.5}), Contains("top_p"));
  CHECK_THROWS_AS(candidates(scores.unsqueeze(0)), ShapeError);
  CHECK_THROWS_WITH(candidates(from_vector<float>({0.0F, NAN})), Contains("score of token 1"));
  CHECK_THROWS_WITH(candidates(from_vector<float>({0.0F, HUGE_VALF})), Contains("score of token 1"));
  CHECK_THROWS_WITH(candidates(from_vector<float>({-HUGE_VALF, -HUGE_VALF})), Contains("-inf"));
}

TEST_CASE("generate: the window holds more than half a context and at most all of it") {
  for (int64_t context : {1, 2, 3, 7, 8, 64}) {
    int64_t last = 0;
    for (int64_t count = 0; count < 5 * context; ++count) {
      const int64_t start = layers::window_start(count, context), held = count - start;
      INFO("context " << context << ", count " << count);
      CHECK(held <= context);
      if (count <= context) CHECK(start == 0);
      if (count > context) CHECK(held > context - std::max<int64_t>(context / 2, 1));
      CHECK(start >= last);
      CHECK((start == last || start - last == std::max<int64_t>(context / 2, 1)));
      last = start;
    }
  }
}

TEST_CASE("generate: with and without cache the same tokens, far beyond the context") {
  for (auto positions : {layers::PositionKind::learned, layers::PositionKind::rotary, layers::PositionKind::alibi}) {
    for (int64_t context : {1, 5, 8}) {
      const GPT model = tiny_model(context, positions);
      for (const std::vector<int64_t>& prompt :
           std::vector<std::vector<int64_t>>{{1}, {1, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4}}) {
        INFO(to_string(positions) << ", context " << context << ", prompt of " << prompt.size());
        Generator with(3), without(3), again(3);
        const auto a = generate(model, prompt, {.length = 30, .sampling = {.temperature = 0.9}, .generator = &with});
        const auto b = generate(
            model, prompt, {.length = 30, .sampling = {.temperature = 0.9}, .generator = &without, .cache = false});
        CHECK(a == b);
        CHECK(a.size() == 30);
        // A text continued is the text: what was written so far decides, not where the prompt ended.
        const auto head =
            generate(model, prompt, {.length = 13, .sampling = {.temperature = 0.9}, .generator = &again});
        std::vector<int64_t> longer = prompt;
        longer.insert(longer.end(), head.begin(), head.end());
        const auto tail =
            generate(model, longer, {.length = 17, .sampling = {.temperature = 0.9}, .generator = &again});
        CHECK(head == std::vector<int64_t>(a.begin(), a.begin() + 13));
        CHECK(tail == std::vector<int64_t>(a.begin() + 13, a.end()));
      }
    }
  }
}

TEST_CASE("generate: greedy takes the likeliest of the whole window's scores") {
  const GPT model = tiny_model();
  std::vector<int64_t> text = {4, 2};
  const auto written = generate(model, text, {.length = 20, .sampling = {.temperature = 0}});
  NoGrad no_grad;
  for (int64_t token : written) {
    const auto start = layers::window_start(std::ssize(text), 8);
    const Tensor ids = from_vector(std::vector<int64_t>(text.begin() + start, text.end()));
    CHECK(token == argmax(model(ids).select(0, -1)).item<int64_t>());
    text.push_back(token);
  }
}

TEST_CASE("generate: a stop token and the callback end the text") {
  const GPT model = tiny_model();
  Generator generator(2);
  const auto all = generate(model, {1}, {.length = 40, .generator = &generator});
  const int64_t stop = all[5];
  const auto first = std::find(all.begin(), all.end(), stop) - all.begin();
  Generator same(2);
  std::vector<int64_t> streamed;
  const auto stopped =
      generate(model, {1}, {.length = 40, .generator = &same, .stop_token = stop, .on_token = [&](int64_t token) {
                              streamed.push_back(token);
                              return true;
                            }});
  CHECK(stopped == std::vector<int64_t>(all.begin(), all.begin() + first + 1));
  CHECK(streamed == stopped);
  Generator third(2);
  int calls = 0;
  CHECK(generate(model, {1}, {.length = 40, .generator = &third, .on_token = [&](int64_t) { return ++calls < 3; }})
            .size() == 3);
  CHECK(generate(model, {1}, {.length = 0}).empty());
}

TEST_CASE("generate: what it refuses") {
  using Catch::Contains;
  GPT model = tiny_model();
  CHECK_THROWS_WITH(generate(model, {}), Contains("prompt is empty"));
  CHECK_THROWS_WITH(generate(model, {1, 9}), Contains("token 9"));
  CHECK_THROWS_AS(generate(model, {-1}), IndexError);
  CHECK_THROWS_WITH(generate(model, {1}, {.length = -1}), Contains("length"));
  CHECK_THROWS_WITH(generate(model, {1}, {.sampling = {.top_p = 2}}), Contains("top_p"));
  GPT dropping({.vocabulary = 9, .context = 8, .width = 8, .heads = 2, .layers = 1, .dropout = 0.1});
  CHECK_THROWS_WITH(generate(dropping, {1}), Contains("eval()"));
  dropping.eval();
  CHECK(generate(dropping, {1}, {.length = 2}).size() == 2);
}

}  // namespace generate_test
