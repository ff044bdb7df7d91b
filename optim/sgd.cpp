#include <regard/optim/sgd.hpp>

#include <regard/autograd/backend/kernels.hpp>

namespace regard::optim {

SGD::SGD(const std::vector<ParameterGroup<SGDOptions>>& groups) : Optimizer("SGD", {"momentum_buffer"}) {
  for (const auto& group : groups) {
    const SGDOptions& o = group.options;
    check<ValueError>(o.momentum >= 0 && o.weight_decay >= 0, name(), "momentum ", o.momentum, " and weight_decay ",
                      o.weight_decay, " must not be negative");
    check<ValueError>(!o.nesterov || (o.momentum > 0 && o.dampening == 0), name(),
                      "nesterov needs a momentum above 0 and a dampening of 0");
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
SGD::SGD(const Tensors& parameters, const SGDOptions& options)
    : SGD(std::vector<ParameterGroup<SGDOptions>>{{parameters, options}}) {}

void SGD::update(size_t group, const Tensor& parameter, const Tensor& grad, State& state) {
  const SGDOptions& o = options_[group];
  Tensor& velocity = state.slots[0];
  bool first = false;
  if (o.momentum != 0 && !velocity.defined()) {
    velocity = empty_like(parameter);
    first = true;
  }
  SgdStep step{lr(group), o.momentum, o.dampening, o.weight_decay, o.nesterov, first};
  kernels(parameter).sgd_step(parameter, grad, o.momentum != 0 ? velocity : Tensor(), step);
}

}  // namespace regard::optim
