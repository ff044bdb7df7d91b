#include <regard/autograd/backend/allocator.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <new>
#include <vector>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/backend/large_blocks.hpp>
#include <regard/autograd/error.hpp>

namespace regard {

namespace {

constexpr int64_t kAlignment = 64;

// Sizes are rounded up to one of four steps between powers of two, or to 64 bytes: of a block beyond 192 bytes at most
// a quarter is unused.
int64_t rounded(int64_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes - 1)));
  int64_t step = std::max(kAlignment, power / 4);
  return (bytes + step - 1) / step * step;
}

int bucket(int64_t block) {  // block is a rounded size
  auto word = static_cast<uint64_t>(block);
  int power = std::bit_width(word) - 1;
  return power * 4 + static_cast<int>((word >> (power - 2)) & 3U);
}

// The sanitizers see every allocation: with them nothing is kept.
#ifdef REGARD_SANITIZE
constexpr bool keeps = false;
#else
constexpr bool keeps = true;
#endif
bool is_large(int64_t bytes) { return keeps && bytes >= least_large_bytes; }

void* system_allocate(int64_t bytes) { return std::aligned_alloc(kAlignment, static_cast<size_t>(bytes)); }

// Freed small blocks of one thread, at most kMostKept bytes of them: no lock on the way of an op.
class Cache {
 public:
  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { clear(); }
  void* take(int64_t block) {
    auto& list = lists_[static_cast<size_t>(bucket(block))];
    if (list.empty()) return nullptr;
    void* data = list.back();
    list.pop_back();
    kept_ -= block;
    return data;
  }
  bool keep(void* data, int64_t block) {
    if (kept_ + block > kMostKept) return false;
    lists_[static_cast<size_t>(bucket(block))].push_back(data);
    kept_ += block;
    return true;
  }
  void clear() {
    for (auto& list : lists_) {
      for (void* data : list) std::free(data);
      list.clear();
    }
    kept_ = 0;
  }

 private:
  static constexpr int64_t kMostKept = keeps ? int64_t{1} << 30 : 0;
  std::array<std::vector<void*>, 256> lists_;
  int64_t kept_ = 0;
};

// A tensor of static storage duration may be freed after its thread's cache: then this is null.
thread_local Cache* cache_pointer = nullptr;
thread_local bool cache_gone = false;
struct CacheOwner {
  Cache cache;
  CacheOwner() { cache_pointer = &cache; }
  ~CacheOwner() {
    cache_pointer = nullptr;
    cache_gone = true;
  }
};
Cache* thread_cache() {
  if (cache_pointer || cache_gone) return cache_pointer;
  thread_local CacheOwner owner;
  return cache_pointer;
}

}  // namespace

void* allocate_memory(int64_t bytes, Device device) {
  if (device.kind == Device::Kind::cuda) return need_cuda("allocate", device).allocate(bytes, device.index);
  if (is_large(bytes)) {
    void* data = take_large_block(bytes);
    if (!data) {
      empty_cache();
      data = take_large_block(bytes);
    }
    check<ValueError>(data != nullptr, "allocate", "out of memory: ", bytes, " bytes could not be had");
    return data;
  }
  int64_t block = rounded(bytes);
  Cache* cache = thread_cache();
  if (cache)
    if (void* data = cache->take(block)) return data;
  void* data = system_allocate(block);
  if (!data && cache) {
    cache->clear();
    data = system_allocate(block);
  }
  check<ValueError>(data != nullptr, "allocate", "out of memory: ", bytes, " bytes could not be had");
  return data;
}

void free_memory(void* data, int64_t bytes, Device device) {
  if (device.kind == Device::Kind::cuda) return find_cuda_backend()->free(data, bytes, device.index);
  if (is_large(bytes)) return give_large_block(data, bytes);
  Cache* cache = thread_cache();
  if (!cache || !cache->keep(data, rounded(bytes))) std::free(data);
}

void empty_cache() {
  if (Cache* cache = thread_cache()) cache->clear();
  trim_large_blocks();
  if (const CudaBackend* backend = find_cuda_backend()) backend->empty_cache();
}

}  // namespace regard
