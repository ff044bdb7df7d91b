// Reading at indices, and adding at them: each is the other's gradient. An index is checked before anything is read; on
// a GPU, that is told of later, and meanwhile kernels hold it inside.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <regard/autograd/backend/entry_check.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

/// A single number as a vector of one: what kernels walk along.
Tensor as_vector(const Tensor& x) { return x.dim() > 0 ? x : make_view(x, {1}, {1}, x.storage_offset()); }

/// An IndexError that names the first entry outside [0, size), if there is one. `what` is a word for an entry,
/// `of` says what has that size. A GPU is not waited for, unless no index at all could be right.
template <class... Of>
void check_indices(const char* op, const char* what, const Tensor& index, int64_t size, const Of&... of) {
  if (index.numel() == 0) return;
  if (index.device() != cpu() && size > 0) {
    std::ostringstream after;
    after << " is outside [0, " << size << ")";
    (after << ... << of);
    return check_entries_later(
        index, {.low = 0, .high = size - 1, .before = std::string(op) + ": " + what + " ", .after = after.str()});
  }
  int64_t smallest = 0, largest = 0;
  kernels(index).index_range(index, &smallest, &largest);
  if (smallest >= 0 && largest < size) return;
  std::vector<int64_t> entries = index.to_vector<int64_t>();
  int64_t at = 0;
  while (entries[static_cast<size_t>(at)] >= 0 && entries[static_cast<size_t>(at)] < size) ++at;
  fail<IndexError>(op, what, " ", entries[static_cast<size_t>(at)], " at position ", position_of(at, index.shape()),
                   " is outside [0, ", size, ")", of...);
}

/// Whether a gradient looks at the index of its op again. On a GPU, the op's own check stands.
bool is_unchecked(const Tensor& index) { return index.device() == cpu(); }

/// Sums at indices are taken in f32, f64 and i64.
void check_summable(const char* op, const Tensor& x) {
  check<DTypeError>(computes(x.dtype(), x.device()) || x.dtype() == DType::i64, op, "adds f32, f64 and i64, not ",
                    x.dtype(), ": convert with to()");
}

/// What scatter_add and index_add want of their operands, but for shapes.
void check_added(const char* op, const Tensor& x, const Tensor& index, const Tensor& source) {
  check_defined(op, "x", x);
  check_integer(op, "index", index);
  check_defined(op, "source", source);
  check_same_device(op, x, index);
  check_same_device(op, x, source);
  check_summable(op, x);
  check<DTypeError>(x.dtype() == source.dtype(), op, "x is ", x.dtype(), ", source ", source.dtype(),
                    ": bring them to one dtype with to()");
}

Tensor copy_of(const Tensor& x) {
  Tensor y = empty_like(x);
  kernels(x).copy(y, x);
  return y;
}

/// The rules of gather and scatter_add: as many dimensions as x (which has `shape`), none larger but dim. Returns dim
/// counted from the front.
int64_t check_gathered(const char* op, const Shape& shape, int64_t dim, const Tensor& index) {
  dim = check_dim(op, shape, dim);
  check<ShapeError>(std::max<int64_t>(index.dim(), 1) == std::max<int64_t>(shape.dim(), 1), op, "index ", index.shape(),
                    " and x ", shape, " must have equally many dimensions; index_select() takes a list of positions");
  for (int64_t d = 0; d < std::min(shape.dim(), index.dim()); ++d)
    check<ShapeError>(d == dim || index.shape()[d] <= shape[d], op, "index ", index.shape(), " is larger than x ",
                      shape, " in dimension ", d, ": only dimension ", dim, " may be larger");
  int64_t size = shape.dim() > 0 ? shape[dim] : 1;
  check_indices(op, "index", index, size, " of dimension ", dim, " of ", shape);
  return dim;
}

/// Zeros of `shape` with g added at the index: gather backwards.
Tensor gather_backward(const Tensor& g, const Shape& shape, int64_t dim, const Tensor& index) {
  check_summable("gather_backward", g);
  if (is_unchecked(index)) check_gathered("gather_backward", shape, dim, index);
  Tensor y = zeros(shape, {g.dtype(), g.device()});
  kernels(g).scatter_add(as_vector(y), dim, as_vector(index), as_vector(g));
  return record("gather_backward", y, inputs(g), saved(index),
                [dim](const Saved& s, const Tensor& gg) { return Grads{gather(gg, dim, s[0])}; });
}

/// The rules of index_select and index_add. Returns dim counted from the front.
int64_t check_listed(const char* op, const Shape& shape, int64_t dim, const Tensor& index) {
  dim = check_dim(op, shape, dim);
  check<ShapeError>(index.dim() <= 1, op, "index ", index.shape(), " must be a list of positions, [n]");
  check<ShapeError>(shape.dim() > 0 || index.numel() == 1, op, "index ", index.shape(),
                    " must have one entry for a number of no dimensions");
  check_indices(op, "index", index, shape.dim() > 0 ? shape[dim] : 1, " of dimension ", dim, " of ", shape);
  return dim;
}

/// Zeros of `shape` with g added along dim at the index: index_select backwards.
Tensor index_select_backward(const Tensor& g, const Shape& shape, int64_t dim, const Tensor& index) {
  check_summable("index_select_backward", g);
  if (is_unchecked(index)) check_listed("index_select_backward", shape, dim, index);
  Tensor y = zeros(shape, {g.dtype(), g.device()});
  kernels(g).index_add(as_vector(y), dim, as_vector(index), as_vector(g));
  return record("index_select_backward", y, inputs(g), saved(index),
                [dim](const Saved& s, const Tensor& gg) { return Grads{index_select(gg, dim, s[0])}; });
}

void check_ids(const char* op, const Tensor& ids, int64_t rows) {
  check_indices(op, "id", ids, rows, ": weight has ", rows, " rows");
}

/// Adds what embedding_backward() gives to `sum` [rows, width], on the CPU, with the bits of their sum: of a large
/// table few rows get anything.
void add_embedding_backward(const Tensor& sum, const Tensor& g, const Tensor& ids, int64_t padding_idx) {
  const std::vector<int64_t> every = ids.to_vector<int64_t>();
  std::vector<int64_t> used = every;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  std::vector<int64_t> places;
  places.reserve(every.size());
  for (int64_t id : every) places.push_back(std::lower_bound(used.begin(), used.end(), id) - used.begin());
  const auto count = static_cast<int64_t>(used.size());
  Tensor rows = zeros({count, g.shape()[1]}, {g.dtype(), g.device()});
  kernels(g).index_add(rows, 0, from_vector(places, {static_cast<int64_t>(places.size())}), g);
  const auto padding = std::lower_bound(used.begin(), used.end(), padding_idx);
  if (padding != used.end() && *padding == padding_idx)
    kernels(g).fill(make_view(rows, {g.shape()[1]}, {1}, (padding - used.begin()) * g.shape()[1]), 0);
  kernels(g).index_add(sum, 0, from_vector(used, {count}), rows);
}

/// Zeros [rows, width] with each row of g [n, width] added at its id [n], but for ids equal to padding_idx.
Tensor embedding_backward(const Tensor& g, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  check_summable("embedding_backward", g);
  if (is_unchecked(ids)) check_ids("embedding_backward", ids, rows);
  Tensor y = zeros({rows, g.shape()[1]}, {g.dtype(), g.device()});
  kernels(g).index_add(y, 0, ids, g);
  if (padding_idx >= 0)
    kernels(g).fill(make_view(y, {y.shape()[1]}, {y.strides()[1]}, padding_idx * y.strides()[0]), 0);
  return record("embedding_backward", y, inputs(g), saved(ids), [padding_idx](const Saved& s, const Tensor& gg) {
    Tensor rows_of = embedding(s[0], gg);  // [n, width]
    return Grads{padding_idx < 0 ? rows_of : masked_fill(rows_of, unsqueeze(s[0] == padding_idx, 1), 0)};
  });
}

}  // namespace

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("gather", "x", x);
  check_integer("gather", "index", index);
  check_same_device("gather", x, index);
  dim = check_gathered("gather", x.shape(), dim, index);
  Tensor y = empty(index.shape(), {x.dtype(), x.device()});
  kernels(x).gather(as_vector(y), as_vector(x), dim, as_vector(index));
  return record("gather", y, inputs(x), saved(index), [shape = x.shape(), dim](const Saved& s, const Tensor& g) {
    return Grads{gather_backward(g, shape, dim, s[0])};
  });
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  if (autocast::mixes("scatter_add", x, source)) [[unlikely]]
    return scatter_add(autocast::wide(x), dim, index, autocast::wide(source));
  check_added("scatter_add", x, index, source);
  check<ShapeError>(std::max<int64_t>(index.dim(), 1) == std::max<int64_t>(source.dim(), 1), "scatter_add", "index ",
                    index.shape(), " and source ", source.shape(), " must have equally many dimensions");
  const Shape covered = as_vector(index).shape(), given = as_vector(source).shape();
  for (int64_t d = 0; d < covered.dim(); ++d)
    check<ShapeError>(covered[d] <= given[d], "scatter_add", "index ", index.shape(), " is larger than source ",
                      source.shape(), " in dimension ", d);
  dim = check_gathered("scatter_add", x.shape(), dim, index);

  Tensor used = source.dim() > 0 ? source : reshape(source, {1});  // as much of it as the index covers
  for (int64_t d = 0; d < covered.dim(); ++d)
    if (covered[d] < given[d]) used = narrow(used, d, 0, covered[d]);
  if (used.shape() != index.shape()) used = reshape(used, index.shape());
  Tensor y = copy_of(x);
  kernels(x).scatter_add(as_vector(y), dim, as_vector(index), as_vector(used));
  return record("scatter_add", y, inputs(x, used), saved(index), [dim](const Saved& s, const Tensor& g) {
    return Grads{s.needs(0) ? g : Tensor(), s.needs(1) ? gather(g, dim, s[0]) : Tensor()};
  });
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("index_select", "x", x);
  check_integer("index_select", "index", index);
  check_same_device("index_select", x, index);
  dim = check_listed("index_select", x.shape(), dim, index);
  Shape shape = x.shape();
  if (x.dim() > 0) shape[dim] = index.numel();
  Tensor y = empty(shape, {x.dtype(), x.device()});
  kernels(x).index_select(as_vector(y), as_vector(x), dim, as_vector(index));
  return record("index_select", y, inputs(x), saved(index), [whole = x.shape(), dim](const Saved& s, const Tensor& g) {
    return Grads{index_select_backward(g, whole, dim, s[0])};
  });
}

Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  if (autocast::mixes("index_add", x, source)) [[unlikely]]
    return index_add(autocast::wide(x), dim, index, autocast::wide(source));
  check_added("index_add", x, index, source);
  dim = check_listed("index_add", x.shape(), dim, index);
  Shape needed = x.shape();
  if (x.dim() > 0) needed[dim] = index.numel();
  check<ShapeError>(source.shape() == needed, "index_add", "source ", source.shape(), " must be ", needed,
                    ": x's shape with one entry a position of the index in dimension ", dim);
  Tensor y = copy_of(x);
  kernels(x).index_add(as_vector(y), dim, as_vector(index), as_vector(source));
  return record("index_add", y, inputs(x, source), saved(index), [dim](const Saved& s, const Tensor& g) {
    return Grads{s.needs(0) ? g : Tensor(), s.needs(1) ? index_select(g, dim, s[0]) : Tensor()};
  });
}

Tensor embedding(const Tensor& ids, const Tensor& weight, int64_t padding_idx) {
  check_integer("embedding", "ids", ids);
  check_defined("embedding", "weight", weight);
  check_same_device("embedding", ids, weight);
  check<ShapeError>(weight.dim() == 2, "embedding", "weight ", weight.shape(), " must be [count, width]");
  int64_t rows = weight.shape()[0], width = weight.shape()[1];
  check<ValueError>(padding_idx >= -1 && padding_idx < rows, "embedding", "padding_idx ", padding_idx,
                    " is outside [0, ", rows, "); -1 is for none");
  check_ids("embedding", ids, rows);
  Shape shape = ids.shape();
  shape.push_back(width);
  Tensor y = empty(shape, {weight.dtype(), weight.device()});  // [..., width]
  Tensor list = reshape(ids, {ids.numel()});                   // [n]
  kernels(weight).index_select(make_view(y, {list.numel(), width}, {width, 1}, 0), weight, 0, list);
  return record("embedding", y, inputs(weight), saved(list),
                [rows, width, padding_idx](const Saved& s, const Tensor& g) {
                  Tensor list_of = s[0];
                  // A tied table has a gradient already: no second one of its size. On a GPU, to read the ids back
                  // would take longer.
                  if (Tensor* sum = s.sum(0); sum != nullptr && list_of.numel() < rows && list_of.device() == cpu()) {
                    check_summable("embedding_backward", g);
                    check_ids("embedding_backward", list_of, rows);
                    add_embedding_backward(*sum, reshape(g, {list_of.numel(), width}), list_of, padding_idx);
                    return Grads(1);
                  }
                  return Grads{embedding_backward(reshape(g, {list_of.numel(), width}), list_of, rows, padding_idx)};
                });
}

Tensor one_hot(const Tensor& ids, int64_t classes) {
  check_integer("one_hot", "ids", ids);
  check<ValueError>(classes > 0 || classes == -1, "one_hot", classes,
                    " classes: at least 1, or -1 for the largest id + 1");
  if (classes == -1) {
    check<ValueError>(ids.numel() > 0, "one_hot", "ids ", ids.shape(),
                      " is empty, so its largest id is unknown: give the number of classes");
    int64_t smallest = 0;
    kernels(ids).index_range(ids, &smallest, &classes);
    check<IndexError>(classes < INT64_MAX, "one_hot", "the id ", classes, " is too large");
    classes = std::max<int64_t>(classes + 1, 1);
  }
  check_indices("one_hot", "id", ids, classes, ": there are ", classes, " classes");
  Shape shape = ids.shape();
  shape.push_back(classes);
  Tensor y = zeros(shape, {DType::i64, ids.device()});  // [..., classes]
  Shape column = ids.shape();
  column.push_back(1);
  Strides strides = ids.strides();
  strides.push_back(0);
  Tensor one = ones({1}, {DType::i64, ids.device()});
  kernels(ids).scatter_add(y, ids.dim(), make_view(ids, column, strides, ids.storage_offset()),
                           make_view(one, column, Strides::filled(column.dim(), 0), 0));
  return no_derivative(y);
}

}  // namespace regard
