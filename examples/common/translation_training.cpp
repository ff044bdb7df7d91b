#include <algorithm>
#include <cmath>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/translation_training.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/data/collate.hpp>
#include <utility>

namespace examples {
namespace {

using regard::Tensor;
using regard::layers::EncoderDecoder;

constexpr double largest_grad_norm = 1.0;

Tensor read(const EncoderDecoder& model, const TranslationBatch& batch) {
  const Tensor logits = model(batch.source.ids, batch.target, batch.source.mask);  // [N, T, V]
  return logits.view({-1, logits.size(2)});
}

int64_t count_right(const Tensor& logits, const Tensor& following) {  // what is ignored equals no token
  regard::NoGrad no_grad;
  return (regard::argmax(logits, -1) == following).to(regard::DType::i64).sum().item<int64_t>();
}

}  // namespace

TranslationBatch translation_batch(const std::vector<TranslationExample>& examples, regard::Device device) {
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
  batch.source = source_batch(sources, device);
  batch.target = regard::data::pad(targets, SymbolVocabulary::padding).ids.to(device);
  batch.following = regard::data::pad(following, ignored).ids.view({-1}).to(device);
  return batch;
}

TranslationFit measure_fit(const EncoderDecoder& model, const std::vector<TranslationExample>& examples,
                           int64_t batch) {
  regard::NoGrad no_grad;
  const regard::Device device = model.device();
  double loss = 0;
  int64_t right = 0, targets = 0;
  for (std::size_t begin = 0; begin < examples.size(); begin += static_cast<std::size_t>(batch)) {
    const std::size_t end = std::min(begin + static_cast<std::size_t>(batch), examples.size());
    const TranslationBatch part = translation_batch(
        {examples.begin() + static_cast<std::ptrdiff_t>(begin), examples.begin() + static_cast<std::ptrdiff_t>(end)},
        device);
    const Tensor logits = read(model, part);
    loss += cross_entropy(logits, part.following, {.reduction = regard::Reduction::sum}).item<double>();
    right += count_right(logits, part.following);
    targets += part.targets;
  }
  return {loss / static_cast<double>(targets), static_cast<double>(right) / static_cast<double>(targets)};
}

TranslationTraining::TranslationTraining(EncoderDecoder& model, const TranslationTask& task,
                                         const TranslationOptions& options)
    : model_(model),
      task_(task),
      options_(options),
      parameters_(model.parameters()),
      optimizer_(parameters_, {.lr = options.lr, .betas = {0.9, 0.98}, .weight_decay = options.weight_decay}),
      schedule_(optimizer_, {.warmup_steps = options.warmup, .total_steps = options.decay_steps}),
      state_{.model = model, .optimizer = &optimizer_, .schedule = &schedule_} {}

TranslationTraining::Step TranslationTraining::take_step() {
  const TranslationBatch batch =
      translation_batch(task_.training_batch(state_.step, options_.batch), parameters_.front().device());
  const Tensor logits = read(model_, batch);
  const Tensor loss = cross_entropy(logits, batch.following, {.label_smoothing = options_.label_smoothing});
  optimizer_.zero_grad();
  loss.backward();
  Step step{};
  step.lr = optimizer_.lr();
  step.loss = loss.item<double>();
  step.cross_entropy = cross_entropy(logits.detach(), batch.following).item<double>();
  step.grad_norm = regard::optim::clip_grad_norm(parameters_, largest_grad_norm);
  if (std::isfinite(step.loss) && std::isfinite(step.grad_norm)) optimizer_.step();
  schedule_.step();
  ++state_.step;
  step.tokens = batch.tokens;
  step.accuracy = static_cast<double>(count_right(logits, batch.following)) / static_cast<double>(batch.targets);
  return step;
}

TranslationFit TranslationTraining::fit_on(const std::vector<TranslationExample>& watched) {
  model_.eval();
  const TranslationFit fit = measure_fit(model_, watched);
  model_.train();
  return fit;
}

std::optional<std::string> TranslationTraining::run(const std::vector<TranslationExample>& watched,
                                                    MetricsWriter& metrics, regard::optim::Checkpoints& checkpoints,
                                                    const StopSignals& stop, const ProgressOutput& output) {
  const int64_t held_out_every = std::max<int64_t>(1, options_.decay_steps / 20);
  std::optional<std::string> diverged;
  Progress progress(options_.steps, output, state_.step);
  ProgressValues shown;
  double last_logged = steady_seconds();
  int64_t tokens = 0;
  bool ends = state_.step >= options_.steps;
  model_.train();
  while (!ends) {
    const Step step = take_step();
    const int64_t number = state_.step;
    diverged = divergence(number, step.loss, step.grad_norm, step.lr);
    const bool last = number == options_.steps;
    ends = last || diverged || stop.signal() != 0;

    tokens += step.tokens;
    shown.loss = step.loss;
    shown.accuracy = step.accuracy;
    // Neither --steps nor a checkpoint decides what is logged, but for the last step: a run that goes on writes the
    // lines that an uninterrupted one would have written.
    const int64_t log_every = number <= 100 ? 1 : 10;
    if (number % log_every == 0 || last || diverged) {
      shown.tokens_per_second = static_cast<double>(tokens) / std::max(steady_seconds() - last_logged, 1e-9);
      nlohmann::ordered_json line = {{"step", number},
                                     {"loss", step.loss},
                                     {"cross_entropy", step.cross_entropy},
                                     {"lr", step.lr},
                                     {"tokens_per_second", *shown.tokens_per_second},
                                     {"accuracy", step.accuracy},
                                     {"grad_norm", step.grad_norm}};
      if (!diverged && (number % held_out_every < log_every || last)) {
        const TranslationFit fit = fit_on(watched);
        line["held_out_cross_entropy"] = fit.loss;
        line["held_out_accuracy"] = fit.accuracy;
      }
      metrics.write(line);
      tokens = 0;
      last_logged = steady_seconds();
    }
    const bool due = options_.checkpoint_every > 0 && number % options_.checkpoint_every == 0;
    if (!diverged && (due || ends)) {
      metrics.flush();  // a checkpoint's lines are there whenever it is
      checkpoints.save(state_);
    }
    progress.update(number, shown);
  }
  progress.finish();
  model_.eval();
  return diverged;
}

}  // namespace examples
