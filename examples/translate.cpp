// Translates with a model that train_translation has trained.
#include <cstdio>
#include <iostream>
#include <optional>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/translation_model.hpp>
#include <stdexcept>
#include <string>
#include <vector>

using namespace examples;

namespace {

struct TranslateOptions {
  std::string checkpoint;
  int64_t beam = 4, n_best = 1;
  double length_penalty = 0;
  std::optional<int64_t> threads;
  std::optional<std::string> device;
  std::vector<std::string> texts;
};

std::optional<TranslateOptions> read_options(int argc, char** argv) {
  TranslateOptions options;
  std::optional<std::string> checkpoint;
  Options line("translate",
               "Translates with a model that train_translation has trained: a line for each text, in their order.");
  line.arguments("TEXT", options.texts, "what to translate; none: the lines of standard input, as they come");
  line.section("The model");
  line.text("checkpoint", checkpoint, "the folder of a training's results, whose newest checkpoint is taken",
            "none, must be given", "runs/NAME");
  line.section("The search");
  line.integer("beam", options.beam, "hypotheses that beam search keeps; 1: greedy search",
               {.at_least = 1, .at_most = 1000});
  line.integer("n-best", options.n_best,
               "translations shown of each text, with their scores; 1: the best alone, as it is",
               {.at_least = 1, .at_most = 1000});
  line.real("length-penalty", options.length_penalty,
            "how much beam search makes up for length: alpha of Wu et al., 2016; 0: not at all",
            {.at_least = 0.0, .at_most = 100.0});
  line.integer("threads", options.threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  line.device(options.device);
  if (!line.parse(argc, argv)) return std::nullopt;
  if (!checkpoint) throw UsageError("checkpoint", "must be given: the folder of a training's results");
  options.checkpoint = *checkpoint;
  if (options.n_best > options.beam)
    throw UsageError("n-best",
                     std::to_string(options.n_best) + " is more than the beam, " + std::to_string(options.beam));
  return options;
}

// The tokens of one text; `place` says in an error which one it is.
std::vector<int64_t> tokens_of(const Translator& translator, const std::string& text, const std::string& place) {
  std::vector<int64_t> tokens;
  try {
    tokens = translator.source.encode(text);
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ": " + error.what());
  }
  const int64_t most = translator.model.options.max_source - 1;
  if (std::ssize(tokens) > most)
    throw std::runtime_error(place + ": " + std::to_string(tokens.size()) + " symbols; the model reads at most " +
                             std::to_string(most));
  return tokens;
}

void show(const Translator& translator, const std::vector<regard::layers::Hypothesis>& found, int64_t n_best) {
  for (const auto& one : found) {
    if (n_best > 1) {
      char score[32];
      std::snprintf(score, sizeof score, "%.4f\t", one.score);
      std::cout << score;
    }
    std::cout << translator.target.decode(one.tokens) << "\n";
  }
}

int run(int argc, char** argv) {
  const std::optional<TranslateOptions> given = read_options(argc, argv);
  if (!given) return 0;
  const TranslateOptions& options = *given;
  if (options.threads) regard::set_num_threads(static_cast<int>(*options.threads));
  const regard::Device device = device_named(options.device.value_or("cpu"));
  Translator translator = read_translator(options.checkpoint);
  translator.model.to(device);
  const auto search = search_options(translator.model, options.beam, options.length_penalty, options.n_best);

  if (!options.texts.empty()) {  // all at once, and nothing is said where one cannot be read
    std::vector<std::vector<int64_t>> sources;
    for (std::size_t i = 0; i < options.texts.size(); ++i)
      sources.push_back(tokens_of(translator, options.texts[i], "text " + std::to_string(i + 1)));
    for (const auto& found : translate(translator.model, sources, search)) show(translator, found, options.n_best);
    return 0;
  }
  std::string text;
  for (int64_t number = 1; std::getline(std::cin, text); ++number) {
    if (text.ends_with('\r')) text.pop_back();
    const auto tokens = tokens_of(translator, text, "standard input:" + std::to_string(number));
    show(translator, translate(translator.model, {tokens}, search)[0], options.n_best);
    std::cout.flush();
  }
  if (std::ferror(stdin) != 0) throw std::runtime_error("standard input: cannot be read");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("translate", argc, argv, run); }
