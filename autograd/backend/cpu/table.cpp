// The table of the CPU, and what stands in for the devices' tables.
#include <atomic>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cuda_backend.hpp>

namespace regard {

namespace {

constexpr Kernels cpu_table{
    .unary = cpu_backend::unary,
    .binary = cpu_backend::binary,
    .binary_scalar = cpu_backend::binary_scalar,
    .clamp = cpu_backend::clamp,
    .where = cpu_backend::where,
    .masked_fill = cpu_backend::masked_fill,
    .copy = cpu_backend::copy,
    .fill = cpu_backend::fill,
    .arange = cpu_backend::arange,
    .axpy = cpu_backend::axpy,
    .reduce = cpu_backend::reduce,
    .extreme = cpu_backend::extreme,
    .variance = cpu_backend::variance,
    .logsumexp = cpu_backend::logsumexp,
    .softmax = cpu_backend::softmax,
    .softmax_grad = cpu_backend::softmax_grad,
    .log_softmax = cpu_backend::log_softmax,
    .log_softmax_grad = cpu_backend::log_softmax_grad,
    .layer_norm = cpu_backend::layer_norm,
    .layer_norm_grad = cpu_backend::layer_norm_grad,
    .rms_norm = cpu_backend::rms_norm,
    .rms_norm_grad = cpu_backend::rms_norm_grad,
    .cross_entropy = cpu_backend::cross_entropy,
    .cross_entropy_grad = cpu_backend::cross_entropy_grad,
    .index_range = cpu_backend::index_range,
    .gather = cpu_backend::gather,
    .scatter_add = cpu_backend::scatter_add,
    .index_select = cpu_backend::index_select,
    .index_add = cpu_backend::index_add,
    .triangle = cpu_backend::triangle,
    .flip = cpu_backend::flip,
    .gemm = cpu_backend::gemm,
    .gemm_epilogue = cpu_backend::gemm_epilogue,
    .attention = cpu_backend::attention,
    .attention_delta = cpu_backend::attention_delta,
    .attention_grad = cpu_backend::attention_grad,
    .rotate = cpu_backend::rotate,
    .uniform = cpu_backend::uniform,
    .normal = cpu_backend::normal,
    .randint = cpu_backend::randint,
    .bernoulli = cpu_backend::bernoulli,
    .dropout = cpu_backend::dropout,
    .sgd_step = cpu_backend::sgd_step,
    .adam_step = cpu_backend::adam_step,
    .lion_step = cpu_backend::lion_step,
    .norm_squared = cpu_backend::norm_squared,
    .limit_norm = cpu_backend::limit_norm,
    .widest_narrow_attention = -1,
};

std::atomic<const Kernels*> cpu_in_use{&cpu_table};
std::atomic<const Kernels*> cuda_stand_in{nullptr};

}  // namespace

const Kernels& kernels(Device device) {
  if (device.kind == Device::Kind::cuda) {
    const CudaBackend& backend = need_cuda("kernels", device);
    const Kernels* other = cuda_stand_in.load(std::memory_order_acquire);
    return other ? *other : *backend.kernels;
  }
  return *cpu_in_use.load(std::memory_order_acquire);
}

const Kernels& own_kernels(Device device) {
  return device.kind == Device::Kind::cuda ? *need_cuda("kernels", device).kernels : cpu_table;
}

void use_kernels(Device::Kind kind, const Kernels* table) {
  if (kind == Device::Kind::cuda)
    cuda_stand_in.store(table, std::memory_order_release);
  else
    cpu_in_use.store(table ? table : &cpu_table, std::memory_order_release);
}

}  // namespace regard
