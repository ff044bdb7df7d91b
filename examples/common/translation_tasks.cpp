#include <algorithm>
#include <cmath>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/translation_tasks.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/examples/common/written_dates.hpp>
#include <set>
#include <stdexcept>
#include <utility>

namespace examples {

TranslationExample TranslationTask::make_example(std::string source, std::string target) const {
  std::vector<int64_t> source_tokens = source_vocabulary_.encode(source);
  std::vector<int64_t> target_tokens = target_vocabulary_.encode(target);
  return {std::move(source), std::move(target), std::move(source_tokens), std::move(target_tokens)};
}

TranslationQuestion TranslationTask::make_question(std::string source, std::vector<std::string> answers) const {
  TranslationQuestion question;
  question.source_tokens = source_vocabulary_.encode(source);
  for (const std::string& answer : answers) question.answer_tokens.push_back(target_vocabulary_.encode(answer));
  question.source = std::move(source);
  question.answers = std::move(answers);
  return question;
}

namespace {

constexpr uint64_t membership_use = 21, training_use = 22, held_out_use = 23;

class DatesTask final : public TranslationTask {
 public:
  explicit DatesTask(const TranslationTaskOptions& options) : seed_(options.seed) {
    // The days with the smallest hashes are held out: an exact share of them, and at least one on either side.
    std::vector<std::pair<uint64_t, int64_t>> days;
    for (int64_t day = 0; day < days_written; ++day)
      days.emplace_back(mix_bits(mix_bits(mix_bits(seed_) ^ membership_use) ^ static_cast<uint64_t>(day)), day);
    std::sort(days.begin(), days.end());
    const auto wanted = std::clamp<int64_t>(std::llround(options.held_out_share * static_cast<double>(days_written)), 1,
                                            days_written - 1);
    is_held_out_.assign(static_cast<std::size_t>(days_written), false);
    for (int64_t i = 0; i < wanted; ++i) {
      held_out_.push_back(days[static_cast<std::size_t>(i)].second);
      is_held_out_[static_cast<std::size_t>(held_out_.back())] = true;
    }
    source_vocabulary_ = SymbolVocabulary(SymbolUnit::characters, date_characters());
    target_vocabulary_ = SymbolVocabulary(SymbolUnit::characters, {"0123456789-"});
    longest_source_ = longest_written_date;
    longest_target_ = std::ssize(iso_date(date_of(0)));
    summary_ = std::to_string(days_written - wanted) + " days to train on in " + std::to_string(date_forms()) +
               " forms, " + std::to_string(wanted) + " held out";
  }

  std::vector<TranslationExample> training_batch(int64_t step, int64_t count) const override {
    Random random(seed_, training_use, static_cast<uint64_t>(step));
    std::vector<TranslationExample> examples;
    while (std::ssize(examples) < count) {
      const int64_t day = random.below(days_written);
      if (is_held_out_[static_cast<std::size_t>(day)]) continue;
      const Date date = date_of(day);
      examples.push_back(make_example(written_date(date, random), iso_date(date)));
    }
    return examples;
  }

  std::vector<TranslationQuestion> held_out(int64_t count) const override {
    std::vector<TranslationQuestion> questions;
    for (int64_t i = 0; i < std::min(count, std::ssize(held_out_)); ++i) {
      const Date date = date_of(held_out_[static_cast<std::size_t>(i)]);
      Random random(seed_, held_out_use, static_cast<uint64_t>(i));
      questions.push_back(make_question(written_date(date, random), {iso_date(date)}));
    }
    return questions;
  }

 private:
  uint64_t seed_;
  std::vector<int64_t> held_out_;  // days
  std::vector<bool> is_held_out_;
};

}  // namespace

std::unique_ptr<TranslationTask> make_dates_task(const TranslationTaskOptions& options) {
  return std::make_unique<DatesTask>(options);
}

}  // namespace examples
