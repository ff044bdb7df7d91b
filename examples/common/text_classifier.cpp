#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/text_classifier.hpp>
#include <utility>

namespace examples {

using regard::Tensor;

TextClassifier::TextClassifier(regard::layers::SentenceEncoder sentence_encoder, std::vector<std::string> classes,
                               double dropout)
    : encoder(std::move(sentence_encoder)),
      drop(dropout),
      head(encoder.width(), static_cast<int64_t>(classes.size())),
      labels(std::move(classes)) {}

Tensor TextClassifier::features(const regard::data::WordPieceBatch& batch) const {
  const regard::Device device = head.weight.device();
  Tensor vectors = encoder(batch.ids.to(device), batch.mask.to(device), batch.types.to(device));  // [N, width]
  return encoder.options.normalise ? vectors * std::sqrt(static_cast<double>(encoder.width())) : vectors;
}

void TextClassifier::members(regard::layers::Members& m) {
  m("encoder", encoder);
  m("drop", drop);
  m("head", head);
}

void TextClassifier::save(const std::filesystem::path& folder, const std::string& config) const {
  encoder.save(folder);
  regard::save_safetensors(folder / "head.safetensors", head.state_dict(),
                           {{"labels", nlohmann::json(labels).dump()}, {"config", config}});
}

TextClassifier TextClassifier::load(const std::filesystem::path& folder) {
  regard::layers::SentenceEncoder encoder = regard::layers::SentenceEncoder::from_folder(folder);
  const auto path = folder / "head.safetensors";
  const regard::SafetensorsFile file = regard::load_safetensors_file(path);
  const auto entry = file.metadata.find("labels");
  const auto json = nlohmann::json::parse(entry == file.metadata.end() ? "" : entry->second, nullptr, false);
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), [](const auto& label) { return label.is_string(); }))
    throw UsageError(path.string() + ": its metadata has no list of 'labels'; is it a classifier's head?");
  TextClassifier model(std::move(encoder), json.get<std::vector<std::string>>(), 0);
  try {
    model.head.load_state_dict(file.tensors);
  } catch (const regard::Error& error) {
    throw UsageError(path.string() + ": " + error.what());
  }
  model.eval();
  return model;
}

Tensor all_features(const TextClassifier& model, const std::vector<regard::data::WordPieceEncoding>& texts) {
  constexpr std::size_t batch = 64;
  regard::NoGrad no_grad;
  std::vector<int64_t> order(texts.size());  // texts of like length together
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return texts[static_cast<std::size_t>(a)].ids.size() < texts[static_cast<std::size_t>(b)].ids.size();
  });
  regard::Tensors parts;  // in that order
  for (std::size_t begin = 0; begin < order.size(); begin += batch) {
    const std::size_t end = std::min(begin + batch, order.size());
    std::vector<regard::data::WordPieceEncoding> part;
    for (std::size_t i = begin; i < end; ++i) part.push_back(texts[static_cast<std::size_t>(order[i])]);
    parts.push_back(model.features(model.encoder.tokenizer.batch(part)));
  }
  std::vector<int64_t> places(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) places[static_cast<std::size_t>(order[i])] = static_cast<int64_t>(i);
  return cat(parts, 0).index_select(0, regard::from_vector(places).to(model.head.weight.device()));
}

Judgement judge_features(const TextClassifier& model, const Tensor& features, const std::vector<int64_t>& labels) {
  regard::NoGrad no_grad;
  const Tensor logits = model(features);  // [N, classes]
  const auto [highest, classes] = regard::softmax(logits, -1).max(-1);
  const auto probabilities = highest.to_vector<double>();
  const auto indices = classes.to_vector<int64_t>();
  Judgement result;
  for (std::size_t i = 0; i < indices.size(); ++i) result.guesses.push_back({indices[i], probabilities[i]});
  if (!labels.empty())
    result.loss = regard::cross_entropy(logits, regard::from_vector(labels).to(logits.device())).item<double>();
  return result;
}

Judgement judge(const TextClassifier& model, const std::vector<regard::data::WordPieceEncoding>& texts,
                const std::vector<int64_t>& labels) {
  return judge_features(model, all_features(model, texts), labels);
}

}  // namespace examples
