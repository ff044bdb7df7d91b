#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <regard/examples/common/classifier_options.hpp>
#include <regard/examples/common/labelled_lines.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/text_classifier.hpp>
#include <string>
#include <vector>

namespace examples {

/// Labelled texts as the model reads them.
struct EncodedTexts {
  std::vector<regard::data::WordPieceEncoding> texts;
  std::vector<int64_t> labels;
  int64_t truncated = 0;  // texts that were cut
};
EncodedTexts encode_texts(const TextClassifier& model, const std::vector<LabelledLine>& lines);

/// What a training went through, and the judgement of the validation texts by the best model.
struct ClassifierCourse {
  std::vector<double> steps, losses, validation_steps, validation_losses, validation_accuracies;
  int64_t step = 0;       // steps done
  int64_t best_step = 0;  // of the model that is left
  Judgement best;
  std::optional<std::string> diverged = std::nullopt;
};

double accuracy(const Judgement& judgement, const std::vector<int64_t>& labels);

/// Trains a classifier, or with options.train "head" its head alone, and leaves the model with the lowest validation
/// loss in `model`, in evaluation mode. Writes metrics.jsonl and checkpoints/ in `folder`; where there are checkpoints
/// already, goes on from the last one. Told to stop by a signal, it saves a checkpoint and returns.
ClassifierCourse train_classifier(TextClassifier& model, const EncodedTexts& training, const EncodedTexts& validation,
                                  const ClassifierOptions& options, const std::filesystem::path& folder,
                                  const StopSignals* stop = nullptr, const ProgressOutput& output = {});

}  // namespace examples
