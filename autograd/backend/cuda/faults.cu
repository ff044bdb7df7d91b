// The note is in memory of the CPU that the GPU writes to, and is read whenever the GPU has been waited for, so that
// nothing waits for a check. Checks of one stream come one after the other: the first one that finds something wins.
#include <regard/autograd/backend/cuda/faults.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <regard/autograd/backend/cuda/capture.hpp>
#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {
namespace {

// The first fault, and the first warning.
struct Note {
  unsigned site;  // 0: nothing noted
  unsigned floating;
  int64_t position;
  union {
    int64_t integer;
    double number;
  };
};
struct Notes {
  Note fault, warning;
};

// What blocks of one check find together. The last of them puts it back to what it was.
struct Search {
  unsigned long long first;  // the position; all ones: none
  unsigned blocks;           // that are done
};

template <class T>
struct Bounds {
  double low, high;
  __device__ bool allow(T x) const {
    const auto value = static_cast<double>(x);
    return value >= low && value <= high;
  }
};
template <>
struct Bounds<int64_t> {
  int64_t low, high, ignored;  // low, where nothing is ignored
  __device__ bool allow(int64_t x) const { return (x >= low && x <= high) || x == ignored; }
};

template <class E>
__global__ void check_entries_kernel(Layout<1> layout, const E* x, Bounds<Number<E>> bounds, unsigned site,
                                     Search* search, volatile Note* note) {
  constexpr unsigned long long none = ~0ULL;
  unsigned long long first = none;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += step)
    if (!bounds.allow(number(x[layout.offsets(i).at[0]]))) {
      first = static_cast<unsigned long long>(i);
      break;
    }
  for (int lanes = 16; lanes > 0; lanes /= 2) first = min(first, __shfl_xor_sync(0xffffffffU, first, lanes));
  if (threadIdx.x % 32 == 0 && first != none) atomicMin(&search->first, first);

  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&search->blocks, 1U) + 1 != gridDim.x) return;
  __threadfence();
  first = atomicExch(&search->first, none);
  atomicExch(&search->blocks, 0U);
  if (first == none || note->site != 0) return;
  const auto value = number(x[layout.offsets(static_cast<int64_t>(first)).at[0]]);
  note->position = static_cast<int64_t>(first);
  if constexpr (std::is_same_v<E, int64_t>) {
    note->floating = 0;
    note->integer = value;
  } else {
    note->floating = 1;
    note->number = static_cast<double>(value);
  }
  __threadfence_system();
  note->site = site;
}

// ---- What checks there are, one for each op, argument, bounds, shape and layer: few, but where shapes change from
// step to step. Of these the last ones are known; a graph's stay, since it may be replayed whenever.

constexpr size_t most_sites = 4096;

struct Site {
  EntryCheck check;
  std::string suffix;
  Shape shape;
  std::string key;
  bool captured = false;
};
struct Sites {
  std::mutex mutex;
  unsigned last = 0;
  std::unordered_map<unsigned, std::shared_ptr<Site>> known;
  std::deque<unsigned> oldest;  // those that may be forgotten
  std::unordered_map<std::string, unsigned> numbers;
};
Sites& sites() {
  static auto* one = new Sites;
  return *one;
}

unsigned site_of(const EntryCheck& check, const Shape& shape) {
  std::string suffix = ErrorScope::suffix();
  std::string key;
  key.reserve(check.before.size() + check.after.size() + suffix.size() + 96);
  key += static_cast<char>(check.raises);
  key += static_cast<char>(check.names);
  for (int64_t size : shape) key.append(reinterpret_cast<const char*>(&size), sizeof size);
  for (const std::string& text : {check.before, check.after, suffix}) key.append(text).push_back('\0');
  Sites& all = sites();
  std::lock_guard lock(all.mutex);
  const auto [found, added] = all.numbers.emplace(key, 0);
  if (added) {
    if (++all.last == 0) ++all.last;
    found->second = all.last;
    all.known[all.last] = std::make_shared<Site>(Site{check, std::move(suffix), shape, std::move(key)});
    all.oldest.push_back(all.last);
  }
  const unsigned number = found->second;
  if (current_capture()) all.known[number]->captured = true;
  while (all.oldest.size() > most_sites) {
    const auto old = all.known.find(all.oldest.front());
    all.oldest.pop_front();
    if (old->second->captured) continue;
    all.numbers.erase(old->second->key);
    all.known.erase(old);
  }
  return number;
}

// Null where more checks of other shapes than are known came between it and the wait.
std::shared_ptr<const Site> site_at(unsigned number) {
  Sites& all = sites();
  std::lock_guard lock(all.mutex);
  const auto found = all.known.find(number);
  return found == all.known.end() ? nullptr : found->second;
}

// ---- A GPU's notes

struct Gpu {
  std::once_flag made;
  std::mutex mutex;
  std::atomic<Notes*> notes{nullptr};  // pinned
  Search* search = nullptr;
};
Gpu& gpu_at(int index) {
  static auto* list = new std::array<Gpu, 64>;
  return (*list)[static_cast<size_t>(index)];
}

Gpu& prepared(Device device) {
  Gpu& gpu = gpu_at(device.index);
  std::call_once(gpu.made, [&] {
    cudaStream_t stream = stream_of(device);
    void* notes = nullptr;
    check_cuda("check", cudaMallocHost(&notes, sizeof(Notes)));
    std::memset(notes, 0, sizeof(Notes));
    void* search = nullptr;
    check_cuda("check", cudaMalloc(&search, sizeof(Search)));
    gpu.search = static_cast<Search*>(search);
    check_cuda("check", cudaMemsetAsync(&gpu.search->first, 0xff, sizeof gpu.search->first, stream));
    check_cuda("check", cudaMemsetAsync(&gpu.search->blocks, 0, sizeof gpu.search->blocks, stream));
    gpu.notes = static_cast<Notes*>(notes);
  });
  return gpu;
}

// What was noted, which is taken away.
Note taken(volatile Note& note) {
  Note copy{};
  copy.site = note.site;
  if (copy.site == 0) return copy;
  std::atomic_thread_fence(std::memory_order_acquire);  // what was written before the site
  copy.floating = note.floating;
  copy.position = note.position;
  copy.integer = note.integer;
  note.site = 0;
  return copy;
}

void raise(const Note& note) {
  const std::shared_ptr<const Site> site = site_at(note.site);
  check<IndexError>(site != nullptr, "check", "an entry of a tensor was out of its bounds, more than ", most_sites,
                    " checks ago: set_cuda_synchronous(true) tells of which");
  const EntryCheck& check = site->check;
  if (check.raises == EntryCheck::Raises::warning && check.given && check.given->exchange(true)) return;
  raise_entry_error(check, site->suffix, site->shape, note.position,
                    note.floating ? Scalar(note.number) : Scalar(note.integer));
}

}  // namespace

void check_entries(const Tensor& x, const EntryCheck& check) {
  const Layout<1> layout({&x});
  if (layout.numel == 0) return;
  Gpu& gpu = prepared(x.device());
  const unsigned site = site_of(check, x.shape());
  Notes* notes = gpu.notes;
  Note* note = check.raises == EntryCheck::Raises::warning ? &notes->warning : &notes->fault;
  const auto start = [&]<class E>(E, const Bounds<Number<E>>& bounds) {
    launch("check", stream_of(x), grid_for(layout.numel, 16), check_entries_kernel<E>, layout,
           device_pointer<const E>(x), bounds, site, gpu.search, note);
  };
  if (x.dtype() == DType::i64) {
    const int64_t low = check.low.to_int();
    start(int64_t{}, Bounds<int64_t>{low, check.high.to_int(), check.ignored.value_or(low)});
    return;
  }
  visit_floating(x.dtype(), [&]<class E>(E) {
    start(E{}, Bounds<Number<E>>{check.low.to_double(), check.high.to_double()});
  });
}

void prepare_checks(int index) { prepared(cuda(index)); }

void raise_noted(int index) {
  Gpu& gpu = gpu_at(index);
  volatile Notes* notes = gpu.notes;
  if (!notes || (notes->fault.site == 0 && notes->warning.site == 0)) [[likely]]
    return;
  Note fault, warning;
  {
    std::lock_guard lock(gpu.mutex);
    fault = taken(notes->fault);
    warning = taken(notes->warning);
  }
  try {
    if (warning.site != 0) raise(warning);
  } catch (...) {  // from the program's handler: a fault is worse
    if (fault.site == 0) throw;
  }
  if (fault.site != 0) raise(fault);
}

}  // namespace regard::cuda_backend
