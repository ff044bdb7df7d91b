// The note is in memory of the CPU that the GPU writes to, and is read whenever the GPU has been waited for, so that
// nothing waits for a check. Checks of one stream come one after the other: the first one that finds something wins.
#include <regard/autograd/backend/cuda/faults.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

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

// ---- What checks there are, one for each op, argument, bounds, shape and layer: few. They stay.

struct Site {
  EntryCheck check;
  std::string suffix;
  Shape shape;
};
struct Sites {
  std::mutex mutex;
  std::vector<std::unique_ptr<Site>> list;
  std::unordered_map<std::string, unsigned> numbers;
  std::set<std::string> warned;
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
  const auto [found, added] = all.numbers.emplace(std::move(key), 0);
  if (added) {
    all.list.push_back(std::make_unique<Site>(Site{check, std::move(suffix), shape}));
    found->second = static_cast<unsigned>(all.list.size());
  }
  return found->second;
}

const Site& site_at(unsigned number) {
  Sites& all = sites();
  std::lock_guard lock(all.mutex);
  return *all.list[number - 1];
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
  copy.floating = note.floating;
  copy.position = note.position;
  copy.integer = note.integer;
  note.site = 0;
  return copy;
}

void raise(const Note& note) {
  const Site& site = site_at(note.site);
  if (site.check.raises == EntryCheck::Raises::warning) {  // each is given once
    Sites& all = sites();
    std::lock_guard lock(all.mutex);
    if (!all.warned.insert(site.check.before).second) return;
  }
  raise_entry_error(site.check, site.suffix, site.shape, note.position,
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
  if (warning.site != 0) raise(warning);
  if (fault.site != 0) raise(fault);
}

}  // namespace regard::cuda_backend
