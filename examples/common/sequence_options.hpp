#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace examples {

/// What train_sequence was asked to do, complete: where the user left an option out, it holds the task's default.
struct SequenceOptions {
  std::string task = "reverse";      // copy, reverse, sort, add; "pairs" for the user's own
  std::optional<std::string> pairs;  // the file, for "pairs"
  int64_t length = 0;       // symbols in a sequence; for "add" digits of a number; for "pairs" the longest side allowed
  int64_t min_length = 0;   // copy, reverse and sort: lengths are drawn from here to `length`; 0: all have `length`
  int64_t symbols = 10;     // copy, reverse and sort: how many different ones
  double held_out = 0;      // the share of all inputs that is never trained on
  int64_t examples = 1000;  // held-out examples that the model answers in the end

  int64_t width = 0, heads = 0, layers = 0;
  double dropout = 0;

  int64_t steps = 0, batch = 0;
  double lr = 0, weight_decay = 0.01;
  int64_t warmup = 0, decay_steps = 0;  // decay_steps of 0: the steps
  int64_t seed = 1, threads = 0;
  std::string precision = "f32";  // of matrix products; or tf32, bf16
  std::string device = "cpu";     // to compute on; a run may go on on another

  int64_t checkpoint_every = 250;  // steps; 0: at the end only

  std::optional<std::string> name;              // of the run's folder
  std::optional<std::filesystem::path> resume;  // the folder of a run to go on with
  std::optional<std::string> profile;           // the file for a trace of a few steps
};

/// Reads train_sequence's command line. Nothing where it held --help, which was then printed. With --resume, the
/// options are those of that run's config.json; only its end, --steps, and what changes no number may be given anew.
/// Throws UsageError.
std::optional<SequenceOptions> read_sequence_options(int argc, const char* const* argv);

/// All but name, resume and profile, for config.json.
nlohmann::ordered_json to_json(const SequenceOptions& options);

}  // namespace examples
