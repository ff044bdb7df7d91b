#include <regard/autograd/storage.hpp>

#include <utility>

#include <regard/autograd/backend/allocator.hpp>
#include <regard/autograd/counters.hpp>

namespace regard {

namespace counters {
std::atomic<int64_t> live_storages{0};
std::atomic<int64_t> live_nodes{0};
std::atomic<int64_t> bytes{0};
std::atomic<int64_t> peak_bytes{0};
}  // namespace counters

Storage::Storage(void* data, int64_t bytes, Device device) : data_(data), bytes_(bytes), device_(device) {
  counters::live_storages.fetch_add(1, std::memory_order_relaxed);
}

Storage::~Storage() {
  if (owned_) {
    free_memory(data_, bytes_, device_);
    counters::bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  } else if (release_) {
    release_();
  }
  counters::live_storages.fetch_sub(1, std::memory_order_relaxed);
}

StoragePtr Storage::allocate(int64_t bytes, Device device) {
  StoragePtr storage(new Storage(allocate_memory(bytes, device), bytes, device));
  int64_t now = counters::bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = counters::peak_bytes.load(std::memory_order_relaxed);
  while (now > peak && !counters::peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return storage;
}

StoragePtr Storage::wrap(void* data, int64_t bytes, std::function<void()> release) {
  StoragePtr storage(new Storage(data, bytes, Device{}));
  storage->owned_ = false;
  storage->release_ = std::move(release);
  return storage;
}

MemoryStats memory_stats() {
  return {counters::live_storages.load(), counters::live_nodes.load(), counters::bytes.load(),
          counters::peak_bytes.load()};
}

void reset_peak_memory() { counters::peak_bytes.store(counters::bytes.load()); }

}  // namespace regard
