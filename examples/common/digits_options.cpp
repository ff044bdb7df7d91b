#include <algorithm>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/digits_options.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/training_run.hpp>
#include <vector>

namespace examples {
namespace {

const int64_t usual_steps = DigitsOptions().steps;

void check_program(const nlohmann::ordered_json& config, const std::filesystem::path& folder) {
  if (config.value("program", "") != "train_digits")
    throw UsageError("resume", (folder / "config.json").string() + " is no configuration of train_digits");
}

// The options of the run in `folder`, with those that may change as they are given now.
DigitsOptions resumed(const std::filesystem::path& folder, const nlohmann::ordered_json& given) {
  const nlohmann::ordered_json config = read_config(folder);
  check_program(config, folder);
  return options_of_run(folder, "train_digits", config, given,
                        {"side", "classes", "parameters", "program", "version", "name", "resume", "help"},
                        read_digits_options);
}

// What the user gave, by the names in config.json.
nlohmann::ordered_json given_options(const Options& line, const DigitsOptions& options) {
  const nlohmann::ordered_json all = to_json(options);
  nlohmann::ordered_json given = nlohmann::ordered_json::object();
  for (const auto& [key, value] : all.items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (line.given(name)) given[key] = value;
  }
  return given;
}

}  // namespace

std::optional<DigitsOptions> read_digits_options(int argc, const char* const* argv) {
  DigitsOptions options;
  std::optional<int64_t> warmup, decay_steps, threads;
  std::optional<std::string> resume, device;
  Options line(
      "train_digits",
      "Trains a small vision transformer to read handwritten digits (or to tell pictures of your own apart), "
      "and tests it on pictures it never saw. The results are in runs/NAME/: metrics.jsonl, config.json, "
      "checkpoint.safetensors, loss.svg, confusion.svg and attention.svg; and in checkpoints/ all that is needed to "
      "go on with it.");
  line.section("The pictures");
  line.text("data", options.data,
            "a file of pictures: a line each, its class (0, 1, ...), a space, and its shades row by row, 0 to 9 and A "
            "to G for 0 (paper) to 16 (ink); pictures are square and of one size",
            "the 1797 digits that come with the examples", "FILE");
  line.real("held-out", options.held_out, "share of the pictures that is for the test", {.above = 0.0, .below = 1.0});
  line.choice("test", options.test, {"spread", "last"},
              "which ones: spread evenly over the file, or the last, which in the digits are mostly of hands that no "
              "other picture shows");
  line.real("shift", options.shift, "pixels by which a training picture is moved, at most, each time it is shown",
            {.at_least = 0.0, .at_most = 100.0});
  line.real("turn", options.turn, "degrees by which it is turned, at most", {.at_least = 0.0, .at_most = 180.0});
  line.real("stretch", options.stretch, "share by which it is stretched or shrunk, at most",
            {.at_least = 0.0, .at_most = 0.5});

  line.section("The model, a vision transformer");
  line.integer("patch", options.patch, "side of the square patches that are its tokens; must divide the pictures' side",
               {.at_least = 1, .at_most = 1024});
  line.integer("width", options.width, "numbers that stand for one patch inside the model",
               {.at_least = 1, .at_most = 8192});
  line.integer("heads", options.heads, "attention heads of a layer; must divide the width",
               {.at_least = 1, .at_most = 8192});
  line.integer("layers", options.layers, "transformer layers", {.at_least = 1, .at_most = 128});
  line.real("dropout", options.dropout, "share of activations dropped while training", {.at_least = 0.0, .below = 1.0});
  line.choice("summary", options.summary, {"class", "mean"},
              "what the answer is read from: a class token, or the mean of the patches' tokens");

  line.section("Training: AdamW, with a linear warm-up and a cosine to zero");
  line.integer("steps", options.steps, "optimizer steps", {.at_least = 1, .at_most = 100000000});
  line.integer("batch", options.batch, "pictures in a step", {.at_least = 1, .at_most = 65536});
  line.real("lr", options.lr, "the highest learning rate", {.above = 0.0});
  line.integer("warmup", warmup, "steps until the learning rate is highest",
               "a twentieth of --decay-steps, at most 100", {.at_least = 0});
  line.integer("decay-steps", decay_steps,
               "the step at which the learning rate arrives at zero; at least --steps, and fixed when a run begins",
               "--steps, or the default of --steps if that is more", {.at_least = 1, .at_most = 100000000});
  line.real("weight-decay", options.weight_decay, "how strongly weights are drawn to zero", {.at_least = 0.0});
  line.real("smoothing", options.smoothing, "share of the target that goes to all classes evenly",
            {.at_least = 0.0, .below = 1.0});
  line.integer("seed", options.seed,
               "fixes everything random: first weights, order, distortions, dropout; equal seeds give equal results to "
               "the last bit, with any number of threads; the test's pictures are the same for every seed",
               {.at_least = 0});
  line.integer("threads", threads, "threads to compute with", "as many as there are processors",
               {.at_least = 1, .at_most = 1024});
  add_precision(line, options.precision);
  line.device(device, "cpu; with --resume the run's own");

  line.section("The results");
  line.text("name", options.name,
            "the folder in runs/ for the results; an earlier one of that name is renamed, not overwritten",
            "digits and a number, such as digits-1", "NAME");
  line.integer("checkpoint-every", options.checkpoint_every,
               "steps between checkpoints; 0: at the end only. Ctrl-C writes one, too, before the program ends",
               {.at_least = 0});
  line.text("resume", resume,
            "go on with the run in this folder, such as runs/digits-1, from its last checkpoint up to --steps; its "
            "other options are kept",
            "none", "FOLDER");
  if (!line.parse(argc, argv)) return std::nullopt;

  options.threads = threads.value_or(regard::num_threads());
  options.device = device.value_or(options.device);
  options.decay_steps = decay_steps.value_or(std::max(options.steps, usual_steps));
  options.warmup = warmup.value_or(std::min<int64_t>(options.decay_steps / 20, 100));
  if (resume) {
    if (line.given("name")) throw UsageError("name", "has no meaning with --resume: results go to the run's folder");
    return resumed(*resume, given_options(line, options));
  }
  if (options.width % options.heads != 0)
    throw UsageError("heads", std::to_string(options.heads) + " does not divide the width, " +
                                  std::to_string(options.width) + ": each head takes width / heads");
  check_decay(options.steps, options.warmup, options.decay_steps);
  return options;
}

nlohmann::ordered_json to_json(const DigitsOptions& options) {
  nlohmann::ordered_json json;
  if (options.data) json["data"] = *options.data;
  json["held_out"] = options.held_out;
  json["test"] = options.test;
  json["shift"] = options.shift;
  json["turn"] = options.turn;
  json["stretch"] = options.stretch;
  json["patch"] = options.patch;
  json["width"] = options.width;
  json["heads"] = options.heads;
  json["layers"] = options.layers;
  json["dropout"] = options.dropout;
  json["summary"] = options.summary;
  json["steps"] = options.steps;
  json["batch"] = options.batch;
  json["lr"] = options.lr;
  json["warmup"] = options.warmup;
  json["decay_steps"] = options.decay_steps;
  json["weight_decay"] = options.weight_decay;
  json["smoothing"] = options.smoothing;
  json["seed"] = options.seed;
  json["threads"] = options.threads;
  json["precision"] = options.precision;
  json["device"] = options.device;
  json["checkpoint_every"] = options.checkpoint_every;
  return json;
}

regard::layers::VisionTransformerOptions vision_options(const DigitsOptions& options, int64_t side, int64_t classes) {
  if (side % options.patch != 0)
    throw UsageError("patch",
                     std::to_string(options.patch) + " does not divide the pictures' side, " + std::to_string(side));
  regard::layers::VisionTransformerOptions model;
  model.channels = 1;
  model.image_height = model.image_width = side;
  model.patch = options.patch;
  model.classes = classes;
  model.width = options.width;
  model.heads = options.heads;
  model.layers = options.layers;
  model.dropout = options.dropout;
  model.position_std = 0.5;
  model.summary =
      options.summary == "class" ? regard::layers::ImageSummary::class_token : regard::layers::ImageSummary::mean;
  return model;
}

regard::layers::VisionTransformer read_digits_run(const std::filesystem::path& folder) {
  const nlohmann::ordered_json config = read_config(folder);
  const std::string file = (folder / "config.json").string();
  const auto options = [&] {
    try {
      check_program(config, folder);
      DigitsOptions of_run;
      config.at("patch").get_to(of_run.patch);
      config.at("width").get_to(of_run.width);
      config.at("heads").get_to(of_run.heads);
      config.at("layers").get_to(of_run.layers);
      config.at("summary").get_to(of_run.summary);
      return vision_options(of_run, config.at("side").get<int64_t>(), config.at("classes").get<int64_t>());
    } catch (const std::exception& error) {
      throw std::runtime_error(file + ": no configuration of train_digits: " + error.what());
    }
  };
  regard::layers::VisionTransformer model(options());
  const std::filesystem::path weights = folder / "checkpoint.safetensors";
  try {
    model.load_state_dict(regard::load_safetensors(weights));
  } catch (const regard::ValueError& error) {
    throw std::runtime_error(weights.string() + " does not fit " + file + ": " + error.what());
  }
  model.eval();
  return model;
}

}  // namespace examples
