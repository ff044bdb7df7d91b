// Trains a GPT on any text and lets it write: options, tokens, model, training, results.
//
// The text as tokens is in common/language_text.*, the training loop in common/language_training.*, what a run's folder
// holds in common/language_run.*. `generate` lets a trained model write.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/examples/common/language_options.hpp>
#include <regard/examples/common/language_run.hpp>
#include <regard/examples/common/language_text.hpp>
#include <regard/examples/common/language_training.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/layers/models/gpt2_layout.hpp>
#include <regard/optim/data/byte_pairs.hpp>
#include <string>

using namespace examples;

namespace {

namespace data = regard::data;
namespace fs = std::filesystem;
using regard::layers::GPT;

// A run's tokenizer, model, tokens and folder, made anew or found.
struct Run {
  std::unique_ptr<data::Tokenizer> tokenizer;
  GPT model;
  RunFolder folder;
  std::unique_ptr<RunLock> lock;
  LanguageText text;
};

Run resumed(const LanguageOptions& options) {
  const fs::path& folder = *options.resume;
  auto lock = std::make_unique<RunLock>(folder);
  auto tokenizer = load_tokenizer(folder);
  GPT model = model_of_run(folder);
  model.options.recompute = options.recompute;
  if (model.options.vocabulary < tokenizer->vocabulary_size())
    throw std::runtime_error((folder / "config.json").string() + ": model.vocabulary " +
                             std::to_string(model.options.vocabulary) + " is smaller than that of tokenizer.json, " +
                             std::to_string(tokenizer->vocabulary_size()));
  LanguageText text = open_tokens(*tokenizer, folder);
  return {std::move(tokenizer), std::move(model), {folder}, std::move(lock), std::move(text)};
}

// Everything that can be wrong with text and options is found out before a folder is made.
Run begun(LanguageOptions& options) {
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::optional<GPT> model;
  if (!options.from.empty()) {
    model.emplace(regard::layers::load_gpt2(options.from));
    tokenizer = load_gpt2_tokenizer(options.from);
    if (tokenizer == nullptr) throw UsageError("from", options.from + " has no vocab.json and merges.txt");
    if (tokenizer->vocabulary_size() > model->options.vocabulary)
      throw UsageError("from", options.from + ": vocab.json has " + std::to_string(tokenizer->vocabulary_size()) +
                                   " tokens, the model " + std::to_string(model->options.vocabulary));
    if (options.context == 0) options.context = model->options.context;
    if (options.context > model->options.context)
      throw UsageError("context", std::to_string(options.context) + " is more than the " +
                                      std::to_string(model->options.context) + " positions of " + options.from);
    regard::layers::GPTOptions changed = model->options;
    changed.dropout = options.dropout;
    changed.recompute = options.recompute;
    GPT with_options(changed);
    with_options.load_state_dict(model->state_dict());
    model.emplace(std::move(with_options));
    options.tokens = "from";
    check_text(options.text, options.validation, *tokenizer, options.context);
  } else {
    tokenizer = make_tokenizer(options.text, options.validation, options.tokens, options.vocabulary, options.context);
    model.emplace(model_options(options, tokenizer->vocabulary_size()));
  }
  RunFolder folder = make_run_folder("runs", options.name, "text");
  auto lock = std::make_unique<RunLock>(folder.path);
  save_tokenizer(folder.path, *tokenizer);
  LanguageText text = write_tokens(options.text, options.validation, *tokenizer, folder.path);
  return {std::move(tokenizer), std::move(*model), std::move(folder), std::move(lock), std::move(text)};
}

void introduce(const LanguageOptions& options, const Run& run, int64_t step) {
  const auto& model = run.model.options;
  const int64_t sequences =
      TrainingRows{run.text.training.size(), options.context, 0}.count();  // of an epoch: no batch is larger
  std::cout << "text      " << grouped(run.text.training.size()) << " tokens to train on, "
            << grouped(run.text.validation.size()) << " for validation, " << grouped(run.tokenizer->vocabulary_size())
            << " different ones (" << (options.from.empty() ? options.tokens : "those of " + options.from) << ")\n"
            << "model     " << model.layers << " layers, width " << model.width << ", " << model.heads << " heads, "
            << to_string(model.positions) << " positions, context " << model.context << ", "
            << grouped(run.model.parameter_count()) << " parameters\n"
            << "training  " << grouped(options.steps) << " steps of "
            << grouped(std::min(options.batch, sequences) * options.grad_accumulation * options.context)
            << " tokens, learning rate " << nlohmann::json(options.lr).dump() << ", seed " << options.seed << "\n";
  introduce_results(std::cout, run.folder, step, run.model.device());
  if (options.steps > options.decay_steps)
    std::cout << "          from step " << options.decay_steps << " on the learning rate stays at "
              << nlohmann::json(options.min_lr).dump() << "; --decay-steps stretches its course\n";
  std::cout << std::endl;
}

void write_config(const LanguageOptions& options, const Run& run) {
  nlohmann::ordered_json config = to_json(options);
  config["model"] = to_json(run.model.options);
  config["parameters"] = run.model.parameter_count();
  config["version"] = regard::version;
  write_json(run.folder.file("config.json"), config);
}

int train(int argc, char** argv) {
  std::optional<LanguageOptions> given = read_language_options(argc, argv);
  if (!given) return 0;
  LanguageOptions& options = *given;
  const regard::Device device = device_named(options.device);
  regard::set_num_threads(static_cast<int>(options.threads));
  use_precision(options.precision);
  regard::manual_seed(static_cast<uint64_t>(options.seed));

  Run run = options.resume ? resumed(options) : begun(options);
  run.model.to(device);  // made on the CPU, so that a seed means the same weights everywhere
  LanguageTraining training(run.model, options, run.text, *run.tokenizer, run.folder.path);
  if (options.resume) training.resume();
  if (!options.gpt2) check_more_steps(options.steps, training.step(), run.folder.path);
  MetricsWriter metrics(run.folder.file("metrics.jsonl"), training.step());
  write_config(options, run);
  introduce(options, run, training.step());

  std::optional<StopSignals> stop(std::in_place);
  const std::optional<std::string> diverged = training.run(metrics, *stop);
  draw_language_losses(run.folder.file("loss.svg"), run.folder.path.filename().string(),
                       run.folder.file("metrics.jsonl"));
  if (diverged) return report_divergence("train_language_model", *diverged, run.folder.path);
  if (training.step() < options.steps)
    return report_stop("train_language_model", *stop, training.step(), run.folder.path);
  stop.reset();  // what is left can be ended at any moment
  const auto best = training.checkpoints().best();
  LanguageModel loaded = load_language_model(run.folder.path);
  loaded.model.to(device);
  const LanguageScore score = examples::score(loaded.model, run.text.validation, *run.tokenizer, options.context,
                                              32 * options.validation_tokens);
  if (options.gpt2) {
    regard::layers::save_gpt2(run.folder.file("gpt2"), loaded.model);
    if (const auto* pairs = dynamic_cast<const data::BytePairTokenizer*>(run.tokenizer.get()))
      pairs->write_gpt2(run.folder.file("gpt2") / "vocab.json", run.folder.file("gpt2") / "merges.txt");
  }
  write_results(run.folder.path, training.step(),
                {{"best_step", best ? best->step : training.step()},
                 {"validation_loss", score.loss},
                 {"bits_per_character", score.bits_per_character},
                 {"tokens", score.tokens}});
  std::cout << "\nresults in " << run.folder.path.string() << "; let it write:\n  generate --checkpoint "
            << run.folder.path.string() << "\n";
  char last[160];
  std::snprintf(last, sizeof last,
                "best checkpoint, step %lld: validation loss %.4f, %.4f bits per character, over %lld tokens",
                static_cast<long long>(best ? best->step : training.step()), score.loss, score.bits_per_character,
                static_cast<long long>(score.tokens));
  std::cout << last << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("train_language_model", argc, argv, train); }
