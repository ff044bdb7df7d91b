#include <regard/optim/adafactor.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/cuda_graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::optim {

namespace {

Tensor sum_of_squares(const Tensor& x) {
  const Tensor squares = empty({}, TensorOptions(DType::f64, x.device())), dense = x.contiguous();
  kernels(x).norm_squared(squares, {&dense, 1});
  return squares;
}

// Of all elements, a number in f64 that stays where x is: nothing waits for a GPU.
Tensor root_mean_square(const Tensor& x) {
  if (x.numel() == 0) return zeros({}, TensorOptions(DType::f64, x.device()));
  return sqrt(sum_of_squares(x) / static_cast<double>(x.numel()));
}
// Of all elements of a tensor on the CPU.
double root_mean_square_here(const Tensor& x) {
  return x.numel() == 0 ? 0 : std::sqrt(sum_of_squares(x).item<double>() / static_cast<double>(x.numel()));
}

// A number of a step where the tensors are: a replay of a captured step finds it anew.
Tensor number(const Tensor& like, DType dtype, const std::function<double()>& value) {
  return detail::number_of_step(value, TensorOptions(dtype, like.device()));
}

// x moves to y by this share of the way.
void move_towards(const Tensor& x, const Tensor& y, const std::function<double()>& share) {
  if (x.device() == cpu()) {
    x.mul_(1 - share()).add_(y, share());
  } else {
    x.mul_(number(x, x.dtype(), [share] { return 1 - share(); })).add_(y * number(x, x.dtype(), share));
  }
}

}  // namespace

Adafactor::Adafactor(const std::vector<ParameterGroup<AdafactorOptions>>& groups)
    : Optimizer("Adafactor", {"row_var", "col_var", "variance"}) {
  for (const auto& group : groups) {
    const AdafactorOptions& o = group.options;
    check<ValueError>(o.beta2_decay <= 0, name(), "beta2_decay ", o.beta2_decay, " must not be positive");
    check<ValueError>(!o.eps1 || *o.eps1 >= 0, name(), "eps1 ", o.eps1.value_or(0), " must not be negative");
    check<ValueError>(o.eps2 >= 0 && o.weight_decay >= 0, name(), "eps2 ", o.eps2, " and weight_decay ", o.weight_decay,
                      " must not be negative");
    check<ValueError>(o.d >= 1, name(), "d ", o.d, " must be at least 1");
    add_group(group.parameters, o.lr);
    options_.push_back(o);
  }
  check<ValueError>(!options_.empty(), name(), "no parameter groups are given");
}
Adafactor::Adafactor(const Tensors& parameters, const AdafactorOptions& options)
    : Adafactor(std::vector<ParameterGroup<AdafactorOptions>>{{parameters, options}}) {}

std::optional<Shape> Adafactor::slot_shape(size_t, const Tensor& parameter, size_t slot) const {
  const int64_t dims = parameter.dim();
  if ((dims < 2) != (slot == 2)) return std::nullopt;
  Shape shape = parameter.shape();
  if (slot < 2) shape[dims - 1 - static_cast<int64_t>(slot)] = 1;
  return shape;
}

void Adafactor::update(size_t group, std::span<const Update> list) {
  for (const Update& one : list) update_one(group, one);
}

void Adafactor::update_one(size_t group, const Update& one) const {
  const auto& [parameter, grad, state] = one;
  const AdafactorOptions& o = options_[group];
  for (size_t slot = 0; slot < state.slots.size(); ++slot)
    if (std::optional<Shape> shape = slot_shape(group, parameter, slot); shape && !state.slots[slot].defined())
      state.slots[slot] = zeros(*shape, TensorOptions(parameter.dtype(), parameter.device()));
  const double eps1 = o.eps1.value_or(parameter.dtype() == DType::f64 ? std::numeric_limits<double>::epsilon()
                                                                      : std::numeric_limits<float>::epsilon());
  const auto lr = lr_of(group);
  const auto step = [&state = state] { return static_cast<double>(state.step); };
  const auto fresh = [step, decay = o.beta2_decay] { return std::pow(step(), decay); };
  const auto rate = [lr, step] { return std::min(lr(), 1 / std::sqrt(step())); };
  const bool here = parameter.device() == cpu();  // where numbers are at hand
  const double size_here = here ? std::max(o.eps2, root_mean_square_here(parameter)) * rate() : 0;
  const Tensor size =
      here ? Tensor() : clamp(root_mean_square(parameter), o.eps2) * number(parameter, DType::f64, rate);
  const Tensor values = parameter.detach();
  if (o.weight_decay != 0 && here)
    values.mul_(1 - lr() * o.weight_decay);
  else if (o.weight_decay != 0)
    values.mul_(number(values, values.dtype(), [lr, decay = o.weight_decay] { return 1 - lr() * decay; }));

  const Tensor squared = square(grad);
  Tensor estimate;
  if (grad.dim() > 1) {
    const Tensor &row_var = state.slots[0], &col_var = state.slots[1];
    move_towards(row_var, mean(squared, {-1}, true), fresh);                // [..., n, 1]
    move_towards(col_var, mean(squared, {-2}, true), fresh);                // [..., 1, m]
    estimate = row_var * col_var / clamp(mean(row_var, {-2}, true), eps1);  // [..., n, m]
  } else {
    move_towards(state.slots[2], squared, fresh);
    estimate = state.slots[2];
  }
  const Tensor update = rsqrt(clamp(estimate, eps1 * eps1)) * grad;
  if (here) {
    values.add_(update, -size_here / std::max(1.0, root_mean_square_here(update) / o.d));
    return;
  }
  const Tensor divisor = clamp(root_mean_square(update) / o.d, 1);
  values.sub_(update * (size / divisor).to(update.dtype()));
}

}  // namespace regard::optim
