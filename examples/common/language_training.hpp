#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <regard/examples/common/language_options.hpp>
#include <regard/examples/common/language_text.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/layers/models/gpt.hpp>
#include <regard/optim/accumulate.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/schedule.hpp>
#include <string>

namespace examples {

/// A training of a GPT on a text, with all that goes into its checkpoints. What a step does follows from the options,
/// the seed and the step alone, so that a training which goes on from a checkpoint does, to the last bit, what it would
/// have done without the break.
class LanguageTraining {
 public:
  LanguageTraining(regard::layers::GPT& model, const LanguageOptions& options, const LanguageText& text,
                   const regard::data::Tokenizer& tokenizer, const std::filesystem::path& folder);

  /// Goes on from the newest checkpoint that is whole.
  void resume();
  int64_t step() const { return state_.step; }
  const regard::optim::Checkpoints& checkpoints() const { return checkpoints_; }

  /// Trains up to the options' steps and leaves the model in evaluation mode. Each step writes a line to `metrics`:
  /// step, loss, lr, grad_norm, tokens_per_second, and now and then validation_loss, bits_per_character and sample.
  /// Every validation, and the last step, is followed by a checkpoint. A loss or gradient that is not finite ends the
  /// training, after it was logged: then the result says why. A signal to stop, too, after a checkpoint.
  std::optional<std::string> run(MetricsWriter& metrics, const StopSignals& stop, const ProgressOutput& output = {});

 private:
  struct Step {
    double loss, grad_norm, lr;
    int64_t tokens;
  };
  Step take_step();
  std::string sample();
  void save(std::optional<double> validation_loss);

  regard::layers::GPT& model_;
  const LanguageOptions& options_;
  const LanguageText& text_;
  const regard::data::Tokenizer& tokenizer_;
  TrainingRows rows_;
  regard::data::BatchOrder order_;
  regard::Tensors parameters_;
  regard::optim::AdamW optimizer_;
  regard::optim::GradientAccumulation accumulation_;
  regard::optim::WarmupCosine schedule_;
  regard::optim::Checkpoints checkpoints_;
  regard::optim::TrainingState state_;
};

/// The losses of a run's metrics as a picture.
void draw_language_losses(const std::filesystem::path& path, const std::string& title,
                          const std::filesystem::path& metrics);

}  // namespace examples
