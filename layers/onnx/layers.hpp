// Layers as ONNX operations. Each function adds what a layer computes in evaluation mode, without dropout, and gives
// the value that comes out; models of one's own are exported by calling them as operator() calls the layers:
//
//     struct Model : Layer { Embedding tokens; TransformerEncoderLayer block; Linear head; ... };
//
//     onnx::Graph graph;
//     model.parameters();  // walks the model, so that its layers know their paths: names in the file
//     onnx::Value ids = graph.input("ids", DType::i64, {"batch", "length"});
//     onnx::Value x = onnx::apply(graph, model.tokens, ids);
//     x = onnx::apply(graph, model.block, x, {.causal = true});
//     graph.output("logits", onnx::apply(graph, model.head, x), DType::f32, {"batch", "length", 10});
//     graph.save("model.onnx");
//
// Parameters must be f32 (a DTypeError names the layer): Layer::to(DType::f32). Where shapes do not fit, it is the
// runtime that says so, when it loads the file.
#pragma once

#include <utility>

#include <regard/layers/embedding.hpp>
#include <regard/layers/onnx/graph.hpp>
#include <regard/layers/patches.hpp>
#include <regard/layers/pooling.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::onnx {

/// AttentionMasks as values of a graph; both boolean.
struct MaskValues {
  Value mask = {};      ///< [L, S], or 4-D broadcastable to [N, H, L, S]
  Value key_mask = {};  ///< [N, S], true may attend
  bool causal = false;
};

/// The boolean [L, S] of a causal self- or cross-attention of query [N, L, ...] over key [N, S, ...]. Computed once and
/// given as MaskValues::mask, it serves all layers of a model.
Value causal_mask(Graph& graph, const Value& query, const Value& key);

Value apply(Graph& graph, const layers::Linear& layer, const Value& x);  ///< adapters are merged
Value apply(Graph& graph, const layers::Embedding& layer, const Value& ids);
Value apply(Graph& graph, const layers::LayerNorm& layer, const Value& x);
Value apply(Graph& graph, const layers::RMSNorm& layer, const Value& x);
Value apply(Graph& graph, layers::Activation activation, const Value& x);
Value apply(Graph& graph, const layers::FeedForward& layer, const Value& x);
Value apply(Graph& graph, const layers::LearnedPositionalEncoding& layer, const Value& x);  ///< x [N, T, width]
Value apply(Graph& graph, const layers::SinusoidalPositionalEncoding& layer, const Value& x);

/// Queries [N, L, width], keys and values [N, S, width]. Rotary and ALiBi positions, too: rotary ones for
/// self-attention only (a ValueError else), and for up to graph.longest positions.
Value apply(Graph& graph, const layers::MultiHeadAttention& layer, const Value& query, const Value& key,
            const Value& value, const MaskValues& masks = {});
/// The same, and the weights [N, H, L, S].
std::pair<Value, Value> apply_with_weights(Graph& graph, const layers::MultiHeadAttention& layer, const Value& query,
                                           const Value& key, const Value& value, const MaskValues& masks = {});
Value apply(Graph& graph, const layers::TransformerEncoderLayer& layer, const Value& x, const MaskValues& masks = {});
/// Masks of a decoder layer's two attentions.
struct DecoderMaskValues {
  MaskValues self = {.mask = {}, .key_mask = {}, .causal = true};
  MaskValues cross = {};
};
Value apply(Graph& graph, const layers::TransformerDecoderLayer& layer, const Value& x, const Value& memory,
            const DecoderMaskValues& masks = {});

Value apply(Graph& graph, const layers::PatchEmbedding& layer, const Value& images);
Value apply(Graph& graph, const layers::ClassToken& layer, const Value& x);
Value apply(Graph& graph, const layers::MeanPooling& layer, const Value& x, const Value& mask = {});  ///< boolean
Value apply(Graph& graph, const layers::FirstTokenPooling& layer, const Value& x);
Value apply(Graph& graph, const layers::AttentionPooling& layer, const Value& x, const Value& mask = {});
Value apply(Graph& graph, const layers::AvgPool2d& layer, const Value& images);
Value apply(Graph& graph, const layers::MaxPool2d& layer, const Value& images);

}  // namespace regard::onnx
