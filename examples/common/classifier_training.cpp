#include <algorithm>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/classifier_training.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/layers/lora.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/schedule.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;
using Json = nlohmann::ordered_json;

constexpr double largest_grad_norm = 1.0;

// Gives batches of a set: encoded texts, or features that were computed once.
class Batches {
 public:
  Batches(const TextClassifier& model, const EncodedTexts& set, bool frozen) : model_(model), set_(set) {
    if (frozen) features_ = all_features(model, set.texts);
  }
  Tensor features(const std::vector<int64_t>& indices) const {
    if (features_.defined()) return index_select(features_, 0, regard::from_vector(indices).to(features_.device()));
    std::vector<regard::data::WordPieceEncoding> part;
    for (int64_t i : indices) part.push_back(set_.texts[static_cast<std::size_t>(i)]);
    return model_.features(model_.encoder.tokenizer.batch(part));
  }
  Tensor labels(const std::vector<int64_t>& indices) const {
    std::vector<int64_t> part;
    for (int64_t i : indices) part.push_back(set_.labels[static_cast<std::size_t>(i)]);
    return regard::from_vector(part).to(model_.head.weight.device());
  }
  Judgement judge_all() const {
    return features_.defined() ? judge_features(model_, features_, set_.labels)
                               : judge(model_, set_.texts, set_.labels);
  }

 private:
  const TextClassifier& model_;
  const EncodedTexts& set_;
  Tensor features_;
};

}  // namespace

EncodedTexts encode_texts(const TextClassifier& model, const std::vector<LabelledLine>& lines) {
  EncodedTexts result;
  for (const LabelledLine& line : lines) {
    result.texts.push_back(model.encoder.tokens(line.text));
    result.truncated += result.texts.back().truncated;
    result.labels.push_back(line.label);
  }
  return result;
}

double accuracy(const Judgement& judgement, const std::vector<int64_t>& labels) {
  int64_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += judgement.guesses[i].label == labels[i];
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

ClassifierCourse train_classifier(TextClassifier& model, const EncodedTexts& training, const EncodedTexts& validation,
                                  const ClassifierOptions& options, const std::filesystem::path& folder,
                                  const StopSignals* stop, const ProgressOutput& output) {
  const bool head_only = options.train == "head", lora = options.train == "lora";
  if (head_only) {
    model.encoder.set_requires_grad(false);
    model.eval();
  }
  regard::Tensors parameters;
  if (lora) {
    parameters = regard::layers::add_lora(model.encoder, {.rank = options.rank,
                                                          .alpha = 2.0 * static_cast<double>(options.rank),
                                                          .names = {"*.attention.query", "*.attention.value"}});
    for (const Tensor& parameter : model.head.parameters()) parameters.push_back(parameter);
  }
  const Batches training_set(model, training, head_only), validation_set(model, validation, head_only);
  regard::layers::Layer& trained = head_only ? static_cast<regard::layers::Layer&>(model.head) : model;

  if (!lora) parameters = trained.parameters();

  regard::optim::AdamW optimizer(parameters, {.lr = options.lr, .weight_decay = options.weight_decay});
  regard::optim::WarmupCosine schedule(optimizer, {.warmup_steps = options.warmup, .total_steps = options.decay_steps});
  regard::data::BatchOrder order({.count = static_cast<int64_t>(training.texts.size()),
                                  .batch = std::min<int64_t>(options.batch, std::ssize(training.texts)),
                                  .seed = static_cast<uint64_t>(options.seed)});
  regard::optim::TrainingState state{.model = trained, .optimizer = &optimizer, .schedule = &schedule};
  regard::optim::Checkpoints checkpoints(folder / "checkpoints", {.keep_last = 1});
  if (checkpoints.latest()) {
    const regard::optim::CheckpointInfo loaded = checkpoints.load_latest(state);
    try {
      order.restore(state.data);
    } catch (const regard::ValueError& error) {
      throw regard::FileError((loaded.path / "state.json").string() + ": " + error.what());
    }
  }

  ClassifierCourse course;
  for (const Json& line : read_metrics(folder / "metrics.jsonl", state.step)) {
    if (!line.at("loss").is_number()) continue;
    course.steps.push_back(line.at("step").get<double>());
    course.losses.push_back(line.at("loss").get<double>());
    if (!line.contains("validation_loss") || !line.at("validation_loss").is_number()) continue;
    course.validation_steps.push_back(line.at("step").get<double>());
    course.validation_losses.push_back(line.at("validation_loss").get<double>());
    course.validation_accuracies.push_back(line.at("validation_accuracy").get<double>());
  }

  MetricsWriter metrics(folder / "metrics.jsonl", state.step);

  const int64_t log_every = options.decay_steps <= 100 ? 1 : 10;
  Progress progress(options.steps, output, state.step);
  ProgressValues shown;
  double last_logged = steady_seconds();
  int64_t texts = 0;
  while (state.step < options.steps && (stop == nullptr || stop->signal() == 0)) {
    const int64_t step = state.step + 1, epoch = order.epoch();
    const std::vector<int64_t> indices = order.next();
    if (head_only)
      model.drop.train();
    else
      model.train();
    const Tensor logits = model(training_set.features(indices)), labels = training_set.labels(indices);
    const Tensor loss = cross_entropy(logits, labels);
    optimizer.zero_grad();
    loss.backward();
    const double lr = optimizer.lr(), loss_value = loss.item<double>();
    const double grad_norm = regard::optim::clip_grad_norm(parameters, largest_grad_norm);
    course.diverged = divergence(step, loss_value, grad_norm, lr);
    if (!course.diverged) optimizer.step();
    schedule.step();
    state.step = step;

    texts += static_cast<int64_t>(indices.size());
    shown.loss = loss_value;
    shown.accuracy = (regard::argmax(logits.detach(), -1) == labels).to(regard::DType::f32).mean().item<double>();
    const bool evaluate = !course.diverged && (step % options.eval_every == 0 || step == options.steps);
    if (step == 1 || step % log_every == 0 || evaluate || course.diverged) {
      Json line = {{"step", step},
                   {"epoch", epoch},
                   {"loss", loss_value},
                   {"lr", lr},
                   {"texts_per_second", static_cast<double>(texts) / std::max(steady_seconds() - last_logged, 1e-9)},
                   {"accuracy", *shown.accuracy},
                   {"grad_norm", grad_norm}};
      course.steps.push_back(static_cast<double>(step));
      course.losses.push_back(loss_value);
      if (evaluate) {
        model.eval();
        const Judgement judgement = validation_set.judge_all();
        const double share = accuracy(judgement, validation.labels);
        line["validation_loss"] = judgement.loss;
        line["validation_accuracy"] = share;
        course.validation_steps.push_back(static_cast<double>(step));
        course.validation_losses.push_back(judgement.loss);
        course.validation_accuracies.push_back(share);
        state.data = order.to_json();
        metrics.write(line);
        metrics.flush();
        checkpoints.save(state, judgement.loss);
      } else {
        metrics.write(line);
      }
      texts = 0;
      last_logged = steady_seconds();
    }
    progress.update(step, shown);
    if (course.diverged) break;
  }
  progress.finish();
  model.eval();
  course.step = state.step;
  if (course.diverged) return course;
  if (state.step < options.steps) {  // told to stop
    state.data = order.to_json();
    metrics.flush();
    checkpoints.save(state);
    return course;
  }
  const auto best = checkpoints.best();
  if (best) {
    checkpoints.load(best->path, state);
    course.best_step = best->step;
  }
  if (lora) regard::layers::merge_lora(model.encoder);
  course.best = validation_set.judge_all();
  return course;
}

}  // namespace examples
