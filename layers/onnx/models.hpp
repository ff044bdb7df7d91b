// Whole models as ONNX graphs, ready to be saved:
//
//     onnx::graph_of(model).save("model.onnx");
//
// They compute what the models do in evaluation mode. Sizes named "batch" and "length" are chosen by whoever runs the
// file. For a model of one's own see layers/onnx/layers.hpp.
#pragma once

#include <regard/layers/models/bert.hpp>
#include <regard/layers/models/encoder_decoder.hpp>
#include <regard/layers/models/gpt.hpp>
#include <regard/layers/models/sentence_encoder.hpp>
#include <regard/layers/models/vision_transformer.hpp>
#include <regard/layers/onnx/graph.hpp>

namespace regard::onnx {

/// Input images, f32 [batch, channels, height, width]; outputs logits [batch, classes] and features [batch, width].
Graph graph_of(const layers::VisionTransformer& model);

/// Input input_ids, i64 [batch, length]; output logits [batch, length, vocabulary], of the token that comes after each.
/// The length is at most the model's context, whatever its positions are.
Graph graph_of(const layers::GPT& model);

/// Inputs input_ids, attention_mask (not 0: a token) and token_type_ids, each i64 [batch, length]; outputs
/// last_hidden_state [batch, length, width] and, where there is a pooler, pooler_output [batch, width]. The names are
/// those that Hugging Face's exporters use.
Graph graph_of(const layers::Bert& model);

/// The same inputs; output sentence_embedding [batch, width], pooled and normalised as the encoder's options say.
Graph graph_of(const layers::SentenceEncoder& model);

/// The encoder alone. Inputs source_ids and source_mask (not 0: a token), i64 [batch, source]; output memory [batch,
/// source, width].
Graph encoder_graph_of(const layers::EncoderDecoder& model);
/// The decoder alone. Inputs target_ids, i64 [batch, target], memory and source_mask; output logits [batch, target,
/// target_vocabulary], of the token that comes after each.
Graph decoder_graph_of(const layers::EncoderDecoder& model);

}  // namespace regard::onnx
