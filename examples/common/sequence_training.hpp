#pragma once

#include <optional>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
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

/// Trains `model` as `options` say and leaves it in evaluation mode. A logged step writes a line to `metrics`: step,
/// loss, lr, tokens_per_second, accuracy, grad_norm, and now and then held_out_loss and held_out_accuracy, on
/// `held_out`. A loss or gradient that is not finite ends the training, after it was logged, with the parameters as
/// they were before that step.
TrainingCourse train_sequences(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options,
                               const std::vector<Example>& held_out, MetricsWriter& metrics,
                               const ProgressOutput& output = {});

}  // namespace examples
