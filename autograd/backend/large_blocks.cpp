#include <regard/autograd/backend/large_blocks.hpp>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace regard {

namespace {

constexpr int64_t kCommit = int64_t{32} << 20;  // what a region grows by at least

int64_t rounded(int64_t bytes, int64_t step) { return (bytes + step - 1) / step * step; }

class LargeBlocks {
 public:
  LargeBlocks() {
    // A child process finds the lock free and the lists whole, whatever other threads are at when it is made.
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
  }

  static LargeBlocks& instance();

  void* take(int64_t bytes) {
    const int64_t size = rounded(bytes, page_);
    const std::lock_guard lock(mutex_);
    auto found = by_size_.lower_bound({size, nullptr});
    if (found == by_size_.end()) return grow(size);
    const auto [whole, data] = *found;
    remove(data, whole);
    if (whole > size) add(data + size, whole - size);
    kept_ -= std::min(kept_, size);
    return data;
  }

  void give(void* data, int64_t bytes) {
    auto* begin = static_cast<char*>(data);
    int64_t size = rounded(bytes, page_);
    const std::lock_guard lock(mutex_);
    kept_ += size;
    auto next = by_place_.lower_bound(begin);
    if (next != by_place_.begin()) {
      const auto [before, length] = *std::prev(next);
      if (before + length == begin) {
        remove(before, length);
        begin = before;
        size += length;
      }
    }
    next = by_place_.lower_bound(begin);
    if (next != by_place_.end() && begin + size == next->first) {
      const int64_t length = next->second;
      remove(next->first, length);
      size += length;
    }
    if (kept_ > most_kept_) {
      madvise(begin, static_cast<size_t>(size), MADV_DONTNEED);
      kept_ -= std::min(kept_, size);
    }
    add(begin, size);
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, size] : by_place_) madvise(data, static_cast<size_t>(size), MADV_DONTNEED);
    kept_ = 0;
  }

  void set_most_kept(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    most_kept_ = bytes;
  }

 private:
  void add(char* data, int64_t size) {
    by_place_.emplace(data, size);
    by_size_.emplace(size, data);
  }
  void remove(char* data, int64_t size) {
    by_place_.erase(data);
    by_size_.erase({size, data});
  }

  // From memory that was never given out, together with a free block that ends there.
  void* grow(int64_t size) {
    char* begin = top_;
    int64_t missing = size;
    if (!by_place_.empty()) {
      const auto [last, length] = *std::prev(by_place_.end());
      if (last + length == top_) {
        begin = last;
        missing -= length;
      }
    }
    if (end_ - top_ < missing) {
      if (!reserve(size)) return nullptr;
      begin = top_;
      missing = size;
    }
    if (committed_ - top_ < missing) {
      const int64_t more =
          std::min<int64_t>(rounded(std::max(missing - (committed_ - top_), kCommit), page_), end_ - committed_);
      if (mprotect(committed_, static_cast<size_t>(more), PROT_READ | PROT_WRITE) != 0) return nullptr;
      committed_ += more;
    }
    if (begin != top_) {
      kept_ -= std::min<int64_t>(kept_, top_ - begin);
      remove(begin, top_ - begin);
    }
    top_ = begin + size;
    return begin;
  }

  // Addresses for as much as the machine has, or for less where so many cannot be had; they take no memory. What is
  // left of the former ones stays unused.
  bool reserve(int64_t size) {
    int64_t want = std::max(size, int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)});
    for (;; want = std::max(size, want / 2)) {
      void* data = mmap(nullptr, static_cast<size_t>(rounded(want, page_)), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (data != MAP_FAILED) {
        top_ = committed_ = static_cast<char*>(data);
        end_ = top_ + rounded(want, page_);
        return true;
      }
      if (want == size) return false;
    }
  }

  const int64_t page_ = std::max<int64_t>(4096, sysconf(_SC_PAGESIZE));
  std::mutex mutex_;
  std::map<char*, int64_t> by_place_;            // free blocks
  std::set<std::pair<int64_t, char*>> by_size_;  // the same
  int64_t most_kept_ = int64_t{1} << 30;
  int64_t kept_ = 0;                                             // bytes of free blocks that have memory, about
  char *top_ = nullptr, *committed_ = nullptr, *end_ = nullptr;  // of the addresses in use now
};

// Never destroyed: a tensor of static storage duration may be freed after everything else.
LargeBlocks& LargeBlocks::instance() {
  static auto* blocks = new LargeBlocks;
  return *blocks;
}

}  // namespace

void* take_large_block(int64_t bytes) { return LargeBlocks::instance().take(bytes); }
void give_large_block(void* data, int64_t bytes) { LargeBlocks::instance().give(data, bytes); }
void trim_large_blocks() { LargeBlocks::instance().trim(); }
void set_kept_large_bytes(int64_t bytes) { LargeBlocks::instance().set_most_kept(bytes); }

}  // namespace regard
