// A GPU reads the CPU's memory while the program goes on only where that is pinned: cudaMemcpyAsync() from other memory
// waits. So bytes go through pinned buffers, each of which is used again when an event behind its last copy is done.
#include <regard/autograd/backend/cuda/staging.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {
namespace {

constexpr int64_t least_bytes = int64_t{64} << 10, most_bytes = int64_t{4} << 20;  // of a buffer: a power of two
constexpr int64_t most_in_all = int64_t{64} << 20;

struct Buffer {
  char* data;
  int64_t bytes;
  cudaEvent_t copied;
};

struct Staging {
  std::mutex mutex;
  std::vector<Buffer> buffers;  // the one that was used longest ago is the first
  int64_t bytes = 0;
};
Staging& staging_of(int index) {
  static auto* list = new std::array<Staging, 64>;  // outlives tensors of static storage duration
  return (*list)[static_cast<size_t>(index)];
}

bool is_copied(const char* op, const Buffer& buffer) {
  const cudaError_t status = cudaEventQuery(buffer.copied);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(op, status);
  return true;
}

Buffer make_buffer(const char* op, int64_t bytes) {
  Buffer buffer{nullptr, bytes, nullptr};
  void* data = nullptr;
  check_cuda(op, cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming));
  const cudaError_t status = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (status != cudaSuccess) cudaEventDestroy(buffer.copied);
  check_cuda(op, status);
  buffer.data = static_cast<char*>(data);
  return buffer;
}

// One that nothing is copied from any more, of at least so many bytes: it leaves the list.
Buffer take_buffer(const char* op, Staging& staging, int64_t bytes) {
  const int64_t wanted = std::max(least_bytes, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))));
  const auto fits = [&](const Buffer& buffer) { return buffer.bytes == wanted; };
  auto found = std::find_if(staging.buffers.begin(), staging.buffers.end(), fits);  // the others are used later
  if (found != staging.buffers.end() && !is_copied(op, *found)) {
    if (staging.bytes + wanted <= most_in_all)
      found = staging.buffers.end();
    else
      check_cuda(op, cudaEventSynchronize(found->copied));
  }
  if (found == staging.buffers.end()) {
    while (staging.bytes + wanted > most_in_all && !staging.buffers.empty()) {  // those of other sizes make room
      const Buffer oldest = staging.buffers.front();
      staging.buffers.erase(staging.buffers.begin());
      check_cuda(op, cudaEventSynchronize(oldest.copied));
      check_cuda(op, cudaEventDestroy(oldest.copied));
      check_cuda(op, cudaFreeHost(oldest.data));
      staging.bytes -= oldest.bytes;
    }
    const Buffer made = make_buffer(op, wanted);
    staging.bytes += wanted;
    return made;
  }
  const Buffer buffer = *found;
  staging.buffers.erase(found);
  return buffer;
}

}  // namespace

void copy_to_gpu(const char* op, void* to, const void* from, int64_t bytes, int index, cudaStream_t stream) {
  Staging& staging = staging_of(index);
  std::lock_guard lock(staging.mutex);
  for (int64_t done = 0; done < bytes;) {
    const int64_t part = std::min(bytes - done, most_bytes);
    const Buffer buffer = take_buffer(op, staging, part);
    std::memcpy(buffer.data, static_cast<const char*>(from) + done, static_cast<size_t>(part));
    cudaError_t status = cudaMemcpyAsync(static_cast<char*>(to) + done, buffer.data, static_cast<size_t>(part),
                                         cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess) status = cudaEventRecord(buffer.copied, stream);
    staging.buffers.push_back(buffer);
    check_cuda(op, status);
    done += part;
  }
}

}  // namespace regard::cuda_backend
