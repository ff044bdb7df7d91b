#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace examples {

/// What train_translation was asked to do, complete: where the user left an option out, it holds the task's default.
struct TranslationOptions {
  std::string task = "dates";                                                // dates, pairs, dictionary
  std::optional<std::string> file;                                           // for pairs and dictionary
  std::string source_symbols = "characters", target_symbols = "characters";  // pairs: or words
  std::string stress = "remove";                                             // dictionary: or keep
  int64_t length = 128;                                                      // pairs: symbols on a side, at most
  double held_out = 0;                                                       // share that is never trained on
  int64_t examples = 0;                                                      // held-out questions in the test, at most
  int64_t beam = 4;
  double length_penalty = 0;

  int64_t width = 0, heads = 0, layers = 0;  // layers of the encoder, and as many of the decoder
  double dropout = 0;

  int64_t steps = 0, batch = 0;
  double lr = 0, weight_decay = 0.01, label_smoothing = 0;
  int64_t warmup = 0, decay_steps = 0;
  int64_t checkpoint_every = 250;  // steps; 0: at the end only
  int64_t seed = 1, threads = 0;
  std::string precision = "f32";  // of matrix products; or tf32, bf16
  std::string device = "cpu";     // to compute on; a run may go on on another

  std::optional<std::string> name;    // of the run's folder
  std::optional<std::string> resume;  // the folder of a run that is to go on
};

/// Reads train_translation's command line. Nothing where it held --help, which was then printed. With --resume, what
/// the command line leaves out is as the run's config.json says, and what would change the run is refused. Throws
/// UsageError, and std::runtime_error where that file is no configuration of train_translation.
std::optional<TranslationOptions> read_translation_options(int argc, const char* const* argv);

/// All of them but name and resume, for config.json, and back.
nlohmann::ordered_json to_json(const TranslationOptions& options);
TranslationOptions translation_options_from_json(const nlohmann::ordered_json& json);

/// The JSON in a file. Throws std::runtime_error naming it where it cannot be read or is no JSON object.
nlohmann::ordered_json read_json_file(const std::string& path);

}  // namespace examples
