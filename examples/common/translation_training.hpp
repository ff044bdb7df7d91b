#pragma once

#include <filesystem>
#include <optional>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/translation_model.hpp>
#include <string>
#include <vector>

namespace examples {

/// Examples as a model is trained on them: it reads the source, and is told the target so far.
struct TranslationBatch {
  SourceBatch source;
  regard::Tensor target;     // [N, T]  start, then the target: what the decoder reads
  regard::Tensor following;  // [N * T]  the target, then end: what it has to say; -100 behind that
  int64_t tokens = 0;        // of source and target, with their ends
  int64_t targets = 0;       // to be said
};
TranslationBatch translation_batch(const std::vector<TranslationExample>& examples);

/// How a model does on examples when it is told the right target so far.
struct TranslationFit {
  double loss = 0;      // cross entropy of a symbol, without label smoothing, in nats
  double accuracy = 0;  // share of the symbols for which the right one is the likeliest
};
TranslationFit measure_fit(const regard::layers::EncoderDecoder& model, const std::vector<TranslationExample>& examples,
                           int64_t batch = 128);

/// Trains `model` as `options` say, from the newest checkpoint in `run`/checkpoints where `options.resume` is set, and
/// leaves it in evaluation mode. A checkpoint is written every save_every steps and at the end. A logged step writes a
/// line to metrics.jsonl: step, loss (what is minimised, with label smoothing), cross_entropy (without), lr,
/// tokens_per_second, accuracy, grad_norm, and now and then held_out_cross_entropy and held_out_accuracy, on `watched`.
/// A loss or gradient that is not finite ends the training, after it was logged, with the parameters as they were
/// before that step; the result says why.
std::optional<std::string> train_translation(regard::layers::EncoderDecoder& model, const TranslationTask& task,
                                             const TranslationOptions& options,
                                             const std::vector<TranslationExample>& watched,
                                             const std::filesystem::path& run, const ProgressOutput& output = {});

}  // namespace examples
