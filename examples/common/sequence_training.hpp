#pragma once

#include <optional>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/schedule.hpp>
#include <string>
#include <vector>

namespace examples {

/// How a model does on examples when it is told the right answer so far.
struct SequenceScore {
  double loss = 0;      // cross entropy of a token of the answer, in nats
  double accuracy = 0;  // share of those tokens for which the right one is the likeliest
};
SequenceScore score(const SequenceModel& model, const std::vector<Example>& examples, int64_t batch = 128);

/// The course of a training, as its metrics and its picture show it.
struct TrainingCourse {
  std::vector<double> steps, losses;                    // of logged steps, on their training batches
  std::vector<double> held_out_steps, held_out_losses;  // about twenty times on the way
  std::optional<std::string> diverged = std::nullopt;   // why it ended early, if it did
};
/// What the lines of a metrics file tell of it.
TrainingCourse course_of(const std::vector<nlohmann::ordered_json>& metrics);

/// Where a training keeps its checkpoints.
struct SequenceCheckpoints {
  regard::optim::Checkpoints* folder = nullptr;  // none: nothing is kept
  int64_t every = 0;                             // steps; 0: at the end only
  std::string data = "{}";                       // JSON text that goes along
};

/// The training of `model` as `options` say. What a step does follows from the options, the seed and the step alone,
/// so that a training that goes on from a checkpoint does, to the last bit, what it would have done without the break:
/// --steps says where it ends, and nothing else depends on it.
class SequenceTraining {
 public:
  SequenceTraining(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options);

  /// Goes on from the newest checkpoint that is whole.
  void resume(const regard::optim::Checkpoints& checkpoints);
  int64_t step() const { return state_.step; }

  /// Trains up to the options' steps, or until `stop` has a signal, and leaves the model in evaluation mode. A logged
  /// step, which is each of the first hundred and every tenth, writes a line to `metrics`: step, loss, lr,
  /// tokens_per_second, accuracy, grad_norm, and now and then held_out_loss and held_out_accuracy, on `held_out`. What
  /// it logs is added to `course`. Checkpoints are written on the way and where it ends. A loss or gradient that is not
  /// finite ends the training, after it was logged, with the parameters as they were before that step.
  void run(TrainingCourse& course, const std::vector<Example>& held_out, MetricsWriter& metrics,
           const SequenceCheckpoints& checkpoints = {}, const StopSignals* stop = nullptr,
           const ProgressOutput& output = {});

 private:
  struct Step {
    double loss, accuracy, grad_norm, lr;
    int64_t tokens;
  };
  Step take_step();
  SequenceScore score_on(const std::vector<Example>& held_out);

  SequenceModel& model_;
  const SequenceTask& task_;
  const SequenceOptions& options_;
  int64_t decay_steps_;
  regard::Tensors parameters_;
  regard::optim::AdamW optimizer_;
  regard::optim::WarmupCosine schedule_;
  regard::optim::TrainingState state_;
};

/// All of it at once, without checkpoints.
TrainingCourse train_sequences(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options,
                               const std::vector<Example>& held_out, MetricsWriter& metrics,
                               const ProgressOutput& output = {});

}  // namespace examples
