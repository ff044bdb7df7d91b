// The feed-forward network of a transformer: two products, and what stands between them done while it is in the cache.
#include <array>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/activation_grad.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/linear_common.hpp>

namespace regard {

namespace {

// c [m, n] = a b with an epilogue; a [m, k] and b [k, n] have any strides, c is dense.
void multiply(const Tensor& c, const Tensor& a, const Tensor& b, const GemmEpilogue& epilogue) {
  kernels(c).gemm_epilogue(c.dtype(), a.size(0), b.size(1), a.size(1), a.raw_data(), a.strides()[0], a.strides()[1],
                           b.raw_data(), b.strides()[0], b.strides()[1], c.raw_data(), epilogue);
}

Tensor transposed(const Tensor& weight) {
  return make_view(weight, {weight.size(1), weight.size(0)}, {weight.strides()[1], weight.strides()[0]},
                   weight.storage_offset());
}

GemmEpilogue with_bias(const Tensor& bias) {
  return bias.defined() ? GemmEpilogue{.bias = bias.raw_data(), .bias_stride = bias.strides()[0]} : GemmEpilogue{};
}

// The gradient of what comes before the activation, and what comes after it.
struct Middle {
  Tensor gradient, activated;
};

// g [rows, out], h [rows, hidden] before the activation, down [out, hidden].
Middle middle(Activation activation, const Tensor& g, const Tensor& h, const Tensor& down, bool want_activated) {
  if (grad_enabled()) {
    return {activation_grad(activation, h, matmul(g, down)), want_activated ? activate(h, activation) : Tensor()};
  }
  Middle result{empty_like(h), want_activated ? empty_like(h) : Tensor()};
  GemmEpilogue epilogue{.activation_grad = activation_grad_kernel(activation), .x = h.raw_data()};
  if (want_activated) {
    epilogue.activation_again = activation_kernel(activation);
    epilogue.activated = result.activated.raw_data();
  }
  multiply(result.gradient, g, down, epilogue);
  return result;
}

}  // namespace

Tensor feed_forward(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                    const Tensor& down_bias, Activation activation, const Tensor& residual) {
  using autocast::narrow;
  if (autocast::narrows("feed_forward", x, up, up_bias, down, down_bias)) [[unlikely]]
    return feed_forward(narrow(x), narrow(up), narrow(up_bias), narrow(down), narrow(down_bias), activation, residual);
  if (autocast::mixes("add", residual, x)) [[unlikely]]  // what is added to keeps its digits
    return add(residual, feed_forward(x, up, up_bias, down, down_bias, activation));
  check_linear("feed_forward", x, "up", up, "up_bias", up_bias);
  check_defined("feed_forward", "down", down);
  check<ShapeError>(down.dim() == 2 && down.size(1) == up.size(0), "feed_forward", "up ", up.shape(), " and down ",
                    down.shape(), ": down should be [out, ", up.size(0), "]");
  Shape shape = x.shape();
  shape[shape.dim() - 1] = up.size(0);
  Tensor h = empty(shape, TensorOptions(x.dtype(), x.device()));  // [..., hidden]
  check_linear("feed_forward", h, "down", down, "down_bias", down_bias);
  shape[shape.dim() - 1] = down.size(0);
  if (residual.defined()) {
    check<DTypeError>(residual.dtype() == x.dtype(), "feed_forward", "residual is ", residual.dtype(), " and input is ",
                      x.dtype(), "; convert one with to(DType::", x.dtype(), ")");
    check_same_device("feed_forward", residual, x);
    check<ShapeError>(residual.shape() == shape, "feed_forward", "residual ", residual.shape(), " should be ", shape);
  }
  const auto sources = inputs(x, up, up_bias, down, down_bias, residual);
  const bool recorded = needs_record(sources);
  Tensor y = empty(shape, TensorOptions(x.dtype(), x.device()));
  if (y.numel() > 0 || h.numel() > 0) {
    const NoGrad no_grad;
    const Tensor rows = as_rows(x), activated = recorded ? empty_like(h) : h;
    GemmEpilogue first = with_bias(up_bias), second = with_bias(down_bias);
    if (recorded) first.before = h.raw_data();
    first.activation = activation_kernel(activation);
    multiply(activated, rows, transposed(up), first);
    const Tensor added = residual.defined() ? contiguous(residual) : Tensor();
    if (added.defined()) second.residual = added.raw_data();
    multiply(y, as_rows(activated), transposed(down), second);
  }
  if (!recorded) return y;
  // h is an output too: its own gradient, in second derivatives, comes back here.
  record_outputs("feed_forward", std::array{&y, &h}, sources, saved(x, up, down, h),
                 [activation](const Saved& s, std::span<const Tensor> g) {
                   Grads grads(6);
                   const Tensor up = s[1], h = as_rows(s[3]);
                   Tensor dh = g[1].defined() ? as_rows(g[1]) : Tensor();
                   if (g[0].defined()) {
                     const Tensor dy = as_rows(g[0]);  // [rows, out]
                     const Middle m = middle(activation, dy, h, s[2], s.needs(3));
                     dh = dh.defined() ? dh + m.gradient : m.gradient;
                     if (s.needs(3)) grads[3] = matmul(transpose(dy, 0, 1), m.activated);
                     if (s.needs(4)) grads[4] = sum_to(dy, {dy.size(1)});
                     if (s.needs(5)) grads[5] = g[0];
                   }
                   if (!dh.defined()) return grads;
                   const Tensor x = s[0];
                   if (s.needs(0)) grads[0] = reshape(matmul(dh, up), x.shape());
                   if (s.needs(1)) grads[1] = matmul(transpose(dh, 0, 1), as_rows(x));
                   if (s.needs(2)) grads[2] = sum_to(dh, {dh.size(1)});
                   return grads;
                 });
  return y;
}

}  // namespace regard
