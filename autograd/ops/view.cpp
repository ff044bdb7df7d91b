// Views: other shapes and parts of the same elements. A view's gradient is the reverse view of the gradient.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

namespace {

/// The strides with which elements of `shape` and `strides` can be seen as `target` (of as many elements), if any
/// do. Neighbouring dimensions that lie as one dense run may be merged and split again at will; sizes of 1 never
/// stand in the way.
std::optional<Strides> view_strides(const Shape& shape, const Strides& strides, const Shape& target) {
  if (shape == target) return strides;
  Strides result = contiguous_strides(target);
  if (shape.numel() == 0) return result;

  int64_t to = target.dim() - 1;
  int64_t from = shape.dim() - 1;
  while (from >= 0) {
    if (shape[from] == 1) {
      --from;
      continue;
    }
    // The longest run of dimensions, innermost first, that can be walked with one stride.
    int64_t base = strides[from], run = shape[from];
    for (--from; from >= 0 && (shape[from] == 1 || strides[from] == base * run); --from) run *= shape[from];
    // The target's dimensions must cover the run exactly.
    int64_t covered = 1;
    for (; to >= 0 && (covered < run || target[to] == 1); --to) {
      result[to] = base * covered;
      covered *= target[to];
    }
    if (covered != run) return std::nullopt;
  }
  return result;  // what is left of the target has size 1
}

/// `shape` with its -1 replaced by what is left of `numel` elements; a ShapeError where that cannot be.
Shape complete_shape(const char* op, const Tensor& x, const Shape& shape) {
  int64_t numel = x.numel();
  int64_t unknown = -1, known = 1;
  bool overflow = false;
  for (int64_t i = 0; i < shape.dim(); ++i) {
    if (shape[i] == -1) {
      check<ShapeError>(unknown < 0, op, shape, " has more than one -1: only one size can be left open");
      unknown = i;
      continue;
    }
    check<ShapeError>(shape[i] >= 0, op, shape, " has the size ", shape[i],
                      ": sizes are 0 or more, or -1 for the one that follows from the others");
    overflow |= __builtin_mul_overflow(known, shape[i], &known);
  }
  if (overflow) {
    for (int64_t size : shape)
      if (size == 0) known = 0, overflow = false;
  }
  Shape result = shape;
  if (unknown >= 0) {
    check<ShapeError>(overflow || known != 0, op, "the -1 of ", shape,
                      " could be any size beside a size of 0: give it");
    check<ShapeError>(!overflow && numel % known == 0, op, x.shape(), " has ", numel,
                      " elements, which the other sizes of ", shape, " do not divide");
    result[unknown] = numel / known;
  } else {
    check<ShapeError>(!overflow && known == numel, op, x.shape(), " has ", numel, " elements, ", shape,
                      " has another number");
  }
  return result;
}

/// Records a view that has all of x's elements in their order: its gradient only gets x's shape back.
Tensor record_reshaped(const char* op, const Tensor& x, Tensor y) {
  return record(op, std::move(y), inputs(x), saved(),
                [shape = x.shape()](const Saved&, const Tensor& g) { return Grads{reshape(g, shape)}; });
}

/// For reshape and flatten: a view where it can be, else a copy; one node either way.
Tensor reshape_to(const char* op, const Tensor& x, const Shape& shape) {
  if (auto strides = view_strides(x.shape(), x.strides(), shape))
    return record_reshaped(op, x, make_view(x, shape, *strides, x.storage_offset()));
  Tensor y = empty(shape, {x.dtype(), x.device()});
  kernels(x).copy(make_view(y, x.shape(), contiguous_strides(x.shape()), 0), x);
  return record_reshaped(op, x, y);
}

/// `length` positions of a dimension from `start` on, every `step`-th; all within the dimension.
struct Places {
  int64_t dim, start, length, step;

  Tensor view_of(const Tensor& x) const {
    Shape shape = x.shape();
    Strides strides = x.strides();
    int64_t offset = x.storage_offset();
    if (length > 0) offset += start * strides[dim];
    if (length > 1) strides[dim] *= step;
    shape[dim] = length;
    return make_view(x, shape, strides, offset);
  }
};

Tensor slice_backward(const Tensor& g, const Shape& shape, Places places);

Tensor take(const char* op, const Tensor& x, Places places) {
  return record(op, places.view_of(x), inputs(x), saved(), [shape = x.shape(), places](const Saved&, const Tensor& g) {
    return Grads{slice_backward(g, shape, places)};
  });
}

/// Zeros of `shape` with g at `places`.
Tensor slice_backward(const Tensor& g, const Shape& shape, Places places) {
  Tensor y = zeros(shape, {g.dtype(), g.device()});
  kernels(g).copy(places.view_of(y), g);
  return record("slice_backward", y, inputs(g), saved(),
                [places](const Saved&, const Tensor& gg) { return Grads{take("slice", gg, places)}; });
}

/// check_dim for an op that needs a dimension to walk along.
int64_t check_walked_dim(const char* op, const Tensor& x, int64_t dim) {
  check_defined(op, "x", x);
  check<IndexError>(x.dim() > 0, op, "a tensor of no dimensions has no dimension ", dim);
  return check_dim(op, x, dim);
}

}  // namespace

Tensor view(const Tensor& x, const Shape& shape) {
  check_defined("view", "x", x);
  Shape target = complete_shape("view", x, shape);
  auto strides = view_strides(x.shape(), x.strides(), target);
  check<ShapeError>(strides.has_value(), "view", x.shape(), " with strides ", x.strides(), " cannot be seen as ",
                    target, " without a copy: use reshape(), which copies where it must, or contiguous() first");
  return record_reshaped("view", x, make_view(x, target, *strides, x.storage_offset()));
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", "x", x);
  return reshape_to("reshape", x, complete_shape("reshape", x, shape));
}

Tensor flatten(const Tensor& x, int64_t start_dim, int64_t end_dim) {
  check_defined("flatten", "x", x);
  int64_t start = check_dim("flatten", x, start_dim);
  int64_t end = check_dim("flatten", x, end_dim);
  check<ShapeError>(start <= end, "flatten", "of ", x.shape(), ": start_dim ", start_dim, " is after end_dim ",
                    end_dim);
  if (x.dim() == 0) return reshape_to("flatten", x, {1});
  Shape shape;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i > start && i <= end)
      shape[start] *= x.shape()[i];
    else
      shape.push_back(x.shape()[i]);
  }
  return reshape_to("flatten", x, shape);
}

Tensor permute(const Tensor& x, const Shape& dims) {
  check_defined("permute", "x", x);
  check<ShapeError>(dims.dim() == x.dim(), "permute", x.shape(), " has ", x.dim(), " dimensions, the order ", dims,
                    " names ", dims.dim());
  Shape shape = x.shape(), inverse = x.shape();
  Strides strides = x.strides();
  std::array<bool, Shape::max_dims> used{};
  for (int64_t i = 0; i < dims.dim(); ++i) {
    int64_t from = check_dim("permute", x, dims[i]);
    check<ShapeError>(!used[from], "permute", "the order ", dims, " names dimension ", from, " of ", x.shape(),
                      " twice");
    used[from] = true;
    shape[i] = x.shape()[from];
    strides[i] = x.strides()[from];
    inverse[from] = i;
  }
  return record("permute", make_view(x, shape, strides, x.storage_offset()), inputs(x), saved(),
                [inverse](const Saved&, const Tensor& g) { return Grads{permute(g, inverse)}; });
}

Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1) {
  check_defined("transpose", "x", x);
  dim0 = check_dim("transpose", x, dim0);
  dim1 = check_dim("transpose", x, dim1);
  Shape shape = x.shape();
  Strides strides = x.strides();
  if (x.dim() > 0) {
    std::swap(shape[dim0], shape[dim1]);
    std::swap(strides[dim0], strides[dim1]);
  }
  return record("transpose", make_view(x, shape, strides, x.storage_offset()), inputs(x), saved(),
                [dim0, dim1](const Saved&, const Tensor& g) { return Grads{transpose(g, dim0, dim1)}; });
}

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", "x", x);
  if (x.is_contiguous()) return x;
  Tensor y = empty(x.shape(), {x.dtype(), x.device()});
  kernels(x).copy(y, x);
  return record("contiguous", y, inputs(x), saved(), [](const Saved&, const Tensor& g) { return Grads{g}; });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", "x", x);
  int64_t added = shape.dim() - x.dim();
  check<ShapeError>(added >= 0, "expand", x.shape(), " has more dimensions than ", shape,
                    ": expanding only adds dimensions, at the front");
  Shape target = shape;
  Strides strides = Strides::filled(shape.dim(), 0);
  for (int64_t i = 0; i < shape.dim(); ++i) {
    if (i < added) {
      check<ShapeError>(shape[i] >= 0, "expand", x.shape(), " to ", shape, ": the new dimension ", i,
                        " needs a size, -1 only keeps one that is there");
      continue;
    }
    int64_t size = x.shape()[i - added];
    if (shape[i] == -1) target[i] = size;
    check<ShapeError>(target[i] == size || (size == 1 && target[i] >= 0), "expand", x.shape(), " to ", shape,
                      ": the size of dimension ", i - added, " is ", size, ", only a size of 1 can be expanded");
    if (target[i] == size) strides[i] = x.strides()[i - added];
  }
  // Nothing is allocated that would refuse such a shape, and every loop counts its elements.
  int64_t numel = 1;
  for (int64_t size : target)
    check<ShapeError>(!__builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel), "expand", x.shape(), " to ",
                      target, " has too many elements");
  // The gradient has the expanded shape; the engine sums it down to x's, as for every broadcast.
  return record("expand", make_view(x, target, strides, x.storage_offset()), inputs(x), saved(),
                [](const Saved&, const Tensor& g) { return Grads{g}; });
}

Tensor squeeze(const Tensor& x) {
  check_defined("squeeze", "x", x);
  Shape shape;
  Strides strides;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.shape()[i] == 1) continue;
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  return record_reshaped("squeeze", x, make_view(x, shape, strides, x.storage_offset()));
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  check_defined("squeeze", "x", x);
  dim = check_dim("squeeze", x, dim);
  Shape shape = x.shape();
  Strides strides = x.strides();
  if (x.dim() > 0 && shape[dim] == 1) {
    shape.erase(dim);
    strides.erase(dim);
  }
  return record_reshaped("squeeze", x, make_view(x, shape, strides, x.storage_offset()));
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  check_defined("unsqueeze", "x", x);
  int64_t at = dim < 0 ? dim + x.dim() + 1 : dim;
  check<IndexError>(at >= 0 && at <= x.dim(), "unsqueeze", "dimension ", dim, " is outside [", -x.dim() - 1, ", ",
                    x.dim(), "] for ", x.shape());
  Shape shape = x.shape();
  Strides strides = x.strides();
  strides.insert(at, at < x.dim() ? shape[at] * strides[at] : 1);
  shape.insert(at, 1);
  return record_reshaped("unsqueeze", x, make_view(x, shape, strides, x.storage_offset()));
}

Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
  dim = check_walked_dim("slice", x, dim);
  check<ValueError>(step > 0, "slice", "a step of ", step, ": steps are 1 or more; flip() reverses a dimension");
  int64_t size = x.shape()[dim];
  auto bound = [size](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  start = bound(start);
  stop = bound(stop);
  int64_t length = stop > start ? (stop - start - 1) / step + 1 : 0;
  return take("slice", x, {dim, start, length, step});
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  dim = check_walked_dim("narrow", x, dim);
  int64_t size = x.shape()[dim];
  check<IndexError>(start >= -size && start <= size, "narrow", "start ", start, " is outside [", -size, ", ", size,
                    "] of dimension ", dim, " of ", x.shape());
  int64_t from = start < 0 ? start + size : start;
  check<IndexError>(length >= 0 && length <= size - from, "narrow", "length ", length, " is outside [0, ", size - from,
                    "] from position ", from, " of dimension ", dim, " of ", x.shape());
  return take("narrow", x, {dim, from, length, 1});
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  dim = check_walked_dim("select", x, dim);
  int64_t size = x.shape()[dim];
  check<IndexError>(index >= -size && index < size, "select", "index ", index, " is outside [", -size, ", ", size,
                    ") of dimension ", dim, " of ", x.shape());
  Places place{dim, index < 0 ? index + size : index, 1, 1};
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  int64_t offset = x.storage_offset() + place.start * x.strides()[dim];
  return record("select", make_view(x, shape, strides, offset), inputs(x), saved(),
                [whole = x.shape(), place](const Saved&, const Tensor& g) {
                  return Grads{slice_backward(unsqueeze(g, place.dim), whole, place)};
                });
}

}  // namespace regard
