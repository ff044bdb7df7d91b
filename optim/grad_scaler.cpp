#include <regard/optim/grad_scaler.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include <regard/autograd/cuda_graph.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/optim/gradient_list.hpp>

namespace regard::optim {

namespace {

void check_scale(const char* op, double scale) {
  check<ValueError>(std::isfinite(scale) && scale > 0, op, "the scale ", scale, " must be positive and finite");
}

void check_options(const char* op, const GradScalerOptions& o) {
  check_scale(op, o.init_scale);
  check<ValueError>(std::isfinite(o.growth_factor) && o.growth_factor > 1, op, "growth_factor ", o.growth_factor,
                    " must be above 1, so that the scale grows");
  check<ValueError>(o.backoff_factor > 0 && o.backoff_factor < 1, op, "backoff_factor ", o.backoff_factor,
                    " must lie between 0 and 1, so that the scale falls");
  check<ValueError>(o.growth_interval > 0, op, "growth_interval ", o.growth_interval, " must be positive");
}

void check_not_captured(const char* op) {
  check<DeviceError>(!cuda_is_capturing(), op,
                     "a capture (CudaGraph) is going on, and replays would keep the scale of this step: train in bf16, "
                     "which needs none, or leave the scaler and the optimizer's step out of the capture");
}

// The largest scale that f32 holds, in which losses are.
constexpr double largest_scale = 3.4028234663852886e38;

// Divides by `scale` in one pass over all tensors: they are limited to a norm of 1, as if theirs were the scale.
void divide(const Tensors& list, double scale) {
  constexpr double added = 1e-6;  // by the kernel, to every norm
  if (scale == 1) return;
  const double norm = scale - added;
  if (scale > 1 && norm + added == scale) {
    scale_down(list, full({}, norm, TensorOptions(DType::f64, list[0].device())), 1);
  } else {
    for (const Tensor& grad : list) grad.mul_(1 / scale);
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), scale_(options.init_scale) {
  check_options("GradScaler", options);
}

Tensor GradScaler::scale(const Tensor& loss) const {
  check_defined("GradScaler.scale", "loss", loss);
  if (!options_.enabled) return loss;
  check_not_captured("GradScaler.scale");
  const bool wide = loss.dtype() == DType::f32 || loss.dtype() == DType::f64;
  return mul(wide ? loss : to(loss, DType::f32), scale_);
}

GradScaler::Progress* GradScaler::find(const Optimizer& optimizer) {
  const auto same = [&](const Progress& one) { return one.optimizer == &optimizer; };
  const auto found = std::find_if(progress_.begin(), progress_.end(), same);
  return found == progress_.end() ? nullptr : &*found;
}

void GradScaler::unscale(Optimizer& optimizer) {
  constexpr const char* op = "GradScaler.unscale";
  if (!options_.enabled) return;
  check_not_captured(op);
  if (const Progress* before = find(optimizer))
    fail<ValueError>(op,
                     before->stepped ? "the optimizer's step() was taken already"
                                     : "the gradients of this optimizer are unscaled already",
                     ": call update() at the end of each step");
  const NoGrad no_grad;
  Tensors parameters;
  for (size_t g = 0; g < optimizer.group_count(); ++g)
    for (const Tensor& parameter : optimizer.parameters(g)) parameters.push_back(parameter);
  const GradientList grads = gradients_of(op, parameters);
  check<ValueError>(!grads.tensors.empty(), op,
                    "no parameter of the optimizer has a gradient: call scale(loss).backward() before");
  Progress progress{&optimizer, {}};
  for (const Tensors& list : by_device(grads.tensors)) {
    progress.squares.push_back(sum_of_squares(list, list[0].device()));
    divide(list, scale_);
  }
  progress_.push_back(std::move(progress));
}

// Whether all gradients are finite: waits for the GPU.
void GradScaler::read(Progress& progress) {
  for (const Tensor& squares : std::exchange(progress.squares, {}))
    progress.finite = std::isfinite(squares.item<double>()) && progress.finite;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  check_not_captured("GradScaler.step");
  const Progress* before = find(optimizer);
  check<ValueError>(!before || !before->stepped, "GradScaler.step",
                    "the optimizer's step() was taken already: call update() at the end of each step");
  if (!before) unscale(optimizer);
  Progress& progress = *find(optimizer);
  read(progress);
  if (progress.finite) optimizer.step();
  progress.stepped = true;
  return progress.finite;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  check_not_captured("GradScaler.update");
  check<ValueError>(!progress_.empty(), "GradScaler.update",
                    "there was no step() since the last update(): call step(optimizer) before");
  bool finite = true;
  for (Progress& progress : progress_) {
    read(progress);
    finite = finite && progress.finite;
  }
  progress_.clear();
  if (!finite) {
    scale_ = std::max(scale_ * options_.backoff_factor, 0x1p-126);  // never 0
    tracker_ = 0;
  } else if (++tracker_ == options_.growth_interval) {
    if (scale_ * options_.growth_factor <= largest_scale) scale_ *= options_.growth_factor;
    tracker_ = 0;
  }
}

void GradScaler::set_scale(double scale) {
  check_scale("GradScaler.set_scale", scale);
  check<ValueError>(progress_.empty(), "GradScaler.set_scale",
                    "gradients of the former scale are unscaled already: call update() before");
  scale_ = scale;
}

StateDict GradScaler::state_dict() const {
  StateDict state;
  if (!options_.enabled) return state;
  state.emplace("scale", scalar_tensor(scale_, DType::f64));
  state.emplace("growth_factor", scalar_tensor(options_.growth_factor, DType::f64));
  state.emplace("backoff_factor", scalar_tensor(options_.backoff_factor, DType::f64));
  state.emplace("growth_interval", scalar_tensor(options_.growth_interval));
  state.emplace("growth_tracker", scalar_tensor(tracker_));
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  constexpr const char* op = "GradScaler.load_state_dict";
  if (!options_.enabled) return;
  std::set<std::string> used;
  const auto number = [&](const char* name) -> const Tensor& {
    const auto found = state.find(name);
    check<ValueError>(found != state.end() && found->second.defined(), op, "'", name,
                      "' is missing: the state is not of a scaler that was enabled");
    check<ValueError>(found->second.numel() == 1, op, "'", name, "' has shape ", found->second.shape(),
                      "; a single number is expected");
    used.insert(name);
    return found->second;
  };
  GradScalerOptions options = options_;
  options.init_scale = number("scale").item<double>();
  options.growth_factor = number("growth_factor").item<double>();
  options.backoff_factor = number("backoff_factor").item<double>();
  options.growth_interval = number("growth_interval").item<int64_t>();
  const auto tracker = number("growth_tracker").item<int64_t>();
  for (const auto& [name, tensor] : state)
    check<ValueError>(used.contains(name), op, "'", name, "' is unexpected: the state is not a scaler's");
  check_options(op, options);
  check<ValueError>(tracker >= 0 && tracker < options.growth_interval, op, "'growth_tracker' ", tracker,
                    " must lie between 0 and growth_interval, ", options.growth_interval);
  scale_ = options.init_scale;
  options.init_scale = options_.init_scale;
  options_ = options;
  tracker_ = tracker;
  progress_.clear();
}

}  // namespace regard::optim
