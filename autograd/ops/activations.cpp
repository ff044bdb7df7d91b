// Activations. Each gradient is one fused kernel, itself an op; its own gradient is composed of ops.
#include <cmath>
#include <numbers>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/activation_grad.hpp>
#include <regard/autograd/ops/promote.hpp>
#include <regard/autograd/ops/unary_values.hpp>

namespace regard {

namespace {

// g times the activation's derivative, from its input or output x. Written over g where nobody else holds it: no caller
// reads g after this.
Tensor compute_grad(BinaryOp op, const Tensor& x, const Tensor& g) {
  Tensor dx = reuse(g, x);
  kernels(x).binary(op, dx, x, g);
  return dx;
}

// y is tanh's output: g (1 - y^2)
Tensor tanh_grad(const Tensor& y, const Tensor& g) {
  return record(
      "tanh_grad", compute_grad(BinaryOp::tanh_grad_y, y, g), inputs(y, g), saved(y, g),
      [](const Saved& s, const Tensor& gg) {
        const Tensor y = s[0];
        return Grads{s.needs(0) ? mul(mul(gg, s[1]), mul(y, -2)) : Tensor(), s.needs(1) ? tanh_grad(y, gg) : Tensor()};
      });
}

// y is sigmoid's output: g y (1 - y)
Tensor sigmoid_grad(const Tensor& y, const Tensor& g) {
  return record("sigmoid_grad", compute_grad(BinaryOp::sigmoid_grad_y, y, g), inputs(y, g), saved(y, g),
                [](const Saved& s, const Tensor& gg) {
                  const Tensor y = s[0];
                  return Grads{s.needs(0) ? mul(mul(gg, s[1]), sub(1, mul(y, 2))) : Tensor(),
                               s.needs(1) ? sigmoid_grad(y, gg) : Tensor()};
                });
}

// y is relu's output: g where y > 0. Piecewise constant in y.
Tensor relu_grad(const Tensor& y, const Tensor& g) {
  return record("relu_grad", compute_grad(BinaryOp::relu_grad_y, y, g), inputs(y, g), saved(y),
                [](const Saved& s, const Tensor& gg) {
                  return Grads{s.needs(0) ? zero_gradient(gg) : Tensor(), s.needs(1) ? relu_grad(s[0], gg) : Tensor()};
                });
}

// gelu'(x) = Phi(x) + x phi(x), gelu''(x) = (2 - x^2) phi(x)
Tensor gelu_grad(const Tensor& x, const Tensor& g) {
  return record("gelu_grad", compute_grad(BinaryOp::gelu_grad_x, x, g), inputs(x, g), saved(x, g),
                [](const Saved& s, const Tensor& gg) {
                  const Tensor x = s[0];
                  Grads grads(2);
                  if (s.needs(0)) {
                    const Tensor squared = square(x);
                    const Tensor density = mul(exp(mul(squared, -0.5)), std::numbers::inv_sqrtpi / std::numbers::sqrt2);
                    grads[0] = mul(mul(gg, s[1]), mul(density, sub(2, squared)));
                  }
                  if (s.needs(1)) grads[1] = gelu_grad(x, gg);
                  return grads;
                });
}

// With f = x (1 + t) / 2, t = tanh(u), u = c (x + a x^3):
// f'' = (1 - t^2) (u' + x (u'' / 2 - t u'^2))
Tensor gelu_tanh_grad(const Tensor& x, const Tensor& g) {
  return record("gelu_tanh_grad", compute_grad(BinaryOp::gelu_tanh_grad_x, x, g), inputs(x, g), saved(x, g),
                [](const Saved& s, const Tensor& gg) {
                  const Tensor x = s[0];
                  Grads grads(2);
                  if (s.needs(0)) {
                    constexpr double a = 0.044715;
                    const double c = std::sqrt(2 / std::numbers::pi);
                    const Tensor squared = square(x);
                    const Tensor t = tanh(mul(mul(x, add(mul(squared, a), 1)), c));
                    const Tensor du = add(mul(squared, 3 * a * c), c);
                    const Tensor inner = sub(mul(x, 3 * a * c), mul(t, square(du)));
                    grads[0] = mul(mul(gg, s[1]), mul(sub(1, square(t)), add(du, mul(x, inner))));
                  }
                  if (s.needs(1)) grads[1] = gelu_tanh_grad(x, gg);
                  return grads;
                });
}

// With s = sigmoid(x): silu'(x) = s (1 + x (1 - s)), silu''(x) = s (1 - s) (2 + x (1 - 2 s))
Tensor silu_grad(const Tensor& x, const Tensor& g) {
  return record("silu_grad", compute_grad(BinaryOp::silu_grad_x, x, g), inputs(x, g), saved(x, g),
                [](const Saved& s, const Tensor& gg) {
                  const Tensor x = s[0];
                  Grads grads(2);
                  if (s.needs(0)) {
                    const Tensor share = sigmoid(x);
                    const Tensor slope = mul(share, sub(1, share));
                    grads[0] = mul(mul(gg, s[1]), mul(slope, add(mul(x, sub(1, mul(share, 2))), 2)));
                  }
                  if (s.needs(1)) grads[1] = silu_grad(x, gg);
                  return grads;
                });
}

}  // namespace

Tensor tanh(const Tensor& x) {
  Tensor y = unary_values("tanh", UnaryOp::tanh, x);
  return record("tanh", y, inputs(x), saved(y),
                [](const Saved& s, const Tensor& g) { return Grads{tanh_grad(s[0], g)}; });
}

Tensor sigmoid(const Tensor& x) {
  Tensor y = unary_values("sigmoid", UnaryOp::sigmoid, x);
  return record("sigmoid", y, inputs(x), saved(y),
                [](const Saved& s, const Tensor& g) { return Grads{sigmoid_grad(s[0], g)}; });
}

Tensor relu(const Tensor& x) {
  Tensor y = unary_values("relu", UnaryOp::relu, x);
  return record("relu", y, inputs(x), saved(y),
                [](const Saved& s, const Tensor& g) { return Grads{relu_grad(s[0], g)}; });
}

Tensor gelu(const Tensor& x, GeluApproximation approximation) {
  if (approximation == GeluApproximation::tanh)
    return record_recomputable(
        "gelu", unary_values("gelu", UnaryOp::gelu_tanh, x), inputs(x), saved(x),
        [](const Saved& s, const Tensor& g) { return Grads{gelu_tanh_grad(s[0], g)}; },
        [](const Saved& s) { return unary_values("gelu", UnaryOp::gelu_tanh, s[0]); });
  return record_recomputable(
      "gelu", unary_values("gelu", UnaryOp::gelu, x), inputs(x), saved(x),
      [](const Saved& s, const Tensor& g) { return Grads{gelu_grad(s[0], g)}; },
      [](const Saved& s) { return unary_values("gelu", UnaryOp::gelu, s[0]); });
}

Tensor silu(const Tensor& x) {
  return record_recomputable(
      "silu", unary_values("silu", UnaryOp::silu, x), inputs(x), saved(x),
      [](const Saved& s, const Tensor& g) { return Grads{silu_grad(s[0], g)}; },
      [](const Saved& s) { return unary_values("silu", UnaryOp::silu, s[0]); });
}

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::relu:
      return relu(x);
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu(x, GeluApproximation::tanh);
    case Activation::silu:
      break;
  }
  return silu(x);
}

UnaryOp activation_kernel(Activation activation) {
  constexpr UnaryOp kernels[] = {UnaryOp::relu, UnaryOp::gelu, UnaryOp::gelu_tanh, UnaryOp::silu};
  return kernels[static_cast<size_t>(activation)];
}

BinaryOp activation_grad_kernel(Activation activation) {
  constexpr BinaryOp kernels[] = {BinaryOp::relu_grad_y, BinaryOp::gelu_grad_x, BinaryOp::gelu_tanh_grad_x,
                                  BinaryOp::silu_grad_x};
  return kernels[static_cast<size_t>(activation)];
}

Tensor activation_grad(Activation activation, const Tensor& x, const Tensor& g) {
  switch (activation) {
    case Activation::relu:
      return relu_grad(x, g);  // positive where its output is
    case Activation::gelu:
      return gelu_grad(x, g);
    case Activation::gelu_tanh:
      return gelu_tanh_grad(x, g);
    case Activation::silu:
      break;
  }
  return silu_grad(x, g);
}

}  // namespace regard
