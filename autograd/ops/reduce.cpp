// Sums and means over dimensions, and what is made of them: variance, norm, log-sum-exp, any, all.
#include <cmath>
#include <limits>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/reduce_common.hpp>

namespace regard {

using reduction::check_countable;
using reduction::Shapes;
using reduction::with_shape;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor reduced(ReduceOp op, const Tensor& x, const Shapes& shapes, DType dtype) {
  Tensor y = empty(shapes.kept, {dtype, x.device()});
  kernels(x).reduce(op, y, x);
  return with_shape(y, shapes.result);
}

Tensor sum_over(const Tensor& x, const Shape& dims, Flag keepdim) {
  if (autocast::widens("sum", x)) [[unlikely]]
    return sum_over(autocast::wide(x), dims, keepdim);
  check_countable("sum", x);
  const Shapes shapes = reduction::shapes("sum", x, dims, keepdim);
  Tensor y = reduced(ReduceOp::sum, x, shapes, is_floating(x.dtype()) ? x.dtype() : DType::i64);
  return record("sum", y, inputs(x), saved(), [kept = shapes.kept, shape = x.shape()](const Saved&, const Tensor& g) {
    return Grads{expand(reshape(g, kept), shape)};
  });
}

Tensor mean_over(const Tensor& x, const Shape& dims, Flag keepdim) {
  if (autocast::widens("mean", x)) [[unlikely]]
    return mean_over(autocast::wide(x), dims, keepdim);
  check_floating("mean", "x", x);
  const Shapes shapes = reduction::shapes("mean", x, dims, keepdim);
  Tensor y = reduced(ReduceOp::mean, x, shapes, x.dtype());
  return record("mean", y, inputs(x), saved(),
                [kept = shapes.kept, shape = x.shape(), count = shapes.count](const Saved&, const Tensor& g) {
                  return Grads{expand(reshape(div(g, static_cast<double>(count)), kept), shape)};
                });
}

Tensor truth_over(const char* name, ReduceOp op, const Tensor& x, const Shape& dims, Flag keepdim) {
  check_countable(name, x);
  return no_derivative(reduced(op, x, reduction::shapes(name, x, dims, keepdim), DType::boolean));
}

}  // namespace

Tensor sum(const Tensor& x) { return sum_over(x, {}, false); }
Tensor sum(const Tensor& x, Dims dims, Flag keepdim) { return sum_over(x, dims.list(), keepdim); }
Tensor mean(const Tensor& x) { return mean_over(x, {}, false); }
Tensor mean(const Tensor& x, Dims dims, Flag keepdim) { return mean_over(x, dims.list(), keepdim); }
Tensor any(const Tensor& x) { return truth_over("any", ReduceOp::any, x, {}, false); }
Tensor any(const Tensor& x, Dims dims, Flag keepdim) {
  return truth_over("any", ReduceOp::any, x, dims.list(), keepdim);
}
Tensor all(const Tensor& x) { return truth_over("all", ReduceOp::all, x, {}, false); }
Tensor all(const Tensor& x, Dims dims, Flag keepdim) {
  return truth_over("all", ReduceOp::all, x, dims.list(), keepdim);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", "x", x);
  if (x.shape() == shape) return x;
  // A 16-bit gradient of something expanded, where 16 bits only store: the sum is taken in f32.
  if (is_floating(x.dtype()) && !computes(x.dtype(), x.device()))
    return to(sum_to(to(x, DType::f32), shape), x.dtype());
  check_countable("sum_to", x);
  check<ShapeError>(broadcastable_to(shape, x.shape()), "sum_to", x.shape(), " cannot be summed to ", shape,
                    ": the wanted sizes must be 1 or those of x, aligned at the last dimension");
  Shapes shapes;
  const int64_t extra = x.dim() - shape.dim();
  for (int64_t d = 0; d < x.dim(); ++d) shapes.kept.push_back(d < extra ? 1 : shape[d - extra]);
  shapes.result = shape;
  Tensor y = reduced(ReduceOp::sum, x, shapes, is_floating(x.dtype()) ? x.dtype() : DType::i64);
  return record("sum_to", y, inputs(x), saved(),
                [from = x.shape()](const Saved&, const Tensor& g) { return Grads{expand(g, from)}; });
}

Tensor var(const Tensor& x) { return var(x, {}); }
Tensor var(const Tensor& x, Dims dims, Flag unbiased, Flag keepdim) {
  if (autocast::widens("var", x)) [[unlikely]]
    return var(autocast::wide(x), dims, unbiased, keepdim);
  check_floating("var", "x", x);
  const Shapes shapes = reduction::shapes("var", x, dims.list(), keepdim);
  const int64_t correction = unbiased ? 1 : 0;
  Tensor y = empty(shapes.kept, {x.dtype(), x.device()});
  kernels(x).variance(y, {}, x, correction);
  const auto divisor = static_cast<double>(std::max<int64_t>(0, shapes.count - correction));
  return record("var", with_shape(y, shapes.result), inputs(x), saved(x),
                [kept = shapes.kept, dims = dims.list(), divisor](const Saved& s, const Tensor& g) {
                  const Tensor x = s[0];
                  return Grads{(x - mean(x, Dims(dims), true)) * reshape(g * (2 / divisor), kept)};
                });
}

Tensor logsumexp(const Tensor& x, Dims dims, Flag keepdim) {
  if (autocast::widens("logsumexp", x)) [[unlikely]]
    return logsumexp(autocast::wide(x), dims, keepdim);
  check_floating("logsumexp", "x", x);
  const Shapes shapes = reduction::shapes("logsumexp", x, dims.list(), keepdim);
  Tensor y = empty(shapes.kept, {x.dtype(), x.device()});
  kernels(x).logsumexp(y, x);
  y = with_shape(y, shapes.result);
  return record("logsumexp", y, inputs(x), saved(x, y), [kept = shapes.kept](const Saved& s, const Tensor& g) {
    // Where everything was -inf, 0 stands for the result: exp(-inf - 0) is the wanted gradient, 0.
    const Tensor total = where(s[1] == -infinity, 0.0, s[1]);
    return Grads{exp(s[0] - reshape(total, kept)) * reshape(g, kept)};
  });
}

Tensor norm(const Tensor& x) {
  if (autocast::widens("norm", x)) [[unlikely]]
    return norm(autocast::wide(x));
  check_floating("norm", "x", x);
  // In f64 throughout: squares of f32 leave its range long before their root does.
  Tensor squares = empty(Shape::filled(x.dim(), 1), {DType::f64, x.device()});
  kernels(x).reduce(ReduceOp::sum_of_squares, squares, x);
  squares = with_shape(squares, {});
  Tensor root = empty({}, {DType::f64, x.device()});
  kernels(x).unary(UnaryOp::sqrt, root, squares);
  Tensor y = root;
  if (x.dtype() != DType::f64) {
    y = empty({}, {x.dtype(), x.device()});
    kernels(x).copy(y, root);
  }
  return record("norm", y, inputs(x), saved(x, y), [](const Saved& s, const Tensor& g) {
    const Tensor zero = s[1] == 0.0;
    return Grads{s[0] * where(zero, 0.0, g / where(zero, 1.0, s[1]))};
  });
}

}  // namespace regard
