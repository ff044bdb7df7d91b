// What the engine tells a Profiler (profiler.hpp). While there is none, each of these costs one relaxed load.
#pragma once

#include <atomic>
#include <span>

namespace regard {

class ErrorScope;
class Node;
class Tensor;

namespace profiling {

/// Whether a Profiler records now, on any thread.
extern std::atomic<bool> recording;
inline bool active() { return recording.load(std::memory_order_relaxed); }

/// An op has computed its outputs: the kernels that wrote them were this op's.
void op_done(const char* name, std::span<Tensor* const> outputs, std::span<const Tensor* const> inputs,
             std::span<const Tensor* const> saved);
/// A node belongs to the layer that is computing now.
void node_made(const Node& node);
void layer_entered(const ErrorScope& scope);
void layer_left(const ErrorScope& scope);

/// Around a node's part of the backward pass.
class NodeSpan {
 public:
  explicit NodeSpan(Node& node) : open_(active()) {
    if (open_) [[unlikely]]
      enter(node);
  }
  ~NodeSpan() {
    if (open_) [[unlikely]]
      leave();
  }
  NodeSpan(const NodeSpan&) = delete;
  NodeSpan& operator=(const NodeSpan&) = delete;

 private:
  void enter(Node& node);
  void leave();
  bool open_;
};

}  // namespace profiling
}  // namespace regard
