#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regard/layers/models/vision_transformer.hpp>
#include <string>

namespace examples {

/// What train_digits was asked to do, complete.
struct DigitsOptions {
  std::optional<std::string> data;  // a file of one's own
  double held_out = 0.2;            // the share of the pictures that is for the test
  std::string test = "spread";      // which ones: spread over the file, or the last

  int64_t patch = 2, width = 64, heads = 4, layers = 3;
  double dropout = 0;
  std::string summary = "mean";  // what the head reads: the class token, or the mean of the patches' tokens

  double shift = 0.7, turn = 5, stretch = 0.05;  // of training pictures, see Distortion

  int64_t steps = 2500, batch = 64;
  double lr = 2e-3, weight_decay = 0.05, smoothing = 0.1;
  int64_t warmup = 0, decay_steps = 0;  // the learning rate is zero at decay_steps; 0: at `steps`
  int64_t seed = 1, threads = 0;
  std::string precision = "f32";  // of matrix products; or tf32, bf16
  std::string device = "cpu";     // to compute on; a run may go on on another

  std::optional<std::string> name;              // of the run's folder
  int64_t checkpoint_every = 500;               // steps; 0: at the end only
  std::optional<std::filesystem::path> resume;  // the folder of a run to go on with
};

/// Reads train_digits' command line. Nothing where it held --help, which was then printed. With --resume, the options
/// are those in that run's config.json, with the steps, threads and checkpoints asked for now. Throws UsageError.
std::optional<DigitsOptions> read_digits_options(int argc, const char* const* argv);

/// All of them, for config.json.
nlohmann::ordered_json to_json(const DigitsOptions& options);

/// The model of these options for pictures of one size. Throws UsageError where the patch does not divide the side.
regard::layers::VisionTransformerOptions vision_options(const DigitsOptions& options, int64_t side, int64_t classes);

/// The model that a run of train_digits trained, in evaluation mode, from config.json and checkpoint.safetensors of its
/// folder. Throws an exception that names the file and what is missing or does not fit.
regard::layers::VisionTransformer read_digits_run(const std::filesystem::path& folder);

}  // namespace examples
