#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/examples/common/utf8.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace examples {
namespace {

constexpr uint64_t membership_use = 11, order_use = 12, held_out_use = 13;

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw std::runtime_error(path.string() + ": cannot read: it is a folder");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path.string() + ": cannot read: " + std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw std::runtime_error(path.string() + ": cannot read: " + std::strerror(errno));
  return text;
}

class PairsTask final : public SequenceTask {
 public:
  explicit PairsTask(const PairsTaskOptions& options) : seed_(options.seed) {
    if (!(options.held_out_share > 0 && options.held_out_share < 1))
      throw std::invalid_argument("sequence task: held_out_share is " + std::to_string(options.held_out_share) +
                                  "; it must be above 0 and below 1");
    read(options);
    divide(options);
  }

  bool is_held_out(const std::string& input) const override { return held_out_inputs_.contains(input); }

  std::vector<Example> training_batch(int64_t step, int64_t count) const override {
    std::vector<Example> examples;
    const auto lines = static_cast<int64_t>(training_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = step * count + i;
      const auto& order = order_of(position / lines);
      const auto& [input, output] = training_[order[static_cast<std::size_t>(position % lines)]];
      examples.push_back(make_example(input, output));
    }
    return examples;
  }

  std::vector<Example> held_out(int64_t count) const override {
    std::vector<Example> examples;
    for (std::size_t i = 0; i < held_out_.size() && static_cast<int64_t>(i) < count; ++i)
      examples.push_back(make_example(held_out_[i].first, held_out_[i].second));
    return examples;
  }

 private:
  using Pair = std::pair<std::string, std::string>;

  void read(const PairsTaskOptions& options) {
    const std::string text = read_file(options.file);
    std::string_view rest = text;
    if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);  // the byte order mark that some editors write
    std::set<char32_t> characters;
    for (int64_t number = 1; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.ends_with('\r')) line.remove_suffix(1);

      const auto fail = [&](const std::string& message) {
        throw std::runtime_error(options.file.string() + ":" + std::to_string(number) + ": " + message);
      };
      try {
        from_utf8(line);
      } catch (const Utf8Error& error) {
        fail(std::string(error.what()) + " of the line");
      }
      const std::size_t tab = line.find('\t');
      if (tab == std::string_view::npos) fail("no tab; a line is an input, a tab and an output");
      if (line.find('\t', tab + 1) != std::string_view::npos)
        fail("more than one tab; a line is an input, a tab and an output");
      const auto side = [&](const char* name, std::string_view part, int64_t& longest) {
        const std::u32string code_points = from_utf8(part);
        const auto length = static_cast<int64_t>(code_points.size());
        if (length == 0) fail("the " + std::string(name) + " is empty");
        if (length > options.max_length)
          fail("the " + std::string(name) + " has " + std::to_string(length) + " characters; at most " +
               std::to_string(options.max_length) + " are allowed");
        longest = std::max(longest, length);
        characters.insert(code_points.begin(), code_points.end());
        return std::string(part);
      };
      std::string input = side("input", line.substr(0, tab), longest_input_);
      std::string output = side("output", line.substr(tab + 1), longest_output_);
      training_.emplace_back(std::move(input), std::move(output));
    }
    if (training_.empty()) throw std::runtime_error(options.file.string() + ": the file is empty");
    vocabulary_ = Vocabulary({to_utf8(std::u32string(characters.begin(), characters.end()))});
  }

  // Holds out the inputs with the smallest hashes, so that it does not matter in what order the lines stand.
  void divide(const PairsTaskOptions& options) {
    std::set<std::pair<uint64_t, std::string>> inputs;
    for (const Pair& pair : training_) inputs.emplace(hash(pair.first), pair.first);
    const auto count = static_cast<int64_t>(inputs.size());
    if (count < 2)
      throw std::runtime_error(options.file.string() +
                               ": only one input; at least two different ones are needed, one of them to be held out");
    const auto wanted =
        std::clamp<int64_t>(std::llround(options.held_out_share * static_cast<double>(count)), 1, count - 1);
    auto input = inputs.begin();
    for (int64_t i = 0; i < wanted; ++i, ++input) held_out_inputs_.insert(input->second);

    std::set<Pair> seen;
    std::vector<Pair> training;
    for (Pair& pair : training_) {
      if (!is_held_out(pair.first))
        training.push_back(std::move(pair));
      else if (seen.insert(pair).second)  // the same line twice is one question only
        held_out_.push_back(std::move(pair));
    }
    training_ = std::move(training);
    shuffle(held_out_, Random(seed_, held_out_use));
  }

  uint64_t hash(const std::string& input) const {
    uint64_t h = mix_bits(mix_bits(seed_) ^ membership_use);
    for (char c : input) h = mix_bits(h ^ static_cast<unsigned char>(c));
    return h;
  }

  template <typename T>
  static void shuffle(std::vector<T>& list, Random random) {
    for (std::size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[static_cast<std::size_t>(random.below(static_cast<int64_t>(i)))]);
  }

  // The order in which the lines come in one round. Kept until another round is asked for.
  const std::vector<std::size_t>& order_of(int64_t round) const {
    if (round != round_) {
      order_.resize(training_.size());
      std::iota(order_.begin(), order_.end(), std::size_t{0});
      shuffle(order_, Random(seed_, order_use, static_cast<uint64_t>(round)));
      round_ = round;
    }
    return order_;
  }

  uint64_t seed_;
  std::vector<Pair> training_, held_out_;
  std::unordered_set<std::string> held_out_inputs_;
  mutable int64_t round_ = -1;
  mutable std::vector<std::size_t> order_;
};

}  // namespace

std::unique_ptr<SequenceTask> make_pairs_task(const PairsTaskOptions& options) {
  return std::make_unique<PairsTask>(options);
}

}  // namespace examples
