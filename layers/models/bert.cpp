#include <regard/layers/models/bert.hpp>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

constexpr double first_std = 0.02;

const BertOptions& checked(const BertOptions& options) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocabulary", options.vocabulary}, {"positions", options.positions}, {"token_types", options.token_types},
      {"width", options.width},           {"heads", options.heads},         {"layers", options.layers},
      {"hidden", options.hidden}};
  for (const auto& [name, value] : sizes) check<ValueError>(value > 0, "Bert", name, " ", value, " should be positive");
  check<ValueError>(options.padding >= -1 && options.padding < options.vocabulary, "Bert", "padding ", options.padding,
                    " is outside the vocabulary of ", options.vocabulary, " (-1: none)");
  return options;
}

}  // namespace

Bert::Bert(const BertOptions& given)
    : options(checked(given)),
      tokens(options.vocabulary, options.width, options.padding),
      positions(options.positions, options.width),
      types(options.token_types, options.width),
      norm(options.width, options.eps),
      drop(options.dropout) {
  TransformerLayerOptions block;
  block.hidden = options.hidden;
  block.dropout = options.dropout;
  block.activation = options.activation;
  block.norm_first = false;
  block.eps = options.eps;
  blocks.reserve(static_cast<size_t>(options.layers));
  for (int64_t i = 0; i < options.layers; ++i) {
    TransformerEncoderLayer& layer = blocks.emplace_back(options.width, options.heads, block);
    layer.attention.dropout = options.attention_dropout;
    layer.feed_forward.drop.p = 0;  // BERT drops behind the network, not inside
  }
  if (options.pooler) pooler.emplace(options.width, options.width);
  for (auto& [path, parameter] : named_parameters()) {
    if (path.find("norm") != std::string::npos) continue;
    if (parameter.dim() == 1)
      init::zeros_(parameter);
    else
      init::normal_(parameter, 0, first_std);
  }
  if (options.padding >= 0) init::zeros_(tokens.weight.detach()[options.padding]);
}

Tensor Bert::operator()(const Tensor& ids, const Tensor& mask, const Tensor& token_types) const {
  LayerScope scope(*this);
  check_defined("Bert", "ids", ids);
  check<ShapeError>(ids.dim() == 2, "Bert", "ids ", ids.shape(), " should be [batch, length]");
  const int64_t length = ids.size(1);
  check<ShapeError>(length <= options.positions, "Bert", "ids ", ids.shape(), ": ", length,
                    " tokens, and there are positions for ", options.positions, ": cut the sequences");
  if (mask.defined())
    check<ShapeError>(mask.shape() == ids.shape(), "Bert", "mask ", mask.shape(), " should have the shape of ids ",
                      ids.shape());
  if (token_types.defined())
    check<ShapeError>(token_types.shape() == ids.shape(), "Bert", "types ", token_types.shape(),
                      " should have the shape of ids ", ids.shape());
  Tensor x = tokens(ids);  // [N, T, width]
  x = x + types(token_types.defined() ? token_types : zeros(ids.shape(), {DType::i64, ids.device()}));
  x = x + positions(arange(length, {DType::i64, ids.device()})).unsqueeze(0);  // the last, as the reference adds them
  x = drop(norm(x));
  for (const TransformerEncoderLayer& block : blocks) x = block(x, {.mask = {}, .key_mask = mask});
  return x;
}

Tensor Bert::pool(const Tensor& x) const {
  LayerScope scope(*this);
  check<ValueError>(pooler.has_value(), "Bert", "this model has no pooler");
  check<ShapeError>(x.defined() && x.dim() == 3, "Bert", "pool() takes the model's output, [batch, length, width]");
  return regard::tanh((*pooler)(x.select(1, 0)));
}

void Bert::members(Members& m) {
  m("tokens", tokens);
  m("positions", positions);
  m("types", types);
  m("norm", norm);
  m("drop", drop);
  m("blocks", blocks);
  m("pooler", pooler);
}

std::string Bert::describe() const {
  return "Bert(" + std::to_string(options.layers) + " layers, width " + std::to_string(options.width) + ", " +
         std::to_string(options.heads) + " heads)";
}

}  // namespace regard::layers
