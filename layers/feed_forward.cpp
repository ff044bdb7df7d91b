#include <regard/layers/feed_forward.hpp>

namespace regard::layers {

FeedForward::FeedForward(int64_t width, int64_t hidden, const FeedForwardOptions& options)
    : up(width, hidden, options.bias),
      down(hidden, width, options.bias),
      drop(options.dropout),
      activation(options.activation) {}

Tensor FeedForward::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return down(drop(activate(up(x), activation)));
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
