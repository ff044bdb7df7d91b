// Largest and smallest elements, and where they are.
#include <utility>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/reduce_common.hpp>

namespace regard {

namespace {

struct Found {
  Tensor values, indices;  // with the searched dimension at size 1
  Shape kept, result;
  int64_t dim = 0;
};

// Searches along one dimension.
Found search(const char* op, bool maximum, const Tensor& x, int64_t dim, Flag keepdim, bool want_values) {
  reduction::check_countable(op, x);
  Found found;
  found.dim = check_dim(op, x, dim);
  const reduction::Shapes shapes = reduction::shapes(op, x, {found.dim}, keepdim);
  check<ValueError>(shapes.count > 0, op, "dimension ", found.dim, " of ", x.shape(),
                    " is empty: it has no largest or smallest element");
  found.kept = shapes.kept;
  found.result = shapes.result;
  found.indices = empty(shapes.kept, {DType::i64, x.device()});
  if (want_values) found.values = empty(shapes.kept, {x.dtype(), x.device()});
  if (found.indices.numel() > 0) kernels(x).extreme(maximum, found.values, found.indices, x, found.dim);
  return found;
}

Found search_all(const char* op, bool maximum, const Tensor& x, bool want_values) {
  reduction::check_countable(op, x);
  check<ValueError>(x.numel() > 0, op, x.shape(), " is empty: it has no largest or smallest element");
  const Tensor flat = reshape(x.detach(), {x.numel()});  // positions alone: what is recorded is up to the caller
  return search(op, maximum, flat, 0, false, want_values);
}

Tensor extreme_of_all(const char* name, bool maximum, const Tensor& x) {
  const Found found = search_all(name, maximum, x, true);
  return record(name, reduction::with_shape(found.values, {}), inputs(x), saved(found.indices),
                [shape = x.shape()](const Saved& s, const Tensor& g) {
                  const Tensor flat = zeros({shape.numel()}, {g.dtype(), g.device()});
                  return Grads{reshape(scatter_add(flat, 0, s[0], reshape(g, {1})), shape)};
                });
}

std::pair<Tensor, Tensor> extreme_along(const char* name, bool maximum, const Tensor& x, int64_t dim, Flag keepdim) {
  const Found found = search(name, maximum, x, dim, keepdim, true);
  Tensor values = record(name, reduction::with_shape(found.values, found.result), inputs(x), saved(found.indices),
                         [shape = x.shape(), kept = found.kept, dim = found.dim](const Saved& s, const Tensor& g) {
                           if (shape.dim() == 0) return Grads{g};
                           const Tensor zero = zeros(shape, {g.dtype(), g.device()});
                           return Grads{scatter_add(zero, dim, s[0], reshape(g, kept))};
                         });
  return {values, no_derivative(reduction::with_shape(found.indices, found.result))};
}

// Over several dimensions at once: equal extremes share the gradient evenly.
Tensor extreme_over(const char* name, bool maximum, const Tensor& x, const Dims& dims, Flag keepdim) {
  reduction::check_countable(name, x);
  const reduction::Shapes shapes = reduction::shapes(name, x, dims.list(), keepdim);
  check<ValueError>(shapes.count > 0, name, "the dimensions to reduce of ", x.shape(),
                    " are empty: they have no largest or smallest element");
  const Tensor y = empty(shapes.kept, {x.dtype(), x.device()});
  kernels(x).reduce(maximum ? ReduceOp::max : ReduceOp::min, y, x);
  Tensor result = reduction::with_shape(y, shapes.result);
  return record(name, result, inputs(x), saved(x, result), [kept = shapes.kept](const Saved& s, const Tensor& g) {
    const Tensor x = s[0];
    const Tensor hit = x.detach() == reshape(s[1].detach(), kept);
    const Tensor share = to(hit, g.dtype());
    return Grads{reshape(g, kept) * (share / sum_to(share, kept))};
  });
}

}  // namespace

Tensor amax(const Tensor& x, Dims dims, Flag keepdim) { return extreme_over("amax", true, x, dims, keepdim); }
Tensor amin(const Tensor& x, Dims dims, Flag keepdim) { return extreme_over("amin", false, x, dims, keepdim); }
Tensor max(const Tensor& x) { return extreme_of_all("max", true, x); }
Tensor min(const Tensor& x) { return extreme_of_all("min", false, x); }
std::pair<Tensor, Tensor> max(const Tensor& x, int64_t dim, Flag keepdim) {
  return extreme_along("max", true, x, dim, keepdim);
}
std::pair<Tensor, Tensor> min(const Tensor& x, int64_t dim, Flag keepdim) {
  return extreme_along("min", false, x, dim, keepdim);
}

Tensor argmax(const Tensor& x) {
  return no_derivative(reduction::with_shape(search_all("argmax", true, x, false).indices, {}));
}
Tensor argmin(const Tensor& x) {
  return no_derivative(reduction::with_shape(search_all("argmin", false, x, false).indices, {}));
}
Tensor argmax(const Tensor& x, int64_t dim, Flag keepdim) {
  const Found found = search("argmax", true, x, dim, keepdim, false);
  return no_derivative(reduction::with_shape(found.indices, found.result));
}
Tensor argmin(const Tensor& x, int64_t dim, Flag keepdim) {
  const Found found = search("argmin", false, x, dim, keepdim, false);
  return no_derivative(reduction::with_shape(found.indices, found.result));
}

}  // namespace regard
