// For functions that add a layer to a graph: names that begin with the layer's path, and errors that tell it.
#pragma once

#include <string>

#include <regard/autograd/error.hpp>
#include <regard/layers/layer.hpp>
#include <regard/layers/onnx/graph.hpp>

namespace regard::onnx {

/// While it lives, operations are named after the layer, and errors end with `(in blocks.0.attention)`.
///
///     Value apply(Graph& graph, const Scale& layer, const Value& x) {
///       const OpenLayer open(graph, layer);
///       return graph.op("Mul", {x, open.constant("factor", layer.factor)});
///     }
class OpenLayer {
 public:
  OpenLayer(Graph& graph, const layers::Layer& layer)
      : graph_(graph), path_(layer.path()), error_scope_(layer), names_(graph, path_) {}

  /// The name of a member in the model, `blocks.0.norm1.weight`.
  std::string path(const std::string& member) const { return path_.empty() ? member : path_ + "." + member; }
  /// A parameter or buffer; a DTypeError unless it is f32.
  const Tensor& checked(const std::string& member, const Tensor& tensor) const {
    check<DTypeError>(tensor.dtype() == DType::f32, "onnx", "'", path(member), "' is ", tensor.dtype(),
                      ": models are exported in f32; call to(DType::f32) first");
    return tensor;
  }
  Value constant(const std::string& member, const Tensor& tensor) const {
    return graph_.constant(path(member), checked(member, tensor));
  }

 private:
  Graph& graph_;
  std::string path_;
  layers::LayerScope error_scope_;
  Graph::Scope names_;
};

}  // namespace regard::onnx
