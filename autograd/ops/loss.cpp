// Losses between tensors of equal shapes: squared error, binary cross-entropy, Kullback-Leibler divergence.
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

void check_pair(const char* op, const Tensor& input, const Tensor& target) {
  check_floating(op, "input", input);
  check_defined(op, "target", target);
  check_same_device(op, input, target);
  check<ShapeError>(input.shape() == target.shape(), op, "input ", input.shape(), " and target ", target.shape(),
                    " differ: losses do not broadcast; reshape one of them");
  check<DTypeError>(target.dtype() == input.dtype() || !is_floating(target.dtype()), op, "input is ", input.dtype(),
                    " and target is ", target.dtype(), "; convert one with to()");
}

Tensor reduce_losses(const Tensor& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return losses;
    case Reduction::mean:
      return mean(losses);
    case Reduction::sum:
      break;
  }
  return sum(losses);
}

// factor * x, where a factor of 0 gives 0 also for an infinite x. The gradients are those of a product.
Tensor scaled(const Tensor& factor, const Tensor& x) {
  Tensor y;
  {
    const NoGrad no_grad;
    y = where(factor == 0.0, 0.0, factor * x);
  }
  return record("scaled", y, inputs(factor, x), saved(factor, x), [](const Saved& s, const Tensor& g) {
    Grads grads(2);
    if (s.needs(0)) grads[0] = g * s[1];
    if (s.needs(1)) grads[1] = g * s[0];
    return grads;
  });
}

// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), where log(1 + u) keeps its digits for a small u: (w = 1 + u
// rounded) log(w) u / (w - 1), Higham's Accuracy and Stability of Numerical Algorithms, 1.14.1. Finite for every
// finite x; 0 for -inf.
Tensor softplus(const Tensor& x) {
  Tensor y;
  {
    const NoGrad no_grad;
    const Tensor u = exp(-abs(x));
    const Tensor w = u + 1.0;
    const Tensor tiny = w == 1.0;
    y = relu(x) + where(tiny, u, log(w) * u / where(tiny, 1.0, w - 1.0));
  }
  return record("softplus", y, inputs(x), saved(x),
                [](const Saved& s, const Tensor& g) { return Grads{g * sigmoid(s[0])}; });
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  if (autocast::widens("mse_loss", input, target)) [[unlikely]]
    return mse_loss(autocast::wide(input), autocast::wide(target), reduction);
  check_pair("mse_loss", input, target);
  return reduce_losses(square(input - target), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target, const BceOptions& options) {
  constexpr const char* op = "binary_cross_entropy_with_logits";
  if (autocast::widens(op, input, target, options.weight, options.pos_weight)) [[unlikely]] {
    using autocast::wide;
    return binary_cross_entropy_with_logits(
        wide(input), wide(target),
        {.weight = wide(options.weight), .pos_weight = wide(options.pos_weight), .reduction = options.reduction});
  }
  check_pair(op, input, target);
  const std::pair<const char*, const Tensor*> factors[] = {{"weight", &options.weight},
                                                           {"pos_weight", &options.pos_weight}};
  for (const auto& [name, factor] : factors) {
    if (!factor->defined()) continue;
    check<ShapeError>(broadcastable_to(factor->shape(), input.shape()), op, name, " ", factor->shape(),
                      " does not broadcast to the input, ", input.shape());
    check<DTypeError>(factor->dtype() == input.dtype(), op, "input is ", input.dtype(), " and ", name, " is ",
                      factor->dtype(), "; convert one with to()");
    check_same_device(op, input, *factor);
  }
  const Tensor y = to(target, input.dtype());
  const Tensor positive = options.pos_weight.defined() ? y * options.pos_weight : y;
  Tensor losses = scaled(1.0 - y, softplus(input)) + scaled(positive, softplus(-input));
  if (options.weight.defined()) losses = losses * options.weight;
  return reduce_losses(losses, options.reduction);
}

Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction) {
  if (autocast::widens("kl_div", input, target)) [[unlikely]]
    return kl_div(autocast::wide(input), autocast::wide(target), reduction);
  check_pair("kl_div", input, target);
  const Tensor t = to(target, input.dtype());
  const Tensor entropy = t * log(where(t == 0.0, 1.0, t));  // 0 log 0 is 0, with gradient 0
  return reduce_losses(entropy - scaled(t, input), reduction);
}

}  // namespace regard
