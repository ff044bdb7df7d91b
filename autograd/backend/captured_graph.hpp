// What CudaGraph (cuda_graph.hpp) and ops that take part in a capture ask of the CUDA backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace regard {

/// Work on a GPU that is recorded and can be repeated. It is recorded on the thread that began, from then until end():
/// nothing of it is done meanwhile, and memory comes from a pool of its own, which it keeps.
class CapturedGraph {
 public:
  /// Waits until nothing of it is under way, and gives its memory back, but for that of tensors that are left. Ends a
  /// capture that was not ended, and forgets it.
  virtual ~CapturedGraph() = default;

  /// Ends the capture: from now on it can be repeated. A DeviceError where CUDA refuses what was recorded.
  virtual void end() = 0;
  /// Does host work, writes what changes from one time to the next, and queues what was recorded.
  virtual void replay() = 0;

  /// Host work of every replay, in the order in which it and slots are asked for: `check` throws where it cannot be
  /// done, all before any `advance`, which may not throw.
  virtual void at_replay(std::function<void()> check, std::function<void()> advance) = 0;
  /// Memory of the GPU, aligned to 16 bytes, for what each replay is to be given: `write` fills a copy of it on the
  /// CPU, after the host work that was given before it.
  virtual void* slot(size_t bytes, std::function<void(void*)> write) = 0;
  /// A tensor's whole memory, on this GPU: nobody else gets it while there is the graph, even when the tensor is gone.
  virtual void keep(void* block) = 0;

  /// Random numbers of the default generator: what its counters begin at in the capture, which marks them as counted
  /// from wherever the generator is at a replay...
  virtual uint64_t first_counter() const = 0;
  /// ...and how many were taken: so many are in each replay.
  virtual void set_counters(uint64_t count) = 0;
};

/// Counters from here on are those of a capture: 15 bits hold its number, 48 count.
inline constexpr uint64_t captured_counters = uint64_t{1} << 63;
inline constexpr uint64_t counted_in_capture = (uint64_t{1} << 48) - 1;

/// The capture that goes on in this thread; null where none does.
CapturedGraph* current_capture();

}  // namespace regard
