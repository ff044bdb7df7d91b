#pragma once

#include <filesystem>
#include <ostream>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <string>
#include <vector>

namespace examples {

/// Held-out examples and what the model answered.
struct SequenceTest {
  std::vector<Example> examples;
  std::vector<std::vector<int64_t>> answers;  // tokens, without the end
  int64_t right = 0;                          // equal to the output in every token

  double exact_match() const { return static_cast<double>(right) / static_cast<double>(examples.size()); }
};
SequenceTest test_sequences(const SequenceModel& model, std::vector<Example> held_out);

/// A few examples, as lines: input -> answer, and what was expected where they differ. Wrong ones are among them, if
/// there are any.
void show_examples(std::ostream& out, const SequenceTest& test, const Vocabulary& vocabulary);

/// loss.svg: the loss on training batches and on held-out examples, on a logarithmic axis.
void draw_loss(const std::filesystem::path& path, const std::string& title, const TrainingCourse& course);

/// attention.svg: for each layer and head, from which tokens each token of the answer was told, as the model answers
/// `example`.
void draw_attention(const std::filesystem::path& path, const SequenceModel& model, const Vocabulary& vocabulary,
                    const Example& example);

}  // namespace examples
