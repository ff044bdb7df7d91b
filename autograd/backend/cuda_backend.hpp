// What the CUDA backend offers beside its table of kernels. Without the backend there is none: see no_cuda.cpp.
#pragma once

#include <cstdint>
#include <string>

#include <regard/autograd/cuda.hpp>
#include <regard/autograd/device.hpp>

namespace regard {

class CapturedGraph;
struct EntryCheck;
struct Kernels;
class Tensor;

struct CudaBackend {
  const Kernels* kernels;
  /// GPUs there are; 0 also where there is no driver, and then `why_none` says why.
  int (*device_count)();
  std::string (*why_none)();
  std::string (*device_name)(int index);
  /// Memory of a GPU, for work that is queued behind what is queued now. A ValueError where there is none left.
  void* (*allocate)(int64_t bytes, int index);
  void (*free)(void* data, int64_t bytes, int index);
  void (*empty_cache)();
  CudaMemoryStats (*memory_stats)(int index);
  void (*reset_peak_memory)(int index);
  /// Copies bytes between the CPU and a GPU, or two GPUs, behind what is queued. `from` may be written to when it
  /// returns; what goes to the CPU is there then. `op` is named in errors.
  void (*copy)(const char* op, void* to, Device to_device, const void* from, Device from_device, int64_t bytes);
  /// Waits for everything that is queued.
  void (*synchronize)(int index);
  /// See check_entries_later().
  void (*check_entries)(const Tensor& x, const EntryCheck& check);
  /// See captured_graph.hpp. The caller's to delete.
  CapturedGraph* (*begin_capture)(int index);
  CapturedGraph* (*current_capture)();
};

/// Null where Regard was built without it.
const CudaBackend* find_cuda_backend();

/// The backend; a DeviceError that names `op` where it is not built in or has no such device.
const CudaBackend& need_cuda(const char* op, Device device);

}  // namespace regard
