#include <regard/optim/clip.hpp>

#include <cmath>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/optim/gradient_list.hpp>

namespace regard::optim {

namespace {

Tensor clip_there(const Tensors& list, Device device, double max_norm) {
  Tensor norm = sqrt(sum_of_squares(list, device));
  scale_down(list, norm, max_norm);
  return norm;
}

double clip(const Tensors& parameters, const std::vector<std::string>& names, double max_norm,
            const ClipOptions& options) {
  const char* op = "clip_grad_norm";
  check<ValueError>(max_norm >= 0, op, "max_norm ", max_norm, " must not be negative");
  NoGrad no_grad;
  const GradientList grads = gradients_of(op, parameters);
  const std::vector<Tensors> lists = by_device(grads.tensors);
  if (lists.size() == 1 && lists[0][0].device().kind == Device::Kind::cuda && !options.error_if_nonfinite)
    return clip_there(lists[0], lists[0][0].device(), max_norm).item<double>();  // waits once, when all is under way
  double squares = 0;
  for (const Tensors& list : lists) squares += sum_of_squares(list, list[0].device()).item<double>();
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) {
    for (size_t i = 0; options.error_if_nonfinite && i < grads.tensors.size(); ++i) {
      const Tensor& grad = grads.tensors[i];
      if (std::isfinite(sum_of_squares({grad}, grad.device()).item<double>())) continue;
      const size_t position = grads.positions[i];
      fail<ValueError>(op, "the gradient of ",
                       names.empty() ? "parameter " + std::to_string(position) : names[position], ", of shape ",
                       grad.shape(), ", is not finite");
    }
  } else if (max_norm / (norm + 1e-6) < 1) {
    for (const Tensors& list : lists)
      scale_down(list, full({}, norm, TensorOptions(DType::f64, list[0].device())), max_norm);
  }
  return norm;
}

}  // namespace

Tensor clip_grad_norm_on_device(const Tensors& parameters, double max_norm) {
  const char* op = "clip_grad_norm_on_device";
  check<ValueError>(max_norm >= 0, op, "max_norm ", max_norm, " must not be negative");
  NoGrad no_grad;
  const GradientList grads = gradients_of(op, parameters);
  Device device;
  if (!grads.tensors.empty())
    device = grads.tensors[0].device();
  else if (!parameters.empty())
    device = parameters[0].device();
  for (size_t i = 0; i < grads.tensors.size(); ++i)
    check<DeviceError>(grads.tensors[i].device() == device, op, "the gradient of parameter ", grads.positions[i],
                       " is on ", grads.tensors[i].device(), ", that of others on ", device,
                       ": use clip_grad_norm() for parameters of several devices");
  return clip_there(grads.tensors, device, max_norm);
}

double clip_grad_norm(const Tensors& parameters, double max_norm, const ClipOptions& options) {
  return clip(parameters, {}, max_norm, options);
}

double clip_grad_norm(const std::vector<std::pair<std::string, Tensor>>& parameters, double max_norm,
                      const ClipOptions& options) {
  Tensors tensors;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) {
    names.push_back(name);
    tensors.push_back(tensor);
  }
  return clip(tensors, names, max_norm, options);
}

void clip_grad_value(const Tensors& parameters, double limit) {
  check<ValueError>(limit >= 0, "clip_grad_value", "limit ", limit, " must not be negative");
  NoGrad no_grad;
  for (const Tensor& grad : gradients_of("clip_grad_value", parameters).tensors) grad.copy_(clamp(grad, -limit, limit));
}

bool step_if_finite(Optimizer& optimizer, double grad_norm) {
  if (!std::isfinite(grad_norm)) return false;
  optimizer.step();
  return true;
}

}  // namespace regard::optim
