#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace examples {

/// The options of finetune_classifier.
struct ClassifierOptions {
  // The data
  std::string data;             // labelled lines
  std::string validation_data;  // labelled lines; empty: a share of `data`
  double validation = 0.1;      // share of the lines
  // Of the files `data`, `validation_data` and the model's weights, which a run that goes on must find as they were;
  // empty where there is no such file.
  std::string data_fingerprint, validation_fingerprint, model_fingerprint;

  // The model
  std::string model = "none";                                    // a folder; "none": a small encoder from nothing
  std::string train;                                             // head, lora, all
  int64_t rank = 8;                                              // of lora
  int64_t longest = 0;                                           // tokens of a text; 0: the model's own
  int64_t vocabulary = 4000, width = 64, heads = 4, layers = 2;  // of an encoder from nothing
  bool cased = false;                                            // likewise
  double dropout = 0.1;

  // The training
  int64_t steps = 0, batch = 32, warmup = 20, decay_steps = 0;
  double lr = 0, weight_decay = 0.01;
  int64_t eval_every = 50, seed = 1, threads = 1;
  std::string precision = "f32";  // of matrix products; or tf32, bf16
  std::string device = "cpu";     // to compute on; a run may go on on another

  std::optional<std::string> name = std::nullopt;
  std::optional<std::filesystem::path> resume = std::nullopt;

  // Instead of training: lines to classify, and the run that learned to
  std::optional<std::string> classify = std::nullopt;
  std::filesystem::path checkpoint = {};

  bool from_nothing() const { return model == "none"; }
};

/// Reads the command line; with --resume, all but what may change is the earlier run's, from its config.json. Empty
/// where --help was asked for and printed. Throws UsageError.
std::optional<ClassifierOptions> read_classifier_options(int argc, const char* const* argv);

/// All that decides a training, for config.json.
nlohmann::ordered_json to_json(const ClassifierOptions& options);

}  // namespace examples
