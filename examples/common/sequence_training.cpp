#include <algorithm>
#include <cmath>
#include <iostream>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <regard/examples/common/step_profile.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/optim/clip.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;

constexpr double largest_grad_norm = 1.0;

struct Answered {
  Tensor logits;   // [B * T, vocabulary]
  Tensor targets;  // [B * T]
};

Answered read(const SequenceModel& model, const SequenceBatch& batch) {
  Tensor logits = model(model.rows(batch.answer, batch.rows));  // [B, T, vocabulary]
  return {logits.view({-1, logits.size(2)}), regard::from_vector(batch.targets).to(logits.device())};
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

TrainingCourse course_of(const std::vector<nlohmann::ordered_json>& metrics) {
  TrainingCourse course;
  for (const auto& line : metrics) {
    add_point(line, "loss", course.steps, course.losses);
    add_point(line, "held_out_loss", course.held_out_steps, course.held_out_losses);
  }
  return course;
}

SequenceTraining::SequenceTraining(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options)
    : model_(model),
      task_(task),
      options_(options),
      decay_steps_(options.decay_steps > 0 ? options.decay_steps : options.steps),
      parameters_(model.parameters()),
      optimizer_(parameters_, {.lr = options.lr, .weight_decay = options.weight_decay}),
      schedule_(optimizer_, {.warmup_steps = options.warmup, .total_steps = decay_steps_}),
      state_{model, &optimizer_, &schedule_} {}

void SequenceTraining::resume(const regard::optim::Checkpoints& checkpoints) { checkpoints.load_latest(state_); }

SequenceTraining::Step SequenceTraining::take_step() {
  const std::vector<Example> examples = task_.training_batch(state_.step, options_.batch);
  const SequenceBatch batch = join_batch(examples);
  const Answered answered = read(model_, batch);
  const Tensor loss = cross_entropy(answered.logits, answered.targets);
  optimizer_.zero_grad();
  loss.backward();
  Step step{};
  step.lr = optimizer_.lr();
  step.loss = loss.item<double>();
  step.grad_norm = regard::optim::clip_grad_norm(parameters_, largest_grad_norm);
  if (std::isfinite(step.loss) && std::isfinite(step.grad_norm)) optimizer_.step();
  schedule_.step();
  ++state_.step;
  step.tokens = tokens_read(examples);
  step.accuracy = static_cast<double>(count_right(answered)) / static_cast<double>(batch.tokens);
  return step;
}

SequenceScore SequenceTraining::score_on(const std::vector<Example>& held_out) {
  model_.eval();
  const SequenceScore result = score(model_, held_out);
  model_.train();
  return result;
}

void SequenceTraining::run(TrainingCourse& course, const std::vector<Example>& held_out, MetricsWriter& metrics,
                           const SequenceCheckpoints& checkpoints, const StopSignals* stop,
                           const ProgressOutput& output) {
  const int64_t held_out_every = std::max<int64_t>(1, decay_steps_ / 20);
  state_.data = checkpoints.data;
  Progress progress(options_.steps, output, state_.step);
  ProgressValues shown;
  StepProfile profile(options_.profile, options_.steps - state_.step);
  double last_logged = steady_seconds();
  int64_t tokens = 0;
  bool ends = state_.step >= options_.steps;
  model_.train();
  while (!ends) {
    profile.next_step();
    const Step step = take_step();
    profile.step_is_over();
    const int64_t number = state_.step;
    course.diverged = divergence(number, step.loss, step.grad_norm, step.lr);
    const bool last = number == options_.steps;
    ends = last || course.diverged || (stop != nullptr && stop->signal() != 0);

    tokens += step.tokens;
    shown.loss = step.loss;
    shown.accuracy = step.accuracy;
    std::optional<SequenceScore> held_out_score;
    // Neither --steps nor a checkpoint decides what is logged, but for the last step: a run that goes on writes the
    // lines that an uninterrupted one would have written.
    const int64_t log_every = number <= 100 ? 1 : 10;
    if (number % log_every == 0 || last || course.diverged) {
      shown.tokens_per_second = static_cast<double>(tokens) / std::max(steady_seconds() - last_logged, 1e-9);
      nlohmann::ordered_json line = {{"step", number},
                                     {"loss", step.loss},
                                     {"lr", step.lr},
                                     {"tokens_per_second", *shown.tokens_per_second},
                                     {"accuracy", step.accuracy},
                                     {"grad_norm", step.grad_norm}};
      course.steps.push_back(static_cast<double>(number));
      course.losses.push_back(step.loss);
      if (!course.diverged && (number % held_out_every < log_every || last)) {
        held_out_score = score_on(held_out);
        line["held_out_loss"] = held_out_score->loss;
        line["held_out_accuracy"] = held_out_score->accuracy;
        course.held_out_steps.push_back(static_cast<double>(number));
        course.held_out_losses.push_back(held_out_score->loss);
      }
      metrics.write(line);
      tokens = 0;
      last_logged = steady_seconds();
    }
    const bool due = checkpoints.every > 0 && number % checkpoints.every == 0;
    if (checkpoints.folder != nullptr && !course.diverged && (due || ends)) {
      metrics.flush();  // a checkpoint's lines are there whenever it is
      if (!held_out_score) held_out_score = score_on(held_out);
      checkpoints.folder->save(state_, held_out_score->loss);
    }
    progress.update(number, shown);
  }
  progress.finish();
  model_.eval();
  profile.finish(output.stream != nullptr ? *output.stream : std::cout);
}

TrainingCourse train_sequences(SequenceModel& model, const SequenceTask& task, const SequenceOptions& options,
                               const std::vector<Example>& held_out, MetricsWriter& metrics,
                               const ProgressOutput& output) {
  TrainingCourse course;
  SequenceTraining(model, task, options).run(course, held_out, metrics, {}, nullptr, output);
  return course;
}

}  // namespace examples
