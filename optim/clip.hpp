// Gradient clipping.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct ClipOptions {
  bool error_if_nonfinite = false;  ///< throw a ValueError that names the first parameter whose gradient is not finite
};

/// Scales all gradients by max_norm / (norm + 1e-6) where their common Euclidean norm, summed in f64, exceeds
/// max_norm, and returns the norm before. A norm that is not finite is returned and leaves the gradients as they
/// are. A parameter listed twice counts once; undefined gradients count for nothing. Pascanu, Mikolov, Bengio, 2013.
double clip_grad_norm(const Tensors& parameters, double max_norm, const ClipOptions& options = {});
/// The same without waiting for a GPU, where the gradients are all on one device: the norm before stays there, a 0-dim
/// f64 tensor, and the gradients are scaled by what it is then. Read it with item() when there is time to wait.
Tensor clip_grad_norm_on_device(const Tensors& parameters, double max_norm);
/// clip_grad_norm() over `layer.named_parameters()`: an error names the parameter.
double clip_grad_norm(const std::vector<std::pair<std::string, Tensor>>& parameters, double max_norm,
                      const ClipOptions& options = {});
/// Holds every element of every gradient in [-limit, limit].
void clip_grad_value(const Tensors& parameters, double limit);
/// optimizer.step() only where the gradient norm is finite; returns whether it stepped:
/// `step_if_finite(optimizer, clip_grad_norm(model.parameters(), 1.0))`.
bool step_if_finite(Optimizer& optimizer, double grad_norm);

}  // namespace regard::optim
