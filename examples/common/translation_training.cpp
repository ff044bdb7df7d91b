#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/translation_training.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/data/collate.hpp>
#include <regard/optim/schedule.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;
using regard::layers::EncoderDecoder;

constexpr double largest_grad_norm = 1.0, lowest_lr = 0.02;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Tensor read(const EncoderDecoder& model, const TranslationBatch& batch) {
  const Tensor logits = model(batch.source.ids, batch.target, batch.source.mask);  // [N, T, V]
  return logits.view({-1, logits.size(2)});
}

int64_t count_right(const Tensor& logits, const Tensor& following) {  // what is ignored equals no token
  regard::NoGrad no_grad;
  return (regard::argmax(logits, -1) == following).to(regard::DType::i64).sum().item<int64_t>();
}

std::string why_diverged(int64_t step, const char* what, double value, double lr) {
  const nlohmann::ordered_json number = value;
  return "training diverged: the " + std::string(what) + " of step " + std::to_string(step) + " is " +
         with_finite_numbers(number).get<std::string>() + " (learning rate " + nlohmann::json(lr).dump() +
         "); a lower --lr may help";
}

// Leaves the lines of metrics.jsonl up to `step`: an interrupted run may have written more than its last checkpoint
// knows of.
void keep_metrics(const std::filesystem::path& path, int64_t step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const auto values = nlohmann::json::parse(line, nullptr, false);
    if (!values.is_object() || values.value("step", INT64_MAX) > step) break;
    kept += line + "\n";
  }
  write_file_atomically(path, kept);
}

}  // namespace

TranslationBatch translation_batch(const std::vector<TranslationExample>& examples) {
  std::vector<std::vector<int64_t>> sources, targets, following;
  TranslationBatch batch;
  for (const TranslationExample& example : examples) {
    sources.push_back(example.source_tokens);
    targets.push_back({SymbolVocabulary::start});
    targets.back().insert(targets.back().end(), example.target_tokens.begin(), example.target_tokens.end());
    following.push_back(example.target_tokens);
    following.back().push_back(SymbolVocabulary::end);
    batch.targets += std::ssize(following.back());
    batch.tokens += std::ssize(example.source_tokens) + 1 + std::ssize(following.back());
  }
  constexpr int64_t ignored = -100;
  batch.source = source_batch(sources);
  batch.target = regard::data::pad(targets, SymbolVocabulary::padding).ids;
  batch.following = regard::data::pad(following, ignored).ids.view({-1});
  return batch;
}

TranslationFit measure_fit(const EncoderDecoder& model, const std::vector<TranslationExample>& examples,
                           int64_t batch) {
  regard::NoGrad no_grad;
  double loss = 0;
  int64_t right = 0, targets = 0;
  for (std::size_t begin = 0; begin < examples.size(); begin += static_cast<std::size_t>(batch)) {
    const std::size_t end = std::min(begin + static_cast<std::size_t>(batch), examples.size());
    const TranslationBatch part = translation_batch(
        {examples.begin() + static_cast<std::ptrdiff_t>(begin), examples.begin() + static_cast<std::ptrdiff_t>(end)});
    const Tensor logits = read(model, part);
    loss += cross_entropy(logits, part.following, {.reduction = regard::Reduction::sum}).item<double>();
    right += count_right(logits, part.following);
    targets += part.targets;
  }
  return {loss / static_cast<double>(targets), static_cast<double>(right) / static_cast<double>(targets)};
}

std::optional<std::string> train_translation(EncoderDecoder& model, const TranslationTask& task,
                                             const TranslationOptions& options,
                                             const std::vector<TranslationExample>& watched,
                                             const std::filesystem::path& run, const ProgressOutput& output) {
  const regard::Tensors parameters = model.parameters();
  regard::optim::AdamW optimizer(parameters,
                                 {.lr = options.lr, .betas = {0.9, 0.98}, .weight_decay = options.weight_decay});
  regard::optim::WarmupCosine schedule(
      optimizer,
      {.warmup_steps = options.warmup, .total_steps = options.decay_steps, .min_lr = lowest_lr * options.lr});
  regard::optim::Checkpoints checkpoints(run / "checkpoints", {.keep_last = 2, .keep_best = false});
  regard::optim::TrainingState state{.model = model, .optimizer = &optimizer, .schedule = &schedule};
  if (options.resume) {
    checkpoints.load_latest(state);
    keep_metrics(run / "metrics.jsonl", state.step);
  }
  MetricsWriter metrics(run / "metrics.jsonl", options.resume.has_value());
  const int64_t log_every = options.steps <= 100 ? 1 : 10;
  const int64_t held_out_every = std::max<int64_t>(1, options.steps / 20);

  std::optional<std::string> diverged;
  Progress progress(options.steps, output);
  ProgressValues shown;
  double last_logged = seconds_now();
  int64_t tokens = 0;
  model.train();
  while (state.step < options.steps && !diverged) {
    const TranslationBatch batch = translation_batch(task.training_batch(state.step, options.batch));
    const int64_t step = ++state.step;
    const Tensor logits = read(model, batch);
    const Tensor loss = cross_entropy(logits, batch.following, {.label_smoothing = options.label_smoothing});
    optimizer.zero_grad();
    loss.backward();
    const double lr = optimizer.lr(), loss_value = loss.item<double>();
    const double grad_norm = regard::optim::clip_grad_norm(parameters, largest_grad_norm);
    if (!std::isfinite(loss_value))
      diverged = why_diverged(step, "loss", loss_value, lr);
    else if (!std::isfinite(grad_norm))
      diverged = why_diverged(step, "gradient's norm", grad_norm, lr);
    else
      optimizer.step();
    schedule.step();

    tokens += batch.tokens;
    shown.loss = loss_value;
    shown.accuracy = static_cast<double>(count_right(logits, batch.following)) / static_cast<double>(batch.targets);
    if (step == 1 || step % log_every == 0 || step == options.steps || diverged) {
      shown.tokens_per_second = static_cast<double>(tokens) / std::max(seconds_now() - last_logged, 1e-9);
      nlohmann::ordered_json line = {{"step", step},
                                     {"loss", loss_value},
                                     {"cross_entropy", cross_entropy(logits.detach(), batch.following).item<double>()},
                                     {"lr", lr},
                                     {"tokens_per_second", *shown.tokens_per_second},
                                     {"accuracy", *shown.accuracy},
                                     {"grad_norm", grad_norm}};
      if (!diverged && (step % held_out_every < log_every || step == options.steps)) {
        model.eval();
        const TranslationFit fit = measure_fit(model, watched);
        model.train();
        line["held_out_cross_entropy"] = fit.loss;
        line["held_out_accuracy"] = fit.accuracy;
      }
      metrics.write(line);
      tokens = 0;
      last_logged = seconds_now();
    }
    progress.update(step, shown);
    if (!diverged && (step % options.save_every == 0 || step == options.steps)) checkpoints.save(state);
  }
  progress.finish();
  model.eval();
  return diverged;
}

}  // namespace examples
