#include <regard/layers/feed_forward.hpp>

namespace regard::layers {

namespace {

// From so many bytes between the two layers on, one op is as fast and keeps less; below, it computes the activation a
// second time for nothing.
constexpr int64_t least_bytes_for_one_op = 4 << 20;

}  // namespace

FeedForward::FeedForward(int64_t width, int64_t hidden, const FeedForwardOptions& options)
    : up(width, hidden, options.bias),
      down(hidden, width, options.bias),
      drop(options.dropout),
      activation(options.activation) {}

Tensor FeedForward::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return run(x, {});
}

Tensor FeedForward::add_to(const Tensor& residual, const Tensor& x) const {
  LayerScope scope(*this);
  return run(x, residual);
}

Tensor FeedForward::run(const Tensor& x, const Tensor& residual) const {
  const bool fits = x.defined() && x.dim() > 0 && x.size(-1) == up.weight.size(1);  // else `up` says what is wrong
  if (fits && !drop.active() && !up.lora && !down.lora &&
      x.numel() / x.size(-1) * up.weight.size(0) * element_size(x.dtype()) >= least_bytes_for_one_op)
    return feed_forward(x, up.weight, up.bias, down.weight, down.bias, activation, residual);
  const Tensor y = down(drop(activate(up(x), activation)));
  return residual.defined() ? residual + y : y;
}

void FeedForward::members(Members& m) {
  m("up", up);
  m("down", down);
  m("drop", drop);
}

std::string FeedForward::describe() const {
  return "FeedForward(" + std::to_string(up.weight.size(1)) + ", " + std::to_string(up.weight.size(0)) + ", " +
         layers::to_string(activation) + ")";
}

}  // namespace regard::layers
