#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <regard/examples/common/digits.hpp>
#include <regard/examples/common/digits_options.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/layers/models/vision_transformer.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/schedule.hpp>
#include <string>
#include <vector>

namespace examples {

/// What a model read in pictures.
struct PictureTest {
  std::vector<int64_t> answers = {};
  std::vector<double> certainty = {};  // the probability it gave its answer
  double loss = 0;                     // cross entropy, in nats
  int64_t right = 0;

  double accuracy() const { return static_cast<double>(right) / static_cast<double>(answers.size()); }
};
/// The model should be in evaluation mode; `batch` pictures are read at a time.
PictureTest test_pictures(const regard::layers::VisionTransformer& model, const LabelledPictures& pictures,
                          int64_t batch = 256);

/// The course of a training, as its metrics and its picture show it.
struct PictureCourse {
  std::vector<double> steps, losses;                   // of logged steps, on their training batches
  std::vector<double> test_steps, test_losses;         // about twenty times on the way
  std::optional<std::string> diverged = std::nullopt;  // why it ended early, if it did
};
/// What the lines of a metrics file tell of it.
PictureCourse picture_course_of(const std::vector<nlohmann::ordered_json>& metrics);

/// The training of `model` as `options` say. What a step does follows from the options, the seed and the step alone,
/// so that a training that goes on from a checkpoint does, to the last bit, what it would have done without the break.
class PictureTraining {
 public:
  PictureTraining(regard::layers::VisionTransformer& model, const PictureSplit& pictures, const DigitsOptions& options);

  /// Goes on from the newest checkpoint that is whole.
  void resume(const regard::optim::Checkpoints& checkpoints) { checkpoints.load_latest(state_); }
  int64_t step() const { return state_.step; }

  /// Trains up to the options' steps, or until `stop` has a signal, and leaves the model in evaluation mode. A logged
  /// step, which is each of the first hundred and every tenth, writes a line to `metrics`: step, loss, lr,
  /// pictures_per_second, accuracy, grad_norm, and now and then test_loss and test_accuracy, which are there to be
  /// seen: nothing is chosen by them. What it logs is added to `course`. Checkpoints, where there is a place for them,
  /// are written on the way and where it ends, with `data` as JSON text. A loss or gradient that is not finite ends the
  /// training, after it was logged, with the parameters as they were before that step.
  void run(PictureCourse& course, MetricsWriter& metrics, regard::optim::Checkpoints* checkpoints = nullptr,
           const std::string& data = "{}", const StopSignals* stop = nullptr, const ProgressOutput& output = {});

 private:
  struct Step {
    double loss, accuracy, grad_norm, lr;
  };
  Step take_step();
  PictureTest test();

  regard::layers::VisionTransformer& model_;
  const PictureSplit& pictures_;
  const DigitsOptions& options_;
  int64_t decay_steps_;
  regard::data::BatchOrder order_;
  regard::Tensors parameters_;
  regard::optim::AdamW optimizer_;
  regard::optim::WarmupCosine schedule_;
  regard::optim::TrainingState state_;
};

}  // namespace examples
