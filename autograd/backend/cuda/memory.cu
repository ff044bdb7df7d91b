// A GPU's memory: freed blocks are kept for the next op, without asking the driver, which would wait for the GPU. All
// work of a GPU is in the order of one stream, so a block that was freed may be used again at once by what comes after.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <regard/autograd/backend/cuda/capture.hpp>
#include <regard/autograd/backend/cuda/graph_memory.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {

namespace {

// With REGARD_CUDA_EXACT_BLOCKS=1 in the environment, and in the host's test runtime, blocks are of the exact size and
// go back at once, so that compute-sanitizer, or the runtime, finds what reads beyond them.
bool keeps_blocks() {
#ifdef REGARD_CUDA_EXACT_BLOCKS
  return false;
#else
  static const bool keeps = [] {
    const char* value = std::getenv("REGARD_CUDA_EXACT_BLOCKS");
    return !value || std::strcmp(value, "1") != 0;
  }();
  return keeps;
#endif
}

// Up to 1 MiB in multiples of 512 bytes; beyond that one of eight steps between powers of two.
int64_t rounded(int64_t bytes) {
  if (!keeps_blocks()) return std::max<int64_t>(bytes, 1);
  constexpr int64_t least = 512, small = int64_t{1} << 20;
  int64_t step = least;
  if (bytes > small) step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1))) / 8;
  return std::max(least, (bytes + step - 1) / step * step);
}

struct Cache {
  std::mutex mutex;
  std::multimap<int64_t, void*> blocks;               // freed ones, by size
  std::unordered_map<void*, GraphMemory*> of_graphs;  // blocks that are not for all
  std::unordered_multimap<void*, GraphMemory*> kept;  // the program's, which graphs read
  CudaMemoryStats stats;
};
Cache& cache_of(int index) {
  static auto* caches = new std::array<Cache, 64>;  // outlives tensors of static storage duration
  return (*caches)[static_cast<size_t>(index)];
}

// The driver waits until nothing uses the memory.
void give_back(Cache& cache) {
  while (!cache.blocks.empty()) {  // each is listed until it is freed
    const auto first = cache.blocks.begin();
    check_cuda("empty_cache", cudaFree(first->second));
    cache.stats.reserved -= first->first;
    cache.blocks.erase(first);
  }
}

void* take_kept(std::multimap<int64_t, void*>& blocks, int64_t block) {
  auto found = blocks.find(block);
  if (found == blocks.end()) return nullptr;
  void* data = found->second;
  blocks.erase(found);
  return data;
}

// Of no use to anyone now, unless a graph keeps it.
void free_block(Cache& cache, void* data, int64_t block) {
  if (const auto found = cache.kept.find(data); found != cache.kept.end()) {
    found->second->held.emplace(data, block);
  } else if (keeps_blocks()) {
    cache.blocks.emplace(block, data);
  } else {
    cudaFree(data);  // at the program's end there may be no driver any more: nothing to be done about it
    cache.stats.reserved -= block;
  }
}

thread_local GraphMemory* used_graph_memory = nullptr;

void* allocate_from(GraphMemory* graph, int64_t bytes, int index) {
  const int64_t block = rounded(bytes);
  stream_of(cuda(index));
  Cache& cache = cache_of(index);
  std::lock_guard lock(cache.mutex);
  void* data = graph ? take_kept(graph->free, block) : nullptr;
  if (!data) data = take_kept(cache.blocks, block);
  if (!data) {
    cudaError_t status = cudaMalloc(&data, static_cast<size_t>(block));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      give_back(cache);
      status = cudaMalloc(&data, static_cast<size_t>(block));
    }
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t available = 0, total = 0;
      check_cuda("allocate", cudaMemGetInfo(&available, &total));
      fail<ValueError>("allocate", "out of memory on ", cuda(index), ": ", bytes, " bytes were asked for, ",
                       cache.stats.allocated, " are in tensors, ", available, " of ", total,
                       " free: use a smaller batch, or free tensors first");
    }
    check_cuda("allocate", status);
    cache.stats.reserved += block;
  }
  if (graph) {
    graph->blocks.emplace(data, block);
    cache.of_graphs.emplace(data, graph);
  }
  cache.stats.allocated += block;
  cache.stats.peak = std::max(cache.stats.peak, cache.stats.allocated);
  return data;
}

}  // namespace

void* allocate(int64_t bytes, int index) { return allocate_from(used_graph_memory, bytes, index); }
void* allocate_shared(int64_t bytes, int index) { return allocate_from(nullptr, bytes, index); }

void free(void* data, int64_t bytes, int index) {
  const int64_t block = rounded(bytes);
  Cache& cache = cache_of(index);
  std::lock_guard lock(cache.mutex);
  cache.stats.allocated -= block;
  if (const auto found = cache.of_graphs.find(data); found != cache.of_graphs.end()) {
    found->second->free.emplace(block, data);
  } else if (used_graph_memory && used_graph_memory->index == index) {
    used_graph_memory->held.emplace(data, block);
  } else {
    free_block(cache, data, block);
  }
}

void use_graph_memory(GraphMemory* memory) { used_graph_memory = memory; }

void keep_block(GraphMemory& memory, void* data) {
  Cache& cache = cache_of(memory.index);
  std::lock_guard lock(cache.mutex);
  if (!memory.blocks.contains(data)) cache.kept.emplace(data, &memory);
}

void give_back(GraphMemory& memory) {
  Cache& cache = cache_of(memory.index);
  std::lock_guard lock(cache.mutex);
  std::erase_if(cache.kept, [&](const auto& one) { return one.second == &memory; });
  for (const auto& [data, block] : memory.blocks) cache.of_graphs.erase(data);
  for (const auto& [block, data] : memory.free) free_block(cache, data, block);
  for (const auto& [data, block] : memory.held) free_block(cache, data, block);
  memory = GraphMemory{memory.index, {}, {}, {}};
}

void empty_cache() {
  check_not_captured("empty_cache", "gives memory back to the driver");
  for (int index = 0; index < device_count(); ++index) {
    Cache& cache = cache_of(index);
    std::lock_guard lock(cache.mutex);
    give_back(cache);
  }
}

CudaMemoryStats memory_stats(int index) {
  Cache& cache = cache_of(index);
  std::lock_guard lock(cache.mutex);
  return cache.stats;
}

void reset_peak_memory(int index) {
  Cache& cache = cache_of(index);
  std::lock_guard lock(cache.mutex);
  cache.stats.peak = cache.stats.allocated;
}

Scratch::Scratch(int64_t bytes, Device device)
    : data_(allocate(bytes, device.index)), bytes_(bytes), index_(device.index) {}
Scratch::~Scratch() { free(data_, bytes_, index_); }

}  // namespace regard::cuda_backend
