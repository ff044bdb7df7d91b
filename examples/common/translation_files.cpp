// Translation tasks whose examples are in a file: pairs of the user's own, and pronouncing dictionaries.
#include <algorithm>
#include <cmath>
#include <map>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/translation_tasks.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/data/table.hpp>
#include <regard/optim/data/text_file.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

constexpr uint64_t membership_use = 31, batches_use = 32;
constexpr int64_t batches_in_a_pool = 32;

using Pair = std::pair<std::string, std::string>;

// Examples that are all there from the beginning.
//
// Batches hold examples of like length, so that little is padding: each round's random order is cut into pools of some
// batches, a pool is sorted by length and cut into batches, and the batches come in a random order.
class ListedTask final : public TranslationTask {
 public:
  ListedTask(const std::string& file, const std::string& noun, std::vector<Pair> pairs, SymbolUnit source_unit,
             SymbolUnit target_unit, const TranslationTaskOptions& options)
      : seed_(options.seed) {
    std::set<Pair> seen;
    std::map<std::string, std::vector<std::string>> answers;  // of each source, in the file's order
    std::vector<std::string> sources, targets;
    for (const Pair& pair : pairs) {
      if (!seen.insert(pair).second) continue;
      answers[pair.first].push_back(pair.second);
      sources.push_back(pair.first);
      targets.push_back(pair.second);
    }
    if (answers.size() < 2)
      throw std::runtime_error(file + ": only " + std::to_string(answers.size()) + " different " + noun +
                               "; at least two are needed, one of them to be held out");
    source_vocabulary_ = SymbolVocabulary(source_unit, sources);
    target_vocabulary_ = SymbolVocabulary(target_unit, targets);
    divide(answers, options.held_out_share);
    for (const TranslationExample& example : training_) measure(example.source_tokens, example.target_tokens);
    for (const TranslationQuestion& question : held_out_)
      for (const auto& answer : question.answer_tokens) measure(question.source_tokens, answer);
    summary_ = std::to_string(answers.size() - held_out_.size()) + " " + noun + " to train on in " +
               std::to_string(training_.size()) + " pairs, " + std::to_string(held_out_.size()) + " held out";
  }

  std::vector<TranslationExample> training_batch(int64_t step, int64_t count) const override {
    const int64_t examples = std::ssize(training_), batches = (examples + count - 1) / count;
    const std::vector<int64_t>& order = order_of(step / batches, count);
    const int64_t batch =
        regard::data::RandomOrder(batches, mix_bits(seed_ ^ batches_use), step / batches).at(step % batches);
    std::vector<TranslationExample> result;
    for (int64_t i = batch * count; i < std::min((batch + 1) * count, examples); ++i)
      result.push_back(training_[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])]);
    return result;
  }

  std::vector<TranslationQuestion> held_out(int64_t count) const override {
    const auto end = held_out_.begin() + std::min(count, std::ssize(held_out_));
    return {held_out_.begin(), end};
  }

 private:
  // Holds out the sources with the smallest hashes, so that it does not matter in what order the lines stand. They are
  // in the order of their hashes, which is as good as any.
  void divide(const std::map<std::string, std::vector<std::string>>& answers, double share) {
    std::set<std::pair<uint64_t, std::string>> order;
    for (const auto& [source, targets] : answers) {
      uint64_t hash = mix_bits(mix_bits(seed_) ^ membership_use);
      for (char c : source) hash = mix_bits(hash ^ static_cast<unsigned char>(c));
      order.emplace(hash, source);
    }
    const int64_t count = std::ssize(answers);
    const auto wanted = std::clamp<int64_t>(std::llround(share * static_cast<double>(count)), 1, count - 1);
    for (const auto& [hash, source] : order) {
      const std::vector<std::string>& targets = answers.at(source);
      if (std::ssize(held_out_) < wanted) {
        held_out_.push_back(make_question(source, targets));
        continue;
      }
      for (const std::string& target : targets) training_.push_back(make_example(source, target));
    }
  }

  void measure(const std::vector<int64_t>& source, const std::vector<int64_t>& target) {
    longest_source_ = std::max(longest_source_, std::ssize(source));
    longest_target_ = std::max(longest_target_, std::ssize(target));
  }

  // The order of one round, batch after batch. Kept until another is asked for.
  const std::vector<int64_t>& order_of(int64_t round, int64_t count) const {
    if (round == round_ && count == count_) return order_;
    const int64_t examples = std::ssize(training_), pool = batches_in_a_pool * count;
    const regard::data::RandomOrder shuffled(examples, seed_, round);
    order_.clear();
    for (int64_t i = 0; i < examples; ++i) order_.push_back(shuffled.at(i));
    const auto length = [&](int64_t at) {
      const TranslationExample& example = training_[static_cast<std::size_t>(at)];
      return std::pair(example.target_tokens.size(), example.source_tokens.size());
    };
    for (int64_t begin = 0; begin < examples; begin += pool)
      std::stable_sort(order_.begin() + begin, order_.begin() + std::min(begin + pool, examples),
                       [&](int64_t a, int64_t b) { return length(a) < length(b); });
    round_ = round;
    count_ = count;
    return order_;
  }

  uint64_t seed_;
  std::vector<TranslationExample> training_;
  std::vector<TranslationQuestion> held_out_;
  mutable int64_t round_ = -1, count_ = 0;
  mutable std::vector<int64_t> order_;
};

// A line of a pronouncing dictionary, `word(2) F OW1 N IY0 M # comment`; nothing where it holds none.
struct Entry {
  std::string word, phonemes;
};

Entry read_entry(std::string_view line, bool stress) {
  if (line.starts_with(";;;")) return {};
  std::vector<std::string> parts = symbols_of(line, SymbolUnit::words);
  const auto comment = std::find_if(parts.begin(), parts.end(), [](const auto& part) { return part.front() == '#'; });
  parts.erase(comment, parts.end());
  if (parts.empty()) return {};
  Entry entry{parts.front(), ""};
  // `word(2)`, but not a word that is itself in brackets.
  const std::size_t bracket = entry.word.rfind('(');
  if (bracket != std::string::npos && bracket > 0 && entry.word.back() == ')') entry.word.resize(bracket);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    std::string& phoneme = parts[i];
    if (!stress && phoneme.size() > 1 && phoneme.back() >= '0' && phoneme.back() <= '9') phoneme.pop_back();
    entry.phonemes += (i > 1 ? " " : "") + phoneme;
  }
  return entry;
}

}  // namespace

std::unique_ptr<TranslationTask> make_pairs_file_task(const PairsFileOptions& pairs,
                                                      const TranslationTaskOptions& options) {
  regard::data::TableReader reader(pairs.file, {.separator = '\t', .header = false, .columns = 2});
  std::vector<Pair> found;
  for (std::vector<std::string> row; reader.next(row);) {
    for (std::size_t side : {0, 1}) {
      const char* name = side == 0 ? "source" : "target";
      const int64_t length = std::ssize(symbols_of(row[side], side == 0 ? pairs.source_unit : pairs.target_unit));
      if (length == 0) reader.refuse("the " + std::string(name) + " is empty");
      if (length > pairs.max_length)
        reader.refuse("the " + std::string(name) + " has " + std::to_string(length) + " symbols; at most " +
                      std::to_string(pairs.max_length) + " are allowed (--length)");
    }
    found.emplace_back(std::move(row[0]), std::move(row[1]));
  }
  return std::make_unique<ListedTask>(pairs.file.string(), "sources", std::move(found), pairs.source_unit,
                                      pairs.target_unit, options);
}

std::unique_ptr<TranslationTask> make_dictionary_task(const DictionaryOptions& dictionary,
                                                      const TranslationTaskOptions& options) {
  regard::data::LineReader lines(dictionary.file);
  std::vector<Pair> found;
  for (std::string line; lines.next(line);) {
    Entry entry = read_entry(line, dictionary.stress);
    if (entry.word.empty()) continue;
    if (entry.phonemes.empty())
      throw std::runtime_error(dictionary.file.string() + ":" + std::to_string(lines.number()) + ": " +
                               in_quotes(entry.word) + " has no phonemes; a line is a word, spaces, its phonemes");
    found.emplace_back(std::move(entry.word), std::move(entry.phonemes));
  }
  return std::make_unique<ListedTask>(dictionary.file.string(), "words", std::move(found), SymbolUnit::characters,
                                      SymbolUnit::words, options);
}

}  // namespace examples
