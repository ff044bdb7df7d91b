// What the tests of ONNX files share: a graph's outputs, recomputed from its bytes, against Regard's.
//
// With REGARD_ONNX_FOLDER=DIR in the environment, each model is left there with an input and Regard's output, for
// tests/onnx_check.py to run it in onnxruntime.
#pragma once

#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/onnx/layers.hpp>
#include <regard/layers/onnx/models.hpp>

#include "onnx_reader.hpp"

namespace onnx_test {

using regard::DType;
using regard::Generator;
using regard::Shape;
using regard::Tensor;
using regard::onnx::Graph;
using Named = std::map<std::string, Tensor>;

inline void leave(const std::string& name, const Graph& graph, const Named& inputs, const Named& outputs) {
  const char* folder = std::getenv("REGARD_ONNX_FOLDER");
  if (folder == nullptr) return;
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  graph.save(path.string() + ".onnx");
  regard::StateDict sample;
  for (const auto& [key, tensor] : inputs) sample["input." + key] = tensor;
  for (const auto& [key, tensor] : outputs) sample["output." + key] = tensor.detach();
  regard::save_safetensors(path.string() + ".safetensors", sample);
}

/// The graph's outputs are those expected, to 1e-5 of the largest.
inline void compare(const std::string& name, const Graph& graph, const Named& inputs, const Named& expected) {
  INFO(name);
  const onnx_reader::Model model = onnx_reader::read(graph.serialized());
  const Named outputs = onnx_reader::run(model, inputs);
  REQUIRE(outputs.size() == expected.size());
  for (const auto& [key, want] : expected) {
    INFO(key);
    const Tensor& got = outputs.at(key);
    REQUIRE(got.shape() == want.shape());
    const double largest = want.numel() > 0 ? abs(want).max().item<double>() : 0;
    CHECK(allclose(got, want, 0, 1e-5 * (1 + largest)));
  }
  leave(name, graph, inputs, expected);
}

/// Parameters away from the zeros and ones that they begin with, so that one that is left out is missed.
template <class L>
L stirred(L layer) {
  Generator generator(3);
  regard::NoGrad no_grad;
  for (const Tensor& p : layer.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.3);
  layer.eval();
  return layer;
}

inline Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  return regard::randn(shape, {}, generator);
}

constexpr DType f32 = DType::f32;
const regard::onnx::Sizes sequence = {"batch", "length", "width"};

/// Sizes of an output that are of no interest here.
inline regard::onnx::Sizes open(int64_t dims) {
  regard::onnx::Sizes sizes;
  for (int64_t i = 0; i < dims; ++i) sizes.emplace_back("open" + std::to_string(i));
  return sizes;
}

/// A layer of one input [N, T, width] and one output.
template <class L>
void compare_layer(const std::string& name, const L& given, const Tensor& x) {
  const L layer = stirred(given);
  Graph graph;
  regard::onnx::Sizes sizes;
  for (int64_t i = 0; i < x.dim(); ++i) sizes.emplace_back("size" + std::to_string(i));
  graph.output("y", regard::onnx::apply(graph, layer, graph.input("x", f32, sizes)), f32, open(layer(x).dim()));
  compare(name, graph, {{"x", x}}, {{"y", layer(x)}});
}

inline Tensor truth(const std::vector<bool>& values, const Shape& shape) {
  return regard::from_vector<bool>(values, shape);
}

}  // namespace onnx_test
