// GPUs, for programs: whether there are any, waiting for them, and their memory.
#pragma once

#include <cstdint>
#include <string>

#include <regard/autograd/device.hpp>

namespace regard {

/// Whether Regard was built with its CUDA backend and finds a GPU.
bool cuda_is_available();
/// How many GPUs it finds; 0 where it was built without the backend.
int cuda_device_count();
/// Why there is none, in one line: not built in, no driver, no GPU. Empty where there is one.
std::string why_no_cuda();
/// `cpu`, `cuda` or `cuda:1`, as a command line names it. A DeviceError where the text is something else or the device
/// is not there, which says why.
Device parse_device(const std::string& text);

/// Waits until the device has done everything that was asked of it: ops on a GPU return before they are done. Reading
/// elements (item(), to_vector(), to(cpu())) waits by itself; a stopwatch must call this. Nothing to do on the CPU.
///
/// What is wrong with the elements of a tensor on a GPU (an index or target outside its range, a slope of ALiBi that is
/// not finite, a probability outside [0, 1]) is found there, while the program goes on. The exception that the op
/// throws on the CPU, with the same words, is thrown when the GPU is next waited for, by whichever thread does: here,
/// or in what reads elements. What was computed since is not to be used; the device is. In synchronous mode the op
/// itself throws. Of several mistakes the first is told of.
void synchronize(Device device);

/// Bytes of one GPU's memory.
struct CudaMemoryStats {
  int64_t allocated = 0;  ///< in tensors
  int64_t peak = 0;       ///< the most that was
  int64_t reserved = 0;   ///< taken from the driver: in tensors, and freed ones kept for the next
};
CudaMemoryStats cuda_memory_stats(Device device = cuda());
/// Sets the peak to what is allocated now.
void reset_cuda_peak_memory(Device device = cuda());

/// In this mode every kernel is waited for, so that an error is thrown by the op that caused it: slow, for finding
/// mistakes, and for a Profiler. (In a CudaGraph, by the replay.) Off unless the environment variable
/// REGARD_CUDA_SYNCHRONOUS is 1. Returns what held before.
bool set_cuda_synchronous(bool on);

}  // namespace regard
