#include <regard/layers/models/beam_search.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <regard/autograd/graph.hpp>

namespace regard::layers {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

void check_options(const char* op, int64_t sources, const SearchOptions& options) {
  check<ValueError>(sources > 0, op, "sources ", sources, " must be positive");
  check<ValueError>(options.max_length > 0, op, "max_length ", options.max_length, " must be positive");
  check<ValueError>(options.start >= 0 && options.end >= 0, op, "start ", options.start, " and end ", options.end,
                    " must be tokens, not negative");
  check<ValueError>(options.beam > 0, op, "beam ", options.beam, " must be positive");
  check<ValueError>(options.n_best > 0 && options.n_best <= options.beam, op, "n_best ", options.n_best,
                    " must be from 1 to beam ", options.beam);
  check<ValueError>(options.length_penalty >= 0 && std::isfinite(options.length_penalty), op, "length_penalty ",
                    options.length_penalty, " must be finite and not negative");
}

double normaliser(int64_t length, double alpha) { return std::pow((5.0 + static_cast<double>(length)) / 6.0, alpha); }

/// The log-probabilities of one step, [R, V]. In f64, so that two logits that differ in f32 still do, and the best
/// token is the one that an argmax of the logits finds.
class StepScores {
 public:
  StepScores(const char* op, const SearchStep& step, const std::vector<int64_t>& rows,
             const std::vector<int64_t>& tokens, const SearchOptions& options) {
    const Tensor logits = step(rows, tokens);
    check_defined(op, "logits", logits);
    check_floating(op, "logits", logits);
    const auto count = static_cast<int64_t>(rows.size());
    check<ShapeError>(logits.dim() == 2 && logits.size(0) == count, op, "the step's logits ", logits.shape(),
                      " should be [", count, ", vocabulary], a row for each sequence asked for");
    vocabulary_ = logits.size(1);
    check<ValueError>(options.end < vocabulary_, op, "end token ", options.end, " is not among the step's ",
                      vocabulary_, " tokens");
    values_ = logits.to_vector<double>();
    for (int64_t row = 0; row < count; ++row) normalise(op, row);
  }

  int64_t vocabulary() const { return vocabulary_; }
  const double* row(int64_t at) const { return values_.data() + at * vocabulary_; }

 private:
  void normalise(const char* op, int64_t at) {
    double* row = values_.data() + at * vocabulary_;
    double highest = minus_infinity;
    for (int64_t token = 0; token < vocabulary_; ++token) {
      check<ValueError>(row[token] < std::numeric_limits<double>::infinity(), op, "the step's logit of token ", token,
                        " in row ", at, " is ", row[token], ": the model's parameters or inputs are not finite");
      highest = std::max(highest, row[token]);
    }
    check<ValueError>(highest > minus_infinity, op, "the step's row ", at, " excludes every token");
    double sum = 0;
    for (int64_t token = 0; token < vocabulary_; ++token) sum += std::exp(row[token] - highest);
    const double log_sum = std::log(sum);
    for (int64_t token = 0; token < vocabulary_; ++token) row[token] = row[token] - highest - log_sum;
  }

  int64_t vocabulary_ = 0;
  std::vector<double> values_;
};

struct Live {  // a sequence that is going on
  int64_t row;
  std::vector<int64_t> tokens;
  double log_probability;
};

struct Candidate {  // a sequence that might: its parent among the source's live ones, and its next token
  double log_probability;
  int64_t parent;
  int64_t token;

  bool better_than(const Candidate& other) const {
    if (log_probability != other.log_probability) return log_probability > other.log_probability;
    return std::pair(parent, token) < std::pair(other.parent, other.token);
  }
};

bool better(const Hypothesis& a, const Hypothesis& b) { return a.ended != b.ended ? a.ended : a.score > b.score; }

/// The search for one source.
class Beam {
 public:
  Beam(int64_t source, const SearchOptions& options) : options_(options), live_{{source, {}, 0.0}} {}

  const std::vector<Live>& live() const { return live_; }

  /// `scores` are those of this step, whose number is `length`.
  void advance(const StepScores& scores, int64_t length) {
    std::vector<Live> next;
    for (const Candidate& candidate : best_candidates(scores)) {
      const Live& parent = live_[static_cast<size_t>(candidate.parent)];
      const bool ends = candidate.token == options_.end;
      std::vector<int64_t> tokens = parent.tokens;
      if (!ends) tokens.push_back(candidate.token);
      if (ends || length == options_.max_length)
        complete(std::move(tokens), candidate.log_probability, length, ends);
      else
        next.push_back({parent.row, std::move(tokens), candidate.log_probability});
    }
    live_ = std::move(next);
    if (!could_improve()) live_.clear();
  }

  /// After a step: where the live sequences stand among those that are asked for next.
  void place(std::vector<int64_t>& rows, std::vector<int64_t>& tokens) {
    for (Live& one : live_) {
      rows.push_back(one.row);
      tokens.push_back(one.tokens.back());
      one.row = static_cast<int64_t>(rows.size()) - 1;
    }
  }

  std::vector<Hypothesis> take_best() {
    std::stable_sort(complete_.begin(), complete_.end(), better);
    if (std::ssize(complete_) > options_.n_best) complete_.resize(static_cast<size_t>(options_.n_best));
    return std::move(complete_);
  }

 private:
  std::vector<Candidate> best_candidates(const StepScores& scores) const {
    const auto slots = static_cast<size_t>(options_.beam) - complete_.size();
    const auto better_first = [](const Candidate& a, const Candidate& b) { return a.better_than(b); };
    std::vector<Candidate> best;  // a heap with the worst of them on top
    for (size_t parent = 0; parent < live_.size(); ++parent) {
      const double* row = scores.row(live_[parent].row);
      for (int64_t token = 0; token < scores.vocabulary(); ++token) {
        if (row[token] == minus_infinity) continue;
        const Candidate candidate{live_[parent].log_probability + row[token], static_cast<int64_t>(parent), token};
        if (best.size() == slots) {
          if (!candidate.better_than(best.front())) continue;
          std::pop_heap(best.begin(), best.end(), better_first);
          best.pop_back();
        }
        best.push_back(candidate);
        std::push_heap(best.begin(), best.end(), better_first);
      }
    }
    std::sort_heap(best.begin(), best.end(), better_first);
    return best;
  }

  void complete(std::vector<int64_t> tokens, double log_probability, int64_t length, bool ended) {
    complete_.push_back(
        {std::move(tokens), log_probability, log_probability / normaliser(length, options_.length_penalty), ended});
  }

  // No live sequence can come to a better score than its log-probability, which only falls, over the largest
  // normaliser there is.
  bool could_improve() const {
    if (live_.empty()) return false;
    std::vector<double> scores;
    for (const Hypothesis& one : complete_)
      if (one.ended) scores.push_back(one.score);
    if (std::ssize(scores) < options_.n_best) return true;
    std::nth_element(scores.begin(), scores.begin() + (options_.n_best - 1), scores.end(), std::greater<>());
    const double to_beat = scores[static_cast<size_t>(options_.n_best - 1)];
    // live_ is sorted, best first
    return live_.front().log_probability / normaliser(options_.max_length, options_.length_penalty) > to_beat;
  }

  const SearchOptions& options_;
  std::vector<Live> live_;
  std::vector<Hypothesis> complete_;
};

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(const SearchStep& step, int64_t sources,
                                                 const SearchOptions& options) {
  const char* op = "beam_search";
  check_options(op, sources, options);
  NoGrad no_grad;
  std::vector<Beam> beams;
  std::vector<int64_t> rows(static_cast<size_t>(sources)), tokens(rows.size(), options.start);
  std::iota(rows.begin(), rows.end(), int64_t{0});
  for (int64_t source = 0; source < sources; ++source) beams.emplace_back(source, options);
  for (int64_t length = 1; !rows.empty(); ++length) {
    const StepScores scores(op, step, rows, tokens, options);
    rows.clear();
    tokens.clear();
    for (Beam& beam : beams) {
      if (beam.live().empty()) continue;
      beam.advance(scores, length);
      beam.place(rows, tokens);
    }
  }
  std::vector<std::vector<Hypothesis>> results;
  for (Beam& beam : beams) results.push_back(beam.take_best());
  return results;
}

std::vector<Hypothesis> greedy_search(const SearchStep& step, int64_t sources, const SearchOptions& options) {
  const char* op = "greedy_search";
  check_options(op, sources, options);
  NoGrad no_grad;
  std::vector<Hypothesis> results(static_cast<size_t>(sources));
  std::vector<int64_t> rows(results.size()), tokens(rows.size(), options.start), going(rows.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::iota(going.begin(), going.end(), int64_t{0});
  for (int64_t length = 1; length <= options.max_length && !rows.empty(); ++length) {
    const StepScores scores(op, step, rows, tokens, options);
    std::vector<int64_t> next_rows, next_tokens, next_going;
    for (size_t at = 0; at < going.size(); ++at) {
      const double* row = scores.row(static_cast<int64_t>(at));
      const int64_t token = std::max_element(row, row + scores.vocabulary()) - row;
      Hypothesis& result = results[static_cast<size_t>(going[at])];
      result.log_probability += row[token];
      result.score = result.log_probability / normaliser(length, options.length_penalty);
      result.ended = token == options.end;
      if (result.ended) continue;
      result.tokens.push_back(token);
      next_rows.push_back(static_cast<int64_t>(at));
      next_tokens.push_back(token);
      next_going.push_back(going[at]);
    }
    rows = std::move(next_rows);
    tokens = std::move(next_tokens);
    going = std::move(next_going);
  }
  return results;
}

}  // namespace regard::layers
