#include <regard/optim/lion.hpp>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/cuda_graph.hpp>

namespace regard::optim {

Lion::Lion(const std::vector<ParameterGroup<LionOptions>>& groups) : Optimizer("Lion", {"exp_avg"}) {
  for (const auto& group : groups) {
    const LionOptions& o = group.options;
    for (double beta : o.betas) check<ValueError>(beta >= 0 && beta < 1, name(), "beta ", beta, " is outside [0, 1)");
    check<ValueError>(o.weight_decay >= 0, name(), "weight_decay ", o.weight_decay, " must not be negative");
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
Lion::Lion(const Tensors& parameters, const LionOptions& options)
    : Lion(std::vector<ParameterGroup<LionOptions>>{{parameters, options}}) {}

void Lion::update(size_t group, std::span<const Update> list) {
  std::vector<LionTensors> tensors;
  tensors.reserve(list.size());
  for (const auto& [parameter, grad, state] : list) {
    Tensor& exp_avg = state.slots[0];
    if (!exp_avg.defined()) exp_avg = zeros_like(parameter);
    tensors.push_back({parameter, grad, exp_avg});
  }
  const LionOptions& o = options_[group];
  const auto now = [o, lr = lr_of(group)] { return LionStep{lr(), o.betas[0], o.betas[1], o.weight_decay}; };
  LionStep step = now();
  if (cuda_is_capturing()) step.at_replay = now;
  kernels(list[0].parameter).lion_step(tensors, step);
}

}  // namespace regard::optim
