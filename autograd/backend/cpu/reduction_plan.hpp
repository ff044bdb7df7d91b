// How a reduction walks its input: which merged dimensions are kept and which are reduced.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <regard/autograd/tensor.hpp>

namespace regard::cpu_backend {

/// Whether x is not a number; integers always are one.
template <class T>
constexpr bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x != x;
  else
    return false;
}

/// A few merged dimensions, outermost first.
struct Axes {
  int count = 0;
  std::array<int64_t, Shape::max_dims> size{};
  std::array<int64_t, Shape::max_dims> input{};   // elements between neighbours
  std::array<int64_t, Shape::max_dims> output{};  // the same in the output; 0 in reduced dimensions

  int64_t numel() const {
    int64_t product = 1;
    for (int i = 0; i < count; ++i) product *= size[i];
    return product;
  }
  int64_t inner_size() const { return count == 0 ? 1 : size[count - 1]; }
  int64_t inner_stride() const { return count == 0 ? 1 : input[count - 1]; }

  /// Adds the offsets of element `index`, counted in row-major order over the first `dims` dimensions.
  void locate(int64_t index, int dims, int64_t& input_offset, int64_t& output_offset) const {
    for (int i = dims - 1; i >= 0; --i) {
      const int64_t at = index % size[i];
      index /= size[i];
      input_offset += at * input[i];
      output_offset += at * output[i];
    }
  }
  int64_t input_offset(int64_t index, int dims) const {
    int64_t offset = 0, ignored = 0;
    locate(index, dims, offset, ignored);
    return offset;
  }

  /// Sorts by stride, the smallest innermost (repeated elements outermost), and merges neighbours where they can be.
  void simplify() {
    const auto before = [](int64_t a, int64_t b) { return a != b && b != 0 && (a == 0 || a > b); };
    for (int i = 1; i < count; ++i)
      for (int j = i; j > 0 && before(input[j], input[j - 1]); --j) {
        std::swap(size[j], size[j - 1]);
        std::swap(input[j], input[j - 1]);
        std::swap(output[j], output[j - 1]);
      }
    int merged = 0;
    for (int i = 1; i < count; ++i) {
      if (input[merged] == size[i] * input[i] && output[merged] == size[i] * output[i]) {
        size[merged] *= size[i];
      } else {
        ++merged;
        size[merged] = size[i];
      }
      input[merged] = input[i];
      output[merged] = output[i];
    }
    if (count > 0) count = merged + 1;
  }
};

/// The dimensions of `a` parted into those that `y`, of the same number of dimensions, keeps and those that it
/// has at size 1.
struct ReductionPlan {
  Axes kept, reduced;

  ReductionPlan(const Tensor& y, const Tensor& a) {
    for (int64_t d = 0; d < a.dim(); ++d) {
      if (a.shape()[d] == 1) continue;
      Axes& axes = y.shape()[d] == 1 ? reduced : kept;
      axes.size[axes.count] = a.shape()[d];
      axes.input[axes.count] = a.strides()[d];
      axes.output[axes.count] = y.shape()[d] == 1 ? 0 : y.strides()[d];
      ++axes.count;
    }
    kept.simplify();
    reduced.simplify();
  }
};

}  // namespace regard::cpu_backend
