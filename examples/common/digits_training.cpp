#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/digits_training.hpp>
#include <regard/examples/common/random.hpp>
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

// Which pictures a step shows: all of them in a random order, then all in another, and so on. What a step shows depends
// on seed and step alone, so that there is nothing to save for a training to go on.
class PictureOrder {
 public:
  PictureOrder(int64_t count, int64_t batch, uint64_t seed)
      : order_(static_cast<std::size_t>(count)), batch_(batch), seed_(seed) {}

  std::vector<int64_t> batch(int64_t step) {  // steps count from 0
    std::vector<int64_t> numbers;
    const auto count = static_cast<int64_t>(order_.size());
    for (int64_t place = step * batch_; place < (step + 1) * batch_; ++place) {
      if (place / count != epoch_) shuffle(place / count);
      numbers.push_back(order_[static_cast<std::size_t>(place % count)]);
    }
    return numbers;
  }

 private:
  void shuffle(int64_t epoch) {
    std::iota(order_.begin(), order_.end(), 0);
    Random random(seed_, 1, static_cast<uint64_t>(epoch));
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[static_cast<std::size_t>(random.below(static_cast<int64_t>(i)))]);
    epoch_ = epoch;
  }

  std::vector<int64_t> order_;
  int64_t batch_, epoch_ = -1;
  uint64_t seed_;
};

int64_t count_right(const Tensor& logits, const Tensor& labels) {
  return (argmax(logits, -1) == labels).to(regard::DType::i64).sum().item<int64_t>();
}

std::string why_diverged(int64_t step, const char* what, double value, double lr) {
  nlohmann::ordered_json number = value;
  return "training diverged: the " + std::string(what) + " of step " + std::to_string(step) + " is " +
         with_finite_numbers(number).get<std::string>() + " (learning rate " + nlohmann::json(lr).dump() +
         "); a lower --lr may help";
}

}  // namespace

PictureTest test_pictures(const regard::layers::VisionTransformer& model, const LabelledPictures& pictures,
                          int64_t batch) {
  regard::NoGrad no_grad;
  PictureTest test;
  for (int64_t begin = 0; begin < pictures.count(); begin += batch) {
    const PictureBatch some = picture_batch(pictures, begin, std::min(begin + batch, pictures.count()));
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

PictureCourse train_pictures(regard::layers::VisionTransformer& model, const PictureSplit& pictures,
                             const DigitsOptions& options, MetricsWriter& metrics, const ProgressOutput& output) {
  const auto seed = static_cast<uint64_t>(options.seed);
  regard::optim::AdamW optimizer(model.parameters(), {.lr = options.lr, .weight_decay = options.weight_decay});
  regard::optim::WarmupCosine schedule(optimizer, {.warmup_steps = options.warmup, .total_steps = options.steps});
  PictureOrder order(pictures.training.count(), options.batch, seed);
  const Distortion distortion{.shift = options.shift, .turn = options.turn, .stretch = options.stretch};
  const int64_t log_every = options.steps <= 100 ? 1 : 10;
  const int64_t test_every = std::max<int64_t>(1, options.steps / 20);

  PictureCourse course;
  Progress progress(options.steps, output);
  ProgressValues shown;
  double last_logged = seconds_now();
  int64_t read = 0;
  model.train();
  for (int64_t step = 1; step <= options.steps; ++step) {
    const PictureBatch batch = distorted_batch(pictures.training, order.batch(step - 1), distortion, seed, step);
    const Tensor logits = model(batch.images);
    const Tensor loss = cross_entropy(logits, batch.labels, {.label_smoothing = options.smoothing});
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

    read += options.batch;
    shown.loss = loss_value;
    shown.accuracy = static_cast<double>(count_right(logits, batch.labels)) / static_cast<double>(options.batch);
    if (step == 1 || step % log_every == 0 || step == options.steps || course.diverged) {
      nlohmann::ordered_json line = {
          {"step", step},
          {"loss", loss_value},
          {"lr", lr},
          {"pictures_per_second", static_cast<double>(read) / std::max(seconds_now() - last_logged, 1e-9)},
          {"accuracy", *shown.accuracy},
          {"grad_norm", grad_norm}};
      course.steps.push_back(static_cast<double>(step));
      course.losses.push_back(loss_value);
      if (!course.diverged && (step % test_every < log_every || step == options.steps)) {
        model.eval();
        const PictureTest test = test_pictures(model, pictures.test);
        model.train();
        line["test_loss"] = test.loss;
        line["test_accuracy"] = test.accuracy();
        course.test_steps.push_back(static_cast<double>(step));
        course.test_losses.push_back(test.loss);
      }
      metrics.write(line);
      read = 0;
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
