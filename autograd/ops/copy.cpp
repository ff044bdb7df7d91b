// Copies: clone, and to another dtype or device.
#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

Tensor clone(const Tensor& x) {
  check_defined("clone", "x", x);
  Tensor y = empty_like(x);
  kernels(x).copy(y, x);
  return record("clone", y, inputs(x), saved(), [](const Saved&, const Tensor& g) { return Grads{g}; });
}

Tensor to(const Tensor& x, DType dtype) {
  check_defined("to", "x", x);
  const DType from = x.dtype();
  if (from == dtype) return x;
  Tensor y = empty(x.shape(), {dtype, x.device()});
  kernels(x).copy(y, x);
  if (!is_floating(dtype)) return no_derivative(y);
  return record("to", y, inputs(x), saved(), [from](const Saved&, const Tensor& g) { return Grads{to(g, from)}; });
}

Tensor to(const Tensor& x, Device device) {
  check_defined("to", "x", x);
  const Device from = x.device();
  if (from == device) return x;
  const CudaBackend& backend = need_cuda("to", device.kind == Device::Kind::cuda ? device : from);
  // Memory is copied as it lies; what is not dense is made so before.
  const Tensor dense = contiguous(x.detach());
  Tensor y = empty(x.shape(), {x.dtype(), device});
  backend.copy("to", y.raw_data(), device, dense.raw_data(), from, x.numel() * element_size(x.dtype()));
  return record("to", y, inputs(x), saved(), [from](const Saved&, const Tensor& g) { return Grads{to(g, from)}; });
}

}  // namespace regard
