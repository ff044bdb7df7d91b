#include <regard/layers/onnx/layers.hpp>

#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/layers/onnx/scope.hpp>

namespace regard::onnx {

using namespace layers;  // NOLINT(google-build-using-namespace): this file is about them

Value apply(Graph& graph, const Linear& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  Tensor weight = open.checked("weight", layer.weight);
  if (layer.lora) {
    NoGrad no_grad;
    weight = weight.detach() + layer.lora->weight_change();
  }
  const Value product = graph.op("MatMul", {x, graph.transposed(open.path("weight"), weight)});
  if (!layer.bias.defined()) return product;
  return graph.op("Add", {product, open.constant("bias", layer.bias)});
}

Value apply(Graph& graph, const Embedding& layer, const Value& ids) {
  const OpenLayer open(graph, layer);
  return graph.op("Gather", {open.constant("weight", layer.weight), ids}, {{"axis", int64_t{0}}});
}

Value apply(Graph& graph, const LayerNorm& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  const Value bias = layer.bias.defined() ? open.constant("bias", layer.bias) : Value();
  return graph.op("LayerNormalization", {x, open.constant("weight", layer.weight), bias},
                  {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(layer.eps)}});
}

Value apply(Graph& graph, const RMSNorm& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  const Value mean =
      graph.op("ReduceMean", {graph.op("Mul", {x, x})}, {{"axes", std::vector<int64_t>{-1}}, {"keepdims", int64_t{1}}});
  const Value root = graph.op("Sqrt", {graph.op("Add", {mean, graph.number(static_cast<float>(layer.eps))})});
  return graph.op("Mul", {graph.op("Div", {x, root}), open.constant("weight", layer.weight)});
}

Value apply(Graph& graph, Activation activation, const Value& x) {
  const auto half_times_one_plus = [&](const Value& y) {  // x (1 + y) / 2
    return graph.op("Mul", {graph.op("Mul", {x, graph.number(0.5F)}), graph.op("Add", {y, graph.number(1)})});
  };
  switch (activation) {
    case Activation::relu:
      return graph.op("Relu", {x});
    case Activation::silu:
      return graph.op("Mul", {x, graph.op("Sigmoid", {x})});
    case Activation::gelu:
      return half_times_one_plus(
          graph.op("Erf", {graph.op("Mul", {x, graph.number(static_cast<float>(std::sqrt(0.5)))})}));
    case Activation::gelu_tanh: {
      const Value cube = graph.op("Mul", {graph.op("Mul", {x, x}), x});
      const Value inner = graph.op("Add", {x, graph.op("Mul", {cube, graph.number(0.044715F)})});
      const auto factor = static_cast<float>(std::sqrt(2 / 3.14159265358979323846));
      return half_times_one_plus(graph.op("Tanh", {graph.op("Mul", {inner, graph.number(factor)})}));
    }
  }
  fail<ValueError>("onnx", "no such activation");
}

Value apply(Graph& graph, const FeedForward& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  return apply(graph, layer.down, apply(graph, layer.activation, apply(graph, layer.up, x)));
}

namespace {

// The first rows of a table, as many as x [N, T, width] has tokens.
Value add_rows(Graph& graph, const Value& table, const Value& x) {
  const Value length = graph.size(x, 1);
  return graph.op("Add", {x, graph.op("Slice", {table, graph.integers({0}), length, graph.integers({0})})});
}

}  // namespace

Value apply(Graph& graph, const LearnedPositionalEncoding& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  return add_rows(graph, open.constant("weight", layer.weight), x);
}

Value apply(Graph& graph, const SinusoidalPositionalEncoding& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  return add_rows(graph, open.constant("table", layer.table), x);
}

Value apply(Graph& graph, const TransformerEncoderLayer& layer, const Value& x, const MaskValues& masks) {
  const OpenLayer open(graph, layer);
  const auto add = [&](const Value& a, const Value& b) { return graph.op("Add", {a, b}); };
  const Value in = layer.norm_first ? apply(graph, layer.norm1, x) : x;
  Value y = add(x, apply(graph, layer.attention, in, in, in, masks));
  if (layer.norm_first) return add(y, apply(graph, layer.feed_forward, apply(graph, layer.norm2, y)));
  y = apply(graph, layer.norm1, y);
  return apply(graph, layer.norm2, add(y, apply(graph, layer.feed_forward, y)));
}

Value apply(Graph& graph, const TransformerDecoderLayer& layer, const Value& x, const Value& memory,
            const DecoderMaskValues& masks) {
  const OpenLayer open(graph, layer);
  const auto add = [&](const Value& a, const Value& b) { return graph.op("Add", {a, b}); };
  if (layer.norm_first) {
    const Value in = apply(graph, layer.norm1, x);
    Value y = add(x, apply(graph, layer.attention, in, in, in, masks.self));
    y = add(y, apply(graph, layer.cross_attention, apply(graph, layer.norm2, y), memory, memory, masks.cross));
    return add(y, apply(graph, layer.feed_forward, apply(graph, layer.norm3, y)));
  }
  Value y = apply(graph, layer.norm1, add(x, apply(graph, layer.attention, x, x, x, masks.self)));
  y = apply(graph, layer.norm2, add(y, apply(graph, layer.cross_attention, y, memory, memory, masks.cross)));
  return apply(graph, layer.norm3, add(y, apply(graph, layer.feed_forward, y)));
}

Value apply(Graph& graph, const PatchEmbedding& layer, const Value& images) {
  const OpenLayer open(graph, layer);
  const int64_t patch = layer.weight.size(2);
  const Value bias = layer.bias.defined() ? open.constant("bias", layer.bias) : Value();
  const Value maps = graph.op("Conv", {images, open.constant("weight", layer.weight), bias},
                              {{"kernel_shape", std::vector<int64_t>{patch, patch}},
                               {"strides", std::vector<int64_t>{patch, patch}}});  // [N, width, rows, columns]
  const Value rows = graph.op("Reshape", {maps, graph.integers({0, layer.weight.size(0), -1})});
  return graph.op("Transpose", {rows}, {{"perm", std::vector<int64_t>{0, 2, 1}}});  // [N, T, width]
}

Value apply(Graph& graph, const ClassToken& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  const Value shape =
      graph.op("Concat", {graph.size(x, 0), graph.integers({1, layer.weight.size(0)})}, {{"axis", int64_t{0}}});
  return graph.op("Concat", {graph.op("Expand", {open.constant("weight", layer.weight), shape}), x},
                  {{"axis", int64_t{1}}});
}

Value apply(Graph& graph, const MeanPooling& layer, const Value& x, const Value& mask) {
  const OpenLayer open(graph, layer);
  if (!mask.defined())
    return graph.op("ReduceMean", {x}, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}});
  const Value marked = graph.op("Unsqueeze", {mask, graph.integers({2})});  // [N, T, 1]
  const Value kept = graph.op("Where", {marked, x, graph.number(0)});       // [N, T, width]
  const auto summed = [&](const Value& value) {                             // over tokens
    return graph.op("ReduceSum", {value, graph.integers({1})}, {{"keepdims", int64_t{0}}});
  };
  const Value count = summed(graph.op("Cast", {marked}, {{"to", int64_t{1}}}));  // [N, 1]
  return graph.op("Div", {summed(kept), graph.op("Max", {count, graph.number(1)})});
}

Value apply(Graph& graph, const FirstTokenPooling& layer, const Value& x) {
  const OpenLayer open(graph, layer);
  return graph.op("Gather", {x, graph.scalar(0)}, {{"axis", int64_t{1}}});
}

Value apply(Graph& graph, const AttentionPooling& layer, const Value& x, const Value& mask) {
  const OpenLayer open(graph, layer);
  const int64_t width = layer.query.size(0);
  const Value shape = graph.op("Concat", {graph.size(x, 0), graph.integers({1, width})}, {{"axis", int64_t{0}}});
  const Value query = graph.op("Expand", {open.constant("query", layer.query), shape});  // [N, 1, width]
  const Value pooled = apply(graph, layer.attention, query, x, x, {.mask = {}, .key_mask = mask});
  return graph.op("Squeeze", {pooled, graph.integers({1})});
}

namespace {

Value pooled(Graph& graph, const Layer& layer, const char* type, const Value& images, int64_t kernel, int64_t stride) {
  const OpenLayer open(graph, layer);
  return graph.op(
      type, {images},
      {{"kernel_shape", std::vector<int64_t>{kernel, kernel}}, {"strides", std::vector<int64_t>{stride, stride}}});
}

}  // namespace

Value apply(Graph& graph, const AvgPool2d& layer, const Value& images) {
  return pooled(graph, layer, "AveragePool", images, layer.kernel, layer.stride);
}

Value apply(Graph& graph, const MaxPool2d& layer, const Value& images) {
  return pooled(graph, layer, "MaxPool", images, layer.kernel, layer.stride);
}

}  // namespace regard::onnx
