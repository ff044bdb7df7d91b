#include <algorithm>
#include <cmath>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/digits_training.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/optim/clip.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;

constexpr double largest_grad_norm = 1.0;

int64_t count_right(const Tensor& logits, const Tensor& labels) {
  return (argmax(logits, -1) == labels).to(regard::DType::i64).sum().item<int64_t>();
}

}  // namespace

PictureTest test_pictures(const regard::layers::VisionTransformer& model, const LabelledPictures& pictures,
                          int64_t batch) {
  regard::NoGrad no_grad;
  const regard::Device device = model.device();
  PictureTest test;
  for (int64_t begin = 0; begin < pictures.count(); begin += batch) {
    const PictureBatch some = picture_batch(pictures, begin, std::min(begin + batch, pictures.count())).to(device);
    const Tensor logits = model(some.images);  // [B, classes]
    const auto [certainty, answers] = max(softmax(logits, -1), -1);
    test.loss += cross_entropy(logits, some.labels, {.reduction = regard::Reduction::sum}).item<double>();
    test.right += count_right(logits, some.labels);
    for (int64_t answer : answers.to_vector<int64_t>()) test.answers.push_back(answer);
    for (double share : certainty.to_vector<double>()) test.certainty.push_back(share);
  }
  test.loss /= static_cast<double>(pictures.count());
  return test;
}

PictureCourse picture_course_of(const std::vector<nlohmann::ordered_json>& metrics) {
  PictureCourse course;
  for (const auto& line : metrics) {
    add_point(line, "loss", course.steps, course.losses);
    add_point(line, "test_loss", course.test_steps, course.test_losses);
  }
  return course;
}

PictureTraining::PictureTraining(regard::layers::VisionTransformer& model, const PictureSplit& pictures,
                                 const DigitsOptions& options)
    : model_(model),
      pictures_(pictures),
      options_(options),
      decay_steps_(options.decay_steps > 0 ? options.decay_steps : options.steps),
      // Whole batches only: in each epoch some pictures sit out, others each time.
      order_({.count = pictures.training.count(),
              .batch = std::min(options.batch, pictures.training.count()),
              .seed = static_cast<uint64_t>(options.seed),
              .drop_last = true}),
      parameters_(model.parameters()),
      optimizer_(parameters_, {.lr = options.lr, .weight_decay = options.weight_decay}),
      schedule_(optimizer_, {.warmup_steps = options.warmup, .total_steps = decay_steps_}),
      state_{model, &optimizer_, &schedule_} {}

PictureTraining::Step PictureTraining::take_step() {
  const int64_t per_epoch = order_.batches_per_epoch();
  const PictureBatch batch =
      distorted_batch(pictures_.training, order_.at(state_.step / per_epoch, state_.step % per_epoch),
                      {.shift = options_.shift, .turn = options_.turn, .stretch = options_.stretch},
                      static_cast<uint64_t>(options_.seed), state_.step)
          .to(parameters_.front().device());
  const Tensor logits = model_(batch.images);  // [B, classes]
  const Tensor loss = cross_entropy(logits, batch.labels, {.label_smoothing = options_.smoothing});
  optimizer_.zero_grad();
  loss.backward();
  Step step{};
  step.lr = optimizer_.lr();
  step.loss = loss.item<double>();
  step.grad_norm = regard::optim::clip_grad_norm(parameters_, largest_grad_norm);
  if (std::isfinite(step.loss) && std::isfinite(step.grad_norm)) optimizer_.step();
  schedule_.step();
  ++state_.step;
  step.accuracy = static_cast<double>(count_right(logits, batch.labels)) / static_cast<double>(batch.labels.numel());
  return step;
}

PictureTest PictureTraining::test() {
  model_.eval();
  PictureTest result = test_pictures(model_, pictures_.test);
  model_.train();
  return result;
}

void PictureTraining::run(PictureCourse& course, MetricsWriter& metrics, regard::optim::Checkpoints* checkpoints,
                          const std::string& data, const StopSignals* stop, const ProgressOutput& output) {
  const int64_t test_every = std::max<int64_t>(1, decay_steps_ / 20);
  state_.data = data;
  Progress progress(options_.steps, output, state_.step);
  ProgressValues shown;
  double last_logged = steady_seconds();
  int64_t steps = 0;
  bool ends = state_.step >= options_.steps;
  model_.train();
  while (!ends) {
    const Step step = take_step();
    const int64_t number = state_.step;
    course.diverged = divergence(number, step.loss, step.grad_norm, step.lr);
    const bool last = number == options_.steps;
    ends = last || course.diverged || (stop != nullptr && stop->signal() != 0);

    ++steps;
    shown.loss = step.loss;
    shown.accuracy = step.accuracy;
    // Neither --steps nor a checkpoint decides what is logged, but for the last step: a run that goes on writes the
    // lines that an uninterrupted one would have written.
    const int64_t log_every = number <= 100 ? 1 : 10;
    if (number % log_every == 0 || last || course.diverged) {
      const double seconds = std::max(steady_seconds() - last_logged, 1e-9);
      nlohmann::ordered_json line = {
          {"step", number},
          {"loss", step.loss},
          {"lr", step.lr},
          {"pictures_per_second", static_cast<double>(steps * order_.options().batch) / seconds},
          {"accuracy", step.accuracy},
          {"grad_norm", step.grad_norm}};
      course.steps.push_back(static_cast<double>(number));
      course.losses.push_back(step.loss);
      if (!course.diverged && (number % test_every < log_every || last)) {
        const PictureTest tested = test();
        line["test_loss"] = tested.loss;
        line["test_accuracy"] = tested.accuracy();
        course.test_steps.push_back(static_cast<double>(number));
        course.test_losses.push_back(tested.loss);
      }
      metrics.write(line);
      steps = 0;
      last_logged = steady_seconds();
    }
    const bool due = options_.checkpoint_every > 0 && number % options_.checkpoint_every == 0;
    if (checkpoints != nullptr && !course.diverged && (due || ends)) {
      metrics.flush();  // a checkpoint's lines are there whenever it is
      checkpoints->save(state_);
    }
    progress.update(number, shown);
  }
  progress.finish();
  model_.eval();
}

}  // namespace examples
