#include <algorithm>
#include <cmath>
#include <iostream>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/language_run.hpp>
#include <regard/examples/common/language_training.hpp>
#include <regard/examples/common/step_profile.hpp>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/layers/models/generate.hpp>
#include <regard/optim/clip.hpp>
#include <regard/optim/data/unicode.hpp>
#include <regard/optim/groups.hpp>

namespace examples {
namespace {

using regard::Tensor;
namespace optim = regard::optim;

std::string formatted(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

}  // namespace

LanguageTraining::LanguageTraining(regard::layers::GPT& model, const LanguageOptions& options, const LanguageText& text,
                                   const regard::data::Tokenizer& tokenizer, const std::filesystem::path& folder)
    : model_(model),
      options_(options),
      text_(text),
      tokenizer_(tokenizer),
      rows_{text.training.size(), options.context, static_cast<uint64_t>(options.seed)},
      order_({.count = rows_.count(), .batch = options.batch, .seed = static_cast<uint64_t>(options.seed)}),
      parameters_(model.parameters()),
      optimizer_(optim::decay_groups(
          model, optim::AdamWOptions{.lr = options.lr, .betas = {0.9, 0.99}, .weight_decay = options.weight_decay})),
      accumulation_(parameters_),
      schedule_(optimizer_,
                {.warmup_steps = options.warmup, .total_steps = options.decay_steps, .min_lr = options.min_lr}),
      checkpoints_(folder / "checkpoints", {.keep_last = options.keep}),
      state_{model, &optimizer_, &schedule_} {}

void LanguageTraining::resume() {
  const optim::CheckpointInfo loaded = checkpoints_.load_latest(state_);
  try {
    order_.restore(state_.data);
  } catch (const regard::ValueError& error) {
    throw regard::FileError((loaded.path / "state.json").string() + ": " + error.what());
  }
}

LanguageTraining::Step LanguageTraining::take_step() {
  Step step{};
  const int64_t context = options_.context;
  optimizer_.zero_grad();
  for (int64_t pass = 0; pass < options_.grad_accumulation; ++pass) {
    const int64_t epoch = order_.epoch();
    const std::vector<int64_t> begins = rows_.begins(order_.next(), epoch);
    const Tensor all = text_.training.windows(begins, context + 1).to(model_.tokens.weight.device());  // [B, T + 1]
    const Tensor loss = model_.loss(all.slice(1, 0, context).contiguous(), all.slice(1, 1).contiguous());
    const int64_t tokens = std::ssize(begins) * context;  // fewer in the last batch of an epoch
    step.tokens += tokens;
    if (options_.grad_accumulation == 1) {
      loss.backward();
      step.loss = loss.item<double>();
    } else {
      accumulation_.backward(loss, static_cast<double>(tokens));
    }
  }
  if (options_.grad_accumulation > 1) step.loss = accumulation_.finish();
  step.lr = optimizer_.lr();
  step.grad_norm = optim::clip_grad_norm(parameters_, options_.clip);
  if (std::isfinite(step.loss) && optim::step_if_finite(optimizer_, step.grad_norm)) {
    schedule_.step();
    ++state_.step;
  }
  return step;
}

std::string LanguageTraining::sample() {
  regard::Generator generator(static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(state_.step));
  const auto written =
      generate(model_, beginning(tokenizer_),
               {.length = options_.sample_length, .sampling = {.temperature = 0.8}, .generator = &generator});
  return regard::data::replace_invalid_utf8(tokenizer_.decode(written));
}

void LanguageTraining::save(std::optional<double> validation_loss) {
  state_.data = order_.to_json();
  checkpoints_.save(state_, validation_loss);
}

std::optional<std::string> LanguageTraining::run(MetricsWriter& metrics, const StopSignals& stop,
                                                 const ProgressOutput& output) {
  Progress progress(options_.steps, output, state_.step);
  ProgressValues shown;
  StepProfile profile(options_.profile, options_.steps - state_.step);
  std::optional<std::string> diverged;
  if (state_.step == 0) save(std::nullopt);  // so that a run can be resumed whenever it is ended
  model_.train();
  double since = steady_seconds();
  bool stopped = false;
  while (state_.step < options_.steps && !diverged && !stopped) {
    const int64_t number = state_.step + 1;
    profile.next_step();
    const Step step = take_step();
    profile.step_is_over();
    diverged = divergence(number, step.loss, step.grad_norm, step.lr);

    shown.loss = step.loss;
    shown.tokens_per_second = static_cast<double>(step.tokens) / std::max(steady_seconds() - since, 1e-9);
    nlohmann::ordered_json line = {{"step", number},
                                   {"loss", step.loss},
                                   {"lr", step.lr},
                                   {"grad_norm", step.grad_norm},
                                   {"tokens_per_second", *shown.tokens_per_second}};
    std::optional<double> validation_loss;
    const bool last = number == options_.steps;
    const bool evaluates = !diverged && (last || number % options_.eval_every == 0);
    const bool samples = !diverged && options_.sample_every > 0 && (last || number % options_.sample_every == 0);
    if (evaluates || samples) model_.eval();
    if (evaluates) {
      const LanguageScore found =
          score(model_, text_.validation, tokenizer_, options_.context, options_.validation_tokens);
      validation_loss = found.loss;
      line["validation_loss"] = found.loss;
      line["bits_per_character"] = found.bits_per_character;
      progress.log("step " + std::to_string(number) + ": validation loss " + formatted("%.4f", found.loss) + ", " +
                   formatted("%.4f", found.bits_per_character) + " bits per character");
    }
    if (samples) {
      const std::string text = sample();
      line["sample"] = text;
      progress.log("it writes:\n" + text + "\n");
    }
    if (evaluates || samples) model_.train();
    metrics.write(line);
    stopped = stop.signal() != 0;
    if (validation_loss || (stopped && !diverged)) {
      metrics.flush();  // a checkpoint's lines are there whenever it is
      save(validation_loss);
    }
    progress.update(number, shown);
    since = steady_seconds();
  }
  progress.finish();
  model_.eval();
  profile.finish(output.stream != nullptr ? *output.stream : std::cout);
  return diverged;
}

void draw_language_losses(const std::filesystem::path& path, const std::string& title,
                          const std::filesystem::path& metrics) {
  constexpr std::size_t most = 500;  // points of a line: of a longer run, means of neighbours
  const auto lines = read_metrics(metrics);
  const auto number = [](const nlohmann::ordered_json& line, const char* key) {
    return line.contains(key) && line[key].is_number() ? line[key].get<double>() : std::nan("");
  };
  LineChart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = "loss of a token (nats)";
  Series training{.label = "training"}, validation{.label = "validation"};
  const std::size_t each = std::max<std::size_t>(1, (lines.size() + most - 1) / most);
  for (std::size_t begin = 0; begin < lines.size(); begin += each) {
    const std::size_t end = std::min(begin + each, lines.size());
    double x = 0, y = 0;
    for (std::size_t i = begin; i < end; ++i) {
      x += number(lines[i], "step");
      y += number(lines[i], "loss");
    }
    training.x.push_back(x / static_cast<double>(end - begin));
    training.y.push_back(y / static_cast<double>(end - begin));
  }
  for (const auto& line : lines) {
    if (!line.contains("validation_loss")) continue;
    validation.x.push_back(number(line, "step"));
    validation.y.push_back(number(line, "validation_loss"));
  }
  chart.series = {training, validation};
  write_file_atomically(path, line_chart(chart));
}

}  // namespace examples
