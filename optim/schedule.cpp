#include <regard/optim/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <regard/autograd/cuda_graph.hpp>

namespace regard::optim {

namespace {

double warmup(int64_t step, int64_t warmup_steps) {
  if (step >= warmup_steps) return 1;
  return static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
}

double cosine(int64_t step, int64_t total, double initial_lr, double min_lr) {
  if (step >= total) return min_lr;
  double part = static_cast<double>(step) / static_cast<double>(total);
  return min_lr + (initial_lr - min_lr) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

void Schedule::apply() {
  for (size_t g = 0; g < optimizer_.group_count(); ++g) optimizer_.set_lr(lr_at(step_, optimizer_.initial_lr(g)), g);
}

void Schedule::step() {
  check<GraphError>(!cuda_is_capturing(), "Schedule.step",
                    "a capture (CudaGraph) is going on, and replays do not call it: call it after each of them");
  ++step_;
  apply();
}

StateDict Schedule::state_dict() const { return {{"step", scalar_tensor(step_)}}; }

void Schedule::load_state_dict(const StateDict& state) {
  auto found = state.find("step");
  check<ValueError>(found != state.end() && state.size() == 1 && found->second.defined() && found->second.numel() == 1,
                    "Schedule.load_state_dict", "the state of a schedule is one number named 'step'");
  int64_t step = found->second.item<int64_t>();
  check<ValueError>(step >= 0, "Schedule.load_state_dict", "step ", step, " is negative");
  step_ = step;
  apply();
}

Constant::Constant(Optimizer& optimizer, const ConstantOptions& options) : Schedule(optimizer), options_(options) {
  check<ValueError>(options.factor >= 0, "Constant", "factor ", options.factor, " must not be negative");
  apply();
}
double Constant::lr_at(int64_t, double initial_lr) const { return options_.factor * initial_lr; }

LinearWarmup::LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options)
    : Schedule(optimizer), options_(options) {
  check<ValueError>(options.warmup_steps >= 0, "LinearWarmup", "warmup_steps ", options.warmup_steps,
                    " must not be negative");
  apply();
}
double LinearWarmup::lr_at(int64_t step, double initial_lr) const {
  return initial_lr * warmup(step, options_.warmup_steps);
}

Cosine::Cosine(Optimizer& optimizer, const CosineOptions& options) : Schedule(optimizer), options_(options) {
  check<ValueError>(options.total_steps > 0 && options.min_lr >= 0, "Cosine", "total_steps ", options.total_steps,
                    " must be positive and min_lr ", options.min_lr, " not negative");
  apply();
}
double Cosine::lr_at(int64_t step, double initial_lr) const {
  return cosine(step, options_.total_steps, initial_lr, options_.min_lr);
}

Step::Step(Optimizer& optimizer, const StepOptions& options) : Schedule(optimizer), options_(options) {
  check<ValueError>(options.step_size > 0 && options.gamma >= 0, "Step", "step_size ", options.step_size,
                    " must be positive and gamma ", options.gamma, " not negative");
  apply();
}
double Step::lr_at(int64_t step, double initial_lr) const {
  return initial_lr * std::pow(options_.gamma, static_cast<double>(step / options_.step_size));
}

WarmupCosine::WarmupCosine(Optimizer& optimizer, const WarmupCosineOptions& options)
    : Schedule(optimizer), options_(options) {
  check<ValueError>(options.warmup_steps >= 0 && options.total_steps > options.warmup_steps && options.min_lr >= 0,
                    "WarmupCosine", "warmup_steps ", options.warmup_steps, " must not be negative, total_steps ",
                    options.total_steps, " must be larger, and min_lr ", options.min_lr, " not negative");
  apply();
}
double WarmupCosine::lr_at(int64_t step, double initial_lr) const {
  if (step < options_.warmup_steps) return initial_lr * warmup(step, options_.warmup_steps);
  return cosine(step - options_.warmup_steps, options_.total_steps - options_.warmup_steps, initial_lr,
                options_.min_lr);
}

}  // namespace regard::optim
