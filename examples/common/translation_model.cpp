#include <algorithm>
#include <numeric>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/translation_model.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/collate.hpp>
#include <stdexcept>
#include <utility>

namespace examples {

using regard::layers::EncoderDecoder;
using regard::layers::Hypothesis;
using regard::layers::SearchOptions;

EncoderDecoder make_translation_model(const TranslationOptions& options, const TranslationTask& task) {
  return EncoderDecoder({.source_vocabulary = task.source_vocabulary().size(),
                         .target_vocabulary = task.target_vocabulary().size(),
                         .max_source = task.longest_source() + 1,  // with the end token
                         .max_target = task.longest_target() + 1,  // with the start token
                         .width = options.width,
                         .heads = options.heads,
                         .encoder_layers = options.layers,
                         .decoder_layers = options.layers,
                         .dropout = options.dropout});
}

nlohmann::ordered_json translation_config(const TranslationOptions& options, const TranslationTask& task,
                                          const EncoderDecoder& model) {
  nlohmann::ordered_json config = to_json(options);
  config["parameters"] = model.parameter_count();
  config["max_source"] = model.options.max_source;
  config["max_target"] = model.options.max_target;
  config["source_vocabulary"] = task.source_vocabulary().to_json();
  config["target_vocabulary"] = task.target_vocabulary().to_json();
  return config;
}

Translator read_translator(const std::filesystem::path& run) {
  const std::string file = (run / "config.json").string();
  nlohmann::ordered_json config = read_json_file(file);
  const auto read = [&]() -> Translator {
    if (config.contains("program") || !config.contains("source_vocabulary"))
      throw std::runtime_error(foreign_config(config, file, "train_translation"));
    try {
      SymbolVocabulary source = SymbolVocabulary::from_json(config.at("source_vocabulary"));
      SymbolVocabulary target = SymbolVocabulary::from_json(config.at("target_vocabulary"));
      const auto layers = config.at("layers").get<int64_t>();
      EncoderDecoder model({.source_vocabulary = source.size(),
                            .target_vocabulary = target.size(),
                            .max_source = config.at("max_source").get<int64_t>(),
                            .max_target = config.at("max_target").get<int64_t>(),
                            .width = config.at("width").get<int64_t>(),
                            .heads = config.at("heads").get<int64_t>(),
                            .encoder_layers = layers,
                            .decoder_layers = layers});
      return {std::move(source), std::move(target), std::move(model), config};
    } catch (const std::exception& error) {
      throw std::runtime_error(file + ": no configuration of train_translation: " + error.what());
    }
  };
  Translator translator = read();
  const std::filesystem::path folder = run / "checkpoints";
  const auto checkpoint = regard::optim::Checkpoints(folder).latest();
  if (!checkpoint) throw std::runtime_error(folder.string() + ": no checkpoint; train_translation writes them");
  const std::filesystem::path weights = checkpoint->path / "model.safetensors";
  try {
    translator.model.load_state_dict(regard::load_safetensors(weights));
  } catch (const regard::ValueError& error) {
    throw std::runtime_error(weights.string() + " does not fit " + file + ": " + error.what());
  }
  translator.model.eval();
  return translator;
}

SourceBatch source_batch(const std::vector<std::vector<int64_t>>& sources, regard::Device device) {
  std::vector<std::vector<int64_t>> rows = sources;
  for (auto& row : rows) row.push_back(SymbolVocabulary::end);  // an empty source is one token, too
  regard::data::Padded padded = regard::data::pad(rows, SymbolVocabulary::padding);
  return {padded.ids.to(device), padded.mask.to(device)};
}

SearchOptions search_options(const EncoderDecoder& model, int64_t beam, double length_penalty, int64_t n_best) {
  return {.start = SymbolVocabulary::start,
          .end = SymbolVocabulary::end,
          .max_length = model.options.max_target,
          .beam = beam,
          .n_best = n_best,
          .length_penalty = length_penalty};
}

std::vector<std::vector<Hypothesis>> translate(const EncoderDecoder& model,
                                               const std::vector<std::vector<int64_t>>& sources,
                                               const SearchOptions& options, int64_t batch) {
  regard::NoGrad no_grad;
  const regard::Device device = model.device();
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sources[a].size() < sources[b].size(); });
  std::vector<std::vector<Hypothesis>> results(sources.size());
  for (std::size_t begin = 0; begin < order.size(); begin += static_cast<std::size_t>(batch)) {
    const std::size_t end = std::min(begin + static_cast<std::size_t>(batch), order.size());
    std::vector<std::vector<int64_t>> part;
    for (std::size_t i = begin; i < end; ++i) part.push_back(sources[order[i]]);
    const SourceBatch rows = source_batch(part, device);
    const auto step = model.search_step(rows.ids, rows.mask);
    const auto count = static_cast<int64_t>(part.size());
    if (options.beam == 1) {
      auto found = regard::layers::greedy_search(step, count, options);
      for (std::size_t i = begin; i < end; ++i) results[order[i]].push_back(std::move(found[i - begin]));
    } else {
      auto found = regard::layers::beam_search(step, count, options);
      for (std::size_t i = begin; i < end; ++i) results[order[i]] = std::move(found[i - begin]);
    }
  }
  return results;
}

}  // namespace examples
