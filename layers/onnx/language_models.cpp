#include <cmath>

#include <regard/layers/onnx/layers.hpp>
#include <regard/layers/onnx/models.hpp>
#include <regard/layers/onnx/scope.hpp>

namespace regard::onnx {

using namespace layers;  // NOLINT(google-build-using-namespace): this file is about them

namespace {

const Sizes tokens_by_batch = {"batch", "length"};

// Scores by a table of token vectors, without a bias.
Value scores(Graph& graph, const Embedding& tokens, const Value& x) {
  const OpenLayer open(graph, tokens);
  return graph.op("MatMul", {x, graph.transposed(open.path("weight"), open.checked("weight", tokens.weight))});
}

Value as_mask(Graph& graph, const Value& integers) { return graph.op("Cast", {integers}, {{"to", int64_t{9}}}); }

struct BertValues {
  Value states, mask;
};

BertValues add_bert(Graph& graph, const Bert& model) {
  const Value ids = graph.input("input_ids", DType::i64, tokens_by_batch);
  const Value mask = as_mask(graph, graph.input("attention_mask", DType::i64, tokens_by_batch));
  const Value types = graph.input("token_type_ids", DType::i64, tokens_by_batch);
  const auto add = [&](const Value& a, const Value& b) { return graph.op("Add", {a, b}); };
  Value x = add(apply(graph, model.tokens, ids), apply(graph, model.types, types));
  {
    const OpenLayer open(graph, model.positions);
    const Value table = open.constant("weight", model.positions.weight);
    x = add(x, graph.op("Slice", {table, graph.integers({0}), graph.size(ids, 1), graph.integers({0})}));
  }
  x = apply(graph, model.norm, x);
  for (const TransformerEncoderLayer& block : model.blocks) x = apply(graph, block, x, {.mask = {}, .key_mask = mask});
  return {x, mask};
}

Value add_embedding(Graph& graph, const Embedding& tokens, const EncoderDecoder& model, const Value& ids, bool source) {
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(model.options.width)));
  const Value x = graph.op("Mul", {apply(graph, tokens, ids), graph.number(scale)});
  if (model.positions) return apply(graph, *model.positions, x);
  return apply(graph, source ? *model.source_positions : *model.target_positions, x);
}

}  // namespace

Graph graph_of(const GPT& model) {
  model.parameters();  // so that its layers know their paths
  Graph graph("GPT");
  graph.longest = model.options.context;
  const Value ids = graph.input("input_ids", DType::i64, tokens_by_batch);
  Value x = apply(graph, model.tokens, ids);
  if (model.positions) x = apply(graph, *model.positions, x);
  MaskValues masks;
  masks.mask = causal_mask(graph, x, x);
  for (const TransformerEncoderLayer& block : model.blocks) x = apply(graph, block, x, masks);
  x = apply(graph, model.norm, x);
  graph.output("logits", model.head ? apply(graph, *model.head, x) : scores(graph, model.tokens, x), DType::f32,
               {"batch", "length", model.options.vocabulary});
  return graph;
}

Graph graph_of(const Bert& model) {
  model.parameters();
  Graph graph("Bert");
  const Value x = add_bert(graph, model).states;
  graph.output("last_hidden_state", x, DType::f32, {"batch", "length", model.options.width});
  if (model.pooler) {
    const Value first = apply(graph, FirstTokenPooling(), x);
    graph.output("pooler_output", graph.op("Tanh", {apply(graph, *model.pooler, first)}), DType::f32,
                 {"batch", model.options.width});
  }
  return graph;
}

Graph graph_of(const SentenceEncoder& model) {
  model.parameters();
  Graph graph("SentenceEncoder");
  const auto [x, mask] = add_bert(graph, model.bert);
  Value pooled;
  switch (model.options.pooling) {
    case Pooling::mean:
      pooled = apply(graph, MeanPooling(), x, mask);
      break;
    case Pooling::first:
      pooled = apply(graph, FirstTokenPooling(), x);
      break;
    case Pooling::max: {
      const Value marked = graph.op("Unsqueeze", {mask, graph.integers({2})});  // [N, T, 1]
      pooled = graph.op("ReduceMax", {graph.op("Where", {marked, x, graph.number(-1e9F)})},
                        {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}});
      break;
    }
  }
  if (model.options.normalise) {
    const Value squares =
        graph.op("ReduceSum", {graph.op("Mul", {pooled, pooled}), graph.integers({1})}, {{"keepdims", int64_t{1}}});
    pooled = graph.op("Div", {pooled, graph.op("Sqrt", {graph.op("Max", {squares, graph.number(1e-24F)})})});
  }
  graph.output("sentence_embedding", pooled, DType::f32, {"batch", model.width()});
  return graph;
}

Graph encoder_graph_of(const EncoderDecoder& model) {
  model.parameters();
  Graph graph("EncoderDecoder.encoder");
  const Sizes sizes = {"batch", "source"};
  const Value ids = graph.input("source_ids", DType::i64, sizes);
  const Value mask = as_mask(graph, graph.input("source_mask", DType::i64, sizes));
  Value x = add_embedding(graph, model.source_tokens, model, ids, true);
  for (const TransformerEncoderLayer& layer : model.encoder) x = apply(graph, layer, x, {.mask = {}, .key_mask = mask});
  if (model.encoder_norm) x = apply(graph, *model.encoder_norm, x);
  graph.output("memory", x, DType::f32, {"batch", "source", model.options.width});
  return graph;
}

Graph decoder_graph_of(const EncoderDecoder& model) {
  model.parameters();
  Graph graph("EncoderDecoder.decoder");
  const Value ids = graph.input("target_ids", DType::i64, {"batch", "target"});
  const Value memory = graph.input("memory", DType::f32, {"batch", "source", model.options.width});
  const Value mask = as_mask(graph, graph.input("source_mask", DType::i64, {"batch", "source"}));
  const Embedding& table = model.target_tokens ? *model.target_tokens : model.source_tokens;
  Value x = add_embedding(graph, table, model, ids, false);
  DecoderMaskValues masks;
  masks.self.causal = false;  // one mask for all layers
  masks.self.mask = causal_mask(graph, x, x);
  masks.cross.key_mask = mask;
  for (const TransformerDecoderLayer& layer : model.decoder) x = apply(graph, layer, x, memory, masks);
  if (model.decoder_norm) x = apply(graph, *model.decoder_norm, x);
  graph.output("logits", model.head ? apply(graph, *model.head, x) : scores(graph, table, x), DType::f32,
               {"batch", "target", model.options.target_vocabulary});
  return graph;
}

}  // namespace regard::onnx
