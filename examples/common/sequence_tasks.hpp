#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <regard/examples/common/vocabulary.hpp>

namespace examples {

/// A question and its answer, as text and as tokens (without start and end).
struct Example {
  std::string input;
  std::string output;
  std::vector<int64_t> input_tokens;
  std::vector<int64_t> output_tokens;
};

/// A task: examples to train on and others, never among them, to test with. Everything follows from its options and
/// its seed alone, on any machine. Not for use by several threads at once.
class SequenceTask {
 public:
  virtual ~SequenceTask() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// Lengths in tokens that no example goes beyond (without start and end).
  int64_t longest_input() const { return longest_input_; }
  int64_t longest_output() const { return longest_output_; }

  /// Whether examples with this input belong to the test. Decided by the input (for "add", by the unordered pair of
  /// numbers), so that no input is ever on both sides.
  virtual bool is_held_out(const std::string& input) const = 0;

  /// The examples of training step `step`, `count` of them; none is held out. They depend on seed, step and count
  /// alone, not on earlier calls, so that a resumed training sees what an uninterrupted one would have seen.
  virtual std::vector<Example> training_batch(int64_t step, int64_t count) const = 0;

  /// Up to `count` different held-out examples, the same at every call; fewer where there are not so many. For a task
  /// with more than 262144 inputs it is at most half of those held out.
  virtual std::vector<Example> held_out(int64_t count) const = 0;

 protected:
  Example make_example(std::string input, std::string output) const;

  Vocabulary vocabulary_;
  int64_t longest_input_ = 0;
  int64_t longest_output_ = 0;
};

/// The tasks made up on the spot: "copy" ("3142" -> "3142"), "reverse" ("3142" -> "2413"), "sort" ("3142" -> "1234")
/// and "add" ("37+58=" -> "95").
struct GeneratedTaskOptions {
  std::string task = "reverse";
  int64_t length = 12;     // symbols in a sequence, 1 to 1000; for "add" the digits of a number, 1 to 15
  int64_t min_length = 0;  // lengths are drawn from min_length to length; 0: all have `length`. Not for "add"
  int64_t symbols = 10;    // different symbols, 1 to 62: digits, then small, then capital letters. Not for "add"
  double held_out_share = 0.0625;  // of all inputs, 0.001 to 0.999; at least one input is on either side
  uint64_t seed = 0;
};

/// "add" draws both numbers evenly from 0 to 10^length - 1, written without leading zeros; a pair is held out in both
/// orders. Throws std::invalid_argument for an option out of range, an unknown task, and a task with fewer than two
/// inputs, which cannot be on both sides.
std::unique_ptr<SequenceTask> make_generated_task(const GeneratedTaskOptions& options);

struct PairsTaskOptions {
  std::filesystem::path file;
  int64_t max_length = 64;      // characters that an input or output may have
  double held_out_share = 0.1;  // of the different inputs, above 0 and below 1; at least one is on either side
  uint64_t seed = 0;
};

/// The user's own examples: UTF-8 text, a line a pair, input and output parted by a tab; a byte order mark at the
/// beginning and carriage returns at the ends of lines are dropped. Lines with the same input stay on one side.
/// Training goes through all its lines in a new order each time round. Throws std::runtime_error naming the file and
/// line where a line is no such pair (no tab or a second one, an empty or too long side, invalid UTF-8), where there
/// are fewer than two different inputs, and where the file cannot be read.
std::unique_ptr<SequenceTask> make_pairs_task(const PairsTaskOptions& options);

/// Examples as rows of equal length, padded behind with Vocabulary::padding; an answer begins with start and ends with
/// end, so that a model that answers token by token knows when to stop.
struct SequenceBatch {
  static constexpr int64_t ignored = -100;  // a target that takes no part in the loss

  int64_t rows = 0;
  int64_t input_length = 0;      // S
  int64_t output_length = 0;     // T
  std::vector<int64_t> input;    // [rows, S]
  std::vector<int64_t> answer;   // [rows, T]  start, then the output: what a decoder reads
  std::vector<int64_t> targets;  // [rows, T]  the output, then end, then ignored: what it has to say
  int64_t tokens = 0;            // targets that are not ignored
};

/// For encoder and decoder. The lengths are the longest of these examples', or `input_length` and `output_length` where
/// they are given (not 0; the output's counts start or end). Throws std::invalid_argument where an example is longer.
SequenceBatch pad_batch(const std::vector<Example>& examples, int64_t input_length = 0, int64_t output_length = 0);

/// For a decoder alone, which reads question and answer as one row: `answer` is input, start, output, `targets` is
/// ignored up to the start token, where the first token of the output is due. `input` is empty, input_length 0.
SequenceBatch join_batch(const std::vector<Example>& examples, int64_t output_length = 0);

}  // namespace examples
