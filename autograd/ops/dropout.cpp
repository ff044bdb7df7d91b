// Dropout: zeroes elements at random and scales the rest. Srivastava et al., 2014.
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

namespace {

/// Linear in x, so the gradient is the same function of g; the mask is computed again from its counters, not kept.
Tensor apply_dropout(const Tensor& x, double p, uint64_t seed, uint64_t offset) {
  const auto values = [p, seed, offset](const Tensor& x) {
    Tensor y = empty(x.shape(), TensorOptions(x.dtype(), x.device()));
    kernels(x).dropout(y, x, p, seed, offset);
    return y;
  };
  const Tensor y = values(x);
  // What can be computed again costs nothing to keep, and then this can be computed again, too.
  if (Node::recomputable(x))
    return record_recomputable(
        "dropout", y, inputs(x), saved(x),
        [p, seed, offset](const Saved&, const Tensor& g) { return Grads{apply_dropout(g, p, seed, offset)}; },
        [values](const Saved& s) { return values(s[0]); });
  return record("dropout", y, inputs(x), saved(),
                [p, seed, offset](const Saved&, const Tensor& g) { return Grads{apply_dropout(g, p, seed, offset)}; });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& generator) {
  check_defined("dropout", "x", x);
  check_floating("dropout", "x", x);
  check<ValueError>(p >= 0 && p <= 1, "dropout", "p is ", p, ", should be in [0, 1]");
  if (p == 0) return x;
  uint64_t offset = generator.reserve(x.numel());
  return apply_dropout(x, p, generator.seed(), offset);
}

}  // namespace regard
