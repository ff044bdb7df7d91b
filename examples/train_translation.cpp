// Trains an encoder-decoder transformer: dates in many written forms to their ISO form, words to phonemes from a
// pronouncing dictionary, or pairs of the user's own.
//
// What happens here: options, data, model, training, test, results. The model is regard/layers/models/encoder_decoder,
// the training loop in common/translation_training.*, what a run shows and draws in common/translation_report.*.
// translate.cpp uses what this has trained.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/translation_options.hpp>
#include <regard/examples/common/translation_report.hpp>
#include <regard/examples/common/translation_training.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/text_file.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace examples;

namespace {

std::unique_ptr<TranslationTask> make_task(const TranslationOptions& options) {
  const TranslationTaskOptions common = {.held_out_share = options.held_out,
                                         .seed = static_cast<uint64_t>(options.seed)};
  const auto unit = [](const std::string& symbols) {
    return symbols == "words" ? SymbolUnit::words : SymbolUnit::characters;
  };
  if (options.task == "pairs")
    return make_pairs_file_task({.file = *options.file,
                                 .source_unit = unit(options.source_symbols),
                                 .target_unit = unit(options.target_symbols),
                                 .max_length = options.length},
                                common);
  if (options.task == "dictionary")
    return make_dictionary_task({.file = *options.file, .stress = options.stress == "keep"}, common);
  return make_dates_task(common);
}

std::string in_words(const TranslationOptions& options) {
  if (options.task == "pairs") return "pairs of " + *options.file;
  if (options.task == "dictionary")
    return "words to phonemes, " + *options.file + ", stress " + (options.stress == "keep" ? "kept" : "removed");
  return "dates to their ISO form";
}

nlohmann::ordered_json make_config(const TranslationOptions& options, const TranslationTask& task,
                                   const regard::layers::EncoderDecoder& model) {
  nlohmann::ordered_json config = translation_config(options, task, model);
  if (options.file) config["file_fingerprint"] = regard::data::file_fingerprint(*options.file);
  config["version"] = regard::version;
  return config;
}

// Whether a run can go on, before anything of it is changed.
void check_resumable(const TranslationOptions& options, const nlohmann::ordered_json& config,
                     const regard::optim::Checkpoints& checkpoints) {
  const nlohmann::ordered_json before = read_config(*options.resume);
  for (const char* key : {"file_fingerprint", "source_vocabulary", "target_vocabulary"})
    if (config.contains(key) && (!before.contains(key) || before[key] != config[key]))
      throw UsageError("resume", "the data has changed since the run began: " + options.file.value_or("the task") +
                                     " is not what it was; start another run");
  const regard::optim::CheckpointInfo latest = latest_to_resume(checkpoints);
  if (latest.step > options.steps)
    throw UsageError("steps", *options.resume + " has taken " + std::to_string(latest.step) + " steps already");
}

std::vector<TranslationExample> as_examples(const std::vector<TranslationQuestion>& questions, std::size_t most) {
  std::vector<TranslationExample> examples;
  for (std::size_t i = 0; i < questions.size() && i < most; ++i) {
    const TranslationQuestion& question = questions[i];
    examples.push_back(
        {question.source, question.answers.front(), question.source_tokens, question.answer_tokens.front()});
  }
  return examples;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f%%", 100 * share);
  return text;
}

std::string result_line(const TranslationOptions& options, const char* search, const TranslationTest& test) {
  if (options.task == "dictionary")
    return std::string("held-out ") + search + ": phoneme error rate " + percent(test.symbol_error_rate()) +
           ", word error rate " + percent(1 - test.exact_match());
  return std::string("held-out ") + search + ": exact match " + percent(test.exact_match()) + ", symbol error rate " +
         percent(test.symbol_error_rate());
}

nlohmann::ordered_json as_json(const TranslationTest& test, double seconds) {
  return {{"exact_match", test.exact_match()},
          {"symbol_error_rate", test.symbol_error_rate()},
          {"questions", std::ssize(test.said)},
          {"right", test.right},
          {"errors", test.errors},
          {"symbols", test.symbols},
          {"seconds", seconds}};
}

int run(int argc, char** argv) {
  const std::optional<TranslationOptions> given = read_translation_options(argc, argv);
  if (!given) return 0;
  const TranslationOptions& options = *given;
  const regard::Device device = device_named(options.device);
  regard::set_num_threads(static_cast<int>(options.threads));
  use_precision(options.precision);
  regard::manual_seed(static_cast<uint64_t>(options.seed));

  if (options.resume && options.file) check_data_is_there(*options.file, *options.resume);
  const std::unique_ptr<TranslationTask> task = make_task(options);
  const std::vector<TranslationQuestion> questions = task->held_out(options.examples);
  regard::layers::EncoderDecoder model = make_translation_model(options, *task);
  model.to(device);  // made on the CPU, so that a seed means the same weights everywhere
  TranslationTraining training(model, *task, options);
  const nlohmann::ordered_json config = make_config(options, *task, model);

  const RunFolder folder =
      options.resume ? RunFolder{*options.resume} : make_run_folder("runs", options.name, options.task);
  const RunLock lock(folder.path);
  regard::optim::Checkpoints checkpoints(folder.file("checkpoints"), {.keep_last = 2, .keep_best = false});
  if (options.resume) {
    check_resumable(options, config, checkpoints);
    training.resume(checkpoints);
  }
  MetricsWriter metrics(folder.file("metrics.jsonl"), training.step());
  write_json(folder.file("config.json"), config);

  std::cout << "task      " << in_words(options) << "\n"
            << "data      " << task->summary() << "\n"
            << "model     " << options.layers << " + " << options.layers << " layers, width " << options.width << ", "
            << options.heads << " heads, " << model.parameter_count() << " parameters\n"
            << "training  " << options.steps << " steps of " << options.batch << " pairs, learning rate "
            << nlohmann::json(options.lr).dump() << ", seed " << options.seed << "\n";
  introduce_results(std::cout, folder, training.step(), device);
  std::cout << std::endl;

  std::optional<StopSignals> stop(std::in_place);
  const auto diverged = training.run(as_examples(questions, 512), metrics, checkpoints, *stop);
  draw_translation_loss(folder.path, in_words(options));
  if (diverged) return report_divergence("train_translation", *diverged, folder.path);
  if (training.step() < options.steps) return report_stop("train_translation", *stop, training.step(), folder.path);
  stop.reset();  // what follows need not be finished
  draw_cross_attention(folder.file("attention.svg"), model, task->source_vocabulary(), task->target_vocabulary(),
                       questions.front().source);

  nlohmann::ordered_json results;
  const auto test_with = [&](int64_t beam) {
    const auto begin = std::chrono::steady_clock::now();
    TranslationTest test = test_translations(model, questions, beam, options.length_penalty);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    results[beam == 1 ? "greedy" : "beam"] = as_json(test, seconds);
    return test;
  };
  const TranslationTest greedy = test_with(1);
  std::cout << "\nheld-out examples, " << greedy.right << " of " << greedy.said.size() << " right:\n";
  show_translations(std::cout, greedy, questions, task->target_vocabulary());
  std::cout << "\nresults in " << folder.path.string() << "\n"
            << result_line(options, "greedy search", greedy) << std::endl;
  if (options.beam > 1) {
    const std::string search = "beam search (" + std::to_string(options.beam) + ")";
    const TranslationTest beam = test_with(options.beam);
    std::cout << result_line(options, search.c_str(), beam) << std::endl;
  }
  write_results(folder.path, training.step(), results);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("train_translation", argc, argv, run); }
