// Gradients of parameters as lists, as the kernels that read all of them take them.
#pragma once

#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard::optim {

/// Gradients, dense and without a graph, and the positions of the parameters whose they are.
struct GradientList {
  Tensors tensors;
  std::vector<size_t> positions;
};

/// Those that are there, each parameter's once. One that is strided, or that is another parameter's too, becomes the
/// parameter's own, so that each is scaled once. A GraphError where parameters are stepped inside backward(). `op`
/// shows in errors.
GradientList gradients_of(const char* op, const Tensors& parameters);

/// Lists of tensors, each on one device.
std::vector<Tensors> by_device(const Tensors& tensors);

/// The sum of the squares of all elements, a 0-dim f64 tensor on the device of the tensors; nothing waits for it.
Tensor sum_of_squares(const Tensors& list, Device device);

/// Multiplies by largest / (norm + 1e-6) where that is below 1 and the norm, on the device of the tensors, is finite.
void scale_down(const Tensors& list, const Tensor& norm, double largest);

}  // namespace regard::optim
