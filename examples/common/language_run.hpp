#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <regard/layers/models/gpt.hpp>
#include <regard/optim/data/tokenizer.hpp>
#include <string>

namespace examples {

/// A model's options as config.json holds them under "model"; and back. `file` names the text in errors.
nlohmann::ordered_json to_json(const regard::layers::GPTOptions& options);
regard::layers::GPTOptions gpt_options_from_json(const nlohmann::ordered_json& json, const std::string& file);

/// FOLDER/tokenizer.json.
void save_tokenizer(const std::filesystem::path& folder, const regard::data::Tokenizer& tokenizer);
std::unique_ptr<regard::data::Tokenizer> load_tokenizer(const std::filesystem::path& folder);

/// vocab.json and merges.txt of a GPT-2 folder; none where they are not there.
std::unique_ptr<regard::data::Tokenizer> load_gpt2_tokenizer(const std::filesystem::path& folder);

/// The "model" of a run's config.json, as an untrained model.
regard::layers::GPT model_of_run(const std::filesystem::path& folder);

/// A model that can write, in evaluation mode.
struct LanguageModel {
  regard::layers::GPT model;
  std::unique_ptr<regard::data::Tokenizer> tokenizer;  // none in a GPT-2 folder that has none
  std::string where;                                   // what was loaded
  int64_t stop_token = -1;                             // ends a text, where the tokenizer has one for it
};
/// From the folder of a run of train_language_model (its best checkpoint, or with `latest` its newest), from one of
/// the run's checkpoints, or from a GPT-2 folder. Throws UsageError where it is none of these, and regard::FileError
/// with file and reason where it cannot be read or does not fit together.
LanguageModel load_language_model(const std::filesystem::path& folder, bool latest = false);

/// The tokens of a line end, or, where a tokenizer knows none, of its first token: what a text can begin with.
std::vector<int64_t> beginning(const regard::data::Tokenizer& tokenizer);

}  // namespace examples
