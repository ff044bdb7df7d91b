#include <regard/layers/linear.hpp>

#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  check<ValueError>(in > 0 && out > 0, "Linear", "widths ", in, " and ", out, " must be positive");
  double bound = 1 / std::sqrt(static_cast<double>(in));
  weight = Parameter(empty({out, in}));
  init::uniform_(weight, -bound, bound);
  if (with_bias) {
    bias = Parameter(empty({out}));
    init::uniform_(bias, -bound, bound);
  }
}

Linear::Linear(Linear&& other) noexcept
    : Layer(std::move(other)),
      weight(std::move(other.weight)),
      bias(std::move(other.bias)),
      lora(std::move(other.lora)) {
  other.lora.reset();  // an optional that was moved from still holds a value
}

void Linear::check_assignable(const Linear& other) const {
  check<ValueError>(other.weight.defined(), "Linear", "a layer that was moved from is assigned");
  check<ShapeError>(weight.shape() == other.weight.shape(), "Linear", other.describe(), " is assigned to ", describe(),
                    ": the widths differ");
  check<ValueError>(bias.defined() == other.bias.defined(), "Linear", other.describe(), " is assigned to ", describe(),
                    ": one has a bias, the other none");
  check<ValueError>(lora.has_value() == other.lora.has_value(), "Linear", other.describe(), " is assigned to ",
                    describe(), ": one has an adapter, the other none (see add_lora() and merge_lora())");
  if (lora)
    check<ShapeError>(lora->a.shape() == other.lora->a.shape(), "Linear", other.describe(), " is assigned to ",
                      describe(), ": the ranks of their adapters differ");
}

Linear& Linear::operator=(const Linear& other) {
  if (this == &other) return *this;
  if (!weight.defined()) return *this = Linear(other);  // moved from: memory of its own
  check_assignable(other);
  Layer::operator=(other);
  weight = other.weight;
  bias = other.bias;
  if (lora) *lora = *other.lora;
  return *this;
}

Linear& Linear::operator=(Linear&& other) {
  if (this == &other) return *this;
  if (weight.defined()) return *this = static_cast<const Linear&>(other);
  Layer::operator=(other);
  weight = std::move(other.weight);
  bias = std::move(other.bias);
  lora.reset();
  if (other.lora) lora.emplace(std::move(*other.lora));
  other.lora.reset();
  return *this;
}

Tensor Linear::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  Tensor y = linear(x, weight, bias);
  if (lora) [[unlikely]]
    return y + (*lora)(x);
  return y;
}

void Linear::members(Members& m) {
  m("weight", weight);
  m("bias", bias);
  m("lora", lora);
}

std::string Linear::describe() const {
  return "Linear(" + std::to_string(weight.size(1)) + ", " + std::to_string(weight.size(0)) +
         (bias.defined() ? "" : ", no bias") + (lora ? ", LoRA of rank " + std::to_string(lora->rank()) : "") + ")";
}

}  // namespace regard::layers
