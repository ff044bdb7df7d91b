#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

constexpr int64_t countable = 262144;  // up to so many inputs they are all looked at, to hold out an exact share
constexpr uint64_t training_use = 1, held_out_use = 2, membership_use = 3;
constexpr const char* alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument("sequence task: " + message); }

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    refuse(std::string(name) + " is " + std::to_string(value) + "; it must be from " + std::to_string(low) + " to " +
           std::to_string(high));
}

// The sum of base^n for n from `low` to `high`, or nothing where it is more than `countable`.
std::optional<int64_t> count_sequences(int64_t base, int64_t low, int64_t high) {
  int64_t power = 1, sum = 0;
  for (int64_t n = 0; n <= high; ++n) {
    if (n >= low) sum += power;
    if (sum > countable || (n < high && power > countable)) return std::nullopt;
    power *= base;
  }
  return sum;
}

// A task whose inputs are drawn at random. An input is held out by its hash: below a threshold. Where the inputs can be
// counted, the threshold is put so that exactly the share asked for (and at least one) falls below it.
class GeneratedTask : public SequenceTask {
 public:
  bool is_held_out(const std::string& input) const override { return hash(input) < threshold_; }

  std::vector<Example> training_batch(int64_t step, int64_t count) const override {
    Random random(seed_, training_use, static_cast<uint64_t>(step));
    std::vector<Example> examples;
    for (int64_t i = 0; i < count; ++i) {
      std::string input = draw(random);
      while (is_held_out(input)) input = draw(random);
      examples.push_back(solved(std::move(input)));
    }
    return examples;
  }

  std::vector<Example> held_out(int64_t count) const override {
    Random random(seed_, held_out_use);
    count = std::min(count, held_out_limit_);
    std::vector<Example> examples;
    if (!all_held_out_.empty()) {
      std::vector<std::string> inputs = all_held_out_;
      for (int64_t i = 0; i < count; ++i) {  // the first steps of a shuffle
        const auto at = static_cast<std::size_t>(i);
        std::swap(inputs[at],
                  inputs[at + static_cast<std::size_t>(random.below(static_cast<int64_t>(inputs.size()) - i))]);
        examples.push_back(solved(inputs[at]));
      }
      return examples;
    }
    std::set<std::string> seen;
    while (static_cast<int64_t>(examples.size()) < count) {
      std::string input = draw(random);
      if (is_held_out(input) && seen.insert(input).second) examples.push_back(solved(std::move(input)));
    }
    return examples;
  }

 protected:
  explicit GeneratedTask(const GeneratedTaskOptions& options) : seed_(options.seed) {}

  virtual std::string draw(Random& random) const = 0;
  virtual std::string solve(const std::string& input) const = 0;
  // What decides on which side an input is: inputs of the same key are on the same side.
  virtual std::string key(const std::string& input) const { return input; }

  uint64_t hash(const std::string& input) const {
    uint64_t h = mix_bits(mix_bits(seed_) ^ membership_use);
    for (char c : key(input)) h = mix_bits(h ^ static_cast<unsigned char>(c));
    return h;
  }

  void hold_out_share_of_many(double share, double inputs) {
    threshold_ = static_cast<uint64_t>(std::ldexp(share, 64));  // share < 1: always fits
    held_out_limit_ = static_cast<int64_t>(std::min(inputs * share / 2, 1e15));
  }

  void hold_out_share_of(double share, const std::vector<std::string>& inputs) {
    std::set<uint64_t> hashes;
    for (const std::string& input : inputs) hashes.insert(hash(input));
    const auto count = static_cast<int64_t>(hashes.size());
    if (count < 2)
      refuse("there is only " + std::to_string(count) +
             " input, which cannot be both trained on and held out; take more symbols or a greater length");
    const auto wanted = std::clamp<int64_t>(std::llround(share * static_cast<double>(count)), 1, count - 1);
    threshold_ = *std::next(hashes.begin(), wanted);
    for (const std::string& input : inputs)
      if (is_held_out(input)) all_held_out_.push_back(input);
    held_out_limit_ = static_cast<int64_t>(all_held_out_.size());
  }

  Example solved(std::string input) const {
    std::string output = solve(input);
    return make_example(std::move(input), std::move(output));
  }

  uint64_t seed_;

 private:
  uint64_t threshold_ = 0;
  int64_t held_out_limit_ = 0;
  std::vector<std::string> all_held_out_;  // empty where there are too many inputs to count
};

class SymbolTask final : public GeneratedTask {  // copy, reverse, sort
 public:
  explicit SymbolTask(const GeneratedTaskOptions& options)
      : GeneratedTask(options), task_(options.task), symbols_(options.symbols), high_(options.length) {
    check_range("length", options.length, 1, 1000);
    check_range("symbols", options.symbols, 1, 62);
    check_range("min_length", options.min_length, 0, options.length);
    low_ = options.min_length == 0 ? high_ : options.min_length;
    vocabulary_ = Vocabulary({std::string(alphabet, static_cast<std::size_t>(symbols_))});
    longest_input_ = longest_output_ = high_;
    if (!count_sequences(symbols_, low_, high_)) {
      const auto base = static_cast<double>(symbols_);
      hold_out_share_of_many(options.held_out_share,
                             std::pow(base, static_cast<double>(std::min<int64_t>(high_, 100))));
      return;
    }
    std::vector<std::string> inputs;
    for (int64_t length = low_; length <= high_; ++length) add_all(inputs, length);
    hold_out_share_of(options.held_out_share, inputs);
  }

 private:
  std::string draw(Random& random) const override {
    const int64_t length = low_ == high_ ? high_ : low_ + random.below(high_ - low_ + 1);
    std::string input;
    for (int64_t i = 0; i < length; ++i) input += alphabet[random.below(symbols_)];
    return input;
  }

  std::string solve(const std::string& input) const override {
    std::string output = input;
    if (task_ == "reverse") std::reverse(output.begin(), output.end());
    if (task_ == "sort") {  // in the order of the alphabet, which is not that of the character codes
      const std::string order = alphabet;
      std::sort(output.begin(), output.end(), [&](char a, char b) { return order.find(a) < order.find(b); });
    }
    return output;
  }

  void add_all(std::vector<std::string>& inputs, int64_t length) const {
    std::vector<int64_t> digits(static_cast<std::size_t>(length), 0);
    for (;;) {
      std::string input;
      for (int64_t digit : digits) input += alphabet[digit];
      inputs.push_back(input);
      std::size_t place = 0;
      while (place < digits.size() && ++digits[place] == symbols_) digits[place++] = 0;
      if (place == digits.size()) return;
    }
  }

  std::string task_;
  int64_t symbols_, low_ = 0, high_;
};

class AddTask final : public GeneratedTask {
 public:
  explicit AddTask(const GeneratedTaskOptions& options) : GeneratedTask(options) {
    check_range("length (digits of a number)", options.length, 1, 15);
    for (int64_t i = 0; i < options.length; ++i) numbers_ *= 10;
    vocabulary_ = Vocabulary({"0123456789+="});
    longest_input_ = 2 * options.length + 2;
    longest_output_ = options.length + 1;
    if (numbers_ > 512) {  // more pairs than can be counted
      const auto count = static_cast<double>(numbers_);
      hold_out_share_of_many(options.held_out_share, count * count);
      return;
    }
    std::vector<std::string> inputs;
    for (int64_t a = 0; a < numbers_; ++a)
      for (int64_t b = 0; b < numbers_; ++b) inputs.push_back(question(a, b));
    hold_out_share_of(options.held_out_share, inputs);
  }

 private:
  static std::string question(int64_t a, int64_t b) { return std::to_string(a) + "+" + std::to_string(b) + "="; }

  static std::pair<int64_t, int64_t> numbers(const std::string& input) {
    int64_t a = -1, b = -1;
    const char* end = input.data() + input.size();
    const char* at = std::from_chars(input.data(), end, a).ptr;
    if (at != end) at = std::from_chars(at + 1, end, b).ptr;
    if (a < 0 || b < 0 || question(a, b) != input) refuse("'" + input + "' is no question of the task add");
    return {a, b};
  }

  std::string draw(Random& random) const override {
    const int64_t a = random.below(numbers_), b = random.below(numbers_);
    return question(a, b);
  }

  std::string solve(const std::string& input) const override {
    const auto [a, b] = numbers(input);
    return std::to_string(a + b);
  }

  std::string key(const std::string& input) const override {
    const auto [a, b] = numbers(input);
    return question(std::min(a, b), std::max(a, b));  // whoever knows 37+58 knows 58+37
  }

  int64_t numbers_ = 1;  // 0 to numbers_ - 1
};

void append_row(std::vector<int64_t>& rows, const std::vector<int64_t>& row, int64_t length, int64_t filler) {
  rows.insert(rows.end(), row.begin(), row.end());
  rows.resize(rows.size() + static_cast<std::size_t>(length) - row.size(), filler);
}

int64_t row_length(const char* what, int64_t longest, int64_t wanted) {
  if (wanted != 0 && longest > wanted)
    refuse("an example's " + std::string(what) + " takes " + std::to_string(longest) +
           " tokens, and the batch has room for " + std::to_string(wanted));
  return wanted == 0 ? longest : wanted;
}

}  // namespace

Example SequenceTask::make_example(std::string input, std::string output) const {
  std::vector<int64_t> input_tokens = vocabulary_.encode(input), output_tokens = vocabulary_.encode(output);
  return {std::move(input), std::move(output), std::move(input_tokens), std::move(output_tokens)};
}

std::unique_ptr<SequenceTask> make_generated_task(const GeneratedTaskOptions& options) {
  if (!(options.held_out_share >= 0.001 && options.held_out_share <= 0.999))
    refuse("held_out_share is " + std::to_string(options.held_out_share) + "; it must be from 0.001 to 0.999");
  if (options.task == "add") return std::make_unique<AddTask>(options);
  if (options.task != "copy" && options.task != "reverse" && options.task != "sort")
    refuse("'" + options.task + "' is none of copy, reverse, sort and add");
  return std::make_unique<SymbolTask>(options);
}

SequenceBatch pad_batch(const std::vector<Example>& examples, int64_t input_length, int64_t output_length) {
  SequenceBatch batch;
  int64_t longest_input = 0, longest_output = 1;
  for (const Example& example : examples) {
    longest_input = std::max(longest_input, static_cast<int64_t>(example.input_tokens.size()));
    longest_output = std::max(longest_output, static_cast<int64_t>(example.output_tokens.size()) + 1);
  }
  batch.rows = static_cast<int64_t>(examples.size());
  batch.input_length = row_length("input", longest_input, input_length);
  batch.output_length = row_length("output", longest_output, output_length);
  for (const Example& example : examples) {
    append_row(batch.input, example.input_tokens, batch.input_length, Vocabulary::padding);
    std::vector<int64_t> answer{Vocabulary::start}, targets = example.output_tokens;
    answer.insert(answer.end(), example.output_tokens.begin(), example.output_tokens.end());
    targets.push_back(Vocabulary::end);
    batch.tokens += static_cast<int64_t>(targets.size());
    append_row(batch.answer, answer, batch.output_length, Vocabulary::padding);
    append_row(batch.targets, targets, batch.output_length, SequenceBatch::ignored);
  }
  return batch;
}

SequenceBatch join_batch(const std::vector<Example>& examples, int64_t output_length) {
  SequenceBatch batch;
  int64_t longest = 1;
  for (const Example& example : examples)
    longest = std::max(longest, static_cast<int64_t>(example.input_tokens.size() + example.output_tokens.size()) + 1);
  batch.rows = static_cast<int64_t>(examples.size());
  batch.output_length = row_length("input and output", longest, output_length);
  for (const Example& example : examples) {
    std::vector<int64_t> answer = example.input_tokens, targets(answer.size(), SequenceBatch::ignored);
    answer.push_back(Vocabulary::start);
    answer.insert(answer.end(), example.output_tokens.begin(), example.output_tokens.end());
    targets.insert(targets.end(), example.output_tokens.begin(), example.output_tokens.end());
    targets.push_back(Vocabulary::end);
    batch.tokens += static_cast<int64_t>(example.output_tokens.size()) + 1;
    append_row(batch.answer, answer, batch.output_length, Vocabulary::padding);
    append_row(batch.targets, targets, batch.output_length, SequenceBatch::ignored);
  }
  return batch;
}

}  // namespace examples
