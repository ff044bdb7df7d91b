#include <algorithm>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/language_options.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/step_profile.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/utf8.hpp>
#include <string_view>

namespace examples {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Every option that config.json holds: `visit(name, member)`, in this order.
template <class OptionsType, class Visit>
void each_option(OptionsType& o, Visit visit) {
  visit("text", o.text);
  visit("tokens", o.tokens);
  visit("vocabulary", o.vocabulary);
  visit("validation", o.validation);
  visit("from", o.from);
  visit("context", o.context);
  visit("width", o.width);
  visit("heads", o.heads);
  visit("layers", o.layers);
  visit("key_value_heads", o.key_value_heads);
  visit("dropout", o.dropout);
  visit("positions", o.positions);
  visit("untied", o.untied);
  visit("recompute", o.recompute);
  visit("steps", o.steps);
  visit("batch", o.batch);
  visit("grad_accumulation", o.grad_accumulation);
  visit("lr", o.lr);
  visit("min_lr", o.min_lr);
  visit("weight_decay", o.weight_decay);
  visit("clip", o.clip);
  visit("warmup", o.warmup);
  visit("decay_steps", o.decay_steps);
  visit("seed", o.seed);
  visit("threads", o.threads);
  visit("precision", o.precision);
  visit("device", o.device);
  visit("eval_every", o.eval_every);
  visit("validation_tokens", o.validation_tokens);
  visit("sample_every", o.sample_every);
  visit("sample_length", o.sample_length);
  visit("keep", o.keep);
  visit("gpt2", o.gpt2);
}

LanguageOptions of_run(const fs::path& folder) {
  return language_options_from_json(read_config(folder), (folder / "config.json").string());
}

// Options whose change would make the rest of the run another than it would have been.
void check_resumed(const Options& line) {
  for (const char* name : {"text",        "tokens",    "vocabulary",   "validation", "from",
                           "context",     "width",     "heads",        "layers",     "key-value-heads",
                           "dropout",     "positions", "untied",       "batch",      "grad-accumulation",
                           "lr",          "min-lr",    "weight-decay", "clip",       "warmup",
                           "decay-steps", "seed",      "precision",    "eval-every", "validation-tokens",
                           "name"})
    if (line.given(name)) throw UsageError(name, "has no meaning with --resume, which goes on with the run's own");
}

void check_together(const Options& line, const LanguageOptions& o) {
  if (o.text.empty()) throw UsageError("text", "is needed: one or more files to learn from (or --resume a run)");
  if (line.given("vocabulary") && o.tokens != "bpe")
    throw UsageError("vocabulary", "has a meaning with --tokens bpe only");
  if (!o.from.empty()) {
    for (const char* name :
         {"tokens", "vocabulary", "width", "heads", "layers", "key-value-heads", "positions", "untied"})
      if (line.given(name)) throw UsageError(name, "has no meaning with --from, whose model has its own");
  }
  const auto number = [](int64_t n) { return std::to_string(n); };
  for (const auto& [name, value] :  // bounds that a run's config.json, too, must keep
       {std::pair("width", o.width),
        {"heads", o.heads},
        {"layers", o.layers},
        {"steps", o.steps},
        {"batch", o.batch},
        {"grad-accumulation", o.grad_accumulation},
        {"eval-every", o.eval_every},
        {"keep", o.keep},
        {"validation-tokens", o.validation_tokens},
        {"sample-length", o.sample_length},
        {"threads", o.threads}})
    if (value < 1) throw UsageError(name, number(value) + " is below 1");
  if (o.context < (o.from.empty() ? 1 : 0)) throw UsageError("context", number(o.context) + " is below 1");
  if (o.width % o.heads != 0)
    throw UsageError("heads", number(o.heads) + " does not divide the width, " + number(o.width) +
                                  ": each head takes width / heads");
  if (o.key_value_heads > 0 && o.heads % o.key_value_heads != 0)
    throw UsageError("key-value-heads", number(o.key_value_heads) + " does not divide the heads, " + number(o.heads));
  if (o.positions == "rotary" && o.width / o.heads % 2 != 0)
    throw UsageError("positions",
                     "rotary turns pairs of numbers, and a head's width, " + number(o.width / o.heads) + ", is odd");
  if (o.min_lr > o.lr) throw UsageError("min-lr", "is above --lr");
  if (o.warmup >= o.decay_steps)
    throw UsageError("warmup", number(o.warmup) + " is not below --decay-steps, " + number(o.decay_steps));
  if (o.gpt2 && (o.positions != "learned" || (o.key_value_heads != 0 && o.key_value_heads != o.heads)))
    throw UsageError("gpt2", "GPT-2's layout has learned positions, and as many key-value heads as heads");
}

}  // namespace

std::optional<LanguageOptions> read_language_options(int argc, const char* const* argv) {
  LanguageOptions options;
  std::optional<std::string> from, resume, profile, device;
  std::optional<int64_t> steps, context, threads, keep, sample_every, sample_length;

  Options line(
      "train_language_model",
      "Trains a GPT on your text and lets it write. The results are in runs/NAME/: metrics.jsonl, config.json, "
      "tokenizer.json, the tokens, checkpoints/ and loss.svg; `generate --checkpoint runs/NAME` lets the best "
      "checkpoint write, and --resume goes on with a run.");
  line.section("The text");
  line.texts("text", options.text, "text files in UTF-8, joined in this order", "none: it is needed", "FILE");
  line.choice(
      "tokens", options.tokens, {"bytes", "characters", "bpe"},
      "what the model reads at a time: bytes, characters, or byte pairs (parts of words) that are found in the text");
  line.integer("vocabulary", options.vocabulary, "for bpe: different tokens, at most",
               {.at_least = 257, .at_most = 1000000});
  line.real("validation", options.validation, "share of the text, from its end, that is kept from training",
            {.above = 0.0, .at_most = 0.9});

  line.section("The model, a GPT");
  line.text("from", from,
            "start from the weights and tokens of a GPT-2 folder (config.json, model.safetensors, vocab.json, "
            "merges.txt)",
            "new weights", "FOLDER");
  line.integer("context", context, "tokens that it reads at most", "64; with --from the model's own",
               {.at_least = 1, .at_most = 1000000});
  line.integer("width", options.width, "numbers that stand for one token inside the model",
               {.at_least = 1, .at_most = 65536});
  line.integer("heads", options.heads, "attention heads of a layer; must divide the width",
               {.at_least = 1, .at_most = 1024});
  line.integer("layers", options.layers, "transformer layers", {.at_least = 1, .at_most = 1024});
  line.integer("key-value-heads", options.key_value_heads,
               "grouped-query attention: so many heads of keys and values; must divide the heads; 0: as many as heads",
               {.at_least = 0, .at_most = 1024});
  line.choice("positions", options.positions, {"learned", "rotary", "alibi"}, "how it is told the order of tokens");
  line.real("dropout", options.dropout, "share of activations dropped while training", {.at_least = 0.0, .below = 1.0});
  line.flag("untied", options.untied, "give the head a weight of its own, instead of the token embedding's");
  line.flag("recompute", options.recompute,
            "compute each layer again in backward: less memory, more time, same results");

  line.section("Training: AdamW, with a linear warm-up and a cosine down to --min-lr");
  line.integer("steps", steps, "optimizer steps in all", "2000; with --resume the run's own",
               {.at_least = 1, .at_most = 1000000000});
  line.integer("batch", options.batch, "sequences of --context tokens in a forward pass",
               {.at_least = 1, .at_most = 1000000});
  line.integer("grad-accumulation", options.grad_accumulation,
               "forward passes in a step: as a batch so many times as large, without its memory",
               {.at_least = 1, .at_most = 1000000});
  line.real("lr", options.lr, "the highest learning rate", {.above = 0.0});
  line.real("min-lr", options.min_lr, "the last learning rate", {.at_least = 0.0});
  line.integer("warmup", options.warmup, "steps until the learning rate is highest", {.at_least = 0});
  line.integer(
      "decay-steps", options.decay_steps,
      "steps until the learning rate is lowest, where it stays. It does not follow --steps: a run that is ended "
      "early and resumed is the same as one without a break",
      {.at_least = 1});
  line.real("weight-decay", options.weight_decay, "how strongly weights (not biases and norms) are drawn to zero",
            {.at_least = 0.0});
  line.real("clip", options.clip, "the largest norm of the gradient: longer ones are scaled down", {.above = 0.0});
  line.integer("seed", options.seed,
               "fixes everything random; equal seeds give equal results to the last bit, with any number of threads",
               {.at_least = 0});
  line.integer("threads", threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  add_precision(line, options.precision);
  line.device(device, "cpu; with --resume the run's own");

  line.section("What is shown and kept");
  line.integer("eval-every", options.eval_every, "steps between validations, each followed by a checkpoint",
               {.at_least = 1});
  line.integer("validation-tokens", options.validation_tokens,
               "tokens of the validation text that are looked at on the way; at the end up to 32 times as many",
               {.at_least = 1});
  line.integer("sample-every", sample_every, "steps between texts that the model writes; 0: none", "500",
               {.at_least = 0});
  line.integer("sample-length", sample_length, "tokens of such a text", "200", {.at_least = 1, .at_most = 100000});
  line.integer("keep", keep, "checkpoints that are kept, newest first; the best one is kept beside them", "2",
               {.at_least = 1, .at_most = 1000000});
  line.flag("gpt2", options.gpt2,
            "at the end write the best model as a GPT-2 folder, too, for transformers: runs/NAME/gpt2");
  line.text("name", options.name,
            "the folder in runs/ for the results; an earlier one of that name is renamed, not overwritten",
            "text and a number, such as text-1", "NAME");
  line.text("resume", resume, "the folder of a run to go on with, from its last checkpoint to --steps", "none",
            "FOLDER");
  line.text(
      "profile", profile,
      "record a few steps, once the training is warm: a trace for ui.perfetto.dev or chrome://tracing in FILE, and "
      "a table of what took how long at the end",
      "none", "FILE");
  if (!line.parse(argc, argv)) return std::nullopt;
  check_profile(profile);

  if (resume) {
    check_resumed(line);
    const bool gpt2 = options.gpt2, recompute = options.recompute;
    options = of_run(*resume);
    const fs::path folder = *resume;
    options.resume = folder.has_filename() ? folder : folder.parent_path();  // runs/a/ is runs/a
    options.gpt2 = options.gpt2 || gpt2;
    options.recompute = options.recompute || recompute;
  }
  options.profile = profile;
  options.from = from.value_or(options.from);
  options.steps = steps.value_or(options.steps);
  if (context)
    options.context = *context;
  else if (!options.from.empty() && !resume)
    options.context = 0;  // the model's own
  options.threads = threads.value_or(regard::num_threads());
  options.device = device.value_or(options.device);
  options.keep = keep.value_or(options.keep);
  options.sample_every = sample_every.value_or(options.sample_every);
  options.sample_length = sample_length.value_or(options.sample_length);
  try {
    check_together(line, options);
  } catch (const UsageError& error) {
    if (!resume) throw;
    throw std::runtime_error((*options.resume / "config.json").string() + ": " + error.what());
  }
  return options;
}

Json to_json(const LanguageOptions& options) {
  Json json = {{"program", "train_language_model"}};
  each_option(options, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

LanguageOptions language_options_from_json(const Json& json, const std::string& file) {
  if (!json.is_object() || !json.contains("program") || json["program"] != "train_language_model")
    throw std::runtime_error(file + ": not the configuration of a run of train_language_model");
  LanguageOptions options;
  each_option(options, [&](const char* name, auto& value) {
    // A run from before there was a choice has none.
    if (!json.contains(name) && (std::string_view(name) == "precision" || std::string_view(name) == "device")) return;
    if (!json.contains(name)) throw std::runtime_error(file + ": the key " + name + " is missing");
    try {
      json.at(name).get_to(value);
    } catch (const Json::exception&) {
      throw std::runtime_error(file + ": " + name + " is " + json.at(name).dump() + ", which it cannot be");
    }
  });
  return options;
}

regard::layers::PositionKind position_kind(const std::string& name) {
  using regard::layers::PositionKind;
  for (PositionKind kind : {PositionKind::learned, PositionKind::rotary, PositionKind::alibi})
    if (name == regard::layers::to_string(kind)) return kind;
  throw UsageError("positions", in_quotes(name) + " is not learned, rotary or alibi");
}

regard::layers::GPTOptions model_options(const LanguageOptions& options, int64_t vocabulary) {
  regard::layers::GPTOptions model;
  model.vocabulary = vocabulary;
  model.context = options.context;
  model.width = options.width;
  model.heads = options.heads;
  model.layers = options.layers;
  model.key_value_heads = options.key_value_heads;
  model.dropout = options.dropout;
  model.positions = position_kind(options.positions);
  model.tied = !options.untied;
  model.recompute = options.recompute;
  return model;
}

}  // namespace examples
