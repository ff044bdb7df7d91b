// Memory of the "GPU": every buffer ends at a page that cannot be touched and begins behind one, is full of NaN at
// first, and is out of reach for code that does not run on the "GPU".
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "fibers.hpp"

namespace cuda_host {

namespace {

struct Buffer {
  char* map;           // a page, the buffer's pages, a page
  size_t pages_bytes;  // between the two
  size_t bytes;
};

struct Memory {
  std::recursive_mutex mutex;
  std::map<const char*, Buffer> buffers;  // by first byte
  size_t bytes = 0;
  size_t capacity = size_t{4} << 30;
  int access = 0;
  Guard guard = Guard::sometimes;
  uint64_t closings = 0;
  bool open = true;                        // whether buffers can be touched now
  std::multimap<size_t, char*> free_maps;  // of freed buffers, by pages_bytes
};
Memory& memory() {
  static auto* one = new Memory;
  return *one;
}

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// A system call for each buffer and launch takes long: more buffers than these are left open, and others are closed
// behind one launch in sixteen, which finds what goes wrong more than once.
constexpr size_t most_guarded = 128;
constexpr uint64_t closed_one_in = 16;
constexpr size_t most_free_maps = 512;

void set_open(const Buffer& buffer, bool open) {
  mprotect(buffer.map + page_size(), buffer.pages_bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void set_open(Memory& m, bool open) {
  if (m.open == open) return;
  if (!open) {
    if (m.guard == Guard::never || m.buffers.size() > most_guarded) return;
    if (m.guard == Guard::sometimes && ++m.closings % closed_one_in != 0) return;
  }
  for (const auto& [data, buffer] : m.buffers) set_open(buffer, open);
  m.open = open;
}

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t last_error = cudaSuccess;
size_t waited = 0;
cudaError_t note(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void on_fault(int, siginfo_t* info, void*) {
  std::string text = "cuda_host: ";
  const std::string where = where_now();
  text += where.empty() ? "code on the CPU touched the GPU's memory" : where + " touched memory it must not";
  text += ": " + describe_address(info->si_addr) + "\n";
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

}  // namespace

size_t waits() { return waited; }

bool events_are_held = false;
void hold_events(bool held) { events_are_held = held; }

void install_fault_handler() {
  static char stack[64 * 1024];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

std::string describe_address(const void* address) {
  Memory& m = memory();
  const char* at = static_cast<const char*>(address);
  for (const auto& [data, buffer] : m.buffers) {
    if (at < buffer.map || at >= buffer.map + buffer.pages_bytes + 2 * page_size()) continue;
    std::ostringstream text;
    text << (at < data                  ? data - at
             : at < data + buffer.bytes ? at - data
                                        : at - data - static_cast<ptrdiff_t>(buffer.bytes));
    text << (at < data ? " bytes before" : at < data + buffer.bytes ? " bytes into" : " bytes behind the end of");
    text << " a buffer of " << buffer.bytes << " bytes";
    return text.str();
  }
  std::ostringstream text;
  text << "address " << address << ", near no buffer";
  return text.str();
}

DeviceAccess::DeviceAccess() {
  Memory& m = memory();
  m.mutex.lock();
  if (m.access++ == 0) set_open(m, true);
}
DeviceAccess::~DeviceAccess() {
  Memory& m = memory();
  if (--m.access == 0) set_open(m, false);
  m.mutex.unlock();
}

void set_guard(Guard guard) {
  DeviceAccess access;
  memory().guard = guard;
}
void set_capacity(size_t bytes) {
  DeviceAccess access;
  memory().capacity = bytes;
}
Held held() {
  DeviceAccess access;
  return {memory().buffers.size(), memory().bytes};
}
size_t room(const void* address) {
  DeviceAccess access;
  const char* at = static_cast<const char*>(address);
  auto next = memory().buffers.upper_bound(at);
  if (next == memory().buffers.begin()) return 0;
  const auto& [data, buffer] = *std::prev(next);
  return at < data + buffer.bytes ? static_cast<size_t>(data + buffer.bytes - at) : 0;
}

}  // namespace cuda_host

using cuda_host::DeviceAccess;
using cuda_host::memory;
using cuda_host::note;

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t refused = cuda_host::refused_in_capture()) return note(refused);
  auto& m = memory();
  cuda_host::Lock lock(m.mutex);
  static std::once_flag handled;
  std::call_once(handled, cuda_host::install_fault_handler);
  if (m.bytes + bytes > m.capacity) return note(cudaErrorMemoryAllocation);
  const size_t page = cuda_host::page_size();
  const size_t pages_bytes = (bytes + page - 1) / page * page;
  void* map = nullptr;
  if (auto found = m.free_maps.find(pages_bytes); found != m.free_maps.end()) {
    map = found->second;
    m.free_maps.erase(found);
  } else {
    map = mmap(nullptr, pages_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return note(cudaErrorMemoryAllocation);
    mprotect(static_cast<char*>(map) + page, pages_bytes, PROT_READ | PROT_WRITE);
  }
  // At the end of its pages, but aligned as vectors of 16 bytes need it.
  char* first = static_cast<char*>(map) + page + pages_bytes - (bytes + 15) / 16 * 16;
  std::memset(first, 0xff, bytes);
  std::memset(first + bytes, 0, (16 - bytes % 16) % 16);
  const cuda_host::Buffer buffer{static_cast<char*>(map), pages_bytes, bytes};
  m.buffers.emplace(first, buffer);
  if (!m.open) cuda_host::set_open(buffer, false);
  m.bytes += bytes;
  *data = first;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  if (const cudaError_t refused = cuda_host::refused_in_capture()) return note(refused);
  if (!data) return cudaSuccess;
  auto& m = memory();
  cuda_host::Lock lock(m.mutex);
  auto found = m.buffers.find(static_cast<char*>(data));
  if (found == m.buffers.end()) return note(cudaErrorInvalidValue);
  const cuda_host::Buffer buffer = found->second;
  if (!m.open) cuda_host::set_open(buffer, true);
  // What lies between the end of the buffer and of its pages, because of the alignment.
  const char* end = static_cast<char*>(data) + buffer.bytes;
  const char* pages_end = buffer.map + cuda_host::page_size() + buffer.pages_bytes;
  for (const char* at = end; at < pages_end; ++at)
    if (*at != 0) {
      std::fprintf(stderr, "cuda_host: a kernel wrote behind the end of a buffer of %zu bytes\n", buffer.bytes);
      std::abort();
    }
  m.bytes -= buffer.bytes;
  m.buffers.erase(found);
  if (m.free_maps.size() < cuda_host::most_free_maps)
    m.free_maps.emplace(buffer.pages_bytes, buffer.map);
  else
    munmap(buffer.map, buffer.pages_bytes + 2 * cuda_host::page_size());
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  if (const cudaError_t refused = cuda_host::refused_in_capture()) return note(refused);
  *data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *data ? cudaSuccess : note(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  cuda_host::Lock lock(memory().mutex);
  *available = memory().capacity - memory().bytes;
  *total = memory().capacity;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  const auto run = [=] {
    DeviceAccess access;
    std::memmove(to, from, bytes);
    return cudaSuccess;
  };
  return cuda_host::record(stream, run) ? cudaSuccess : run();
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  const auto run = [=] {
    DeviceAccess access;
    std::memset(data, value, bytes);
    return cudaSuccess;
  };
  return cuda_host::record(stream, run) ? cudaSuccess : run();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  cuda_host::Lock lock(memory().mutex);
  const char* at = static_cast<const char*>(data);
  auto next = memory().buffers.upper_bound(at);
  const bool inside = next != memory().buffers.begin() && at < std::prev(next)->first + std::prev(next)->second.bytes;
  *attributes = {inside ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0};
  return cudaSuccess;
}

// ---- One device, whose work is done at once

// Kernels divide their work by it. Few blocks are quick to run; with the number of a real GPU, tests take its paths.
static int multiprocessors() {
  static const int count = [] {
    const char* value = std::getenv("REGARD_CUDA_HOST_MULTIPROCESSORS");
    return value && std::atoi(value) > 0 ? std::atoi(value) : 2;
  }();
  return count;
}

const char* cudaGetErrorString(cudaError_t error) {
  static std::string text;
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorLaunchFailure:
      text = cuda_host::last_report();
      return text.c_str();
    default:
      return "an error";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaError";
}
cudaError_t cudaGetLastError() { return std::exchange(cuda_host::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return cuda_host::last_error; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : note(cudaErrorInvalidValue); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors();
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 99 * 1024;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "kernels on the CPU");
  properties->major = 8;
  properties->multiProcessorCount = multiprocessors();
  properties->totalGlobalMem = memory().capacity;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t refused = cuda_host::refused_while_recording(stream)) return note(refused);
  return ++cuda_host::waited, cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return ++cuda_host::waited, cudaSuccess; }

// Recorded when all is done: an event is over at once, unless a test has it that the "GPU" is behind.
struct cuda_host_event {
  bool held = false;
};
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new cuda_host_event;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->held = cuda_host::events_are_held;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!cuda_host::events_are_held) event->held = false;
  return event->held ? note(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->held) ++cuda_host::waited;
  event->held = false;
  return cudaSuccess;
}
