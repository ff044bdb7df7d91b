// The autograd graph: Node, what ops record, and the functions that walk it.
#pragma once

#include <array>
#include <atomic>
#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/autograd/matmul_precision.hpp>
#include <regard/autograd/profiler_hooks.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

// ---- Gradient mode, per thread

bool grad_enabled();

/// Sets whether ops record, until the end of the scope.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool former_;
};

/// Nothing is recorded while one is alive: `NoGrad no_grad;`
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

// ---- Gradients

/// Gradients of one op: one Tensor an input, undefined where none is needed.
using Grads = boost::container::small_vector<Tensor, 4>;

struct GradOptions {
  Tensors grad_outputs = {};  ///< one an output; may be left out for single numbers
  bool create_graph = false;  ///< record the gradients' own computation: second derivatives
  bool retain_graph = false;  ///< keep what backward needs, so that it can run again (implied by create_graph)
  bool allow_unused = false;  ///< an input that the output does not depend on gives an undefined gradient
  bool leaf_hooks = true;     ///< false, in grad(): the inputs' hooks are left to who hands the gradients on
};

/// The gradients of `output` (a single number, or weighted by grad_outputs) with respect to `inputs`. Leaves'
/// grad() stay as they are.
Tensors grad(const Tensor& output, const Tensors& inputs, const GradOptions& options = {});
Tensors grad(const Tensors& outputs, const Tensors& inputs, const GradOptions& options = {});

/// Adds the gradients of `outputs` to the grad() of every leaf they depend on. When an op or a hook throws on the way,
/// leaves that were reached before keep what they got, and the graph is used up: zero_grad() and compute the loss
/// again. Two threads must not add to the same leaf at once. With create_graph a leaf, its gradient and the graph
/// hold one another until zero_grad(): grad() does without.
void backward(const Tensors& outputs, const GradOptions& options = {});

// ---- What an op records

/// Where a gradient goes: an output of another node, or a leaf; nothing where no gradient is needed.
struct Edge {
  NodePtr node;
  TensorImplPtr leaf;
  uint32_t output_index = 0;
  bool needed() const { return node != nullptr || leaf != nullptr; }
};

/// The node whose output is kept by keeping the node: it counts how many do.
class Recomputed {
 public:
  Recomputed() = default;
  Recomputed(const Recomputed&) = delete;
  Recomputed& operator=(const Recomputed&) = delete;
  ~Recomputed() { reset(); }
  void set(const NodePtr& node);
  void reset();
  Node* get() const { return node_.get(); }

 private:
  NodePtr node_;
};

/// A tensor kept for backward, with the version it had. An output of the node itself is kept without its graph
/// (no cycle) and comes back attached.
///
/// A large output of a cheap op (an activation, a norm; see record_recomputable()) is not kept: the op's node is, which
/// the graph holds anyway, and what that saved gives the value once more, to the bit, when backward asks for it. So
/// memory holds the input of a gelu, and not its output beside it.
struct SavedTensor {
  TensorImplPtr impl;
  uint32_t version = 0;
  int32_t output_index = -1;
  Recomputed from;  // in place of impl
};

class Saved;

/// Outputs of fewer bytes are kept as they are: time counts there, and memory does not.
constexpr int64_t least_recomputed_bytes = int64_t{1} << 19;

/// One recorded op. Holds where its inputs' gradients go and what its gradient needs.
class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  uint64_t sequence() const { return sequence_; }
  std::span<Edge> edges() { return {edges_, edge_count_}; }
  std::span<SavedTensor> saved() { return {saved_, saved_count_}; }
  bool released() const { return released_; }
  /// What held when the op was recorded; its gradient is computed with it.
  MatmulPrecision recorded_precision() const { return precision_; }
  /// No backward() uses it up: of an op that keeps nothing, and whose output several graphs use.
  void stay() { stays_ = true; }
  /// Drops what was kept for backward.
  void release_saved();
  /// Before the node runs for the last time: where other nodes still count on its output, it is kept from now on.
  void keep_output_for_users();

  /// Whether run() may be called more than once, each time for some of the inputs, at no extra cost to speak of.
  virtual bool runs_in_parts() const { return false; }
  /// Whether the only output can be had again from what is saved.
  virtual bool recomputes() const { return false; }
  /// Whether an op that saves x keeps the node that computed it in its place: x is large, and had again by few kernels.
  static bool recomputable(const Tensor& x);
  /// The output again, attached to this node. `last`: its users run for the last time, so that the value may be kept
  /// for those that follow and go with the last of them.
  Tensor recomputed(bool last);

  struct OutputInfo {
    Shape shape;
    DType dtype = DType::f32;
    Device device;
  };
  /// The first output's description lives in the node, those of further outputs beside it.
  const OutputInfo& output(uint32_t index) const { return index == 0 ? output_ : more_outputs_[index - 1]; }
  uint32_t output_count() const { return static_cast<uint32_t>(1 + more_outputs_.size()); }

  /// Hooks on this node's outputs: (output, id, hook).
  struct OutputHook {
    uint32_t output;
    uint64_t id;
    GradHook hook;
  };
  std::vector<OutputHook> hooks;

  /// The gradients of the inputs, from those of the outputs (undefined where an output was not used).
  virtual Grads run(const Saved& saved, std::span<const Tensor> grads) = 0;

  // For record(): not for users.
  void attach(const char* name, std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
              std::span<const Tensor* const> saved);

  friend void intrusive_ptr_add_ref(Node* node);
  friend void intrusive_ptr_release(Node* node);

 protected:
  Node();
  virtual ~Node();
  void use_slots(Edge* edges, uint32_t edge_count, SavedTensor* saved, uint32_t saved_count) {
    edges_ = edges;
    edge_count_ = edge_count;
    saved_ = saved;
    saved_count_ = saved_count;
  }
  virtual void release_resources() {}
  /// The output's elements from the saved tensors, where recomputes(); recording is off.
  virtual Tensor recompute(const Saved& saved);

 private:
  friend class Recomputed;
  std::atomic<uint32_t> references_{0};
  uint32_t recompute_cost_ = 1;  // how many kernels run to have the output again, where recomputes()
  std::atomic<uint32_t> recomputed_users_{0};
  uint32_t edge_count_ = 0;
  uint32_t saved_count_ = 0;
  bool released_ = false;
  MatmulPrecision precision_ = MatmulPrecision::f32;
  bool stays_ = false;
  const char* name_ = "";
  uint64_t sequence_ = 0;
  Edge* edges_ = nullptr;
  SavedTensor* saved_ = nullptr;
  OutputInfo output_;
  std::vector<OutputInfo> more_outputs_;
  Tensor kept_output_;  // a recomputed one, without graph, while users wait for it
};

/// The gradients that an engine has added up so far.
class GradientSums {
 public:
  /// The sum where an edge leads, if it may be added to in place; else null.
  virtual Tensor* sum(const Edge& edge) = 0;

 protected:
  ~GradientSums() = default;
};

/// What a gradient function sees of its node.
class Saved {
 public:
  /// `last`: the node is not run again.
  Saved(Node& node, uint64_t needed, bool last = false, GradientSums* sums = nullptr)
      : node_(node), needed_(needed), last_(last), sums_(sums) {}
  /// The i-th saved tensor; a GraphError when it was changed in place since. One that is recomputed is computed at each
  /// call: ask once.
  Tensor operator[](size_t i) const;
  /// The same, for a gradient function that asks for it no more: where the node runs for the last time it lets go of
  /// it, so that memory is free, or may be written over (see reuse()), while the function still runs.
  Tensor take(size_t i) const;
  /// The gradient that input i has so far from other ops, where it may be added to in place, else null. A gradient
  /// function that changes few of its elements adds them there, and leaves its own gradient of the input undefined.
  Tensor* sum(size_t i) const { return sums_ ? sums_->sum(node_.edges()[i]) : nullptr; }
  size_t size() const { return node_.saved().size(); }
  /// Whether the gradient of input i is wanted now: leave it undefined where not.
  bool needs(size_t i) const { return i >= 63 ? (needed_ >> 63) != 0 : ((needed_ >> i) & 1U) != 0; }

 private:
  Node& node_;
  uint64_t needed_;
  bool last_;
  GradientSums* sums_;
};

/// Whether nobody but this handle can see the elements of x, nothing is recorded and the memory is the library's own: a
/// gradient function may write its result over what it needs no more.
bool reusable(const Tensor& x);
/// Memory for a result like x, elements not initialised: `spent`'s own where it is reusable() and dense with x's shape
/// and dtype, else new.
Tensor reuse(const Tensor& spent, const Tensor& x);

template <size_t N>
using TensorRefs = std::array<const Tensor*, N>;

/// The inputs of an op, in the order of its gradient function's results. An undefined tensor (an option left
/// out) needs no gradient.
template <class... T>
TensorRefs<sizeof...(T)> inputs(const T&... tensors) {
  return {&static_cast<const Tensor&>(tensors)...};
}
/// What the gradient needs: inputs, or outputs.
template <class... T>
TensorRefs<sizeof...(T)> saved(const T&... tensors) {
  return {&static_cast<const Tensor&>(tensors)...};
}

/// Whether an op on these inputs would be recorded.
bool needs_record(std::span<const Tensor* const> inputs);
/// The sequence number of the latest op that this thread recorded: later ones have larger numbers.
uint64_t latest_sequence();

/// For ops whose output is not computed again.
struct NotRecomputed {};

template <class F, size_t Inputs, size_t SavedCount, class R = NotRecomputed>
class ClosureNode final : public Node {
 public:
  explicit ClosureNode(const F& function, const R& again = {}) : function_(function), again_(again) {
    use_slots(edge_slots_.data(), Inputs, saved_slots_.data(), SavedCount);
  }
  bool runs_in_parts() const override { return true; }
  bool recomputes() const override { return !std::is_same_v<R, NotRecomputed>; }
  Grads run(const Saved& saved, std::span<const Tensor> grads) override {
    if constexpr (std::is_invocable_v<const F&, const Saved&, const Tensor&>)
      return function_(saved, grads[0]);
    else
      return function_(saved, grads);
  }

 private:
  Tensor recompute(const Saved& saved) override {
    if constexpr (std::is_same_v<R, NotRecomputed>)
      return Node::recompute(saved);
    else
      return again_(saved);
  }
  F function_;
  [[no_unique_address]] R again_;
  std::array<Edge, Inputs> edge_slots_;
  std::array<SavedTensor, SavedCount> saved_slots_;
};

/// Records one op with one output. `backward(const Saved&, const Tensor& grad) -> Grads`, written in tensor ops so
/// that its own gradient comes free; it captures numbers and Shapes only: tensors go through saved(). Returns
/// the output untouched when no input needs a gradient. A gradient may be returned in the broadcast shape: the
/// engine reduces it to the input's.
template <size_t N, size_t M, class F>
Tensor record(const char* name, Tensor output, const TensorRefs<N>& inputs, const TensorRefs<M>& saved, F backward) {
  static_assert(std::is_trivially_destructible_v<F>, "a gradient function captures numbers and Shapes, no tensors");
  Tensor* outputs[] = {&output};
  if (profiling::active()) [[unlikely]]
    profiling::op_done(name, outputs, inputs, saved);
  if (!needs_record(inputs)) return output;
  NodePtr node(new ClosureNode<F, N, M>(backward));
  node->attach(name, inputs, outputs, saved);
  return output;
}

/// The same for an op whose output is cheap to compute again from what it saves: `again(const Saved&) -> Tensor`, with
/// the same kernel, so that bits are equal. Ops that save the output then keep this op's node in its place, from
/// least_recomputed_bytes on, and need what this op saved to be unchanged until backward. It pays where the saved
/// tensors are in memory anyway, and takes much less time than what the output is saved for.
template <size_t N, size_t M, class F, class R>
Tensor record_recomputable(const char* name, Tensor output, const TensorRefs<N>& inputs, const TensorRefs<M>& saved,
                           F backward, R again) {
  static_assert(std::is_trivially_destructible_v<F> && std::is_trivially_destructible_v<R>,
                "a gradient function captures numbers and Shapes, no tensors");
  Tensor* outputs[] = {&output};
  if (profiling::active()) [[unlikely]]
    profiling::op_done(name, outputs, inputs, saved);
  if (!needs_record(inputs)) return output;
  NodePtr node(new ClosureNode<F, N, M, R>(backward, again));
  node->attach(name, inputs, outputs, saved);
  return output;
}

/// Several outputs: `backward(const Saved&, std::span<const Tensor> grads) -> Grads`.
template <size_t K, size_t N, size_t M, class F>
void record_outputs(const char* name, const std::array<Tensor*, K>& outputs, const TensorRefs<N>& inputs,
                    const TensorRefs<M>& saved, F backward) {
  static_assert(std::is_trivially_destructible_v<F>, "a gradient function captures numbers and Shapes, no tensors");
  if (profiling::active()) [[unlikely]]
    profiling::op_done(name, outputs, inputs, saved);
  if (!needs_record(inputs)) return;
  NodePtr node(new ClosureNode<F, N, M>(backward));
  node->attach(name, inputs, outputs, saved);
}

/// Any number of inputs, saved tensors and outputs, and a gradient function that owns something. For cat, stack,
/// split, custom_op.
using GeneralBackward = std::function<Grads(const Saved& saved, std::span<const Tensor> grads)>;
/// A list of tensors as record_general() takes it; the tensors must outlive it.
std::vector<const Tensor*> pointers(const Tensors& tensors);
void record_general(std::string name, std::span<Tensor* const> outputs, std::span<const Tensor* const> inputs,
                    std::span<const Tensor* const> saved, GeneralBackward backward);

/// States that an op has no derivative: its output, of integer or boolean dtype or piecewise constant, never
/// requires a gradient.
inline Tensor no_derivative(Tensor output) { return output; }

/// An op of your own: `forward(inputs) -> Tensor`, run without recording, and
/// `backward(inputs, grad) -> Tensors`, one gradient an input (undefined where there is none), in tensor ops, so
/// that second derivatives work too. `name` shows in errors. In an AutocastScope, 16-bit inputs on a GPU are given to
/// it in f32, and both functions compute in the dtypes that they are given.
Tensor custom_op(const std::string& name, const Tensors& inputs, const std::function<Tensor(const Tensors&)>& forward,
                 std::function<Tensors(const Tensors&, const Tensor&)> backward);

}  // namespace regard
