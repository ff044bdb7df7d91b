// What a program spends its time on: a Profiler records every op, forward and backward, while it is alive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <regard/autograd/dtype.hpp>
#include <regard/autograd/profiler_hooks.hpp>
#include <regard/autograd/shape.hpp>

namespace regard {

namespace profiling {
class Recorder;
}

struct ProfilerOptions {
  /// An event for each kernel inside an op, too: a linear layer's product and its bias, say.
  bool kernels = false;
  /// So many are recorded; what comes after is counted, and left out. An op takes two or more: its kernels are
  /// recorded in any case. A few hundred bytes each.
  int64_t most_events = 1'000'000;
};

/// A tensor that an op read or wrote.
struct ProfiledTensor {
  Shape shape;
  DType dtype = DType::f32;
  friend bool operator==(const ProfiledTensor&, const ProfiledTensor&) = default;
};

/// Something that took a while.
struct ProfilerEvent {
  enum class Kind : uint8_t {
    op,        ///< one call of an op: from the start of its first kernel to the end of its last one
    backward,  ///< the gradient of one op in a backward pass, `linear backward`: the ops of which it is made are inside
    layer,     ///< one call of a layer that opens a LayerScope, as Regard's do
    region,    ///< a ProfilerRegion
    kernel     ///< a part of an op (ProfilerOptions::kernels)
  };
  Kind kind = Kind::op;
  std::string name;
  /// `encoder.blocks.2.attention`: the layer it was called in; in a backward pass that of the op whose gradient it is
  /// part of. Empty outside of any layer, and for a graph that was made before the Profiler.
  std::string layer;
  int thread = 1;  ///< counted from 1, in the order of their first events
  double begin_us = 0;
  double duration_us = 0;                       ///< wall time, microseconds
  double self_us = 0;                           ///< without the ops inside
  std::vector<ProfiledTensor> inputs, outputs;  ///< of a backward: gradients
  /// Bytes of the tensors that the kernels were given to read and to write; repeated elements of an expanded tensor
  /// count once. What is inside is added, as for `flops`.
  int64_t bytes_read = 0, bytes_written = 0;
  /// Floating-point operations of matrix products and attention, two a multiply-add; 0 for everything else. Of causal
  /// attention only the pairs that see each other count: half of a long sequence's. What attention's gradient computes
  /// again does not count.
  double flops = 0;
  int64_t live_bytes = 0;  ///< of all tensors, when it ended
  int64_t parent = -1;     ///< the event around it, in events(); -1: none
};

/// One line of a summary.
struct ProfilerRow {
  std::string name;
  int64_t calls = 0;
  double total_us = 0;  ///< with what is inside
  double self_us = 0;   ///< without
  double share = 0;     ///< self_us in all time spent in ops, 0 to 1
  double flops = 0;
  double bytes = 0;        ///< read and written
  double forward_us = 0;   ///< by_layer(): of total_us, the calls of the layer
  double backward_us = 0;  ///< by_layer(): of total_us, the gradients of its ops
};

/// Records every op on every thread of the process from its construction until stop() or its end:
///
///     Profiler profiler;
///     train_a_few_steps();
///     profiler.stop();
///     std::cout << profiler.table();
///     profiler.write("trace.json");  // for chrome://tracing or ui.perfetto.dev
///
/// As torch.profiler.profile: table() is its key_averages().table(), write() export_chrome_trace(), and ProfilerRegion
/// record_function. One at a time: a second one is a ValueError. Results stay the same, to the bit. While it records,
/// an op takes a microsecond or two more; while there is none, ops cost nothing more that could be measured.
///
/// Ops on a GPU are recorded like those on the CPU, with shapes, bytes and operations. They return before they are
/// done: an op's time is its own after set_cuda_synchronous(true), else what it takes to ask the GPU for it.
///
/// Views, which compute nothing, are events of no duration. An event's time is that of its kernels: what an op takes to
/// check its arguments, to allocate and to record shows as the gap before it.
class Profiler {
 public:
  explicit Profiler(const ProfilerOptions& options = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Ends the recording; what was recorded stays. A second call does nothing.
  void stop();
  /// Whether it has not been stopped.
  bool recording() const;

  /// What was recorded so far, by thread and then by time; an event before what is inside it.
  std::vector<ProfilerEvent> events() const;
  /// How many events were left out: see ProfilerOptions::most_events.
  int64_t left_out() const;

  /// One row for each op's name, most time of its own first.
  std::vector<ProfilerRow> by_op() const;
  /// One row for each layer's path, in the order of their first calls, with what is inside it; at last one without a
  /// name for what was called outside of any layer.
  std::vector<ProfilerRow> by_layer() const;
  /// Both as text, at most so many rows of ops.
  std::string table(int64_t most_ops = 25) const;

  /// A trace in Chrome's format, an event a call, and the bytes of all tensors over time. Written whole or not at all;
  /// a FileError says why not.
  void write(const std::filesystem::path& path) const;

 private:
  std::shared_ptr<profiling::Recorder> recorder_;
};

/// A part of a program under a name of its own in the trace: `ProfilerRegion region("validation");`. They nest. Costs
/// next to nothing while there is no Profiler.
class ProfilerRegion {
 public:
  explicit ProfilerRegion(const char* name) : open_(profiling::active()) {
    if (open_) enter(name);
  }
  explicit ProfilerRegion(const std::string& name) : ProfilerRegion(name.c_str()) {}
  ~ProfilerRegion() {
    if (open_) leave();
  }
  ProfilerRegion(const ProfilerRegion&) = delete;
  ProfilerRegion& operator=(const ProfilerRegion&) = delete;

 private:
  void enter(const char* name);
  void leave();
  bool open_;
};

}  // namespace regard
