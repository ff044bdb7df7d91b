// Views that put a tensor, what is read or written in it, and the index into one shape; and indices held inside.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <regard/autograd/tensor.hpp>

namespace regard::cuda_backend {

/// An index into `size` elements; 0 in place of one outside, which a check tells of later.
__device__ inline int64_t inside(int64_t index, int64_t size) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(size) ? index : 0;
}

/// x seen with `shape`, where it does not move along `dim`.
inline Tensor held_along(const Tensor& x, const Shape& shape, int64_t dim) {
  Strides strides = x.strides();
  strides[dim] = 0;
  return make_view(x, shape, strides, x.storage_offset());
}

/// x at position 0 of `dim`: its lanes, one a line of elements along dim.
inline Tensor lanes_of(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make_view(x, shape, strides, x.storage_offset());
}

/// A 1-D index seen along `dim` of `shape`.
inline Tensor along(const Tensor& index, const Shape& shape, int64_t dim) {
  Strides strides = Strides::filled(shape.dim(), 0);
  strides[dim] = index.strides()[0];
  return make_view(index, shape, strides, index.storage_offset());
}

}  // namespace regard::cuda_backend
