// Captures as the kernels here see them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include <regard/autograd/backend/captured_graph.hpp>

namespace regard::cuda_backend {

/// Starts a capture on this thread, on which none goes on.
CapturedGraph* begin_capture(int index);
CapturedGraph* current_capture();

/// The stream on which this thread captures work of a GPU, and null where it does not. A DeviceError where it captures
/// another GPU's.
cudaStream_t capture_stream(int index);

/// A DeviceError that says that `op` waits for the GPU, or needs the CPU otherwise, where this thread captures.
void check_not_captured(const char* op, const char* what);

/// In a capture, memory of the GPU in which each replay finds what `make` returns then; null outside of one, where
/// kernels take what they are given by value. A DeviceError in a capture where `make` is empty.
void* replayed_memory(const char* op, size_t bytes, std::function<void(void*)> write);
template <class T>
const T* replayed(const char* op, std::function<T()> make) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);
  if (!current_capture()) return nullptr;
  std::function<void(void*)> write;
  if (make)
    write = [make = std::move(make)](void* to) {
      const T value = make();
      std::memcpy(to, &value, sizeof(T));
    };
  return static_cast<const T*>(replayed_memory(op, sizeof(T), std::move(write)));
}

/// Where the random numbers of a replay begin.
struct GeneratorState {
  uint64_t seed, offset;
};
/// For an op that was given counters from `offset` on: null where they are plain; of a capture, where its kernels find
/// what to add. A DeviceError where they are of another capture than this thread's, or plain in one.
const GeneratorState* generator_state(const char* op, uint64_t offset);

}  // namespace regard::cuda_backend
