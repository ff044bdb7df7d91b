// Work on tensors in the order of memory: neighbouring threads of a GPU should touch neighbouring elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::cuda_backend {

/// Views of tensors of one shape, their dimensions in the order in which they lie in the memory of the first. What is
/// done element by element, whatever the order, is done to these as well.
template <size_t N>
std::array<Tensor, N> in_memory_order(const std::array<const Tensor*, N>& tensors) {
  const int64_t dims = tensors[0]->dim();
  const Strides& lies = tensors[0]->strides();
  Shape order = Shape::filled(dims, 0);
  for (int64_t d = 0; d < dims; ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lies[a] > lies[b]; });
  std::array<Tensor, N> views;
  for (size_t k = 0; k < N; ++k) {
    Shape shape = order, strides = order;
    for (int64_t d = 0; d < dims; ++d) {
      shape[d] = tensors[k]->shape()[order[d]];
      strides[d] = tensors[k]->strides()[order[d]];
    }
    views[k] = make_view(*tensors[k], shape, strides, tensors[k]->storage_offset());
  }
  return views;
}

/// The dimensions of a layout along which tensor k and tensor 0 are dense, where these are two: a transposition.
struct Crossing {
  int row = -1;     ///< tensor 0 is dense along it
  int column = -1;  ///< tensor k is dense along it
};
template <int N>
Crossing crossing(const Layout<N>& layout, int k) {
  Crossing found;
  for (int d = 0; d < layout.dims; ++d) {
    if (found.row < 0 && layout.strides[d][0] == 1) found.row = d;
    if (found.column < 0 && layout.strides[d][k] == 1) found.column = d;
  }
  return found.row < 0 || found.column < 0 || found.row == found.column ? Crossing() : found;
}
/// Whether so much is transposed that it is worth going through shared memory.
template <int N>
bool lies_across(const Layout<N>& layout, int k) {
  if (layout.numel < 4096) return false;
  const Crossing found = crossing(layout, k);
  return found.row >= 0 && layout.sizes[found.row] >= 8 && layout.sizes[found.column] >= 8;
}

/// x, for reading it along with y: where it lies across, a dense copy, made tile by tile.
inline Tensor laid_along(const Tensor& y, const Tensor& x) {
  if (x.is_contiguous() || !lies_across(Layout<2>({&y, &x}), 1)) return x;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (x.strides()[d] == 0 && x.shape()[d] > 1) return x;  // little memory, read often: caches hold it
  Tensor dense = empty_like(x);
  copy(dense, x);
  return dense;
}

}  // namespace regard::cuda_backend
