// Runs a kernel's grid: blocks in turn, the threads of a block as fibers that give way where they wait.
#include "fibers.hpp"

#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <sstream>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_HOST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_HOST_ASAN
#endif
#endif
#ifdef CUDA_HOST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_host {

namespace {

constexpr unsigned warp_size = 32, most_threads = 1024;
constexpr size_t stack_bytes = 256 * 1024;

// A stack with a page below it that cannot be touched.
struct Stacks {
  boost::context::stack_context allocate() {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, page, PROT_NONE);
    boost::context::stack_context context;
    context.size = stack_bytes;
    context.sp = static_cast<char*>(memory) + page + stack_bytes;
    return context;
  }
  void deallocate(boost::context::stack_context& context) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    munmap(static_cast<char*>(context.sp) - context.size - page, context.size + page);
  }
};

// The address sanitizer is told of every switch: Boost's library does not do it.
class Switch {
 public:
  void leave([[maybe_unused]] const void* bottom, [[maybe_unused]] size_t size) {
#ifdef CUDA_HOST_ASAN
    __sanitizer_start_switch_fiber(&fake_, bottom, size);
#endif
  }
  void arrive([[maybe_unused]] const void** bottom = nullptr, [[maybe_unused]] size_t* size = nullptr) {
#ifdef CUDA_HOST_ASAN
    __sanitizer_finish_switch_fiber(fake_, bottom, size);
#endif
  }

 private:
  [[maybe_unused]] void* fake_ = nullptr;
};

// A barrier counts arrivals; who waits for it waits for its number to change.
struct Barrier {
  unsigned arrived = 0, mask = 0;
  uint64_t number = 0;
  const char* name = "";
};

struct Warp {
  Barrier barrier;
  uint64_t values[warp_size] = {};
};

// What cp.async has begun.
struct Copy {
  void* to;
  const void* from;  // null: zeros
};

struct Thread {
  boost::context::fiber fiber, back;
  Switch own;
  const void* stack_bottom = nullptr;
  uint3 index{};
  unsigned number = 0;
  bool started = false, finished = false;
  const Barrier* waits_for = nullptr;
  uint64_t waits_while = 0;
  const char* waits_in = "";
  std::vector<Copy> copies;
};

class Runner {
 public:
  cudaError_t run(const dim3& grid, const dim3& block, size_t shared_bytes, const std::function<void()>& body);
  void wait_for_block(const char* name);
  void wait_for_warp(unsigned mask, const char* name);
  uint64_t exchange(unsigned mask, uint64_t value, unsigned lane);
  unsigned vote(unsigned mask, bool value);
  void meet(void* own, void (*work)(void* const*), const char* name);
  void find_fault(const char* what) { conflict_ = what; }
  void copy_later(void* to, const void* from, bool whole);
  void finish_copies();
  int count_in_block(bool value);
  unsigned lane() const { return current_->number % warp_size; }
  void* shared() const { return shared_; }
  std::string report;
  bool backward = false;
  const Thread* current() const { return current_; }

 private:
  bool run_block();
  void resume(Thread& thread);
  void give_way();
  void wait(const Barrier& barrier, const char* name);
  Warp& warp() { return warps_[current_->number / warp_size]; }
  unsigned existing(unsigned mask) const;
  void make_shared(size_t bytes);
  void loop(Thread& thread);
  std::string stuck() const;

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  Barrier block_;
  unsigned count_ = 0;
  unsigned counted_ = 0, counted_before_ = 0;
  Thread* current_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  const char* conflict_ = nullptr;
  Switch main_;
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
  char* shared_ = nullptr;
  char* shared_map_ = nullptr;
  size_t shared_bytes_ = 0, shared_map_bytes_ = 0;
};

Runner& runner() {
  static auto* one = new Runner;
  return *one;
}
std::mutex& mutex() {
  static std::mutex one;
  return one;
}
Order order = Order::alternating;
std::map<const void*, uint64_t> launches;    // of each kernel
std::map<const void*, size_t> least_shared;  // of each kernel, the least of all limits that were set for it
std::string last;

// A thread's fiber runs one body after the other, one a block.
void Runner::loop(Thread& thread) {
  for (;;) {
    (*body_)();
    thread.finished = true;
    give_way();
  }
}

void Runner::resume(Thread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
  if (!thread.fiber) {
    Stacks stacks;
    boost::context::stack_context context = stacks.allocate();
    thread.stack_bottom = static_cast<char*>(context.sp) - context.size;
    boost::context::preallocated place(context.sp, context.size, context);
    thread.fiber =
        boost::context::fiber(std::allocator_arg, place, stacks, [this, &thread](boost::context::fiber back) {
          thread.back = std::move(back);
          thread.own.arrive(&main_bottom_, &main_size_);
          loop(thread);
          return std::move(thread.back);
        });
  }
  main_.leave(thread.stack_bottom, stack_bytes);
  thread.fiber = std::move(thread.fiber).resume();
  main_.arrive();
  current_ = nullptr;
}

void Runner::give_way() {
  Thread& thread = *current_;
  thread.own.leave(main_bottom_, main_size_);
  thread.back = std::move(thread.back).resume();
  thread.own.arrive(&main_bottom_, &main_size_);
}

void Runner::wait(const Barrier& barrier, const char* name) {
  Thread& thread = *current_;
  thread.waits_for = &barrier;
  thread.waits_while = barrier.number;
  thread.waits_in = name;
  give_way();
  thread.waits_for = nullptr;
}

void Runner::wait_for_block(const char* name) {
  if (++block_.arrived < count_) return wait(block_, name);
  block_.arrived = 0;
  counted_before_ = counted_;
  counted_ = 0;
  ++block_.number;
}

bool same_name(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

unsigned Runner::existing(unsigned mask) const {
  const unsigned first = current_->number / warp_size * warp_size;
  return count_ - first >= warp_size ? mask : mask & ((1U << (count_ - first)) - 1);
}

void Runner::wait_for_warp(unsigned mask, const char* name) {
  Barrier& barrier = warp().barrier;
  mask = existing(mask);
  if (!((mask >> lane()) & 1U)) conflict_ = "a lane is not in the mask that it gave";
  if (barrier.arrived == 0) {
    barrier.mask = mask;
    barrier.name = name;
  } else if (barrier.mask != mask) {
    conflict_ = "lanes of a warp meet with different masks";
  } else if (!same_name(barrier.name, name)) {
    conflict_ = "lanes of a warp meet in different functions";
  }
  if (++barrier.arrived < static_cast<unsigned>(__popc(mask))) return wait(barrier, name);
  barrier.arrived = 0;
  ++barrier.number;
}

uint64_t Runner::exchange(unsigned mask, uint64_t value, unsigned lane) {
  // What such a lane would give is undefined on a GPU.
  if (!((existing(mask) >> lane % warp_size) & 1U)) conflict_ = "a lane reads from one outside of the mask";
  warp().values[this->lane()] = value;
  wait_for_warp(mask, "__shfl_sync");
  const uint64_t result = warp().values[lane % warp_size];
  wait_for_warp(mask, "__shfl_sync");
  return result;
}

unsigned Runner::vote(unsigned mask, bool value) {
  warp().values[lane()] = value ? 1 : 0;
  wait_for_warp(mask, "a vote");
  unsigned bits = 0;
  for (unsigned i = 0; i < warp_size; ++i)
    if (((existing(mask) >> i) & 1U) && warp().values[i]) bits |= 1U << i;
  wait_for_warp(mask, "a vote");
  return bits;
}

// The last lane that arrives does the work of all: who waits stands still, and what it has given stays where it is.
void Runner::meet(void* own, void (*work)(void* const*), const char* name) {
  constexpr unsigned all = 0xffffffffU;
  Warp& one = warp();
  if (existing(all) != all) conflict_ = "an instruction for 32 lanes in a warp of fewer";
  one.values[lane()] = reinterpret_cast<uint64_t>(own);
  if (one.barrier.arrived + 1 == warp_size && same_name(one.barrier.name, name) && !conflict_) {
    void* given[warp_size];
    for (unsigned i = 0; i < warp_size; ++i) given[i] = reinterpret_cast<void*>(one.values[i]);
    work(given);
  }
  wait_for_warp(all, name);
}

// What stands there until the thread waits is open on a GPU: NaN, so that a read too early shows.
void Runner::copy_later(void* to, const void* from, bool whole) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    conflict_ = "cp.async: an address is no multiple of 16";
  std::memset(to, 0xff, 16);
  current_->copies.push_back({to, whole ? from : nullptr});
}

void Runner::finish_copies() {
  for (const Copy& copy : current_->copies)
    if (copy.from)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
  current_->copies.clear();
}

int Runner::count_in_block(bool value) {
  counted_ += value ? 1 : 0;
  wait_for_block("__syncthreads_count");
  const auto result = static_cast<int>(counted_before_);
  wait_for_block("__syncthreads_count");
  return result;
}

std::string triple(const uint3& at) {
  std::ostringstream text;
  text << "(" << at.x << ", " << at.y << ", " << at.z << ")";
  return text.str();
}

std::string Runner::stuck() const {
  unsigned waiting = 0, finished = 0;
  const Thread *one = nullptr, *other = nullptr;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.finished) {
      ++finished;
      continue;
    }
    ++waiting;
    if (!one) one = &thread;
    if (one && std::strcmp(one->waits_in, thread.waits_in) != 0) other = &thread;
  }
  std::ostringstream text;
  text << "block " << triple(blockIdx) << ": " << waiting << " of " << count_ << " threads wait in " << one->waits_in
       << " (thread " << triple(one->index) << ")";
  if (other) text << " or " << other->waits_in << " (thread " << triple(other->index) << ")";
  text << " for threads that never get there; " << finished << " have returned";
  return text.str();
}

bool Runner::run_block() {
  block_ = {};
  counted_ = 0;
  warps_.assign((count_ + warp_size - 1) / warp_size, Warp());
  if (shared_bytes_) std::memset(shared_, 0xff, shared_bytes_);  // NaN: nothing is there at first
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i]->started = threads_[i]->finished = false;
    threads_[i]->waits_for = nullptr;
    threads_[i]->copies.clear();
  }
  // A warp runs for as long as it can before the next one does: what warps wait for each other with is seen to be
  // there.
  const auto warps = static_cast<unsigned>(warps_.size());
  for (unsigned left = count_; left > 0;) {
    bool moved = false;
    for (unsigned w = 0; w < warps; ++w)
      for (bool again = true; again;) {
        again = false;
        const unsigned first = (backward ? warps - 1 - w : w) * warp_size, lanes = std::min(warp_size, count_ - first);
        for (unsigned step = 0; step < lanes; ++step) {
          Thread& thread = *threads_[first + (backward ? lanes - 1 - step : step)];
          if (thread.finished) continue;
          if (thread.started && thread.waits_for && thread.waits_for->number == thread.waits_while) continue;
          thread.started = true;
          moved = again = true;
          resume(thread);
          if (conflict_) {
            report = "block " + triple(blockIdx) + ", thread " + triple(thread.index) + ": " + conflict_;
            return false;
          }
          if (thread.finished) --left;
        }
      }
    if (!moved) {
      report = stuck();
      return false;
    }
  }
  return true;
}

void Runner::make_shared(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  shared_bytes_ = bytes;
  const size_t pages = (bytes + page - 1) / page * page;
  if (pages + page > shared_map_bytes_ || !shared_map_) {
    if (shared_map_) munmap(shared_map_, shared_map_bytes_);
    shared_map_bytes_ = pages + page;
    shared_map_ = static_cast<char*>(
        mmap(nullptr, shared_map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(shared_map_ + shared_map_bytes_ - page, page, PROT_NONE);
  }
  // It ends where the page begins that cannot be touched.
  shared_ = shared_map_ + shared_map_bytes_ - page - (bytes + 15) / 16 * 16;
}

cudaError_t Runner::run(const dim3& grid, const dim3& block, size_t shared_bytes, const std::function<void()>& body) {
  count_ = block.x * block.y * block.z;
  if (count_ == 0 || count_ > most_threads || block.z > 64 || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 2147483647U || shared_bytes > 227 * 1024)
    return cudaErrorInvalidConfiguration;
  body_ = &body;
  conflict_ = nullptr;
  make_shared(shared_bytes);
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
  for (unsigned i = 0; i < count_; ++i) {
    threads_[i]->number = i;
    threads_[i]->index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
  }
  blockDim = block;
  gridDim = grid;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t step = 0; step < blocks; ++step) {
    const uint64_t b = backward ? blocks - 1 - step : step;
    blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                static_cast<unsigned>(b / grid.x / grid.y)};
    if (!run_block()) {
      // Threads stand in the middle of the kernel: they are left there, with their stacks.
      static auto* const abandoned = new std::vector<std::unique_ptr<Thread>>;
      for (auto& thread : threads_) abandoned->push_back(std::move(thread));
      threads_.clear();
      current_ = nullptr;
      return cudaErrorLaunchFailure;
    }
  }
  return cudaSuccess;
}

}  // namespace

void set_order(Order value) { order = value; }
std::string last_report() { return last; }

std::string where_now() {
  const Thread* thread = runner().current();
  return thread ? "block " + triple(blockIdx) + ", thread " + triple(thread->index) : "";
}

cudaError_t run_grid(const dim3& grid, const dim3& block, size_t shared_bytes, const void* kernel,
                     const std::function<void()>& thread) {
  std::lock_guard lock(mutex());
  DeviceAccess access;
  Runner& one = runner();
  one.backward = order == Order::backward || (order == Order::alternating && ++launches[kernel] % 2 == 0);
  const cudaError_t status = one.run(grid, block, shared_bytes, thread);
  if (status != cudaSuccess) last = status == cudaErrorLaunchFailure ? one.report : "a grid or block is too large";
  return status;
}

// The least, not the latest: another thread's launch may have set its own in between.
bool allows_shared(const void* kernel, size_t bytes) {
  std::lock_guard lock(mutex());
  const auto limit = least_shared.find(kernel);
  const bool allowed = bytes <= std::max<size_t>(48 * 1024, limit == least_shared.end() ? 0 : limit->second);
  if (!allowed) last = "more dynamic shared memory than the least that was set for the kernel";
  return allowed;
}

void wait_for_block() { runner().wait_for_block("__syncthreads"); }
void wait_for_warp(unsigned mask) { runner().wait_for_warp(mask, "__syncwarp"); }
uint64_t exchange(unsigned mask, uint64_t value, unsigned lane) { return runner().exchange(mask, value, lane); }
unsigned vote(unsigned mask, bool value) { return runner().vote(mask, value); }
void meet(void* own, void (*work)(void* const*), const char* name) { runner().meet(own, work, name); }
void find_fault(const char* what) { runner().find_fault(what); }
void copy_later(void* to, const void* from, bool whole) { runner().copy_later(to, from, whole); }
void finish_copies() { runner().finish_copies(); }
int count_in_block(bool value) { return runner().count_in_block(value); }
unsigned lane() { return runner().lane(); }
void* shared_memory() { return runner().shared(); }

}  // namespace cuda_host

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value < 0 || value > 227 * 1024) return cudaErrorInvalidValue;
  std::lock_guard lock(cuda_host::mutex());
  const auto bytes = static_cast<size_t>(value);
  const auto [limit, first] = cuda_host::least_shared.try_emplace(kernel, bytes);
  limit->second = std::min(limit->second, bytes);
  return cudaSuccess;
}
