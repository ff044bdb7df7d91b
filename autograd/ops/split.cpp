// Cutting a tensor into views along one dimension. All pieces are outputs of one node, so that the gradient of many
// pieces is put together once.
#include <algorithm>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

namespace {

int64_t check_split_dim(const char* op, const Tensor& x, int64_t dim) {
  check_defined(op, "x", x);
  check<IndexError>(x.dim() > 0, op, "a tensor of no dimensions has no dimension ", dim);
  return check_dim(op, x, dim);
}

/// Sizes are checked: none is negative and they add up to the dimension's.
Tensors split_checked(const char* op, const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
  Tensors pieces;
  pieces.reserve(sizes.size());
  int64_t start = 0;
  for (int64_t size : sizes) {
    Shape shape = x.shape();
    shape[dim] = size;
    pieces.push_back(make_view(x, shape, x.strides(), x.storage_offset() + (size > 0 ? start * x.strides()[dim] : 0)));
    start += size;
  }
  auto sources = inputs(x);
  if (!needs_record(sources) || pieces.empty()) return pieces;

  std::vector<Tensor*> outputs;
  for (Tensor& piece : pieces) outputs.push_back(&piece);
  TensorOptions options{x.dtype(), x.device()};
  record_general(op, outputs, sources, saved(),
                 [shape = x.shape(), sizes, dim, options](const Saved&, std::span<const Tensor> grads) {
                   // [.., size_0 + size_1 + .., ..]
                   Tensor zero = zeros({}, options);
                   Tensors parts(grads.begin(), grads.end());
                   for (size_t i = 0; i < parts.size(); ++i) {
                     if (parts[i].defined()) continue;
                     Shape part = shape;
                     part[dim] = sizes[i];
                     parts[i] = expand(zero, part);
                   }
                   return Grads{cat(parts, dim)};
                 });
  return pieces;
}

std::vector<int64_t> equal_sizes(int64_t size, int64_t piece) {
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < size; start += sizes.back()) sizes.push_back(std::min(piece, size - start));
  if (sizes.empty()) sizes.push_back(0);  // an empty dimension is one empty piece
  return sizes;
}

}  // namespace

Tensors split(const Tensor& x, int64_t split_size, int64_t dim) {
  dim = check_split_dim("split", x, dim);
  int64_t size = x.shape()[dim];
  check<ValueError>(split_size > 0 || (split_size == 0 && size == 0), "split", "a split size of ", split_size,
                    " for dimension ", dim, " of ", x.shape(), ": it is 1 or more");
  return split_checked("split", x, equal_sizes(size, split_size), dim);
}

Tensors split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
  dim = check_split_dim("split", x, dim);
  int64_t left = x.shape()[dim];
  for (int64_t size : sizes) {
    check<ValueError>(size >= 0, "split", "a piece of size ", size, ": sizes are 0 or more");
    check<ShapeError>(size <= left, "split", "the sizes add up to more than ", x.shape()[dim], ", dimension ", dim,
                      " of ", x.shape());
    left -= size;
  }
  check<ShapeError>(left == 0, "split", "the sizes add up to ", x.shape()[dim] - left, ", dimension ", dim, " of ",
                    x.shape(), " has ", x.shape()[dim]);
  return split_checked("split", x, sizes, dim);
}

Tensors chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  dim = check_split_dim("chunk", x, dim);
  check<ValueError>(chunks > 0, "chunk", chunks, " chunks: at least 1 is needed");
  int64_t size = x.shape()[dim];
  if (size == 0) return split_checked("chunk", x, std::vector<int64_t>(static_cast<size_t>(chunks), 0), dim);
  return split_checked("chunk", x, equal_sizes(size, (size - 1) / chunks + 1), dim);
}

}  // namespace regard
