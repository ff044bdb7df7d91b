#include <regard/optim/clip.hpp>

#include <cmath>
#include <set>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::optim {

namespace {

// The gradients that are there, each parameter once, with the position of the parameter.
std::vector<std::pair<Tensor, size_t>> gradients(const char* op, const Tensors& parameters) {
  check_not_stepped_in_backward(op, parameters);
  std::vector<std::pair<Tensor, size_t>> list;
  std::set<const TensorImpl*> seen;
  std::set<const Storage*> grads;
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_defined(op, "parameters", parameters[i]);
    Tensor grad = parameters[i].grad();
    if (!grad.defined() || !seen.insert(parameters[i].impl()).second) continue;
    // A gradient that was set may repeat elements, or be that of another parameter too: each is scaled once.
    bool shared = !grads.insert(grad.impl()->storage.get()).second;
    if (shared || !grad.is_contiguous()) {
      NoGrad no_grad;
      grad = grad.detach().clone();
      parameters[i].set_grad(grad);
    }
    list.emplace_back(grad.detach(), i);
  }
  return list;
}

double clip(const Tensors& parameters, const std::vector<std::string>& names, double max_norm,
            const ClipOptions& options) {
  const char* op = "clip_grad_norm";
  check<ValueError>(max_norm >= 0, op, "max_norm ", max_norm, " must not be negative");
  NoGrad no_grad;
  auto grads = gradients(op, parameters);
  double total = 0;
  for (const auto& [grad, index] : grads) {
    double squares = 0;
    kernels(grad).norm_squared(grad.contiguous(), &squares);
    if (options.error_if_nonfinite && !std::isfinite(squares))
      fail<ValueError>(op, "the gradient of ", names.empty() ? "parameter " + std::to_string(index) : names[index],
                       ", of shape ", grad.shape(), ", is not finite");
    total += squares;
  }
  double norm = std::sqrt(total);
  if (std::isfinite(norm)) {
    double scale = max_norm / (norm + 1e-6);
    if (scale < 1)
      for (const auto& [grad, index] : grads) grad.mul_(scale);
  }
  return norm;
}

}  // namespace

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
  for (const auto& [grad, index] : gradients("clip_grad_value", parameters)) grad.copy_(clamp(grad, -limit, limit));
}

bool step_if_finite(Optimizer& optimizer, double grad_norm) {
  if (!std::isfinite(grad_norm)) return false;
  optimizer.step();
  return true;
}

}  // namespace regard::optim
