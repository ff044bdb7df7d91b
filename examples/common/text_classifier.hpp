#pragma once

#include <filesystem>
#include <regard/layers/models/sentence_encoder.hpp>
#include <string>
#include <vector>

namespace examples {

/// A sentence encoder and a head, a linear layer from a text's vector to a score for each class.
struct TextClassifier : regard::layers::Layer {
  regard::layers::SentenceEncoder encoder;
  regard::layers::Dropout drop;
  regard::layers::Linear head;
  std::vector<std::string> labels;

  TextClassifier(regard::layers::SentenceEncoder encoder, std::vector<std::string> labels, double dropout);

  /// The encoder's vectors, [N, width], made as long as such vectors are before they are normalised.
  regard::Tensor features(const regard::data::WordPieceBatch& batch) const;
  /// Scores of features: [N, classes].
  regard::Tensor operator()(const regard::Tensor& features) const { return head(drop(features)); }
  void members(regard::layers::Members& m) override;

  /// Writes the encoder's folder and, last, head.safetensors, which has the labels and the run's configuration, JSON,
  /// as metadata; and reads them.
  void save(const std::filesystem::path& folder, const std::string& config = "{}") const;
  static TextClassifier load(const std::filesystem::path& folder);
};

/// A text's class, and how likely the model takes it to be.
struct Guess {
  int64_t label = 0;
  double probability = 0;
};

/// What the model says of encoded texts, and the mean cross-entropy where the labels are given. In evaluation mode.
struct Judgement {
  std::vector<Guess> guesses;
  double loss = 0;
};
Judgement judge(const TextClassifier& model, const std::vector<regard::data::WordPieceEncoding>& texts,
                const std::vector<int64_t>& labels = {});
/// The same of features.
Judgement judge_features(const TextClassifier& model, const regard::Tensor& features,
                         const std::vector<int64_t>& labels = {});

/// The features of many texts, in batches, without a graph.
regard::Tensor all_features(const TextClassifier& model, const std::vector<regard::data::WordPieceEncoding>& texts);

}  // namespace examples
