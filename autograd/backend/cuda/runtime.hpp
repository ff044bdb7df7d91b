// CUDA's runtime as the kernels here use it: streams, errors that name the op, and one way to launch a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include <regard/autograd/cuda.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::cuda_backend {

/// Throws a DeviceError that names op and error where `status` is one.
void check_cuda(const char* op, cudaError_t status);

/// Makes `device` this thread's GPU and returns the stream on which it works: one a GPU, shared by all threads, in
/// whose order everything happens. In a capture (capture.hpp) the one that records.
cudaStream_t stream_of(Device device);
cudaStream_t stream_of(const Tensor& x);
/// The same whether or not this thread captures; of a GPU that has been used.
cudaStream_t shared_stream(int index);
/// The same for memory of a GPU.
cudaStream_t stream_of_memory(const void* data);

/// Multiprocessors of the GPU that works for this thread, and the most shared memory that a block there can have.
struct DeviceLimits {
  int multiprocessors;
  int shared_bytes;
};
const DeviceLimits& device_limits();

/// Waits for what is queued; throws what was found wrong meanwhile, see faults.hpp.
void wait(const char* op, Device device);

/// After a launch: its error, and in synchronous mode that of the kernel itself.
void check_launched(const char* op, cudaStream_t stream);

/// How a kernel is launched: blocks, threads of a block, bytes of dynamic shared memory, and the most that any launch
/// of this kernel has (0: always as many as this one). The last must not depend on the launch: it is set for the kernel
/// as a whole, and another thread's launch may come between.
struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared = 0;
  size_t most_shared = 0;
};

/// Runs a kernel on a stream. `op` is named in errors. A grid without blocks runs nothing.
template <class... Parameters, class... Arguments>
void launch(const char* op, cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared > 48 * 1024)
    check_cuda(op,
               cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(grid.most_shared > 0 ? grid.most_shared : grid.shared)));
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared;
  config.stream = stream;
  check_cuda(op, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
  check_launched(op, stream);
}

/// Blocks that cover `count` elements, `each` a thread, at most as many as keep a GPU busy: a kernel's loop strides
/// over the rest. Blocks have `most_threads` threads, fewer where there is less to do.
Grid grid_for(int64_t count, int each = 1, int most_threads = 256);

/// The dynamic shared memory of the block, see Grid.
template <class T>
__device__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(16) unsigned char regard_shared[];
  return reinterpret_cast<T*>(regard_shared);
#else
  return static_cast<T*>(cuda_host_shared_memory());
#endif
}

/// The memory of a tensor for kernels, null for an undefined one. A DeviceError where it is not on a GPU; its type is
/// not checked.
template <class T>
T* device_pointer(const Tensor& x) {
  if (!x.defined()) return nullptr;
  check<DeviceError>(x.device().kind == Device::Kind::cuda, "launch", "a kernel is given a tensor on ", x.device());
  return static_cast<T*>(x.raw_data());
}

/// Memory for the duration of an op, freed behind what is queued.
class Scratch {
 public:
  Scratch(int64_t bytes, Device device);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
  int64_t bytes_;
  int index_;
};

// Memory, see CudaBackend.
void* allocate(int64_t bytes, int index);
void free(void* data, int64_t bytes, int index);
void empty_cache();
CudaMemoryStats memory_stats(int index);
void reset_peak_memory(int index);
void copy_memory(const char* op, void* to, Device to_device, const void* from, Device from_device, int64_t bytes);

int device_count();

}  // namespace regard::cuda_backend
