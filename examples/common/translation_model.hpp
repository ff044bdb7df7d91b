#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regard/examples/common/symbols.hpp>
#include <regard/examples/common/translation_options.hpp>
#include <regard/examples/common/translation_tasks.hpp>
#include <regard/layers/models/encoder_decoder.hpp>
#include <vector>

namespace examples {

/// The model for a task.
regard::layers::EncoderDecoder make_translation_model(const TranslationOptions& options, const TranslationTask& task);

/// What config.json says beside the options: the model's sizes and both vocabularies, all that read_translator needs.
nlohmann::ordered_json translation_config(const TranslationOptions& options, const TranslationTask& task,
                                          const regard::layers::EncoderDecoder& model);

/// A trained model with its vocabularies.
struct Translator {
  SymbolVocabulary source, target;
  regard::layers::EncoderDecoder model;
  nlohmann::ordered_json config;
};

/// The model that a run's config.json describes, in evaluation mode, with the weights of its newest checkpoint. Throws
/// an exception that names the file and what is missing or does not fit.
Translator read_translator(const std::filesystem::path& run);

/// Sources as a batch: rows of tokens with an end token each, padded behind, and a mask of what is not padding.
struct SourceBatch {
  regard::Tensor ids;   // [N, S], i64
  regard::Tensor mask;  // [N, S], bool
};
SourceBatch source_batch(const std::vector<std::vector<int64_t>>& sources, regard::Device device = {});

/// The n best translations of each source (tokens without start and end), best first; a beam of 1 is greedy search.
/// Sources of like length are translated together, `batch` at a time. The model should be in evaluation mode.
std::vector<std::vector<regard::layers::Hypothesis>> translate(const regard::layers::EncoderDecoder& model,
                                                               const std::vector<std::vector<int64_t>>& sources,
                                                               const regard::layers::SearchOptions& options,
                                                               int64_t batch = 128);

/// The options of a search with this model.
regard::layers::SearchOptions search_options(const regard::layers::EncoderDecoder& model, int64_t beam,
                                             double length_penalty, int64_t n_best = 1);

}  // namespace examples
