#include <regard/layers/dropout.hpp>

#include <regard/autograd/ops.hpp>

namespace regard::layers {

Dropout::Dropout(double probability) : p(probability) {
  check<ValueError>(p >= 0 && p <= 1, "Dropout", "p is ", p, ": a probability lies in [0, 1]");
}

Tensor Dropout::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  return is_training() ? dropout(x, p) : x;
}

std::string Dropout::describe() const {
  std::ostringstream text;
  text << "Dropout(" << p << ")";
  return text.str();
}

}  // namespace regard::layers
