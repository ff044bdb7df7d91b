#include <regard/layers/feed_forward.hpp>

namespace regard::layers {

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
  if (!drop.active() && !up.lora && !down.lora && fits)
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
