#include <regard/optim/gradient_list.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/optim/optimizer.hpp>

namespace regard::optim {

GradientList gradients_of(const char* op, const Tensors& parameters) {
  check_not_stepped_in_backward(op, parameters);
  GradientList list;
  std::set<const TensorImpl*> seen;
  std::set<const Storage*> grads;
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_defined(op, "parameters", parameters[i]);
    Tensor grad = parameters[i].grad();
    if (!grad.defined() || !seen.insert(parameters[i].impl()).second) continue;
    check_trainable(op, "parameters", grad);
    // A gradient that was set may repeat elements, or be that of another parameter too: each is scaled once.
    bool shared = !grads.insert(grad.impl()->storage.get()).second;
    if (shared || !grad.is_contiguous()) {
      NoGrad no_grad;
      grad = grad.detach().clone();
      parameters[i].set_grad(grad);
    }
    list.tensors.push_back(grad.requires_grad() ? grad.detach() : std::move(grad));
    list.positions.push_back(i);
  }
  return list;
}

std::vector<Tensors> by_device(const Tensors& tensors) {
  std::vector<Tensors> lists;
  for (const Tensor& x : tensors) {
    const auto same =
        std::find_if(lists.begin(), lists.end(), [&](const Tensors& list) { return list[0].device() == x.device(); });
    if (same == lists.end())
      lists.push_back({x});
    else
      same->push_back(x);
  }
  return lists;
}

Tensor sum_of_squares(const Tensors& list, Device device) {
  Tensor squares = empty({}, TensorOptions(DType::f64, device));
  kernels(squares).norm_squared(squares, list);
  return squares;
}

void scale_down(const Tensors& list, const Tensor& norm, double largest) {
  kernels(norm).limit_norm(list, norm, largest);
  for (const Tensor& grad : list) grad.impl()->storage->bump_version();
}

}  // namespace regard::optim
