// The table of the CPU.
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/error.hpp>

namespace regard {

namespace {

constexpr Kernels cpu_table{
    .unary = cpu::unary,
    .binary = cpu::binary,
    .binary_scalar = cpu::binary_scalar,
    .clamp = cpu::clamp,
    .where = cpu::where,
    .masked_fill = cpu::masked_fill,
    .copy = cpu::copy,
    .fill = cpu::fill,
    .arange = cpu::arange,
    .axpy = cpu::axpy,
    .reduce = cpu::reduce,
    .extreme = cpu::extreme,
    .variance = cpu::variance,
    .logsumexp = cpu::logsumexp,
    .softmax = cpu::softmax,
    .softmax_grad = cpu::softmax_grad,
    .log_softmax = cpu::log_softmax,
    .log_softmax_grad = cpu::log_softmax_grad,
    .layer_norm = cpu::layer_norm,
    .layer_norm_grad = cpu::layer_norm_grad,
    .rms_norm = cpu::rms_norm,
    .rms_norm_grad = cpu::rms_norm_grad,
    .cross_entropy = cpu::cross_entropy,
    .cross_entropy_grad = cpu::cross_entropy_grad,
    .index_range = cpu::index_range,
    .gather = cpu::gather,
    .scatter_add = cpu::scatter_add,
    .index_select = cpu::index_select,
    .index_add = cpu::index_add,
    .triangle = cpu::triangle,
    .flip = cpu::flip,
    .gemm = cpu::gemm,
    .uniform = cpu::uniform,
    .normal = cpu::normal,
    .randint = cpu::randint,
    .bernoulli = cpu::bernoulli,
    .dropout = cpu::dropout,
    .sgd_step = cpu::sgd_step,
    .adam_step = cpu::adam_step,
    .norm_squared = cpu::norm_squared,
};

}  // namespace

const Kernels& kernels(Device device) {
  check<DeviceError>(device.kind == Device::Kind::cpu, "kernels", "no backend for device ", device,
                     " is built in; build Regard with it, or use the CPU");
  return cpu_table;
}

}  // namespace regard
