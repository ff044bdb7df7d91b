#include <regard/optim/sgd.hpp>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/cuda_graph.hpp>

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

void SGD::update(size_t group, std::span<const Update> list) {
  const SGDOptions& o = options_[group];
  const Kernels& k = kernels(list[0].parameter);
  const auto now = [o, lr = lr_of(group)] {
    return SgdStep{lr(), o.momentum, o.dampening, o.weight_decay, o.nesterov, false};
  };
  SgdStep step = now();
  if (cuda_is_capturing()) step.at_replay = now;
  std::vector<SgdTensors> started, first;  // first: their velocity starts now
  started.reserve(list.size());
  Tensors velocities(list.size());  // those of `first`, which the state holds once the kernel has written them
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& [parameter, grad, state] = list[i];
    const bool starts = o.momentum != 0 && !state.slots[0].defined();
    check<GraphError>(!starts || !cuda_is_capturing(), name(),
                      "a velocity would begin in a capture (CudaGraph): take a step before it");
    if (starts) velocities[i] = empty_like(parameter);
    (starts ? first : started).push_back({parameter, grad, starts ? velocities[i] : state.slots[0]});
  }
  if (!started.empty()) k.sgd_step(started, step);
  step.first = true;
  if (!first.empty()) k.sgd_step(first, step);
  for (size_t i = 0; i < list.size(); ++i)
    if (velocities[i].defined()) list[i].state.slots[0] = std::move(velocities[i]);
}

}  // namespace regard::optim
