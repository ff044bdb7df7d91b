#include <regard/autograd/threads.hpp>
#include <regard/examples/common/classifier_options.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/utf8.hpp>
#include <string_view>

namespace examples {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What is taken where the user says nothing.
struct Defaults {
  int64_t steps;
  double lr;
};
Defaults defaults_of(const ClassifierOptions& options) {
  if (options.train == "head") return {1000, 3e-3};
  if (options.train == "lora") return {200, 4e-3};
  return options.from_nothing() ? Defaults{1000, 1e-3} : Defaults{200, 1e-4};
}

// Every option that config.json holds, by name.
template <class OptionsType, class Visit>
void each_option(OptionsType& o, Visit visit) {
  visit("data", o.data);
  visit("validation_data", o.validation_data);
  visit("validation", o.validation);
  visit("data_fingerprint", o.data_fingerprint);
  visit("validation_fingerprint", o.validation_fingerprint);
  visit("model_fingerprint", o.model_fingerprint);
  visit("model", o.model);
  visit("train", o.train);
  visit("rank", o.rank);
  visit("longest", o.longest);
  visit("vocabulary", o.vocabulary);
  visit("width", o.width);
  visit("heads", o.heads);
  visit("layers", o.layers);
  visit("cased", o.cased);
  visit("dropout", o.dropout);
  visit("steps", o.steps);
  visit("batch", o.batch);
  visit("lr", o.lr);
  visit("weight_decay", o.weight_decay);
  visit("warmup", o.warmup);
  visit("decay_steps", o.decay_steps);
  visit("eval_every", o.eval_every);
  visit("seed", o.seed);
  visit("threads", o.threads);
  visit("precision", o.precision);
  visit("device", o.device);
}

ClassifierOptions of_run(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json json = read_config(folder);
  if (json.value("program", "") != "finetune_classifier")
    throw UsageError("resume", path.string() + " is not the configuration of a run of finetune_classifier");
  ClassifierOptions options;
  each_option(options, [&](const char* name, auto& value) {
    // A run from before there was a choice has none.
    if (!json.contains(name) && (std::string_view(name) == "precision" || std::string_view(name) == "device")) return;
    if (!json.contains(name)) throw UsageError("resume", path.string() + ": the key '" + name + "' is missing");
    try {
      json.at(name).get_to(value);
    } catch (const Json::exception&) {
      throw UsageError("resume",
                       path.string() + ": '" + name + "' is " + json.at(name).dump() + ", which it cannot be");
    }
  });
  return options;
}

void refuse_given(const Options& line, std::initializer_list<const char*> names, const std::string& why) {
  for (const char* name : names)
    if (line.given(name)) throw UsageError(name, why);
}

void check_together(const Options& line, const ClassifierOptions& options) {
  if (options.data.empty())
    throw UsageError("data", "give a file of labelled lines (or --resume a run, or --classify lines)");
  if (line.given("validation") && line.given("validation-data"))
    throw UsageError("validation", "has no meaning with --validation-data, which is what is validated with");
  if (!options.from_nothing())
    refuse_given(line, {"vocabulary", "width", "heads", "layers", "cased"},
                 "has no meaning with --model, whose folder decides it");
  if (options.from_nothing() && options.train != "all")
    throw UsageError("train", options.train + " needs a model that has learned something: give --model");
  if (line.given("rank") && options.train != "lora") throw UsageError("rank", "has a meaning with --train lora only");
  if (options.width % options.heads != 0)
    throw UsageError("heads", std::to_string(options.heads) + " does not divide the width, " +
                                  std::to_string(options.width) + ": each head takes width / heads");
  if (options.warmup >= options.decay_steps)
    throw UsageError("warmup", std::to_string(options.warmup) + " is not below --decay-steps, " +
                                   std::to_string(options.decay_steps));
}

}  // namespace

std::optional<ClassifierOptions> read_classifier_options(int argc, const char* const* argv) {
  ClassifierOptions options;
  std::optional<std::string> data, validation_data, train, resume, checkpoint, device;
  std::optional<int64_t> steps, longest, decay_steps, threads;
  std::optional<double> lr;

  Options line("finetune_classifier",
               "Learns to tell classes of texts apart from labelled lines: a head on a sentence encoder's vectors, or "
               "the whole encoder. The results are in runs/NAME/: metrics.jsonl, config.json, checkpoints/, loss.svg, "
               "confusion.svg, and in model/ the best model, as a Hugging Face style folder with its head.");
  line.section("The data");
  line.text("data", data, "lines of a label, a tab and a text, in UTF-8", "must be given", "FILE");
  line.text("validation-data", validation_data, "labelled lines to validate with", "a share of --data", "FILE");
  line.real("validation", options.validation, "share of --data that is kept from training",
            {.at_least = 0.001, .at_most = 0.9});

  line.section("The model");
  line.text("model", options.model,
            "a BERT-type encoder's folder: config.json, model.safetensors, vocab.txt; none: a small encoder and a "
            "WordPiece vocabulary are made from the data",
            "FOLDER");
  line.text("train", train,
            "what learns: head, the layer behind the encoder's vectors; lora, small matrices beside those of the "
            "encoder's attention, too; or all of it",
            "head with a --model, else all", "head|lora|all");
  line.integer("rank", options.rank, "of the small matrices of lora", {.at_least = 1, .at_most = 1024});
  line.integer("longest", longest, "tokens of a text; what is longer is cut", "the model's own, or 128",
               {.at_least = 3, .at_most = 1000000});
  line.integer("vocabulary", options.vocabulary, "pieces of words, at most (without --model)",
               {.at_least = 10, .at_most = 1000000});
  line.flag("cased", options.cased, "tell capitals and accents apart (without --model)");
  line.integer("width", options.width, "numbers that stand for a token inside the model (without --model)",
               {.at_least = 1, .at_most = 8192});
  line.integer("heads", options.heads, "attention heads of a layer; must divide the width (without --model)",
               {.at_least = 1, .at_most = 8192});
  line.integer("layers", options.layers, "transformer layers (without --model)", {.at_least = 1, .at_most = 128});
  line.real("dropout", options.dropout, "share of activations dropped while training", {.at_least = 0.0, .below = 1.0});

  line.section("Training: AdamW, with a linear warm-up and a cosine to zero");
  line.integer("steps", steps, "optimizer steps in all",
               "1000; 200 for lora and all of a --model; with --resume the run's own",
               {.at_least = 1, .at_most = 100000000});
  line.integer("batch", options.batch, "texts in a step", {.at_least = 1, .at_most = 65536});
  line.real("lr", lr, "the highest learning rate",
            "0.003 for a head, 0.004 for lora, 0.0001 for all of a --model, else 0.001", {.above = 0.0});
  line.integer("warmup", options.warmup, "steps until the learning rate is highest", {.at_least = 0});
  line.integer("decay-steps", decay_steps,
               "steps until the learning rate is zero. It does not follow --steps: a run that is ended early and "
               "resumed is the same as one without a break",
               "1000; 200 for lora and all of a --model", {.at_least = 1, .at_most = 100000000});
  line.real("weight-decay", options.weight_decay, "how strongly weights are drawn to zero", {.at_least = 0.0});
  line.integer("eval-every", options.eval_every, "steps between validations, each followed by a checkpoint",
               {.at_least = 1});
  line.integer("seed", options.seed,
               "fixes everything random; equal seeds give equal results to the last bit, with any number of threads",
               {.at_least = 0});
  line.integer("threads", threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  add_precision(line, options.precision);
  line.device(device, "cpu; with --resume the run's own");

  line.section("The results");
  line.text("name", options.name,
            "the folder in runs/ for the results; an earlier one of that name is renamed, not overwritten",
            "classifier and a number, such as classifier-1", "NAME");
  line.text("resume", resume, "the folder of a run to go on with, from its last checkpoint to --steps", "none",
            "FOLDER");

  line.section("To use it");
  line.text("classify", options.classify,
            "do not train: write each line of this file (-: of standard input) with its class and how likely it is",
            "none", "FILE");
  line.text("checkpoint", checkpoint, "the run that learned it", "must be given with --classify", "FOLDER");
  if (!line.parse(argc, argv)) return std::nullopt;

  const std::initializer_list<const char*> decided = {
      "data",        "validation-data", "validation", "model",  "train", "rank",     "longest",      "vocabulary",
      "cased",       "width",           "heads",      "layers", "lr",    "dropout",  "weight-decay", "warmup",
      "decay-steps", "batch",           "eval-every", "seed",   "name",  "precision"};
  options.threads = threads.value_or(regard::num_threads());
  options.device = device.value_or(options.device);
  if (options.classify) {
    refuse_given(line, decided, "has no meaning with --classify, which trains nothing");
    refuse_given(line, {"steps", "resume"}, "has no meaning with --classify, which trains nothing");
    if (!checkpoint) throw UsageError("checkpoint", "give the folder of the run to classify with");
    options.checkpoint = *checkpoint;
    return options;
  }
  if (checkpoint) throw UsageError("checkpoint", "has no meaning without --classify");
  if (resume) {
    refuse_given(line, decided, "has no meaning with --resume, which goes on with the run's own");
    options = of_run(*resume);
    options.resume = *resume;
    options.threads = threads.value_or(regard::num_threads());
    options.device = device.value_or(options.device);
    options.steps = steps.value_or(options.steps);
    return options;
  }
  options.data = data.value_or("");
  options.validation_data = validation_data.value_or("");
  options.train = train.value_or(options.from_nothing() ? "all" : "head");
  if (options.train != "head" && options.train != "lora" && options.train != "all")
    throw UsageError("train", in_quotes(options.train) + " is none of head, lora and all");
  options.longest = longest.value_or(options.from_nothing() ? 128 : 0);
  const Defaults defaults = defaults_of(options);
  options.steps = steps.value_or(defaults.steps);
  options.decay_steps = decay_steps.value_or(defaults.steps);
  options.lr = lr.value_or(defaults.lr);
  check_together(line, options);
  return options;
}

Json to_json(const ClassifierOptions& options) {
  Json json = {{"program", "finetune_classifier"}};
  each_option(options, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

}  // namespace examples
