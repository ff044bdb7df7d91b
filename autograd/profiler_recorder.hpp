// What a Profiler records, as it is kept while it records.
#pragma once

#include <atomic>
#include <boost/container/small_vector.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <regard/autograd/profiler.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {
struct Kernels;
}

namespace regard::profiling {

/// The kernels of a kind of device, each with a KernelNote around it; null where there is no such device.
const Kernels* noted_kernels(Device::Kind kind);

using Kind = ProfilerEvent::Kind;

/// A range of memory.
struct Memory {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool meets(const Memory& other) const { return begin < other.end && other.begin < end; }
};

struct Event {
  Kind kind = Kind::op;
  bool part_of_op = false;  // a kernel that an op has claimed
  uint32_t name = 0;        // in ThreadRecord::names
  uint32_t layer = 0;       // in Recorder::layers
  uint32_t outputs = 0, inputs = 0;
  size_t first_tensor = 0;     // outputs, then inputs, in ThreadRecord::tensors
  int64_t begin = 0, end = 0;  // nanoseconds since the start; an end before the begin: not over
  int64_t read = 0, written = 0, live = 0;
  double flops = 0;
};

/// A kernel's event that no op has claimed yet.
struct OpenKernel {
  size_t event = 0;
  boost::container::small_vector<Memory, 4> reads, writes;
};

/// What one thread recorded. Its thread writes, who reads it locks.
struct ThreadRecord {
  struct Open {
    const void* key;  // the scope
    size_t event;     // none: left out
    uint32_t layer;
  };
  static constexpr size_t none = SIZE_MAX;

  std::mutex mutex;
  int number = 1;
  std::vector<Event> events;
  std::vector<ProfiledTensor> tensors;
  std::vector<std::string> names;
  std::unordered_map<std::string, uint32_t> name_numbers;
  std::vector<OpenKernel> kernels;
  std::vector<Open> open;

  uint32_t name_number(std::string_view name);
};

/// A layer's path within that of the layer around it. Number 0 is outside of any layer.
struct LayerPlace {
  std::string path;
  uint32_t outer = 0;
};

class Recorder : public std::enable_shared_from_this<Recorder> {
 public:
  explicit Recorder(const ProfilerOptions& options) : options(options), start(std::chrono::steady_clock::now()) {}

  int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  }
  /// Adds an event to a thread's, which is locked. ThreadRecord::none where there are too many.
  size_t add(ThreadRecord& record, const Event& event);
  uint32_t layer_number(const std::string& path, uint32_t outer);

  struct NodePlace {
    uint64_t sequence;
    uint32_t layer;
  };

  const ProfilerOptions options;
  const std::chrono::steady_clock::time_point start;
  std::atomic<int64_t> stopped{-1};  // when, once it is
  std::atomic<int64_t> count{0}, left_out{0};

  std::mutex mutex;  // for what follows
  std::vector<std::shared_ptr<ThreadRecord>> threads;
  std::vector<LayerPlace> layers{{}};
  std::unordered_map<std::string, uint32_t> layer_numbers;
  std::unordered_map<const Node*, NodePlace> nodes;
};

/// A kernel's call: what it is given is noted before, its time around it, and at its end all goes to the thread's
/// record.
class KernelNote {
 public:
  explicit KernelNote(const char* name) : name_(name) {}
  ~KernelNote();
  KernelNote(const KernelNote&) = delete;
  KernelNote& operator=(const KernelNote&) = delete;

  void call_it(const char* name) { name_ = name; }
  void add_flops(double flops) { flops_ += flops; }
  void reads(const Tensor& x);
  void writes(const Tensor& x);
  /// Of tensors that are seen as less: only a part of them is read.
  void reads_at_most(int64_t bytes);
  void reads(const ProfiledTensor& what, int64_t bytes, Memory where);
  void writes(const ProfiledTensor& what, int64_t bytes, Memory where);
  void begin();

 private:
  const char* name_;
  const Recorder* recorder_ = nullptr;
  int64_t begin_ = 0;
  int64_t read_ = 0, written_ = 0;
  double flops_ = 0;
  boost::container::small_vector<ProfiledTensor, 8> outputs_, inputs_;
  OpenKernel open_;
};

/// Everything recorded so far, with what is inside added up.
struct Collected {
  std::vector<ProfilerEvent> events;
  std::vector<uint32_t> layers;  // of each event, in `places`
  std::vector<LayerPlace> places;
};
Collected collect(Recorder& recorder);
std::vector<ProfilerRow> rows_by_op(const Collected& all);
std::vector<ProfilerRow> rows_by_layer(const Collected& all);
std::string table_text(const Collected& all, int64_t most_ops, int64_t left_out);
void write_trace(const Collected& all, int64_t left_out, const std::filesystem::path& path);

}  // namespace regard::profiling
