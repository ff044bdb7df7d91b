// Dimensions reversed.
#include <regard/autograd/backend/cuda/functions.hpp>

namespace regard::cuda_backend {

void flip(const Tensor& y, const Tensor& a, const Shape& dims) {
  if (y.numel() == 0) return;
  // The reversed tensor is a view from the other end, with negative strides.
  Strides strides = a.strides();
  int64_t offset = a.storage_offset();
  for (int64_t dim : dims) {
    offset += (a.shape()[dim] - 1) * strides[dim];
    strides[dim] = -strides[dim];
  }
  copy(y, make_view(a, a.shape(), strides, offset));
}

}  // namespace regard::cuda_backend
