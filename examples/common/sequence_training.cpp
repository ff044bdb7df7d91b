#include <algorithm>
#include <chrono>
#include <cmath>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/schedule.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;

constexpr double largest_grad_norm = 1.0;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Answered {
  Tensor logits;   // [B * T, vocabulary]
  Tensor targets;  // [B * T]
};

Answered read(const SequenceModel& model, const SequenceBatch& batch) {
  Tensor logits = model(model.rows(batch.answer, batch.rows));  // [B, T, vocabulary]
  return {logits.view({-1, logits.size(2)}), regard::from_vector(batch.targets)};
}

int64_t count_right(const Answered& answered) {  // targets that are ignored equal no token
  regard::NoGrad no_grad;
  return (regard::argmax(answered.logits, -1) == answered.targets).to(regard::DType::i64).sum().item<int64_t>();
}

int64_t tokens_read(const std::vector<Example>& examples) {
  std::size_t count = 0;
  for (const Example& example : examples) count += example.input_tokens.size() + 1 + example.output_tokens.size();
  return static_cast<int64_t>(count);
}

std::string why_diverged(int64_t step, const char* what, double value, double lr) {
  nlohmann::ordered_json number = value;
  return "training diverged: the " + std::string(what) + " of step " + std::to_string(step) + " is " +
         with_finite_numbers(number).get<std::string>() + " (learning rate " + nlohmann::json(lr).dump() +
         "); a lower --lr may help";
}

}  // namespace

SequenceScore score(const SequenceModel& model, const std::vector<Example>& examples, int64_t batch) {
  regard::NoGrad no_grad;
  double loss = 0;
  int64_t right = 0, tokens = 0;
  for (std::size_t begin = 0; begin < examples.size(); begin += static_cast<std::size_t>(batch)) {
    const std::size_t end = std::min(begin + static_cast<std::size_t>(batch), examples.size());
    const SequenceBatch part = join_batch(
        {examples.begin() + static_cast<std::ptrdiff_t>(begin), examples.begin() + static_cast<std::ptrdiff_t>(end)});
    const Answered answered = read(model, part);
    loss += cross_entropy(answered.logits, answered.targets, {.reduction = regard::Reduction::sum}).item<double>();
    right += count_right(answered);
    tokens += part.tokens;
  }
  return {loss / static_cast<double>(tokens), static_cast<double>(right) / static_cast<double>(tokens)};
}

TrainingCourse train_sequences(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options,
                               const std::vector<Example>& held_out, MetricsWriter& metrics,
                               const ProgressOutput& output) {
  regard::optim::AdamW optimizer(model.parameters(), {.lr = options.lr, .weight_decay = options.weight_decay});
  regard::optim::WarmupCosine schedule(optimizer, {.warmup_steps = options.warmup, .total_steps = options.steps});
  const int64_t log_every = options.steps <= 100 ? 1 : 10;
  const int64_t held_out_every = std::max<int64_t>(1, options.steps / 20);

  TrainingCourse course;
  Progress progress(options.steps, output);
  ProgressValues shown;
  double last_logged = seconds_now();
  int64_t tokens = 0;
  model.train();
  for (int64_t step = 1; step <= options.steps; ++step) {
    const std::vector<Example> examples = task.training_batch(step - 1, options.batch);
    const SequenceBatch batch = join_batch(examples);
    const Answered answered = read(model, batch);
    const Tensor loss = cross_entropy(answered.logits, answered.targets);
    optimizer.zero_grad();
    loss.backward();
    const double lr = optimizer.lr(), loss_value = loss.item<double>();
    const double grad_norm = regard::optim::clip_grad_norm(model.parameters(), largest_grad_norm);
    if (!std::isfinite(loss_value))
      course.diverged = why_diverged(step, "loss", loss_value, lr);
    else if (!std::isfinite(grad_norm))
      course.diverged = why_diverged(step, "gradient's norm", grad_norm, lr);
    else
      optimizer.step();
    schedule.step();

    tokens += tokens_read(examples);
    shown.loss = loss_value;
    shown.accuracy = static_cast<double>(count_right(answered)) / static_cast<double>(batch.tokens);
    if (step == 1 || step % log_every == 0 || step == options.steps || course.diverged) {
      shown.tokens_per_second = static_cast<double>(tokens) / std::max(seconds_now() - last_logged, 1e-9);
      nlohmann::ordered_json line = {{"step", step},
                                     {"loss", loss_value},
                                     {"lr", lr},
                                     {"tokens_per_second", *shown.tokens_per_second},
                                     {"accuracy", *shown.accuracy},
                                     {"grad_norm", grad_norm}};
      course.steps.push_back(static_cast<double>(step));
      course.losses.push_back(loss_value);
      if (!course.diverged && (step % held_out_every < log_every || step == options.steps)) {
        model.eval();
        const SequenceScore held_out_score = score(model, held_out);
        model.train();
        line["held_out_loss"] = held_out_score.loss;
        line["held_out_accuracy"] = held_out_score.accuracy;
        course.held_out_steps.push_back(static_cast<double>(step));
        course.held_out_losses.push_back(held_out_score.loss);
      }
      metrics.write(line);
      tokens = 0;
      last_logged = seconds_now();
    }
    progress.update(step, shown);
    if (course.diverged) break;
  }
  progress.finish();
  model.eval();
  return course;
}

}  // namespace examples
