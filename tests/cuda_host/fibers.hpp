// How a launch runs on the CPU: for tests that steer it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace cuda_host {

/// The order in which a block's threads run until they wait. Code that lacks a barrier works in some and not in others;
/// `alternating`: of each kernel one launch forward, the next backward.
enum class Order { forward, backward, alternating };
void set_order(Order order);

/// What was wrong with the last launch that failed; empty where none did.
std::string last_report();

/// While one lives, the memory of the "GPU" can be touched. Elsewhere, as on a machine that has one, it cannot.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// How often memory is out of bounds for code outside of kernels and copies: behind every launch, one in sixteen (the
/// default; it takes a system call a buffer), or never.
enum class Guard { always, sometimes, never };
void set_guard(Guard guard);
/// Buffers that cudaMalloc() gave and cudaFree() did not take back, and their bytes.
struct Held {
  size_t buffers, bytes;
};
Held held();
/// An error where this thread captures and the call that asks is not allowed then: the capture has failed for good.
cudaError_t refused_in_capture();
/// The same where the stream captures.
cudaError_t refused_while_recording(cudaStream_t stream);
/// Launches, copies and products in the graphs that were launched.
size_t replayed();
/// How often the CPU has waited for the "GPU".
size_t waits();
/// From now on events stay undone until they are waited for, as if the "GPU" were far behind; or no longer.
void hold_events(bool held);
/// How many bytes the "GPU" has, from now on.
void set_capacity(size_t bytes);
/// Bytes from an address to the end of the buffer that it lies in; 0 outside of all.
size_t room(const void* address);
/// Where a faulting address lies relative to the buffers, in words; empty where it is near none.
std::string describe_address(const void* address);
/// Prints where a fault of memory happened before the program dies of it, from the next one on. cudaMalloc() does it.
void install_fault_handler();
/// "block (0, 1, 0), thread (3, 0, 0)" of the fiber that runs, or empty.
std::string where_now();

}  // namespace cuda_host
