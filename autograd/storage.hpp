// Storage: a reference-counted buffer on a device, shared by a tensor and its views.
#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <cstdint>
#include <functional>

#include <regard/autograd/device.hpp>

namespace regard {

class Storage {
 public:
  /// Uninitialised memory of the device's allocator, aligned to 64 bytes.
  static boost::intrusive_ptr<Storage> allocate(int64_t bytes, Device device);
  /// Memory that the caller keeps; `release` (may be empty) is called when no tensor uses it any more.
  static boost::intrusive_ptr<Storage> wrap(void* data, int64_t bytes, std::function<void()> release);

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// Counts writes: a tensor saved for backward and changed since is found by it.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// Whether the memory is the allocator's, and not the caller's: see wrap().
  bool owned() const { return owned_; }
  bool unique() const { return references_.load(std::memory_order_acquire) == 1; }

  friend void intrusive_ptr_add_ref(Storage* storage) { storage->references_.fetch_add(1, std::memory_order_relaxed); }
  friend void intrusive_ptr_release(Storage* storage) {
    if (storage->unique() || storage->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete storage;
  }

 private:
  Storage(void* data, int64_t bytes, Device device);
  ~Storage();

  void* data_;
  int64_t bytes_;
  Device device_;
  bool owned_ = true;
  std::atomic<uint32_t> references_{0};
  std::atomic<uint32_t> version_{0};
  std::function<void()> release_;
};

using StoragePtr = boost::intrusive_ptr<Storage>;

/// Counts for tests and for the curious: what is alive now, and the bytes of storage now and at most.
struct MemoryStats {
  int64_t live_storages = 0;
  int64_t live_nodes = 0;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
MemoryStats memory_stats();
/// Sets the peak to what is held now.
void reset_peak_memory();

}  // namespace regard
