#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <regard/examples/common/symbols.hpp>

namespace examples {

/// A text and one right translation of it, as text and as tokens (without start and end).
struct TranslationExample {
  std::string source, target;
  std::vector<int64_t> source_tokens, target_tokens;
};

/// A text that is kept from training, and all its right translations.
struct TranslationQuestion {
  std::string source;
  std::vector<int64_t> source_tokens;
  std::vector<std::string> answers;
  std::vector<std::vector<int64_t>> answer_tokens;
};

/// A task: examples to train on, and questions whose sources are never among them. Everything follows from its options
/// and its seed alone, on any machine. Not for use by several threads at once.
class TranslationTask {
 public:
  virtual ~TranslationTask() = default;

  const SymbolVocabulary& source_vocabulary() const { return source_vocabulary_; }
  const SymbolVocabulary& target_vocabulary() const { return target_vocabulary_; }
  /// Lengths in symbols that nothing goes beyond (without start and end).
  int64_t longest_source() const { return longest_source_; }
  int64_t longest_target() const { return longest_target_; }
  /// In a line: how much there is.
  const std::string& summary() const { return summary_; }

  /// The examples of training step `step`, from 0: `count` of them, or fewer at the end of a round through a file's.
  /// They depend on seed, step and count alone, not on earlier calls, so that a resumed training sees what an
  /// uninterrupted one would have seen.
  virtual std::vector<TranslationExample> training_batch(int64_t step, int64_t count) const = 0;

  /// Up to `count` different questions, the same at every call; fewer where there are not so many.
  virtual std::vector<TranslationQuestion> held_out(int64_t count) const = 0;

 protected:
  TranslationExample make_example(std::string source, std::string target) const;
  TranslationQuestion make_question(std::string source, std::vector<std::string> answers) const;

  SymbolVocabulary source_vocabulary_, target_vocabulary_;
  int64_t longest_source_ = 0, longest_target_ = 0;
  std::string summary_;
};

struct TranslationTaskOptions {
  double held_out_share = 0.1;  // of all dates, or of the different sources in a file; above 0 and below 1
  uint64_t seed = 0;
};

/// Dates as they are written (written_dates.hpp) to their ISO form. A share of the days is held out: a model has never
/// seen them in any form.
std::unique_ptr<TranslationTask> make_dates_task(const TranslationTaskOptions& options);

struct PairsFileOptions {
  std::filesystem::path file;
  SymbolUnit source_unit = SymbolUnit::characters, target_unit = SymbolUnit::characters;
  int64_t max_length = 128;  // symbols that a side may have
};

/// The user's own examples: UTF-8 text, a line a pair: source, tab, target. A source that stands on several lines has
/// several right translations, which stay on one side. Throws an exception that names file and line where a line is no
/// such pair, or has an empty or too long side, and where there are fewer than two different sources.
std::unique_ptr<TranslationTask> make_pairs_file_task(const PairsFileOptions& pairs,
                                                      const TranslationTaskOptions& options);

struct DictionaryOptions {
  std::filesystem::path file;
  bool stress = false;  // keep the figures that tell a vowel's stress: AH0, AH1, AH2 rather than AH
};

/// Words, letter by letter, to their phonemes, from a file in the format of the CMU pronouncing dictionary: a line a
/// pronunciation, the word, spaces, its phonemes; further pronunciations of a word stand as `word(2)`; what follows
/// ` #` and lines that begin with `;;;` are comments. A share of the words is held out with all their pronunciations.
/// Throws an exception that names file and line where a line is something else.
std::unique_ptr<TranslationTask> make_dictionary_task(const DictionaryOptions& dictionary,
                                                      const TranslationTaskOptions& options);

}  // namespace examples
