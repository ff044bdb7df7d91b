// Softmax and its logarithm.
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/softmax_rows.hpp>

namespace regard {

namespace {

// dx = y (g - sum(g y)), one pass over memory, and 0 where y is 0, whatever g; its own gradient is composed.
Tensor softmax_grad(const Tensor& y, const Tensor& g, int64_t dim) {
  Tensor dx = empty_like(y);
  kernels(y).softmax_grad(dx, y, g, dim);
  return record("softmax_grad", dx, inputs(y, g), saved(y, g), [dim](const Saved& s, const Tensor& h) {
    const Tensor y = s[0], g = where(y == 0.0, 0.0, s[1]);
    Grads grads(2);
    if (s.needs(0)) grads[0] = h * (g - sum(g * y, dim, true)) - g * sum(h * y, dim, true);
    if (s.needs(1)) grads[1] = softmax_grad(y, h, dim);  // the Jacobian is symmetric
    return grads;
  });
}

// dx = g - exp(y) sum(g), where y is the log-softmax.
Tensor log_softmax_grad(const Tensor& y, const Tensor& g, int64_t dim) {
  Tensor dx = empty_like(y);
  kernels(y).log_softmax_grad(dx, y, g, dim);
  return record("log_softmax_grad", dx, inputs(y, g), saved(y, g), [dim](const Saved& s, const Tensor& h) {
    const Tensor y = s[0], g = s[1];
    const Tensor shares = h * exp(y);
    Grads grads(2);
    if (s.needs(0)) grads[0] = -(shares * sum(g, dim, true));
    if (s.needs(1)) grads[1] = h - sum(shares, dim, true);
    return grads;
  });
}

Tensor softmax_op(const char* name, const Tensor& x, int64_t dim, bool empty_rows_zero) {
  check_floating(name, "x", x);
  dim = check_dim(name, x, dim);
  Tensor y = empty(x.shape(), {x.dtype(), x.device()});
  kernels(x).softmax(y, x, dim, empty_rows_zero);
  return record(name, y, inputs(x), saved(y),
                [dim](const Saved& s, const Tensor& g) { return Grads{softmax_grad(s[0], g, dim)}; });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) {
  if (autocast::widens("softmax", x)) [[unlikely]]
    return softmax(autocast::wide(x), dim);
  return softmax_op("softmax", x, dim, false);
}
Tensor softmax_or_zeros(const Tensor& scores, int64_t dim) { return softmax_op("softmax_or_zeros", scores, dim, true); }

Tensor log_softmax(const Tensor& x, int64_t dim) {
  if (autocast::widens("log_softmax", x)) [[unlikely]]
    return log_softmax(autocast::wide(x), dim);
  check_floating("log_softmax", "x", x);
  dim = check_dim("log_softmax", x, dim);
  Tensor y = empty(x.shape(), {x.dtype(), x.device()});
  kernels(x).log_softmax(y, x, dim);
  return record("log_softmax", y, inputs(x), saved(y),
                [dim](const Saved& s, const Tensor& g) { return Grads{log_softmax_grad(s[0], g, dim)}; });
}

}  // namespace regard
