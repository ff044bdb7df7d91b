#include <regard/optim/adam.hpp>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/cuda_graph.hpp>

namespace regard::optim {

namespace {

template <class Options>
void check_options(const char* name, const Options& o) {
  for (double beta : o.betas) check<ValueError>(beta >= 0 && beta < 1, name, "beta ", beta, " is outside [0, 1)");
  check<ValueError>(o.eps >= 0 && o.weight_decay >= 0, name, "eps ", o.eps, " and weight_decay ", o.weight_decay,
                    " must not be negative");
}

template <class Options>
void adam_update(const Options& o, bool decoupled, const std::function<double()>& lr,
                 std::span<const Optimizer::Update> list, size_t first_slot) {
  std::vector<AdamTensors> tensors;
  tensors.reserve(list.size());
  for (const auto& [parameter, grad, state] : list) {
    Tensor &exp_avg = state.slots[first_slot], &exp_avg_sq = state.slots[first_slot + 1];
    for (Tensor* slot : {&exp_avg, &exp_avg_sq})
      if (!slot->defined()) *slot = zeros_like(parameter);
    tensors.push_back({parameter, grad, exp_avg, exp_avg_sq});
  }
  const auto now = [o, decoupled, lr, &state = list[0].state] {
    return AdamStep{lr(), o.betas[0], o.betas[1], o.eps, o.weight_decay, decoupled, state.step};
  };
  AdamStep step = now();
  if (cuda_is_capturing()) step.at_replay = now;
  kernels(list[0].parameter).adam_step(tensors, step);
}

}  // namespace

namespace adam_detail {
void check_options(const char* name, const AdamWOptions& options) { optim::check_options(name, options); }
void adamw_update(const AdamWOptions& options, const std::function<double()>& lr,
                  std::span<const Optimizer::Update> list, size_t first_slot) {
  adam_update(options, true, lr, list, first_slot);
}
}  // namespace adam_detail

Adam::Adam(const std::vector<ParameterGroup<AdamOptions>>& groups) : Optimizer("Adam", {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) {
    check_options(name(), group.options);
    add_group(group.parameters, group.options.lr);
    options_.push_back(group.options);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
Adam::Adam(const Tensors& parameters, const AdamOptions& options)
    : Adam(std::vector<ParameterGroup<AdamOptions>>{{parameters, options}}) {}
void Adam::update(size_t group, std::span<const Update> list) {
  adam_update(options_[group], false, lr_of(group), list, 0);
}

AdamW::AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups) : Optimizer("AdamW", {"exp_avg", "exp_avg_sq"}) {
  for (const auto& group : groups) {
    check_options(name(), group.options);
    add_group(group.parameters, group.options.lr);
    options_.push_back(group.options);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
AdamW::AdamW(const Tensors& parameters, const AdamWOptions& options)
    : AdamW(std::vector<ParameterGroup<AdamWOptions>>{{parameters, options}}) {}
void AdamW::update(size_t group, std::span<const Update> list) {
  adam_update(options_[group], true, lr_of(group), list, 0);
}

}  // namespace regard::optim
