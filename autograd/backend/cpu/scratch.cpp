#include <regard/autograd/backend/cpu/scratch.hpp>

#include <cstddef>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

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
      // Whole pages, of which the packed panels then touch as few as they can: large ones where the system has them.
      alignment_ = std::align_val_t(bytes >= large_page ? large_page : page);
      const int64_t unit = static_cast<int64_t>(alignment_), rounded = (bytes + unit - 1) / unit * unit;
      data_ = ::operator new(static_cast<size_t>(rounded), alignment_);
      size_ = rounded;
#if defined(__linux__)
      if (unit == large_page) madvise(data_, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // a wish; may be refused
#endif
    }
    return data_;
  }

 private:
  static constexpr int64_t page = 4096, large_page = 2 << 20;

  void release() {
    if (data_ != nullptr) ::operator delete(data_, alignment_);
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  std::align_val_t alignment_{page};
  int64_t size_ = 0;
};

}  // namespace

void* scratch_bytes(Scratch which, int64_t bytes) {
  thread_local Memory memories[2];
  return memories[static_cast<int>(which)].at_least(bytes);
}

}  // namespace regard::cpu_backend
