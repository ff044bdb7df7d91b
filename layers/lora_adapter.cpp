#include <regard/layers/lora_adapter.hpp>

#include <cmath>
#include <sstream>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

LoraAdapter::LoraAdapter(int64_t in, int64_t out, int64_t rank, double strength, double dropout) : drop(dropout) {
  check<ValueError>(in > 0 && out > 0, "LoraAdapter", "widths ", in, " and ", out, " must be positive");
  check<ValueError>(rank > 0, "LoraAdapter", "rank ", rank, " must be positive");
  check<ValueError>(std::isfinite(strength) && strength > 0, "LoraAdapter", "alpha ", strength,
                    " must be a positive number");
  a = Parameter(empty({rank, in}));
  b = Parameter(zeros({out, rank}));
  alpha = Buffer(full({}, strength, DType::f32));
  init::kaiming_uniform_(a, std::sqrt(5.0));
}

Tensor LoraAdapter::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  const Tensor low = linear(drop(x), a);  // [..., rank]
  if (alpha.device() == cpu()) return linear(low * scale(), b);
  return linear(low * (alpha.tensor() / rank()), b);  // [..., out], without waiting for the number
}

Tensor LoraAdapter::weight_change() const {
  NoGrad no_grad;
  return matmul(b.detach() * scale(), a.detach());
}

void LoraAdapter::members(Members& m) {
  m("a", a);
  m("b", b);
  m("alpha", alpha);
  m("drop", drop);
}

std::string LoraAdapter::describe() const {
  std::ostringstream text;
  text << "LoraAdapter(rank " << rank() << ", alpha " << alpha.item<double>();
  if (drop.p > 0) text << ", dropout " << drop.p;
  text << ")";
  return text.str();
}

}  // namespace regard::layers
