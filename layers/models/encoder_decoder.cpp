#include <regard/layers/models/encoder_decoder.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {
namespace {

const EncoderDecoderOptions& checked(const EncoderDecoderOptions& options) {
  const char* op = "EncoderDecoder";
  check<ValueError>(options.source_vocabulary > 0 && options.target_vocabulary > 0, op, "source_vocabulary ",
                    options.source_vocabulary, " and target_vocabulary ", options.target_vocabulary,
                    " must be positive");
  check<ValueError>(options.max_source > 0 && options.max_target > 0, op, "max_source ", options.max_source,
                    " and max_target ", options.max_target, " must be positive");
  check<ValueError>(options.encoder_layers > 0 && options.decoder_layers > 0, op, "encoder_layers ",
                    options.encoder_layers, " and decoder_layers ", options.decoder_layers, " must be positive");
  check<ValueError>(!options.share_embeddings || options.source_vocabulary == options.target_vocabulary, op,
                    "share_embeddings needs one vocabulary; source_vocabulary is ", options.source_vocabulary,
                    ", target_vocabulary ", options.target_vocabulary);
  return options;
}

TransformerLayerOptions layer_options(const EncoderDecoderOptions& options) {
  TransformerLayerOptions result;
  result.hidden = options.hidden;
  result.dropout = options.dropout;
  result.activation = options.activation;
  result.norm_first = options.norm_first;
  return result;
}

bool is_identity(const std::vector<int64_t>& rows, int64_t count) {
  if (static_cast<int64_t>(rows.size()) != count) return false;
  for (size_t at = 0; at < rows.size(); ++at)
    if (rows[at] != static_cast<int64_t>(at)) return false;
  return true;
}

void check_ids(const char* argument, const Tensor& ids, int64_t most, const char* option) {
  const char* op = "EncoderDecoder";
  check_defined(op, argument, ids);
  check<ShapeError>(ids.dim() == 2, op, argument, " ", ids.shape(), " should be [batch, length]");
  check<ShapeError>(ids.size(1) <= most, op, argument, " ", ids.shape(), " is longer than ", option, " ", most,
                    ": cut it, or make the model with more");
}

}  // namespace

void DecodingState::reorder(const std::vector<int64_t>& order) {
  if (is_identity(order, rows())) return;
  std::vector<int64_t> next_sources;
  for (int64_t row : order) {
    check<IndexError>(row >= 0 && row < rows(), "DecodingState::reorder", "row ", row, " is outside [0, ", rows(), ")");
    next_sources.push_back(sources[static_cast<size_t>(row)]);
  }
  const Tensor index = from_vector(order).to(memory.device());
  // The rows of one source have the same memory, and most reorderings are among them.
  const bool same_sources = next_sources == sources;
  for (DecoderCache& cache : caches) {
    cache.self.reorder(index);
    if (!same_sources) cache.cross.reorder(index);
  }
  if (same_sources) return;
  memory = memory.index_select(0, index);
  if (source_mask.defined()) source_mask = source_mask.index_select(0, index);
  sources = std::move(next_sources);
}

EncoderDecoder::EncoderDecoder(const EncoderDecoderOptions& given)
    : options(checked(given)), source_tokens(options.source_vocabulary, options.width), drop(options.dropout) {
  const double std = 1 / std::sqrt(static_cast<double>(options.width));
  init::normal_(source_tokens.weight, 0, std);
  if (!options.share_embeddings) {
    target_tokens.emplace(options.target_vocabulary, options.width);
    init::normal_(target_tokens->weight, 0, std);
  }
  if (options.learned_positions) {
    source_positions.emplace(options.max_source, options.width);
    target_positions.emplace(options.max_target, options.width);
  } else {
    positions.emplace(std::max(options.max_source, options.max_target), options.width);
  }
  for (int64_t i = 0; i < options.encoder_layers; ++i)
    encoder.emplace_back(options.width, options.heads, layer_options(options));
  for (int64_t i = 0; i < options.decoder_layers; ++i)
    decoder.emplace_back(options.width, options.heads, layer_options(options));
  if (options.norm_first) {
    encoder_norm.emplace(options.width);
    decoder_norm.emplace(options.width);
  }
  if (!options.tie_output) head.emplace(options.width, options.target_vocabulary);
}

Tensor EncoderDecoder::embed_source(const Tensor& ids) const {
  check_ids("source", ids, options.max_source, "max_source");
  const Tensor x = source_tokens(ids) * std::sqrt(static_cast<double>(options.width));  // [N, S, width]
  return drop(positions ? (*positions)(x) : (*source_positions)(x));
}

Tensor EncoderDecoder::embed_target(const Tensor& ids, int64_t offset) const {
  check_ids("target", ids, options.max_target - offset, offset == 0 ? "max_target" : "what max_target leaves,");
  const Tensor x = target_table()(ids) * std::sqrt(static_cast<double>(options.width));  // [N, T, width]
  return drop(positions ? (*positions)(x, offset) : (*target_positions)(x, offset));
}

Tensor EncoderDecoder::finish(const Tensor& decoded) const {
  const Tensor x = decoder_norm ? (*decoder_norm)(decoded) : decoded;
  return head ? (*head)(x) : linear(x, target_table().weight);  // [N, T, target_vocabulary]
}

Tensor EncoderDecoder::encode(const Tensor& source, const Tensor& source_mask) const {
  LayerScope scope(*this);
  Tensor x = embed_source(source);
  for (const auto& layer : encoder) x = layer(x, {.mask = {}, .key_mask = source_mask});
  return encoder_norm ? (*encoder_norm)(x) : x;
}

Tensor EncoderDecoder::decode(const Tensor& target, const Tensor& memory, const Tensor& source_mask) const {
  LayerScope scope(*this);
  DecoderMasks masks;
  masks.cross.key_mask = source_mask;
  Tensor x = embed_target(target, 0);
  for (const auto& layer : decoder) x = layer(x, memory, masks);
  return finish(x);
}

Tensor EncoderDecoder::operator()(const Tensor& source, const Tensor& target, const Tensor& source_mask) const {
  return decode(target, encode(source, source_mask), source_mask);
}

std::pair<Tensor, Tensors> EncoderDecoder::forward_with_weights(const Tensor& source, const Tensor& target,
                                                                const Tensor& source_mask) const {
  const Tensor memory = encode(source, source_mask);
  LayerScope scope(*this);
  DecoderMasks masks;
  masks.cross.key_mask = source_mask;
  Tensor x = embed_target(target, 0);
  Tensors weights;
  for (const auto& layer : decoder) {
    auto [next, attention] = layer.forward_with_weights(x, memory, masks);
    x = next;
    weights.push_back(attention);
  }
  return {finish(x), weights};
}

DecodingState EncoderDecoder::start(const Tensor& source, const Tensor& source_mask) const {
  NoGrad no_grad;
  DecodingState state;
  state.memory = encode(source, source_mask);
  state.source_mask = source_mask;
  state.sources.resize(static_cast<size_t>(source.size(0)));
  std::iota(state.sources.begin(), state.sources.end(), int64_t{0});
  state.caches.resize(decoder.size());
  return state;
}

Tensor EncoderDecoder::step(const Tensor& tokens, DecodingState& state) const {
  LayerScope scope(*this);
  NoGrad no_grad;
  check_ids("target", tokens, options.max_target - state.length, "what max_target leaves,");
  check<ShapeError>(tokens.size(0) == state.rows(), "EncoderDecoder::step", "tokens ", tokens.shape(),
                    " should have a row for each of the state's ", state.rows());
  check<ValueError>(state.caches.size() == decoder.size(), "EncoderDecoder::step", "the state has ",
                    state.caches.size(), " caches, the decoder ", decoder.size(), " layers: make it with start()");
  DecoderMasks masks;
  masks.cross.key_mask = state.source_mask;
  Tensor x = embed_target(tokens, state.length);
  try {
    for (size_t i = 0; i < decoder.size(); ++i) x = decoder[i](x, state.memory, state.caches[i], masks);
  } catch (...) {
    for (DecoderCache& cache : state.caches) cache.self.length = state.length;  // the whole model has read nothing
    throw;
  }
  state.length += tokens.size(1);
  return finish(x);
}

SearchStep EncoderDecoder::search_step(const Tensor& source, const Tensor& source_mask) const {
  const auto state = std::make_shared<DecodingState>(start(source, source_mask));
  return [this, state](const std::vector<int64_t>& rows, const std::vector<int64_t>& tokens) {
    state->reorder(rows);
    const auto count = static_cast<int64_t>(tokens.size());
    const Tensor next = from_vector(tokens, {count, 1}).to(state->memory.device());
    return step(next, *state).squeeze(1);  // [R, target_vocabulary]
  };
}

void EncoderDecoder::members(Members& m) {
  m("source_tokens", source_tokens);
  m("target_tokens", target_tokens);
  m("positions", positions);
  m("source_positions", source_positions);
  m("target_positions", target_positions);
  m("drop", drop);
  m("encoder", encoder);
  m("encoder_norm", encoder_norm);
  m("decoder", decoder);
  m("decoder_norm", decoder_norm);
  m("head", head);
}

std::string EncoderDecoder::describe() const {
  return "EncoderDecoder(" + std::to_string(options.source_vocabulary) + " to " +
         std::to_string(options.target_vocabulary) + ", width " + std::to_string(options.width) + ", " +
         std::to_string(options.encoder_layers) + " and " + std::to_string(options.decoder_layers) + " layers)";
}

}  // namespace regard::layers
