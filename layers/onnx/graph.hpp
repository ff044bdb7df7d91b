// A graph in the ONNX format: inputs, constants, operations, outputs; and the file that holds it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard::onnx {

/// What flows between operations, by name. One without a name is an optional input that is left out.
struct Value {
  std::string name = {};
  bool defined() const { return !name.empty(); }
};

/// A size of an input or output: a number, or a name for one that the user of the file chooses, "batch".
using Size = std::variant<int64_t, std::string>;
using Sizes = std::vector<Size>;

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;

/// The operator set that files ask for: the first with LayerNormalization.
constexpr int64_t opset_version = 17;

/// A graph that is built operation by operation and written to a file. Operations are named as ONNX names them
/// (<https://onnx.ai/onnx/operators/>, in version 17); nothing checks that their inputs fit but the runtime that loads
/// the file. layers/onnx/layers.hpp adds whole layers.
///
///     Graph graph;
///     Value x = graph.input("x", DType::f32, {"batch", 8});
///     graph.output("y", graph.op("Relu", {apply(graph, linear, x)}), DType::f32, {"batch", 4});
///     graph.save("model.onnx");
class Graph {
 public:
  explicit Graph(std::string name = "regard") : name_(std::move(name)) {}

  Value input(const std::string& name, DType dtype, const Sizes& sizes);
  void output(const std::string& name, const Value& value, DType dtype, const Sizes& sizes);

  /// Adds an operation with one output, or with `outputs` of them.
  Value op(const std::string& type, const std::vector<Value>& inputs, const Attributes& attributes = {});
  std::vector<Value> op(const std::string& type, const std::vector<Value>& inputs, const Attributes& attributes,
                        int64_t outputs);

  /// A tensor, whose elements are read when the file is written: f32, f64, f16, bf16, i64 or boolean. The same tensor
  /// again is the same value, stored once: tied weights stay tied. `name` may be taken; a number is added then.
  Value constant(const std::string& name, const Tensor& tensor);
  /// The same of a matrix's transpose, made where the file is written. Of a tensor that is stored as it is, an
  /// operation.
  Value transposed(const std::string& name, const Tensor& matrix);
  /// A constant that `make` makes the first time this name is asked for: for tables that several layers share.
  Value named_constant(const std::string& name, const std::function<Tensor()>& make);
  Value integers(const std::vector<int64_t>& values);  ///< [values.size()]
  Value scalar(int64_t value);                         ///< i64, without dimensions
  Value number(float value);                           ///< f32, without dimensions
  /// One size of a value, as i64 [1].
  Value size(const Value& value, int64_t dim);

  /// Rotary positions are stored for sequences of up to so many tokens; longer ones are errors of the runtime.
  int64_t longest = 2048;

  /// Text that the file carries beside the graph.
  void set_metadata(const std::string& key, const std::string& value) { metadata_[key] = value; }

  /// Names of operations begin with the path of the layer they belong to while one of these is open.
  class Scope {
   public:
    Scope(Graph& graph, const std::string& path) : graph_(graph), outer_(std::exchange(graph.scope_, path)) {}
    ~Scope() { graph_.scope_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    std::string outer_;
  };

  /// The file's bytes. A ValueError for a graph without an output, or of more than 2 GiB, which the format cannot hold.
  std::string serialized() const;
  /// Writes the file, all or nothing. Errors as of serialized(); a FileError with path and reason.
  void save(const std::filesystem::path& path) const;

 private:
  struct Node {
    std::string name, type;
    std::vector<std::string> inputs, outputs;
    Attributes attributes;
  };
  struct Port {
    std::string name;
    DType dtype;
    Sizes sizes;
  };
  std::string free_name(const std::string& wanted);
  void write(const std::function<void(const void*, size_t)>& sink) const;

  std::string name_, scope_;
  std::vector<Port> inputs_, outputs_;
  std::vector<Node> nodes_;
  std::vector<std::pair<std::string, Tensor>> constants_;
  std::map<const TensorImpl*, std::string> constant_names_;
  std::map<const TensorImpl*, Value> transposed_;
  Tensors transposed_tensors_;  // so that their addresses are not used again
  std::map<std::string, Value> named_;
  std::map<std::vector<int64_t>, Value> integers_;
  std::map<float, Value> numbers_;
  std::map<std::string, int64_t> names_;  // how often each was wanted
  std::map<std::string, std::string> metadata_;
};

}  // namespace regard::onnx
