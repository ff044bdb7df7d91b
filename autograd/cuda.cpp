#include <regard/autograd/cuda.hpp>

#include <cstdlib>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/error.hpp>

namespace regard {

std::string why_no_cuda() {
  const CudaBackend* backend = find_cuda_backend();
  if (!backend) return "Regard was built without CUDA: configure with -DREGARD_CUDA=ON, or use the CPU";
  return backend->device_count() > 0 ? "" : backend->why_none();
}

bool cuda_is_available() { return cuda_device_count() > 0; }

int cuda_device_count() {
  const CudaBackend* backend = find_cuda_backend();
  return backend ? backend->device_count() : 0;
}

const CudaBackend& need_cuda(const char* op, Device device) {
  const CudaBackend* backend = find_cuda_backend();
  const int count = backend ? backend->device_count() : 0;
  if (device.kind != Device::Kind::cuda || device.index < 0 || device.index >= count) [[unlikely]] {
    if (count > 0) fail<DeviceError>(op, "there is no device ", device, ": cuda:0 to cuda:", count - 1, " are there");
    fail<DeviceError>(op, "there is no device ", device, ": ", why_no_cuda());
  }
  return *backend;
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return cpu();
  Device device = cuda();
  if (text != "cuda") {
    constexpr size_t prefix = 5;  // of "cuda:"
    const bool number = text.size() > prefix && text.size() <= prefix + 2 && text.compare(0, prefix, "cuda:") == 0 &&
                        text.find_first_not_of("0123456789", prefix) == std::string::npos;
    check<DeviceError>(number, "device", "'", text, "' is none: write cpu, cuda or cuda:N");
    device = cuda(std::atoi(text.c_str() + prefix));
  }
  need_cuda("device", device);
  return device;
}

void synchronize(Device device) {
  if (device.kind == Device::Kind::cuda) need_cuda("synchronize", device).synchronize(device.index);
}

CudaMemoryStats cuda_memory_stats(Device device) {
  return need_cuda("cuda_memory_stats", device).memory_stats(device.index);
}
void reset_cuda_peak_memory(Device device) {
  need_cuda("reset_cuda_peak_memory", device).reset_peak_memory(device.index);
}

}  // namespace regard
