#include <regard/autograd/backend/cuda/runtime.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <regard/autograd/backend/cuda/capture.hpp>
#include <regard/autograd/backend/cuda/faults.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/staging.hpp>
#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {

namespace {

constexpr int most_devices = 64;

std::atomic<bool>& synchronous() {
  static std::atomic<bool> on{[] {
    const char* value = std::getenv("REGARD_CUDA_SYNCHRONOUS");
    return value && std::strcmp(value, "1") == 0;
  }()};
  return on;
}

struct Gpu {
  std::once_flag made;
  cudaStream_t stream = nullptr;
  DeviceLimits limits{};
};
std::array<Gpu, most_devices>& gpus() {
  static auto* list = new std::array<Gpu, most_devices>;  // tensors of static storage duration outlive others
  return *list;
}

thread_local int current = -1;

Gpu& use(int index) {
  if (current != index) {
    check_cuda("device", cudaSetDevice(index));
    current = index;
  }
  Gpu& gpu = gpus()[static_cast<size_t>(index)];
  std::call_once(gpu.made, [&] {
    check_cuda("device", cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
    check_cuda("device", cudaDeviceGetAttribute(&gpu.limits.multiprocessors, cudaDevAttrMultiProcessorCount, index));
    check_cuda("device",
               cudaDeviceGetAttribute(&gpu.limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  });
  return gpu;
}

}  // namespace

void check_cuda(const char* op, cudaError_t status) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // so that the next op does not report it again
  fail<DeviceError>(op, "CUDA: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")",
                    synchronous() ? "" : "; an earlier op may be the cause: set_cuda_synchronous(true) tells which");
}

void check_launched(const char* op, cudaStream_t stream) {
  check_cuda(op, cudaPeekAtLastError());
  if (!synchronous().load(std::memory_order_relaxed) || current_capture()) return;
  check_cuda(op, cudaStreamSynchronize(stream));
  raise_noted(current);
}

int device_count() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return std::min(found, most_devices);
  }();
  return count;
}

cudaStream_t stream_of(Device device) {
  Gpu& gpu = use(device.index);
  const cudaStream_t capturing = capture_stream(device.index);
  return capturing ? capturing : gpu.stream;
}
cudaStream_t shared_stream(int index) { return gpus()[static_cast<size_t>(index)].stream; }
cudaStream_t stream_of(const Tensor& x) { return stream_of(x.device()); }

cudaStream_t stream_of_memory(const void* data) {
  if (device_count() == 1) return stream_of(cuda(0));
  cudaPointerAttributes attributes{};
  check_cuda("device", cudaPointerGetAttributes(&attributes, data));
  return stream_of(cuda(attributes.device));
}

const DeviceLimits& device_limits() { return use(std::max(current, 0)).limits; }

Grid grid_for(int64_t count, int each, int most_threads) {
  const int64_t work = (count + each - 1) / each;  // threads
  const int64_t threads = std::min<int64_t>(most_threads, (work + 31) / 32 * 32);
  const int64_t most_blocks = int64_t{device_limits().multiprocessors} * 16;
  const int64_t blocks = threads == 0 ? 0 : std::min((work + threads - 1) / threads, most_blocks);
  return {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads))};
}

void wait(const char* op, Device device) {
  check_not_captured(op, "waits for the GPU");
  check_cuda(op, cudaStreamSynchronize(stream_of(device)));
  raise_noted(device.index);
}

void copy_memory(const char* op, void* to, Device to_device, const void* from, Device from_device, int64_t bytes) {
  if (bytes == 0) return;
  if (!(to_device == from_device))
    check_not_captured(op, "copies between devices (item(), to_vector() and printing do)");
  const bool to_gpu = to_device.kind == Device::Kind::cuda, from_gpu = from_device.kind == Device::Kind::cuda;
  if (!from_gpu) return copy_to_gpu(op, to, from, bytes, to_device.index, stream_of(to_device));
  if (to_gpu && !(to_device == from_device)) wait(op, from_device);  // the other's work; the rest is on its own stream
  cudaStream_t stream = stream_of(to_gpu ? to_device : from_device);
  check_cuda(op, cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
  if (!(to_device == from_device)) wait(op, to_gpu ? to_device : from_device);
}

namespace {

std::string why_none() {
  int found = 0;
  const cudaError_t status = cudaGetDeviceCount(&found);
  if (status == cudaSuccess && found > 0) return "";
  if (status != cudaSuccess) cudaGetLastError();
  return std::string("no GPU can be used here: ") +
         (status == cudaSuccess ? "CUDA finds none" : cudaGetErrorString(status));
}

std::string device_name(int index) {
  cudaDeviceProp properties{};
  check_cuda("device", cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

void synchronize(int index) { wait("synchronize", cuda(index)); }

}  // namespace
}  // namespace regard::cuda_backend

namespace regard {

bool set_cuda_synchronous(bool on) { return cuda_backend::synchronous().exchange(on); }

const CudaBackend* find_cuda_backend() {
  static const CudaBackend backend{
      .kernels = &cuda_backend::table,
      .device_count = cuda_backend::device_count,
      .why_none = cuda_backend::why_none,
      .device_name = cuda_backend::device_name,
      .allocate = cuda_backend::allocate,
      .free = cuda_backend::free,
      .empty_cache = cuda_backend::empty_cache,
      .memory_stats = cuda_backend::memory_stats,
      .reset_peak_memory = cuda_backend::reset_peak_memory,
      .copy = cuda_backend::copy_memory,
      .synchronize = cuda_backend::synchronize,
      .check_entries = cuda_backend::check_entries,
      .begin_capture = cuda_backend::begin_capture,
      .current_capture = cuda_backend::current_capture,
  };
  return &backend;
}

}  // namespace regard
