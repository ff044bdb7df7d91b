// Reads ONNX files, as far as Regard writes them, and computes what they say, an operation at a time, after the
// operators' documentation: so that a file can be tested where there is no other runtime.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace onnx_reader {

using regard::Tensor;

struct Node {
  std::string name, type;
  std::vector<std::string> inputs, outputs;
  std::map<std::string, int64_t> integers;
  std::map<std::string, float> reals;
  std::map<std::string, std::vector<int64_t>> lists;
};

struct Port {
  std::string name;
  int64_t type = 0;                // onnx.TensorProto.DataType
  std::vector<std::string> sizes;  // a number, or a name
};

struct Model {
  int64_t ir_version = 0, opset = 0;
  std::string producer;
  std::map<std::string, std::string> metadata;
  std::vector<Node> nodes;
  std::map<std::string, Tensor> constants;
  std::vector<Port> inputs, outputs;
};

/// Throws std::runtime_error where the bytes are no ONNX file, a node's input is not computed before it, a name is
/// given twice, or a constant's bytes are not as many as its shape says.
Model read(const std::string& bytes);

/// The outputs for these inputs. Throws std::runtime_error for an operation that is not known or an input of another
/// shape than the model's.
std::map<std::string, Tensor> run(const Model& model, const std::map<std::string, Tensor>& inputs);

}  // namespace onnx_reader
