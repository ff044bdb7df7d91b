// Whole models as ONNX graphs, ready to be saved:
//
//     onnx::graph_of(model).save("model.onnx");
//
// They compute what the models do in evaluation mode. Sizes named "batch" and "length" are chosen by whoever runs the
// file. For a model of one's own see layers/onnx/layers.hpp.
#pragma once

#include <regard/layers/models/vision_transformer.hpp>
#include <regard/layers/onnx/graph.hpp>

namespace regard::onnx {

/// Input images, f32 [batch, channels, height, width]; outputs logits [batch, classes] and features [batch, width].
Graph graph_of(const layers::VisionTransformer& model);

}  // namespace regard::onnx
