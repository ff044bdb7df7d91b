#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regard/layers/models/gpt.hpp>
#include <string>
#include <vector>

namespace examples {

/// The options of train_language_model, with their defaults: about a megabyte of text and two cores, in a minute.
struct LanguageOptions {
  // The text
  std::vector<std::string> text = {};
  std::string tokens = "characters";  // bytes, characters, bpe, or of the model in `from`
  int64_t vocabulary = 1024;          // for bpe
  double validation = 0.1;            // share of the text

  // The model
  std::string from = {};  // a GPT-2 folder to start from; empty: new weights
  int64_t context = 64, width = 128, heads = 4, layers = 4;
  int64_t key_value_heads = 0;
  double dropout = 0;
  std::string positions = "learned";
  bool untied = false, recompute = false;

  // The training
  int64_t steps = 2000, batch = 12, grad_accumulation = 1;
  double lr = 1e-3, min_lr = 1e-4, weight_decay = 0.1, clip = 1;
  int64_t warmup = 100, decay_steps = 2000;
  int64_t seed = 1, threads = 1;
  std::string precision = "f32";  // of matrix products; or tf32, bf16
  std::string device = "cpu";     // to compute on; a run may go on on another

  // What is shown and kept
  int64_t eval_every = 200, validation_tokens = 32768;
  int64_t sample_every = 500, sample_length = 200;
  int64_t keep = 2;
  bool gpt2 = false;

  std::optional<std::string> name = std::nullopt;  // of the run's folder
  std::optional<std::filesystem::path> resume = std::nullopt;
  std::optional<std::string> profile = std::nullopt;  // the file for a trace of a few steps
};

/// Reads the command line. With --resume, every option but those that may change is the earlier run's, read from its
/// config.json. Empty where --help was asked for and printed. Throws UsageError; std::runtime_error for a folder
/// without a run of this program.
std::optional<LanguageOptions> read_language_options(int argc, const char* const* argv);

/// All but name, resume and profile, for config.json; and back. `file` names the text in errors.
nlohmann::ordered_json to_json(const LanguageOptions& options);
LanguageOptions language_options_from_json(const nlohmann::ordered_json& json, const std::string& file);

/// "learned", "rotary" or "alibi"; UsageError for anything else.
regard::layers::PositionKind position_kind(const std::string& name);

/// What the options say of a new model (without `from`) for this many tokens.
regard::layers::GPTOptions model_options(const LanguageOptions& options, int64_t vocabulary);

}  // namespace examples
