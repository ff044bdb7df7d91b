#include <regard/layers/models/generate.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::layers {

namespace {

void check_options(const char* op, const SamplingOptions& options) {
  check<ValueError>(options.temperature >= 0 && std::isfinite(options.temperature), op, "temperature ",
                    options.temperature, " must be at least 0 and finite");
  check<ValueError>(options.top_k >= 0, op, "top_k ", options.top_k, " must be at least 0 (0: all tokens)");
  check<ValueError>(options.top_p > 0 && options.top_p <= 1, op, "top_p ", options.top_p, " is outside (0, 1]");
}

std::vector<double> checked_scores(const char* op, const Tensor& scores) {
  check_defined(op, "scores", scores);
  check<ShapeError>(scores.dim() == 1 && scores.numel() > 0, op, "scores ", scores.shape(), ": [vocabulary] is needed");
  std::vector<double> values = scores.to_vector<double>();
  bool any = false;
  for (size_t i = 0; i < values.size(); ++i) {
    check<ValueError>(!std::isnan(values[i]) && values[i] < HUGE_VAL, op, "the score of token ", i, " is ", values[i],
                      ": the model's weights may have diverged");
    any = any || std::isfinite(values[i]);
  }
  check<ValueError>(any, op, "every score is -inf: no token can follow");
  return values;
}

}  // namespace

std::vector<Candidate> candidates(const Tensor& scores, const SamplingOptions& options) {
  const char* op = "candidates";
  check_options(op, options);
  std::vector<double> values = checked_scores(op, scores);
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int64_t a, int64_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options.temperature == 0) return {{*std::min_element(order.begin(), order.end(), likelier), 1.0}};

  size_t kept = values.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);
  order.resize(kept);

  // Probabilities among those kept; the largest score is taken off first, so that no exponential overflows.
  const double largest = values[static_cast<size_t>(order.front())];
  std::vector<Candidate> result;
  result.reserve(kept);
  double sum = 0;
  for (int64_t token : order) {
    const double weight = std::exp((values[static_cast<size_t>(token)] - largest) / options.temperature);
    result.push_back({token, weight});
    sum += weight;
  }
  if (options.top_p < 1) {
    double reached = 0;
    size_t count = 0;
    while (count < result.size() && reached < options.top_p * sum) reached += result[count++].probability;
    result.resize(count);
    sum = reached;
  }
  for (Candidate& candidate : result) candidate.probability /= sum;
  // A token that cannot come is no candidate.
  while (result.back().probability == 0) result.pop_back();
  return result;
}

int64_t sample(const Tensor& scores, const SamplingOptions& options, Generator& generator) {
  const std::vector<Candidate> choices = candidates(scores, options);
  if (options.temperature == 0) return choices.front().token;
  const std::array<uint32_t, 4> bits = philox(generator.seed(), generator.reserve(1));
  double left = uniform_double(bits[0], bits[1]);  // [0, 1)
  for (const Candidate& choice : choices) {
    if (left < choice.probability) return choice.token;
    left -= choice.probability;
  }
  return choices.back().token;  // rounding left a trace
}

int64_t window_start(int64_t count, int64_t context) {
  check<ValueError>(count >= 0 && context > 0, "window_start", "count ", count, " and context ", context,
                    ": at least 0 and 1");
  if (count <= context) return 0;
  const int64_t half = std::max<int64_t>(context / 2, 1);
  return (count - context + half - 1) / half * half;
}

std::vector<int64_t> generate(const GPT& model, const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  const char* op = "generate";
  check_options(op, options.sampling);
  check<ValueError>(!prompt.empty(), op, "the prompt is empty: give at least one token to continue");
  check<ValueError>(options.length >= 0, op, "length ", options.length, " must not be negative");
  check<ValueError>(!model.is_training() || model.options.dropout == 0, op,
                    "the model is in training mode, where it drops: call eval() first");
  for (int64_t token : prompt)
    check<IndexError>(token >= 0 && token < model.options.vocabulary, op, "token ", token,
                      " of the prompt is outside the model's vocabulary [0, ", model.options.vocabulary, ")");
  Generator& generator = options.generator != nullptr ? *options.generator : default_generator();
  const int64_t context = model.options.context;

  NoGrad no_grad;
  std::vector<int64_t> text = prompt, written;
  std::vector<KeyValueCache> caches = model.caches();
  int64_t begin = -1, read = 0;  // the cache holds text[begin, read)
  while (std::ssize(written) < options.length) {
    const auto end = std::ssize(text);
    const int64_t start = window_start(end, context);
    if (start != begin || !options.cache) {
      caches = model.caches();
      begin = read = start;
    }
    const std::vector<int64_t> unread(text.begin() + read, text.end());
    const Tensor ids = from_vector(unread, {1, std::ssize(unread)}).to(model.tokens.weight.device());
    const Tensor features = options.cache ? model.features(ids, caches) : model.features(ids);  // [1, T, width]
    read = end;
    const Tensor scores = model.scores(features.select(1, -1)).select(0, 0);  // [vocabulary]
    const int64_t token = sample(scores, options.sampling, generator);
    text.push_back(token);
    written.push_back(token);
    if ((options.on_token && !options.on_token(token)) || token == options.stop_token) break;
  }
  return written;
}

}  // namespace regard::layers
