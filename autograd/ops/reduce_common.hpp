// What the reductions share: reading `dims`, and the shapes that go with them.
#pragma once

#include <regard/autograd/error.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::reduction {

/// The shape of a reduction's result in both forms.
struct Shapes {
  Shape kept;         ///< reduced dimensions at size 1
  Shape result;       ///< as the caller asked: kept, or without them
  int64_t count = 1;  ///< elements that go into one output
};

/// Reads `dims` (none: all of them) for x. A dimension out of range is an IndexError, one named twice a ValueError.
inline Shapes shapes(const char* op, const Tensor& x, const Shape& dims, bool keepdim) {
  const Shape& shape = x.shape();
  bool reduced[Shape::max_dims] = {};
  for (int64_t given : dims) {
    const int64_t dim = check_dim(op, x, given);
    check<ValueError>(!reduced[dim], op, "dimension ", given, " is named twice in dims ", dims, " of ", shape);
    reduced[dim] = true;
  }
  Shapes out;
  for (int64_t d = 0; d < shape.dim(); ++d) {
    const bool gone = dims.empty() || reduced[d];
    out.kept.push_back(gone ? 1 : shape[d]);
    if (!gone || keepdim) out.result.push_back(gone ? 1 : shape[d]);
    if (gone) out.count *= shape[d];
  }
  return out;
}

/// The same elements seen with another shape; y is a fresh dense tensor without a graph.
inline Tensor with_shape(const Tensor& y, const Shape& shape) {
  return y.shape() == shape ? y : make_view(y, shape, contiguous_strides(shape), 0);
}

/// What computes, i64 or boolean: what sums, extremes and tests take.
inline void check_countable(const char* op, const Tensor& x) {
  check_defined(op, "x", x);
  check<DTypeError>(computes(x.dtype(), x.device()) || !is_floating(x.dtype()), op, x.dtype(), " on ", x.device(),
                    " is for storage; convert with to(DType::f32) first");
}

}  // namespace regard::reduction
