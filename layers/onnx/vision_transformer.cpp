#include <regard/layers/onnx/layers.hpp>
#include <regard/layers/onnx/models.hpp>

namespace regard::onnx {

Graph graph_of(const layers::VisionTransformer& model) {
  model.parameters();  // so that its layers know their paths
  const layers::VisionTransformerOptions& options = model.options;
  Graph graph("VisionTransformer");
  const Value images =
      graph.input("images", DType::f32, {"batch", options.channels, options.image_height, options.image_width});
  Value x = apply(graph, model.patches, images);
  if (model.class_token) x = apply(graph, *model.class_token, x);
  x = apply(graph, model.positions, x);
  for (const layers::TransformerEncoderLayer& block : model.blocks) x = apply(graph, block, x);
  x = apply(graph, model.norm, x);
  const Value features =
      model.class_token ? apply(graph, layers::FirstTokenPooling(), x) : apply(graph, layers::MeanPooling(), x);
  graph.output("logits", apply(graph, model.head, features), DType::f32, {"batch", options.classes});
  graph.output("features", features, DType::f32, {"batch", options.width});
  return graph;
}

}  // namespace regard::onnx
