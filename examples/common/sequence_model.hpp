#pragma once

#include <cstdint>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/transformer.hpp>
#include <utility>
#include <vector>

namespace examples {

struct SequenceModelOptions {
  int64_t vocabulary = 0;      // tokens there are
  int64_t longest_input = 0;   // tokens of a question, at most
  int64_t longest_output = 0;  // tokens of an answer, at most
  int64_t width = 64, heads = 4, layers = 2;
  double dropout = 0;
};

/// Questions and answers as a model reads them: `question start answer`, padded behind.
struct SequenceRows {
  regard::Tensor tokens;      // [B, T], i64
  regard::Tensor from_start;  // [B, T], i64: where a token stands, counted from its row's start token
};

/// A causal transformer, as language models are: it reads a question and a start token, then says the answer, each
/// token as the likeliest one to follow, until it says end. A token is the sum of three vectors, all of them trained:
/// for what it is, for its place from the front, and for its place from the start token. Where lengths vary, the last
/// one lets "the n-th from the end" be looked up as easily as "the n-th".
struct SequenceModel : regard::layers::Layer {
  int64_t longest_input, longest_output;
  regard::layers::Embedding tokens, from_front, from_start;
  std::vector<regard::layers::TransformerEncoderLayer> blocks;
  regard::layers::LayerNorm norm;
  regard::layers::Linear head;

  explicit SequenceModel(const SequenceModelOptions& options);

  /// Rows of `batch.answer` or of a part of it, on the model's device. Throws std::invalid_argument for a row without a
  /// start token.
  SequenceRows rows(const std::vector<int64_t>& token_rows, int64_t count) const;

  /// Scores of each token to be the next: [B, T, vocabulary].
  regard::Tensor operator()(const SequenceRows& rows) const;
  /// The same, and each layer's attention weights, [B, heads, T, T].
  std::pair<regard::Tensor, regard::Tensors> forward_with_weights(const SequenceRows& rows) const;

  void members(regard::layers::Members& m) override;

 private:
  regard::Tensor embed(const SequenceRows& rows) const;
};

/// The answers that the model gives, as tokens without the end: it reads its own words so far, and takes the likeliest
/// token each time. An answer that did not end stops one token after the longest there can be. The model should be in
/// evaluation mode; `batch` examples are answered at a time.
std::vector<std::vector<int64_t>> answer(const SequenceModel& model, const std::vector<Example>& examples,
                                         int64_t batch = 128);

}  // namespace examples
