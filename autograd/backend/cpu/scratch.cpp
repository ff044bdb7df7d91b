#include <regard/autograd/backend/cpu/scratch.hpp>

#include <cstddef>
#include <new>

namespace regard::cpu_backend {
namespace {

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(); }

  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      release();
      // Whole pages, of which the packed panels then touch as few as they can.
      const int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
      data_ = ::operator new(static_cast<size_t>(rounded), std::align_val_t(alignment));
      size_ = rounded;
    }
    return data_;
  }

 private:
  static constexpr int64_t alignment = 4096;

  void release() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t(alignment));
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace

void* scratch_bytes(Scratch which, int64_t bytes) {
  thread_local Memory memories[2];
  return memories[static_cast<int>(which)].at_least(bytes);
}

}  // namespace regard::cpu_backend
