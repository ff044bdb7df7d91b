#include <algorithm>
#include <filesystem>
#include <iterator>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/translation_options.hpp>
#include <regard/optim/data/text_file.hpp>
#include <stdexcept>
#include <string_view>

namespace examples {
namespace {

// What a task takes where the user says nothing. Dates are never the same again: there is nothing to learn by heart,
// and no need of dropout and label smoothing.
struct Defaults {
  const char* task;
  int64_t width, heads, layers, steps, batch, warmup, examples;
  double lr, dropout, label_smoothing, held_out;
};
// clang-format off
constexpr Defaults all_defaults[] = {
    {"dates",       64, 4, 2,  2000,  64,  100,   2000, 2e-3, 0.0,  0.0,  0.05},
    {"pairs",      128, 4, 3,  5000,  64,  400,   1000, 1e-3, 0.1,  0.1,  0.1},
    {"dictionary", 128, 4, 3, 24000, 128, 1000, 100000, 2e-3, 0.1,  0.1,  0.1},
};
// clang-format on

const Defaults& defaults_of(const std::string& task) {
  return *std::find_if(std::begin(all_defaults), std::end(all_defaults),
                       [&](const Defaults& defaults) { return task == defaults.task; });
}

// "2000 for dates, 5000 for pairs, 16000 for dictionary", or a value that is the same for all.
template <typename T>
std::string in_words(T Defaults::*value) {
  std::string words;
  bool same = true;
  const auto text = [&](const Defaults& defaults) { return nlohmann::json(defaults.*value).dump(); };
  for (const Defaults& defaults : all_defaults) {
    words += std::string(words.empty() ? "" : ", ") + text(defaults) + " for " + defaults.task;
    same = same && text(defaults) == text(all_defaults[0]);
  }
  return same ? text(all_defaults[0]) : words;
}

// What the command line holds: an option that was left out is empty.
struct Given {
  std::optional<std::string> pairs, dictionary, resume, name;
  std::string task = "dates", source_symbols = "characters", target_symbols = "characters", stress = "remove";
  std::string precision = "f32";
  std::optional<std::string> device;
  std::optional<int64_t> examples, width, heads, layers, steps, batch, warmup, decay_steps, threads;
  std::optional<double> held_out, dropout, lr, label_smoothing;
  int64_t length = 128, beam = 4, checkpoint_every = 250, seed = 1;
  double weight_decay = 0.01, length_penalty = 0;
};

Options command_line(Given& given) {
  Options line("train_translation",
               "Trains an encoder-decoder transformer to say in one language what it reads in another: dates in many "
               "written forms to their ISO form, words to phonemes, or lines of your own. The results are in "
               "runs/NAME/: metrics.jsonl, config.json, checkpoints/, loss.svg and attention.svg; see translate.");
  line.section("The task");
  line.choice("task", given.task, {"dates"},
              "made up on the spot: \"3rd of March 1998\", \"Di., 3.3.1998\" to 1998-03-03");
  line.text("pairs", given.pairs, "learn from your own examples: UTF-8 text, a line a pair: source, tab, target",
            "none", "FILE");
  line.text("dictionary", given.dictionary,
            "learn to pronounce words from a file in the format of the CMU pronouncing dictionary", "none", "FILE");
  line.choice("source-symbols", given.source_symbols, {"characters", "words"}, "what a source of --pairs is made of");
  line.choice("target-symbols", given.target_symbols, {"characters", "words"}, "what a target of --pairs is made of");
  line.integer("length", given.length, "symbols that a side of --pairs may have", {.at_least = 1, .at_most = 4096});
  line.choice("stress", given.stress, {"remove", "keep"},
              "whether phonemes of --dictionary keep the figures that tell a vowel's stress");
  line.real("held-out", given.held_out, "share of days, sources or words that is kept from training, for the test",
            in_words(&Defaults::held_out), {.at_least = 0.001, .at_most = 0.999});
  line.integer("examples", given.examples, "held-out questions that are answered in the test, at most",
               in_words(&Defaults::examples), {.at_least = 1, .at_most = 10000000});
  line.integer("beam", given.beam, "hypotheses that beam search keeps in the test; 1: greedy search alone",
               {.at_least = 1, .at_most = 1000});
  line.real("length-penalty", given.length_penalty,
            "how much beam search makes up for length: alpha of Wu et al., 2016; 0: not at all",
            {.at_least = 0.0, .at_most = 100.0});

  line.section("The model, a transformer encoder and decoder");
  line.integer("width", given.width, "numbers that stand for one symbol inside the model", in_words(&Defaults::width),
               {.at_least = 1, .at_most = 8192});
  line.integer("heads", given.heads, "attention heads of a layer; must divide the width", in_words(&Defaults::heads),
               {.at_least = 1, .at_most = 8192});
  line.integer("layers", given.layers, "layers of the encoder, and as many of the decoder", in_words(&Defaults::layers),
               {.at_least = 1, .at_most = 128});
  line.real("dropout", given.dropout, "share of activations dropped while training", in_words(&Defaults::dropout),
            {.at_least = 0.0, .below = 1.0});

  line.section("Training: AdamW, with a linear warm-up and a cosine to zero");
  line.integer("steps", given.steps, "optimizer steps", in_words(&Defaults::steps),
               {.at_least = 1, .at_most = 100000000});
  line.integer("batch", given.batch, "pairs in a step", in_words(&Defaults::batch), {.at_least = 1, .at_most = 65536});
  line.real("lr", given.lr, "the highest learning rate", in_words(&Defaults::lr), {.above = 0.0});
  line.integer("warmup", given.warmup, "steps until the learning rate is highest",
               in_words(&Defaults::warmup) + ", at most a tenth of --decay-steps", {.at_least = 0});
  line.integer("decay-steps", given.decay_steps,
               "the step at which the learning rate arrives at zero; at least --steps, and fixed when a run begins",
               "--steps, or the task's default of --steps if that is more", {.at_least = 1, .at_most = 100000000});
  line.real("weight-decay", given.weight_decay, "how strongly weights are drawn to zero", {.at_least = 0.0});
  line.real("label-smoothing", given.label_smoothing, "share of the target that goes to all symbols evenly",
            in_words(&Defaults::label_smoothing), {.at_least = 0.0, .below = 1.0});
  line.integer("seed", given.seed,
               "fixes everything random: first weights, data, dropout; equal seeds give equal results to the last bit, "
               "with any number of threads",
               {.at_least = 0});
  line.integer("threads", given.threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  add_precision(line, given.precision);
  line.device(given.device, "cpu; with --resume the run's own");

  line.section("The results");
  line.text("name", given.name,
            "the folder in runs/ for the results; an earlier one of that name is renamed, not overwritten",
            "the task and a number, such as dates-1", "NAME");
  line.integer("checkpoint-every", given.checkpoint_every,
               "steps between checkpoints; 0: at the end only. Ctrl-C writes one, too, before the program ends",
               {.at_least = 0});
  line.text(
      "resume", given.resume,
      "go on with the run in this folder, such as runs/dates-1, from its last checkpoint up to --steps; its other "
      "options are kept, but for those of the test",
      "none", "FOLDER");
  return line;
}

void check_files(const Options& line, const Given& given) {
  const bool files = given.pairs || given.dictionary;
  if (given.pairs && given.dictionary) throw UsageError("dictionary", "has no meaning with --pairs; give one of them");
  if (files && line.given("task"))
    throw UsageError("task", "has no meaning with a file, which is the task; give one of them");
  for (const char* name : {"source-symbols", "target-symbols", "length"})
    if (line.given(name) && !given.pairs) throw UsageError(name, "has a meaning with --pairs only");
  if (line.given("stress") && !given.dictionary) throw UsageError("stress", "has a meaning with --dictionary only");
}

TranslationOptions from_defaults(const Given& given) {
  TranslationOptions options;
  options.task = given.pairs ? "pairs" : given.dictionary ? "dictionary" : given.task;
  options.file = given.pairs ? given.pairs : given.dictionary;
  options.source_symbols = given.source_symbols;
  options.target_symbols = given.dictionary ? "words" : given.target_symbols;
  options.stress = given.stress;
  options.length = given.length;
  const Defaults& defaults = defaults_of(options.task);
  options.held_out = given.held_out.value_or(defaults.held_out);
  options.examples = given.examples.value_or(defaults.examples);
  options.width = given.width.value_or(defaults.width);
  options.heads = given.heads.value_or(defaults.heads);
  options.layers = given.layers.value_or(defaults.layers);
  options.dropout = given.dropout.value_or(defaults.dropout);
  options.steps = given.steps.value_or(defaults.steps);
  options.batch = given.batch.value_or(defaults.batch);
  options.lr = given.lr.value_or(defaults.lr);
  options.decay_steps = given.decay_steps.value_or(std::max(options.steps, defaults.steps));
  options.warmup = given.warmup.value_or(std::min(defaults.warmup, options.decay_steps / 10));
  options.weight_decay = given.weight_decay;
  options.label_smoothing = given.label_smoothing.value_or(defaults.label_smoothing);
  options.seed = given.seed;
  options.precision = given.precision;
  options.device = given.device.value_or(options.device);
  options.beam = given.beam;
  options.length_penalty = given.length_penalty;
  options.checkpoint_every = given.checkpoint_every;
  options.name = given.name;
  if (options.width % options.heads != 0)
    throw UsageError("heads", std::to_string(options.heads) + " does not divide the width, " +
                                  std::to_string(options.width) + ": each head takes width / heads");
  if (options.warmup >= options.decay_steps)
    throw UsageError("warmup", std::to_string(options.warmup) + " is not below --decay-steps, " +
                                   std::to_string(options.decay_steps));
  return options;
}

// Every option that config.json holds: visit(key, value), in this order.
template <typename TheOptions, typename Visit>
void each_option(TheOptions& options, Visit visit) {
  visit("task", options.task);
  visit("file", options.file);
  visit("source_symbols", options.source_symbols);
  visit("target_symbols", options.target_symbols);
  visit("length", options.length);
  visit("stress", options.stress);
  visit("held_out", options.held_out);
  visit("examples", options.examples);
  visit("beam", options.beam);
  visit("length_penalty", options.length_penalty);
  visit("width", options.width);
  visit("heads", options.heads);
  visit("layers", options.layers);
  visit("dropout", options.dropout);
  visit("steps", options.steps);
  visit("batch", options.batch);
  visit("lr", options.lr);
  visit("warmup", options.warmup);
  visit("decay_steps", options.decay_steps);
  visit("weight_decay", options.weight_decay);
  visit("label_smoothing", options.label_smoothing);
  visit("seed", options.seed);
  visit("threads", options.threads);
  visit("precision", options.precision);
  visit("device", options.device);
  visit("checkpoint_every", options.checkpoint_every);
}

TranslationOptions from_run(const Options& line, const Given& given) {
  for (const char* name : {"task", "pairs", "dictionary", "name"})
    if (line.given(name)) throw UsageError(name, "has no meaning with --resume: the run's folder says what it is");
  const std::filesystem::path folder = *given.resume;
  const nlohmann::ordered_json config = read_config(folder);
  if (config.contains("program") || !config.contains("source_vocabulary"))
    throw std::runtime_error(foreign_config(config, folder / "config.json", "train_translation"));
  nlohmann::ordered_json now = to_json(from_defaults(given)), said;
  for (const auto& [key, value] : now.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (key != "task" && key != "file" && line.given(name)) said[key] = value;
  }
  const std::vector<std::string> may_change = {"steps",    "threads", "checkpoint_every", "device",
                                               "examples", "beam",    "length_penalty"};
  check_unchanged(said, config, may_change, folder);
  TranslationOptions options;
  try {
    options = translation_options_from_json(config);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error((folder / "config.json").string() +
                             ": no configuration of train_translation: " + error.what());
  }
  for (const auto& [key, value] : {std::pair("length", options.length),
                                   {"examples", options.examples},
                                   {"beam", options.beam},
                                   {"width", options.width},
                                   {"heads", options.heads},
                                   {"layers", options.layers},
                                   {"batch", options.batch},
                                   {"steps", options.steps}})
    if (value < 1) throw std::runtime_error((folder / "config.json").string() + ": " + key + " is less than 1");
  options.resume = given.resume;
  options.device = given.device.value_or(options.device);
  if (line.given("steps")) options.steps = *given.steps;
  if (line.given("examples")) options.examples = *given.examples;
  if (line.given("beam")) options.beam = given.beam;
  if (line.given("length-penalty")) options.length_penalty = given.length_penalty;
  if (line.given("checkpoint-every")) options.checkpoint_every = given.checkpoint_every;
  return options;
}

}  // namespace

std::optional<TranslationOptions> read_translation_options(int argc, const char* const* argv) {
  Given given;
  Options line = command_line(given);
  if (!line.parse(argc, argv)) return std::nullopt;
  if (!given.resume) check_files(line, given);
  TranslationOptions options = given.resume ? from_run(line, given) : from_defaults(given);
  if (options.steps > options.decay_steps)
    throw UsageError("steps", std::to_string(options.steps) + " goes beyond --decay-steps, " +
                                  std::to_string(options.decay_steps) +
                                  ", where the learning rate is zero; a run that is to go on for longer begins with a "
                                  "larger --decay-steps");
  options.threads = given.threads.value_or(regard::num_threads());
  return options;
}

nlohmann::ordered_json to_json(const TranslationOptions& options) {
  nlohmann::ordered_json json;
  each_option(options, [&](const char* key, const auto& value) {
    if constexpr (requires { value.value(); }) {
      if (value) json[key] = *value;
    } else {
      json[key] = value;
    }
  });
  return json;
}

TranslationOptions translation_options_from_json(const nlohmann::ordered_json& json) {
  TranslationOptions options;
  each_option(options, [&](const char* key, auto& value) {
    if constexpr (requires { value.value(); }) {
      if (json.contains(key)) value = json.at(key).template get<std::string>();
    } else if (json.contains(key) || (std::string_view(key) != "precision" && std::string_view(key) != "device")) {
      // there was no choice of those two at first
      json.at(key).get_to(value);
    }
  });
  return options;
}

nlohmann::ordered_json read_json_file(const std::string& path) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(regard::data::read_text(path), nullptr, false);
  if (!json.is_object()) throw std::runtime_error(path + ": no JSON object");
  return json;
}

}  // namespace examples
