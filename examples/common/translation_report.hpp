#pragma once

#include <filesystem>
#include <ostream>
#include <regard/examples/common/translation_model.hpp>
#include <regard/examples/common/translation_tasks.hpp>
#include <string>
#include <vector>

namespace examples {

/// The fewest insertions, deletions and substitutions that make one sequence of the other. Levenshtein, 1966.
int64_t edit_distance(const std::vector<int64_t>& a, const std::vector<int64_t>& b);

/// Held-out questions, and what a model said.
struct TranslationTest {
  std::vector<std::vector<int64_t>> said;  // a translation of each question, without the end
  int64_t right = 0;                       // equal to one of the right answers, in every symbol
  int64_t errors = 0;                      // edits to the nearest right answer (the longest of equally near ones)
  int64_t symbols = 0;                     // of those answers

  double exact_match() const { return static_cast<double>(right) / static_cast<double>(said.size()); }
  /// Edits a symbol: the phoneme error rate of a dictionary, where 1 - exact_match() is the word error rate.
  double symbol_error_rate() const { return static_cast<double>(errors) / static_cast<double>(symbols); }
};
TranslationTest test_translations(const regard::layers::EncoderDecoder& model,
                                  const std::vector<TranslationQuestion>& questions, int64_t beam,
                                  double length_penalty);

/// A few questions, as lines: source -> what was said, and a right answer where it is none. Wrong ones are among them,
/// if there are any.
void show_translations(std::ostream& out, const TranslationTest& test,
                       const std::vector<TranslationQuestion>& questions, const SymbolVocabulary& target);

/// loss.svg, of what metrics.jsonl holds: the cross entropy on training batches and on held-out pairs.
void draw_translation_loss(const std::filesystem::path& run, const std::string& title);

/// attention.svg: for each decoder layer and head, from which symbols of `source` each symbol that the model says was
/// told.
void draw_cross_attention(const std::filesystem::path& path, const regard::layers::EncoderDecoder& model,
                          const SymbolVocabulary& source_vocabulary, const SymbolVocabulary& target_vocabulary,
                          const std::string& source);

}  // namespace examples
