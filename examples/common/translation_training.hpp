#pragma once

#include <optional>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/translation_model.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/schedule.hpp>
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
TranslationBatch translation_batch(const std::vector<TranslationExample>& examples, regard::Device device = {});

/// How a model does on examples when it is told the right target so far.
struct TranslationFit {
  double loss = 0;      // cross entropy of a symbol, without label smoothing, in nats
  double accuracy = 0;  // share of the symbols for which the right one is the likeliest
};
TranslationFit measure_fit(const regard::layers::EncoderDecoder& model, const std::vector<TranslationExample>& examples,
                           int64_t batch = 128);

/// The training of `model` as `options` say. What a step does follows from the options, the seed and the step alone, so
/// that a training that goes on from a checkpoint does, to the last bit, what it would have done without the break:
/// --steps says where it ends, and nothing else depends on it.
class TranslationTraining {
 public:
  TranslationTraining(regard::layers::EncoderDecoder& model, const TranslationTask& task,
                      const TranslationOptions& options);

  /// Goes on from the newest checkpoint that is whole.
  void resume(const regard::optim::Checkpoints& checkpoints) { checkpoints.load_latest(state_); }
  int64_t step() const { return state_.step; }

  /// Trains up to the options' steps, or until `stop` has a signal, and leaves the model in evaluation mode. A logged
  /// step, which is each of the first hundred and every tenth, writes a line to `metrics`: step, loss (what is
  /// minimised, with label smoothing), cross_entropy (without), lr, tokens_per_second, accuracy, grad_norm, and now and
  /// then held_out_cross_entropy and held_out_accuracy, on `watched`. Checkpoints are written on the way and where it
  /// ends. A loss or gradient that is not finite ends the training, after it was logged, with the parameters as they
  /// were before that step: the result says why.
  std::optional<std::string> run(const std::vector<TranslationExample>& watched, MetricsWriter& metrics,
                                 regard::optim::Checkpoints& checkpoints, const StopSignals& stop,
                                 const ProgressOutput& output = {});

 private:
  struct Step {
    double loss, cross_entropy, accuracy, grad_norm, lr;
    int64_t tokens;
  };
  Step take_step();
  TranslationFit fit_on(const std::vector<TranslationExample>& watched);

  regard::layers::EncoderDecoder& model_;
  const TranslationTask& task_;
  const TranslationOptions& options_;
  regard::Tensors parameters_;
  regard::optim::AdamW optimizer_;
  regard::optim::WarmupCosine schedule_;
  regard::optim::TrainingState state_;
};

}  // namespace examples
