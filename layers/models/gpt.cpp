#include <regard/layers/models/gpt.hpp>

#include <cmath>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/layers/checkpoint.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

constexpr const char* op = "GPT";

const GPTOptions& checked(const GPTOptions& o) {
  check<ValueError>(o.vocabulary > 0, op, "vocabulary ", o.vocabulary, " must be positive: how many tokens are there?");
  check<ValueError>(o.context > 0, op, "context ", o.context, " must be positive: how many tokens does it read?");
  check<ValueError>(o.width > 0 && o.heads > 0, op, "width ", o.width, " and heads ", o.heads, " must be positive");
  check<ValueError>(o.layers > 0, op, "layers ", o.layers, " must be positive");
  check<ValueError>(o.hidden >= 0, op, "hidden ", o.hidden, " must not be negative");
  check<ValueError>(o.eps > 0, op, "eps ", o.eps, " must be positive");
  return o;
}

TransformerLayerOptions block_options(const GPTOptions& o) {
  TransformerLayerOptions block;
  block.hidden = o.hidden;
  block.dropout = o.dropout;
  block.activation = o.activation;
  block.bias = o.bias;
  block.eps = o.eps;
  block.key_value_heads = o.key_value_heads;
  block.rotary = o.positions == PositionKind::rotary;
  block.rotary_base = o.rotary_base;
  block.alibi = o.positions == PositionKind::alibi;
  return block;
}

bool writes_to_residual(const std::string& name) {
  return name.ends_with("attention.output.weight") || name.ends_with("feed_forward.down.weight");
}

AttentionMasks causal() {
  AttentionMasks masks;
  masks.causal = true;
  return masks;
}

}  // namespace

const char* to_string(PositionKind kind) {
  switch (kind) {
    case PositionKind::learned:
      return "learned";
    case PositionKind::rotary:
      return "rotary";
    case PositionKind::alibi:
      return "alibi";
  }
  return "?";
}

GPT::GPT(const GPTOptions& given)
    : options(checked(given)),
      tokens(options.vocabulary, options.width),
      drop(options.dropout),
      norm(options.width, options.eps, options.bias) {
  if (options.positions == PositionKind::learned) positions.emplace(options.context, options.width);
  blocks.reserve(static_cast<size_t>(options.layers));
  for (int64_t i = 0; i < options.layers; ++i)  // GPT-2 drops what a branch gives, and nothing inside
    blocks.emplace_back(options.width, options.heads, block_options(options)).feed_forward.drop.p = 0;
  if (!options.tied) head.emplace(options.width, options.vocabulary, false);

  const double branch = 0.02 / std::sqrt(2.0 * static_cast<double>(options.layers));
  for (const auto& [name, parameter] : named_parameters()) {
    if (name.ends_with("bias"))
      init::zeros_(parameter);
    else if (parameter.dim() == 2)  // not the norms' weights, which are ones
      init::normal_(parameter, 0, writes_to_residual(name) ? branch : 0.02);
  }
}

Tensor GPT::embed(const Tensor& ids, int64_t offset) const {
  check_defined(op, "ids", ids);
  check<DTypeError>(ids.dtype() == DType::i64, op, "ids are ", ids.dtype(), ": i64 is needed");
  check<ShapeError>(ids.dim() == 1 || ids.dim() == 2, op, "ids ", ids.shape(),
                    ": [batch, length] or [length] is needed");
  const int64_t end = offset + ids.size(-1);
  check<ShapeError>(!positions || end <= options.context, op, "ids ", ids.shape(),
                    offset > 0 ? " behind " + std::to_string(offset) + " tokens that were read" : std::string(),
                    ": a sequence of ", end, " tokens is longer than the ", options.context,
                    " positions that the model has; cut it, or make the model with a larger context");
  const Tensor x = tokens(ids);  // [N, T, width]
  return drop(positions ? (*positions)(x, offset) : x);
}

Tensor GPT::features(const Tensor& ids) const {
  LayerScope scope(*this);
  Tensor x = embed(ids, 0);
  const bool recomputes = options.recompute && grad_enabled();
  for (const auto& block : blocks) x = recomputes ? checkpoint(block, x, causal()) : block(x, causal());
  return norm(x);
}

Tensor GPT::features(const Tensor& ids, std::vector<KeyValueCache>& caches) const {
  LayerScope scope(*this);
  check<ValueError>(caches.size() == blocks.size(), op, caches.size(), " caches for ", blocks.size(),
                    " blocks: take them from caches()");
  const int64_t read = caches.front().length;
  for (const KeyValueCache& cache : caches)
    check<ValueError>(cache.length == read, op, "the caches hold ", read, " tokens and ", cache.length,
                      ": those of one text hold the same");
  Tensor x = embed(ids, read);
  const bool batched = ids.dim() == 2;
  if (!batched) x = x.unsqueeze(0);
  try {
    for (size_t i = 0; i < blocks.size(); ++i) x = blocks[i](x, caches[i]);
  } catch (...) {
    for (KeyValueCache& cache : caches) cache.length = read;  // the whole model has read nothing
    throw;
  }
  return norm(batched ? x : x.squeeze(0));
}

Tensor GPT::scores(const Tensor& features) const {
  LayerScope scope(*this);
  return head ? (*head)(features) : linear(features, tokens.weight);
}

Tensor GPT::loss(const Tensor& ids, const Tensor& targets) const {
  const Tensor logits = (*this)(ids);
  return cross_entropy(logits.view({-1, options.vocabulary}), targets.reshape({-1}));
}

std::vector<KeyValueCache> GPT::caches() const {
  return std::vector<KeyValueCache>(blocks.size(), KeyValueCache(positions ? options.context : 0));
}

void GPT::members(Members& m) {
  m("tokens", tokens);
  m("positions", positions);
  m("drop", drop);
  m("blocks", blocks);
  m("norm", norm);
  m("head", head);
}

std::string GPT::describe() const {
  return "GPT(vocabulary " + std::to_string(options.vocabulary) + ", context " + std::to_string(options.context) +
         ", width " + std::to_string(options.width) + ", " + std::to_string(options.heads) + " heads, " +
         std::to_string(options.layers) + " layers, " + layers::to_string(options.positions) + " positions)";
}

}  // namespace regard::layers
