#include <algorithm>
#include <iterator>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/step_profile.hpp>
#include <regard/examples/common/training_run.hpp>

namespace examples {
namespace {

// What a task takes where the user says nothing. With these each one reaches 99%; pairs, words and their reversals.
struct Defaults {
  const char* task;
  int64_t length, width, heads, layers, steps, batch;
  double lr, held_out;
};
// clang-format off
constexpr Defaults all_defaults[] = {
    {"copy",    12, 64, 4, 2,  600, 64, 3e-3, 0.0625},
    {"reverse", 12, 64, 4, 2,  600, 64, 3e-3, 0.0625},
    {"sort",    12, 64, 4, 2, 1500, 64, 3e-3, 0.0625},
    {"add",      2, 64, 4, 2, 3000, 64, 3e-3, 0.0625},
    {"pairs",   64, 64, 4, 2, 1500, 64, 3e-3, 0.1},
};
// clang-format on

const Defaults& defaults_of(const std::string& task) {
  return *std::find_if(std::begin(all_defaults), std::end(all_defaults),
                       [&](const Defaults& defaults) { return task == defaults.task; });
}

// "1500 for sort, 3000 for add, else 600".
template <typename T>
std::string in_words(T Defaults::*value) {
  const auto text = [&](const Defaults& defaults) { return nlohmann::json(defaults.*value).dump(); };
  const std::string usual = text(defaults_of("reverse"));
  std::string words;
  for (const Defaults& defaults : all_defaults)
    if (text(defaults) != usual) words += text(defaults) + " for " + defaults.task + ", ";
  return words.empty() ? usual : words + "else " + usual;
}

// Options that mean nothing beside another are an error rather than passed over.
void check_together(const Options& line, const SequenceOptions& options) {
  const bool pairs = options.pairs.has_value(), add = options.task == "add";
  if (pairs && line.given("task"))
    throw UsageError("task", "has no meaning with --pairs, whose file is the task; give one of them");
  for (const char* name : {"symbols", "min-length"})
    if (line.given(name) && (pairs || add))
      throw UsageError(name, std::string("has no meaning with ") + (pairs ? "--pairs" : "--task add"));
  if (options.width % options.heads != 0)
    throw UsageError("heads", std::to_string(options.heads) + " does not divide the width, " +
                                  std::to_string(options.width) + ": each head takes width / heads");
  if (options.min_length > options.length)
    throw UsageError("min-length", std::to_string(options.min_length) + " is more than the length, " +
                                       std::to_string(options.length));
  if (add && options.length > 15) throw UsageError("length", "at most 15 digits with --task add");
}

// The options of the run in `folder`, with those that may change as they are given now.
SequenceOptions resumed(const std::filesystem::path& folder, const nlohmann::ordered_json& given) {
  const nlohmann::ordered_json config = read_config(folder);
  std::vector<std::string> leave_out{"parameters", "version", "name", "resume", "profile", "help"};
  if (config.contains("pairs")) leave_out.push_back("task");  // the file is the task
  return options_of_run(folder, "train_sequence", config, given, leave_out, read_sequence_options);
}

}  // namespace

std::optional<SequenceOptions> read_sequence_options(int argc, const char* const* argv) {
  SequenceOptions options;
  std::optional<std::string> pairs, resume, device;
  std::optional<int64_t> length, width, heads, layers, steps, batch, warmup, decay_steps, threads;
  std::optional<double> held_out, lr;

  Options line("train_sequence",
               "Trains a small transformer to answer sequences with sequences, and tells how many of the answers to "
               "sequences it never saw are right to the last symbol. The results are in runs/NAME/: metrics.jsonl, "
               "config.json, checkpoint.safetensors, loss.svg and attention.svg; and in checkpoints/ all that "
               "is needed to go on with it.");
  line.section("The task");
  line.choice("task", options.task, {"copy", "reverse", "sort", "add"},
              "what the model learns: 3142 -> 3142, 3142 -> 2413, 3142 -> 1234, or 37+58= -> 95");
  line.text("pairs", pairs,
            "learn from your own examples instead: a text file in UTF-8, a line a pair: input, tab, output; each "
            "character is a symbol",
            "none", "FILE");
  line.integer("length", length,
               "symbols in a sequence; for add, digits of a number; for pairs, the most characters on one side",
               in_words(&Defaults::length), {.at_least = 1, .at_most = 1000});
  line.integer("min-length", options.min_length,
               "draw lengths from this to --length; 0: all sequences have --length (copy, reverse, sort)",
               {.at_least = 0, .at_most = 1000});
  line.integer("symbols", options.symbols,
               "different symbols: digits, then small, then capital letters (copy, reverse, sort)",
               {.at_least = 1, .at_most = 62});
  line.real("held-out", held_out, "share of all inputs that is kept from training, for the test at the end",
            in_words(&Defaults::held_out), {.at_least = 0.001, .at_most = 0.999});
  line.integer("examples", options.examples, "held-out inputs that are answered in the test, at most",
               {.at_least = 1, .at_most = 1000000});

  line.section("The model, a causal transformer");
  line.integer("width", width, "numbers that stand for one symbol inside the model", in_words(&Defaults::width),
               {.at_least = 1, .at_most = 8192});
  line.integer("heads", heads, "attention heads of a layer; must divide the width", in_words(&Defaults::heads),
               {.at_least = 1, .at_most = 8192});
  line.integer("layers", layers, "transformer layers", in_words(&Defaults::layers), {.at_least = 1, .at_most = 128});
  line.real("dropout", options.dropout, "share of activations dropped while training", {.at_least = 0.0, .below = 1.0});

  line.section("Training: AdamW, with a linear warm-up and a cosine to zero");
  line.integer("steps", steps, "optimizer steps", in_words(&Defaults::steps), {.at_least = 1, .at_most = 100000000});
  line.integer("batch", batch, "sequences in a step", in_words(&Defaults::batch), {.at_least = 1, .at_most = 65536});
  line.real("lr", lr, "the highest learning rate", in_words(&Defaults::lr), {.above = 0.0});
  line.integer("warmup", warmup, "steps until the learning rate is highest",
               "a twentieth of --decay-steps, at most 100", {.at_least = 0});
  line.integer("decay-steps", decay_steps,
               "the step at which the learning rate arrives at zero; at least --steps, and fixed when a run begins",
               "--steps, or the default of --steps if that is more", {.at_least = 1, .at_most = 100000000});
  line.real("weight-decay", options.weight_decay, "how strongly weights are drawn to zero", {.at_least = 0.0});
  line.integer("seed", options.seed,
               "fixes everything random: first weights, data, dropout; equal seeds give equal results to the last bit, "
               "with any number of threads",
               {.at_least = 0});
  line.integer("threads", threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  add_precision(line, options.precision);
  line.device(device, "cpu; with --resume the run's own");

  line.section("The results");
  line.text("name", options.name,
            "the folder in runs/ for the results; an earlier one of that name is renamed, not overwritten",
            "the task and a number, such as reverse-1", "NAME");
  line.integer("checkpoint-every", options.checkpoint_every,
               "steps between checkpoints; 0: at the end only. Ctrl-C writes one, too, before the program ends",
               {.at_least = 0});
  line.text("resume", resume,
            "go on with the run in this folder, such as runs/reverse-1, from its last checkpoint up to --steps; its "
            "other options are kept",
            "none", "FOLDER");
  line.text(
      "profile", options.profile,
      "record a few steps, once the training is warm: a trace for ui.perfetto.dev or chrome://tracing in FILE, and "
      "a table of what took how long at the end",
      "none", "FILE");
  if (!line.parse(argc, argv)) return std::nullopt;
  check_profile(options.profile);

  if (resume) {
    if (line.given("name")) throw UsageError("name", "has no meaning with --resume: results go to the run's folder");
    nlohmann::ordered_json given;
    const auto add = [&](const char* name, const auto& value) {
      if (!line.given(name)) return;
      std::string key = name;
      std::replace(key.begin(), key.end(), '-', '_');
      if constexpr (requires { value.value(); })
        given[key] = value.value();
      else
        given[key] = value;
    };
    add("task", options.task);
    add("pairs", pairs);
    add("length", length);
    add("min-length", options.min_length);
    add("symbols", options.symbols);
    add("held-out", held_out);
    add("examples", options.examples);
    add("width", width);
    add("heads", heads);
    add("layers", layers);
    add("dropout", options.dropout);
    add("steps", steps);
    add("batch", batch);
    add("lr", lr);
    add("warmup", warmup);
    add("decay-steps", decay_steps);
    add("weight-decay", options.weight_decay);
    add("seed", options.seed);
    add("threads", threads);
    add("precision", options.precision);
    add("device", device);
    add("checkpoint-every", options.checkpoint_every);
    SequenceOptions run = resumed(*resume, given);
    run.profile = options.profile;
    return run;
  }

  options.pairs = pairs;
  const Defaults& defaults = defaults_of(pairs ? "pairs" : options.task);
  options.length = length.value_or(defaults.length);
  options.held_out = held_out.value_or(defaults.held_out);
  options.width = width.value_or(defaults.width);
  options.heads = heads.value_or(defaults.heads);
  options.layers = layers.value_or(defaults.layers);
  options.steps = steps.value_or(defaults.steps);
  options.batch = batch.value_or(defaults.batch);
  options.lr = lr.value_or(defaults.lr);
  options.decay_steps = decay_steps.value_or(std::max(options.steps, defaults.steps));
  options.warmup = warmup.value_or(std::min<int64_t>(options.decay_steps / 20, 100));
  options.threads = threads.value_or(regard::num_threads());
  options.device = device.value_or(options.device);
  check_together(line, options);
  check_decay(options.steps, options.warmup, options.decay_steps);
  if (pairs) options.task = "pairs";
  return options;
}

nlohmann::ordered_json to_json(const SequenceOptions& options) {
  nlohmann::ordered_json json;
  json["task"] = options.task;
  if (options.pairs) json["pairs"] = *options.pairs;
  json["length"] = options.length;
  if (!options.pairs && options.task != "add") {
    json["min_length"] = options.min_length;
    json["symbols"] = options.symbols;
  }
  json["held_out"] = options.held_out;
  json["examples"] = options.examples;
  json["width"] = options.width;
  json["heads"] = options.heads;
  json["layers"] = options.layers;
  json["dropout"] = options.dropout;
  json["steps"] = options.steps;
  json["batch"] = options.batch;
  json["lr"] = options.lr;
  json["warmup"] = options.warmup;
  json["decay_steps"] = options.decay_steps;
  json["weight_decay"] = options.weight_decay;
  json["seed"] = options.seed;
  json["threads"] = options.threads;
  json["precision"] = options.precision;
  json["device"] = options.device;
  json["checkpoint_every"] = options.checkpoint_every;
  return json;
}

}  // namespace examples
