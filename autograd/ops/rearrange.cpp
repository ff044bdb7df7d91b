// Joining and rearranging: the results are copies.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

/// All defined, on one device; the dtype they are joined in: the one floating dtype, else i64 before boolean.
DType check_joined(const char* op, const Tensors& tensors) {
  check<ValueError>(!tensors.empty(), op, "needs at least one tensor");
  check_defined(op, "tensors[0]", tensors[0]);
  DType common = tensors[0].dtype();
  for (size_t i = 1; i < tensors.size(); ++i) {
    check<ValueError>(tensors[i].defined(), op, "tensors[", i, "] is undefined: give it a value first");
    check_same_device(op, tensors[0], tensors[i]);
    DType dtype = tensors[i].dtype();
    check<DTypeError>(dtype == common || !is_floating(dtype) || !is_floating(common), op, "tensors[", i, "] is ", dtype,
                      " beside ", common, ": bring them to one dtype with to()");
    if (is_floating(dtype) || (!is_floating(common) && dtype == DType::i64)) common = dtype;
  }
  return common;
}

/// The tensors in f32 where autocast wants them so, since they are of several dtypes; else nothing.
Tensors widened(autocast::Listed<autocast::Rule::widest> op, const Tensors& tensors) {
  Tensors result;
  if (!autocast::active || tensors.empty()) return result;
  const auto mixed = [&](const Tensor& x) { return autocast::mixes(op, tensors[0], x); };
  if (std::any_of(tensors.begin(), tensors.end(), mixed))
    for (const Tensor& x : tensors) result.push_back(autocast::wide(x));
  return result;
}

/// The strides and offset of y from `start` on along dim, seen with another shape.
Tensor part_of(const Tensor& y, int64_t dim, int64_t start, const Shape& shape) {
  return make_view(y, shape, y.strides(), y.storage_offset() + start * y.strides()[dim]);
}

Tensor triangle(const char* op, const Tensor& x, int64_t diagonal, bool upper) {
  check_defined(op, "x", x);
  check<ShapeError>(x.dim() >= 2, op, x.shape(), " is no matrix: it takes [..., rows, columns]");
  Tensor y = empty_like(x);
  kernels(x).triangle(y, x, diagonal, upper);
  return record(op, y, inputs(x), saved(), [diagonal, upper](const Saved&, const Tensor& g) {
    return Grads{upper ? triu(g, diagonal) : tril(g, diagonal)};
  });
}

}  // namespace

Tensor cat(const Tensors& tensors, int64_t dim) {
  if (const Tensors wide = widened("cat", tensors); !wide.empty()) return cat(wide, dim);
  DType dtype = check_joined("cat", tensors);
  // As in PyTorch, a tensor of shape [0] is nothing, whatever the others' shape.
  const Shape nothing{0};
  Shape shape = tensors[0].shape();
  for (const Tensor& tensor : tensors) {
    if (shape != nothing) break;
    shape = tensor.shape();
  }
  check<ShapeError>(shape.dim() > 0, "cat", "numbers of no dimensions cannot be joined: use stack()");
  dim = check_dim("cat", shape, dim);
  shape[dim] = 0;
  std::vector<int64_t> sizes;  // along dim; -1 for nothing
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Shape& part = tensors[i].shape();
    if (part == nothing && shape.dim() > 1) {
      sizes.push_back(-1);
      continue;
    }
    bool fits = part.dim() == shape.dim();
    for (int64_t d = 0; fits && d < part.dim(); ++d) fits = d == dim || part[d] == shape[d];
    check<ShapeError>(fits, "cat", "tensors[", i, "] has shape ", part, ", tensors[0] ", tensors[0].shape(),
                      ": they may differ in dimension ", dim, " only");
    sizes.push_back(part[dim]);
    shape[dim] += part[dim];
  }

  Tensor y = empty(shape, {dtype, tensors[0].device()});
  int64_t start = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (sizes[i] <= 0) continue;
    kernels(y).copy(part_of(y, dim, start, tensors[i].shape()), tensors[i]);
    start += sizes[i];
  }
  auto sources = pointers(tensors);
  if (!needs_record(sources)) return y;
  Tensor* outputs[] = {&y};
  record_general("cat", outputs, sources, saved(),
                 [dim, sizes = std::move(sizes)](const Saved& s, std::span<const Tensor> grads) {
                   Grads result(sizes.size());
                   int64_t from = 0;
                   for (size_t i = 0; i < sizes.size(); ++i) {
                     int64_t size = std::max<int64_t>(sizes[i], 0);
                     if (s.needs(i)) result[i] = narrow(grads[0], dim, from, size);
                     if (s.needs(i) && sizes[i] < 0) result[i] = reshape(result[i], {0});
                     from += size;
                   }
                   return result;
                 });
  return y;
}

Tensor stack(const Tensors& tensors, int64_t dim) {
  if (const Tensors wide = widened("stack", tensors); !wide.empty()) return stack(wide, dim);
  DType dtype = check_joined("stack", tensors);
  const Shape& part = tensors[0].shape();
  for (size_t i = 1; i < tensors.size(); ++i)
    check<ShapeError>(tensors[i].shape() == part, "stack", "tensors[", i, "] has shape ", tensors[i].shape(),
                      ", tensors[0] ", part, ": shapes must be equal; cat() joins along a dimension that is there");
  int64_t at = dim < 0 ? dim + part.dim() + 1 : dim;
  check<IndexError>(at >= 0 && at <= part.dim(), "stack", "dimension ", dim, " is outside [", -part.dim() - 1, ", ",
                    part.dim(), "] for tensors of shape ", part);
  Shape shape = part;
  shape.insert(at, static_cast<int64_t>(tensors.size()));
  Tensor y = empty(shape, {dtype, tensors[0].device()});
  Strides strides = y.strides();
  strides.erase(at);
  for (size_t i = 0; i < tensors.size(); ++i)
    kernels(y).copy(make_view(y, part, strides, static_cast<int64_t>(i) * y.strides()[at]), tensors[i]);
  Tensor* outputs[] = {&y};
  record_general("stack", outputs, pointers(tensors), saved(),
                 [at, count = tensors.size()](const Saved& s, std::span<const Tensor> grads) {
                   Grads result(count);
                   for (size_t i = 0; i < count; ++i)
                     if (s.needs(i)) result[i] = select(grads[0], at, static_cast<int64_t>(i));
                   return result;
                 });
  return y;
}

Tensor flip(const Tensor& x, Dims dims) {
  check_defined("flip", "x", x);
  Shape list = dims.list();
  std::array<bool, Shape::max_dims> used{};
  for (int64_t& dim : list) {
    dim = check_dim("flip", x, dim);
    check<ShapeError>(!used[dim], "flip", "dimension ", dim, " of ", x.shape(), " is listed twice in ", dims.list());
    used[dim] = true;
  }
  Tensor y = empty_like(x);
  kernels(x).flip(y, x, x.dim() == 0 ? Shape{} : list);
  return record("flip", y, inputs(x), saved(),
                [list](const Saved&, const Tensor& g) { return Grads{flip(g, Dims(list))}; });
}

Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, true); }

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, false); }

}  // namespace regard
