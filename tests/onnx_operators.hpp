// What each ONNX operator computes, written after the operators' documentation; for onnx_reader_test.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>

#include "onnx_reader.hpp"

namespace onnx_reader {

using namespace regard;  // NOLINT(google-build-using-namespace)

[[noreturn]] inline void wrong(const std::string& what) { throw std::runtime_error("onnx: " + what); }

using Values = std::vector<Tensor>;

// The last dimension first, as numpy broadcasts.
inline Tensor broadcast(const Tensor& x, const Shape& shape) { return x.expand(shape); }

inline Tensor logical(const Tensor& a, const Tensor& b) { return logical_and(a, b); }

inline int64_t axis_of(const Node& node, const Tensor& x, int64_t otherwise = 0) {
  const auto found = node.integers.find("axis");
  const int64_t axis = found == node.integers.end() ? otherwise : found->second;
  return axis < 0 ? axis + x.dim() : axis;
}

inline Tensor reshaped(const Tensor& x, const std::vector<int64_t>& wanted) {
  Shape shape;
  for (size_t i = 0; i < wanted.size(); ++i)
    shape.push_back(wanted[i] == 0 ? x.size(static_cast<int64_t>(i)) : wanted[i]);
  return x.reshape(shape);
}

inline Tensor sliced(Tensor x, const Values& in) {
  const auto starts = in.at(1).to_vector<int64_t>(), stops = in.at(2).to_vector<int64_t>();
  const auto axes = in.at(3).to_vector<int64_t>();
  const auto steps = in.size() > 4 ? in[4].to_vector<int64_t>() : std::vector<int64_t>(axes.size(), 1);
  for (size_t i = 0; i < axes.size(); ++i) x = x.slice(axes[i], starts[i], stops[i], steps[i]);
  return x;
}

inline Tensor gathered(const Node& node, const Tensor& x, const Tensor& index) {
  const int64_t axis = axis_of(node, x);
  Shape shape;
  for (int64_t i = 0; i < axis; ++i) shape.push_back(x.size(i));
  for (int64_t size : index.shape()) shape.push_back(size);
  for (int64_t i = axis + 1; i < x.dim(); ++i) shape.push_back(x.size(i));
  return x.index_select(axis, index.reshape({-1})).reshape(shape);
}

inline Tensor unsqueezed(Tensor x, const std::vector<int64_t>& axes) {
  for (int64_t axis : axes) x = x.unsqueeze(axis);
  return x;
}

// Windows of a kernel whose steps are `stride`; f(image, channel, top, left) gives the number of one.
template <class F>
Tensor windows(const Tensor& x, int64_t channels, int64_t kernel, int64_t stride, const F& f) {
  const int64_t rows = (x.size(2) - kernel) / stride + 1, columns = (x.size(3) - kernel) / stride + 1;
  Tensor y = empty({x.size(0), channels, rows, columns});
  float* place = y.data<float>();
  for (int64_t n = 0; n < x.size(0); ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) *place++ = static_cast<float>(f(n, c, i * stride, j * stride));
  return y;
}

inline Tensor convolved(const Node& node, const Values& in) {
  const Tensor x = in[0].contiguous(), w = in[1].contiguous();
  const int64_t kernel = w.size(2), inner = w.size(1), height = x.size(2), width = x.size(3);
  if (node.lists.at("kernel_shape") != std::vector<int64_t>{kernel, kernel} || w.size(3) != kernel ||
      inner != x.size(1))
    wrong("Conv: kernel");
  return windows(
      x, w.size(0), kernel, node.lists.at("strides")[0], [&](int64_t n, int64_t c, int64_t top, int64_t left) {
        double sum = in.size() > 2 ? in[2].to_vector<double>()[static_cast<size_t>(c)] : 0;
        for (int64_t d = 0; d < inner; ++d)
          for (int64_t i = 0; i < kernel; ++i)
            for (int64_t j = 0; j < kernel; ++j)
              sum += static_cast<double>(x.data<float>()[((n * inner + d) * height + top + i) * width + left + j]) *
                     static_cast<double>(w.data<float>()[((c * inner + d) * kernel + i) * kernel + j]);
        return sum;
      });
}

inline Tensor pooled(const Node& node, const Tensor& images, bool largest) {
  const Tensor x = images.contiguous();
  const int64_t kernel = node.lists.at("kernel_shape")[0], channels = x.size(1);
  return windows(
      x, channels, kernel, node.lists.at("strides")[0], [&](int64_t n, int64_t c, int64_t top, int64_t left) {
        double sum = 0, most = -INFINITY;
        for (int64_t i = 0; i < kernel; ++i)
          for (int64_t j = 0; j < kernel; ++j) {
            const double value = x.data<float>()[((n * channels + c) * x.size(2) + top + i) * x.size(3) + left + j];
            sum += value;
            most = std::max(most, value);
          }
        return largest ? most : sum / static_cast<double>(kernel * kernel);
      });
}

inline Tensor cast(const Node& node, const Tensor& x) {
  const int64_t to = node.integers.at("to");
  return to == 9 ? (x.dtype() == DType::boolean ? x : x != 0) : x.to(to == 1 ? DType::f32 : DType::i64);
}

inline Tensor normalised(const Node& node, const Values& in) {
  const Tensor& x = in[0];
  if (axis_of(node, x, -1) != x.dim() - 1) wrong("LayerNormalization: axis");
  const Tensor centred = x - x.mean(-1, true);
  const Tensor y = centred / sqrt((centred * centred).mean(-1, true) + static_cast<double>(node.reals.at("epsilon")));
  return in.size() > 2 ? y * in[1] + in[2] : y * in[1];
}

inline Tensor reduced(const Node& node, const Values& in) {
  const auto axes = in.size() > 1 ? in[1].to_vector<int64_t>() : node.lists.at("axes");
  const bool keep = node.integers.at("keepdims") != 0;
  return node.type == "ReduceMean" ? in[0].mean(Dims(Shape(axes)), keep) : in[0].sum(Dims(Shape(axes)), keep);
}

inline Tensor joined(const Node& node, const Values& in) { return cat(in, axis_of(node, in[0])); }

inline Tensor sized(const Node& node, const Tensor& x) {
  const std::vector<int64_t> sizes(x.shape().begin(), x.shape().end());
  return from_vector<int64_t>({sizes.begin() + node.integers.at("start"), sizes.begin() + node.integers.at("end")});
}

inline Tensor ranged(const Values& in) {
  return arange(in[0].item<int64_t>(), in[1].item<int64_t>(), in[2].item<int64_t>());
}

inline Tensor compute(const Node& node, const Values& in) {
  using Operator = std::function<Tensor()>;
  const std::map<std::string, Operator> operators = {
      {"Identity", [&] { return in[0]; }},
      {"Add", [&] { return in.at(0) + in.at(1); }},
      {"Sub", [&] { return in.at(0) - in.at(1); }},
      {"Mul", [&] { return in.at(0) * in.at(1); }},
      {"Div", [&] { return in.at(0) / in.at(1); }},
      {"Max", [&] { return maximum(in.at(0), in.at(1)); }},
      {"MatMul", [&] { return matmul(in.at(0), in.at(1)); }},
      {"Abs", [&] { return in.at(0).dtype() == DType::i64 ? where(in[0] < 0, in[0] * -1, in[0]) : abs(in[0]); }},
      {"Sqrt", [&] { return sqrt(in.at(0)); }},
      {"Erf", [&] { return erf(in.at(0)); }},
      {"Tanh", [&] { return regard::tanh(in.at(0)); }},
      {"Sigmoid", [&] { return sigmoid(in.at(0)); }},
      {"Relu", [&] { return relu(in.at(0)); }},
      {"And", [&] { return logical(in.at(0), in.at(1)); }},
      {"GreaterOrEqual", [&] { return in.at(0) >= in.at(1); }},
      {"Where", [&] { return where(in.at(0), in.at(1), in.at(2)); }},
      {"Cast", [&] { return cast(node, in.at(0)); }},
      {"Softmax", [&] { return softmax(in.at(0), axis_of(node, in[0], -1)); }},
      {"LayerNormalization", [&] { return normalised(node, in); }},
      {"ReduceMean", [&] { return reduced(node, in); }},
      {"ReduceMax",
       [&] { return amax(in.at(0), Dims(Shape(node.lists.at("axes"))), node.integers.at("keepdims") != 0); }},
      {"ReduceSum", [&] { return reduced(node, in); }},
      {"Gather", [&] { return gathered(node, in.at(0), in.at(1)); }},
      {"Slice", [&] { return sliced(in.at(0), in); }},
      {"Concat", [&] { return joined(node, in); }},
      {"Transpose", [&] { return in.at(0).permute(Shape(node.lists.at("perm"))); }},
      {"Reshape", [&] { return reshaped(in.at(0), in.at(1).to_vector<int64_t>()); }},
      {"Unsqueeze", [&] { return unsqueezed(in.at(0), in.at(1).to_vector<int64_t>()); }},
      {"Squeeze", [&] { return in.size() > 1 ? in[0].squeeze(in[1].item<int64_t>()) : in.at(0).squeeze(); }},
      {"Expand", [&] { return broadcast(in.at(0), Shape(in.at(1).to_vector<int64_t>())); }},
      {"Shape", [&] { return sized(node, in.at(0)); }},
      {"Range", [&] { return ranged(in); }},
      {"Conv", [&] { return convolved(node, in); }},
      {"AveragePool", [&] { return pooled(node, in.at(0), false); }},
      {"MaxPool", [&] { return pooled(node, in.at(0), true); }},
  };
  const auto found = operators.find(node.type);
  if (found == operators.end()) wrong("operator " + node.type);
  return found->second();
}

}  // namespace onnx_reader
