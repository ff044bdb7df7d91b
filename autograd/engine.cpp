// The engine: walks the graph backwards and adds up gradients.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

// Maps pointers to consecutive numbers: open addressing, no allocation an entry.
class PointerMap {
 public:
  PointerMap() : slots_(64) {}
  /// The number of `key`; `fresh` tells whether it was new.
  uint32_t insert(const void* key, bool& fresh) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = find(key);
    fresh = slot.key == nullptr;
    if (fresh) slot = {key, count_++};
    return slot.value;
  }
  /// The number of `key`, or -1.
  int64_t at(const void* key) {
    const Slot& slot = find(key);
    return slot.key ? int64_t{slot.value} : -1;
  }

 private:
  struct Slot {
    const void* key = nullptr;
    uint32_t value = 0;
  };
  Slot& find(const void* key) {
    size_t at = (reinterpret_cast<uintptr_t>(key) >> 4) * 0x9e3779b97f4a7c15U >> 20 & (slots_.size() - 1);
    while (slots_[at].key && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.key) find(slot.key) = slot;
  }
  std::vector<Slot> slots_;
  uint32_t count_ = 0;
};

struct NodeState {
  NodePtr node;
  std::vector<Tensor> grads;     // one an output, once the first has come
  bool needed = true;            // leads to what is asked for
  std::vector<int32_t> targets;  // per output: which input of grad() it is, or -1
};

struct LeafStateInRun {
  TensorImplPtr leaf;
  Tensor grad;
  uint32_t waiting = 0;  // edges that have not delivered yet
  int32_t target = -1;
  const char* op = "";   // the op that used it
  int32_t put_off = -1;  // a node whose gradient for it is still to be computed
};

// Whether nobody else holds the elements, so that they can be written or handed over.
bool unique(const Tensor& x) {
  return x.impl()->references.load(std::memory_order_acquire) == 1 && x.impl()->storage->unique();
}

// Whether the elements are dense and all that their storage holds: a part would keep the whole alive.
bool fills_storage(const Tensor& x) {
  return x.is_contiguous() && x.impl()->storage->bytes() == x.numel() * element_size(x.dtype());
}

// Elements of at most this many bytes are computed at once: see Run::put_off().
constexpr int64_t least_put_off_bytes = int64_t{4} << 20;

class Run final : private GradientSums {
 public:
  Run(const Tensors& outputs, const GradOptions& options, const Tensors* inputs)
      : outputs_(outputs), options_(options), inputs_(inputs), keep_(options.retain_graph || options.create_graph) {}

  Tensors run() {
    GradMode mode(options_.create_graph);
    const autocast::Pause pause;  // dtypes are those of the forward pass
    Tensors roots = root_gradients();
    collect();
    mark_targets();
    check_not_released();
    for (size_t i = 0; i < outputs_.size(); ++i) deliver_root(outputs_[i], roots[i]);
    roots.clear();
    for (uint32_t index : order_) run_node(states_[index]);
    finish_results();
    warn_of_unlisted();
    return std::move(results_);
  }

 private:
  // The gradients that backward starts from, checked.
  Tensors root_gradients() {
    const char* op = inputs_ ? "grad" : "backward";
    const Tensors& given = options_.grad_outputs;
    check<ValueError>(!outputs_.empty(), op, "no outputs are given");
    check<ShapeError>(given.empty() || given.size() == outputs_.size(), op, given.size(), " gradients for ",
                      outputs_.size(), " outputs");
    Tensors roots;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Tensor& output = outputs_[i];
      check_defined(op, "output", output);
      check<GraphError>(output.requires_grad(), op, "the output of shape ", output.shape(),
                        " does not depend on anything that requires a gradient: call set_requires_grad() on an "
                        "input, and compute outside of NoGrad");
      if (!given.empty() && given[i].defined()) {
        check<ShapeError>(given[i].shape() == output.shape(), op, "a gradient of shape ", given[i].shape(),
                          " for an output of shape ", output.shape());
        check<DTypeError>(given[i].dtype() == output.dtype(), op, "a gradient of dtype ", given[i].dtype(),
                          " for an output of dtype ", output.dtype());
        check_same_device(op, given[i], output);
        roots.push_back(options_.create_graph ? given[i] : given[i].detach());
      } else {
        check<ShapeError>(output.numel() == 1, op, "the output of shape ", output.shape(),
                          " is not a single number: reduce it (sum, mean), or pass a gradient of its shape");
        roots.push_back(ones_like(output));
      }
    }
    return roots;
  }

  uint32_t visit(const NodePtr& node) {
    bool fresh = false;
    uint32_t index = nodes_.insert(node.get(), fresh);
    if (fresh) {
      states_.emplace_back().node = node;
      stack_.push_back(index);
    }
    return index;
  }

  LeafStateInRun& leaf(const TensorImplPtr& impl) {
    bool fresh = false;
    uint32_t index = leaf_numbers_.insert(impl.get(), fresh);
    if (fresh) leaves_.emplace_back().leaf = impl;
    return leaves_[index];
  }

  // All nodes that the outputs depend on, latest first; how many deliveries each leaf awaits.
  void collect() {
    for (const Tensor& output : outputs_) {
      if (output.node())
        visit(output.node());
      else
        ++leaf(output.impl_ptr()).waiting;
    }
    while (!stack_.empty()) {
      uint32_t index = stack_.back();
      stack_.pop_back();
      Node* node = states_[index].node.get();
      for (const Edge& edge : node->edges()) {
        if (edge.node)
          visit(edge.node);
        else if (edge.leaf)
          ++leaf(edge.leaf).waiting;
      }
    }
    order_.resize(states_.size());
    for (uint32_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(),
              [this](uint32_t a, uint32_t b) { return states_[a].node->sequence() > states_[b].node->sequence(); });
  }

  // For grad(): which nodes lead to an input. The others are not run.
  void mark_targets() {
    if (!inputs_) return;
    results_.resize(inputs_->size());
    for (size_t i = 0; i < inputs_->size(); ++i) {
      const Tensor& input = (*inputs_)[i];
      check_defined("grad", "input", input);
      check<GraphError>(input.requires_grad(), "grad", "input ", i, " of shape ", input.shape(),
                        " does not require a gradient: call set_requires_grad() before it is used");
      bool used = false;
      if (input.node()) {
        int64_t index = nodes_.at(input.node().get());
        used = index >= 0;
        if (used) {
          NodeState& state = states_[static_cast<size_t>(index)];
          state.targets.resize(state.node->output_count(), -1);
          link(state.targets[input.impl()->output_index], i);
        }
      } else {
        int64_t index = leaf_numbers_.at(input.impl());
        used = index >= 0;
        if (used) link(leaves_[static_cast<size_t>(index)].target, i);
      }
      check<GraphError>(used || options_.allow_unused, "grad", "the output does not depend on input ", i, " of shape ",
                        input.shape(), ": leave it out, or pass allow_unused");
    }
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) {  // earliest first
      NodeState& state = states_[*it];
      state.needed = !state.targets.empty();
      for (const Edge& edge : state.node->edges()) state.needed = state.needed || edge_needed(edge);
    }
  }
  // Whether the node's gradient function is called: in grad() not where it leads to nothing that is asked for.
  bool runs(const NodeState& state) {
    if (!inputs_) return true;
    auto edges = state.node->edges();
    return std::any_of(edges.begin(), edges.end(), [this](const Edge& edge) { return edge_needed(edge); });
  }

  // Before anything is changed.
  void check_not_released() {
    for (const NodeState& state : states_)
      if (state.node->released() && runs(state))
        fail<GraphError>(inputs_ ? "grad" : "backward", "part of this graph (at '", state.node->name(),
                         "') was already used by an earlier backward and freed: pass retain_graph to the first, or "
                         "compute the loss again; a state that is carried from step to step needs detach()");
  }

  // The same tensor may be asked for twice: later ones copy the first.
  void link(int32_t& target, size_t input) {
    if (target < 0)
      target = static_cast<int32_t>(input);
    else
      duplicates_.emplace_back(static_cast<size_t>(target), input);
  }

  bool edge_needed(const Edge& edge) {
    if (!inputs_) return edge.needed();
    if (edge.node) return states_[static_cast<size_t>(nodes_.at(edge.node.get()))].needed;
    return edge.leaf && leaves_[static_cast<size_t>(leaf_numbers_.at(edge.leaf.get()))].target >= 0;
  }

  void add(Tensor& sum, Tensor&& grad) {
    if (!sum.defined()) {
      sum = std::move(grad);
    } else if (!computes(sum.dtype(), sum.device())) {  // 16 bits only store there
      sum = regard::to(regard::add(regard::to(sum, DType::f32), regard::to(grad, DType::f32)), sum.dtype());
    } else if (!options_.create_graph && unique(sum) && sum.is_contiguous()) {
      kernels(sum).binary(BinaryOp::add, sum, sum, grad);
    } else {
      sum = regard::add(sum, grad);
    }
  }

  void deliver_root(const Tensor& output, Tensor& grad) {
    if (output.node())
      deliver_to_node(output.node().get(), output.impl()->output_index, std::move(grad));
    else
      deliver_to_leaf(output.impl_ptr(), std::move(grad));
  }
  void deliver_to_node(Node* node, uint32_t output, Tensor&& grad) {
    NodeState& state = states_[static_cast<size_t>(nodes_.at(node))];
    if (!state.needed) return;
    if (state.grads.empty()) state.grads.resize(node->output_count());
    add(state.grads[output], std::move(grad));
  }
  void deliver_to_leaf(const TensorImplPtr& impl, Tensor&& grad, const char* op = "") {
    LeafStateInRun& state = leaves_[static_cast<size_t>(leaf_numbers_.at(impl.get()))];
    state.op = op;
    if (grad.defined()) add(state.grad, std::move(grad));
    if (--state.waiting == 0 && state.grad.defined()) finish_leaf(state);
  }

  void apply(const GradHook& hook, Tensor& grad) {
    Tensor replaced = hook(grad);
    if (!replaced.defined()) return;
    check<ShapeError>(replaced.shape() == grad.shape() && replaced.dtype() == grad.dtype(), "hook",
                      "it returned a gradient of shape ", replaced.shape(), " and dtype ", replaced.dtype(),
                      " in place of ", grad.shape(), ", ", grad.dtype());
    check<DeviceError>(replaced.device() == grad.device(), "hook", "it returned a gradient on ", replaced.device(),
                       " in place of one on ", grad.device(), ": bring it there with to()");
    grad = options_.create_graph || !replaced.requires_grad() ? std::move(replaced) : replaced.detach();
  }

  void finish_leaf(LeafStateInRun& state) {
    Tensor grad = std::move(state.grad);
    if (inputs_ && state.target < 0) return;
    if (state.leaf->leaf && options_.leaf_hooks) {
      auto hooks = state.leaf->leaf->hooks;  // a hook may remove itself
      for (const auto& entry : hooks) apply(entry.second, grad);
    }
    if (inputs_) {
      give(state.target, std::move(grad));
      return;
    }
    LeafState& leaf_state = state.leaf->leaf_state();
    if (leaf_state.grad.defined() && leaf_state.grad.requires_grad()) {
      GradMode mode(true);  // an earlier backward recorded it: its graph stays
      leaf_state.grad = regard::add(leaf_state.grad, grad);
    } else if (leaf_state.grad.defined()) {
      add(leaf_state.grad, std::move(grad));
    } else {
      // The leaf's own elements: what others hold, or what repeats elements, is copied.
      leaf_state.grad = unique(grad) && fills_storage(grad) ? std::move(grad) : grad.clone();
    }
    auto hooks = leaf_state.accumulate_hooks;
    for (const auto& entry : hooks) entry.second(Tensor(state.leaf));
  }

  // A parameter that no parameters() listed beside some that were: a member was left out of members(), and no
  // optimizer will train it. Said once.
  void warn_of_unlisted() const {
    static std::atomic<bool> said{false};
    if (inputs_ || said.load(std::memory_order_relaxed)) return;
    const LeafStateInRun* unlisted = nullptr;
    bool listed = false;
    for (const LeafStateInRun& state : leaves_) {
      if (!state.leaf->leaf) continue;
      if (state.leaf->leaf->listing == LeafState::Listing::listed_parameter) listed = true;
      if (state.leaf->leaf->listing == LeafState::Listing::unlisted_parameter && !unlisted) unlisted = &state;
    }
    if (!listed || !unlisted || said.exchange(true)) return;
    warn("a parameter of shape " + to_string(unlisted->leaf->shape) + ", used by '" + unlisted->op +
         "', got a gradient, but no parameters() call listed it: is it missing in its layer's members()?");
  }

  void give(int32_t target, Tensor&& grad) {
    for (const auto& [first, copy] : duplicates_)
      if (first == static_cast<size_t>(target)) results_[copy] = grad;
    results_[static_cast<size_t>(target)] = std::move(grad);
  }

  // Every input has its gradient, and each gradient elements of its own, so that they can be written to.
  void finish_results() {
    for (size_t i = 0; i < results_.size(); ++i) {
      Tensor& result = results_[i];
      check<GraphError>(result.defined() || options_.allow_unused, "grad", "no gradient came to input ", i,
                        " of shape ", (*inputs_)[i].shape(),
                        ": an op on the way gave none; pass allow_unused to take that as an undefined gradient");
      if (result.defined() && !result.node() && !(unique(result) && fills_storage(result))) result = result.clone();
    }
  }

  void run_node(NodeState& state) {
    Node& node = *state.node;
    const profiling::NodeSpan span(node);
    auto edges = node.edges();
    bool any = false;
    for (uint32_t k = 0; k < state.grads.size(); ++k) {
      if (!state.grads[k].defined()) continue;
      any = true;
      if (!node.hooks.empty()) {
        auto hooks = node.hooks;
        for (const auto& entry : hooks)
          if (entry.output == k) apply(entry.hook, state.grads[k]);
      }
      if (k < state.targets.size() && state.targets[k] >= 0) give(state.targets[k], Tensor(state.grads[k]));
    }
    uint64_t needed = 0;
    for (size_t i = 0; i < edges.size(); ++i)
      if (edge_needed(edges[i])) needed |= uint64_t{1} << std::min<size_t>(i, 63);
    if (waiting_nodes_ > 0) compute_put_off(edges);
    const int64_t later = any && needed ? put_off(state) : -1;
    if (later >= 0) needed &= ~(uint64_t{1} << later);

    if (!keep_ && runs(state)) node.keep_output_for_users();

    Grads grads;
    if (any && needed) {
      MatmulPrecisionScope precision(node.recorded_precision());
      const auto held = later < 0 ? std::vector<Tensor>() : state.grads;  // not to be written over
      grads = node.run(Saved(node, needed, !keep_ && later < 0, this), state.grads);
      check<GraphError>(grads.size() == edges.size(), node.name(), "its gradient function returned ", grads.size(),
                        " gradients for ", edges.size(), " inputs");
    }
    if (later < 0) state.grads.clear();
    for (size_t i = 0; i < edges.size(); ++i) {
      if (static_cast<int64_t>(i) == later) continue;
      Edge& edge = edges[i];
      Tensor grad = i < grads.size() && edge_needed(edge) ? std::move(grads[i]) : Tensor();
      if (grad.defined()) fit(node, edge, i, grad);
      if (edge.leaf)
        deliver_to_leaf(edge.leaf, std::move(grad), node.name());
      else if (edge.node && grad.defined())
        deliver_to_node(edge.node.get(), edge.output_index, std::move(grad));
    }
    if (!keep_ && later < 0 && runs(state)) node.release_saved();
  }

  // Whether the node saved elements of a leaf of this run other than `leaf`: that one may be complete, and changed by a
  // hook (a step inside backward), before the node runs for the second time.
  bool saves_other_leaf(Node& node, const TensorImpl* leaf) const {
    for (const SavedTensor& saved : node.saved()) {
      if (!saved.impl || saved.impl.get() == leaf) continue;
      for (const LeafStateInRun& other : leaves_)
        if (other.leaf.get() != leaf && other.leaf->storage == saved.impl->storage) return true;
    }
    return false;
  }

  // A leaf that other ops use, too (a tied weight), has its gradient in memory from the first of them to the last.
  // Where what it is computed from takes less, as in an output head, that is kept, and the gradient computed when the
  // next op has one for the leaf: in the same order, so with the same bits. Which edge of the node waits, or -1.
  int64_t put_off(const NodeState& state) {
    if (inputs_ || keep_ || options_.create_graph || !state.node->runs_in_parts()) return -1;
    auto edges = state.node->edges();
    for (size_t i = 0; i < std::min<size_t>(edges.size(), 63); ++i) {
      const TensorImpl* leaf = edges[i].leaf.get();
      if (!leaf || leaf->shape.numel() * element_size(leaf->dtype) < least_put_off_bytes) continue;
      LeafStateInRun& state_of_leaf = leaves_[static_cast<size_t>(leaf_numbers_.at(leaf))];
      const auto uses = std::count_if(edges.begin(), edges.end(), [&](const Edge& e) { return e.leaf.get() == leaf; });
      if (uses != 1 || state_of_leaf.waiting < 2 || state_of_leaf.grad.defined()) continue;
      int64_t kept = 0;
      for (const Tensor& grad : state.grads)
        if (grad.defined()) kept += grad.numel() * element_size(grad.dtype());
      for (const SavedTensor& saved : state.node->saved()) {
        if (saved.impl.get() != leaf && saved.impl) kept += saved.impl->shape.numel() * element_size(saved.impl->dtype);
        if (Node* from = saved.from.get()) kept += from->output(0).shape.numel() * element_size(from->output(0).dtype);
      }
      if (2 * kept > leaf->shape.numel() * element_size(leaf->dtype)) continue;
      if (saves_other_leaf(*state.node, leaf)) continue;
      state_of_leaf.put_off = static_cast<int32_t>(&state - states_.data());
      ++waiting_nodes_;
      return static_cast<int64_t>(i);
    }
    return -1;
  }

  // What waits for the next op that has a gradient for one of these leaves.
  void compute_put_off(std::span<Edge> edges) {
    for (const Edge& next : edges) {
      if (!next.leaf) continue;
      LeafStateInRun& leaf = leaves_[static_cast<size_t>(leaf_numbers_.at(next.leaf.get()))];
      if (leaf.put_off < 0) continue;
      NodeState& state = states_[static_cast<size_t>(std::exchange(leaf.put_off, -1))];
      --waiting_nodes_;
      Node& node = *state.node;
      const profiling::NodeSpan span(node);
      auto own = node.edges();
      const auto i = static_cast<size_t>(
          std::find_if(own.begin(), own.end(), [&](const Edge& e) { return e.leaf == next.leaf; }) - own.begin());
      MatmulPrecisionScope precision(node.recorded_precision());
      Grads grads = node.run(Saved(node, uint64_t{1} << i, !keep_, this), state.grads);
      state.grads.clear();
      Tensor grad = i < grads.size() ? std::move(grads[i]) : Tensor();
      if (grad.defined()) fit(node, own[i], i, grad);
      deliver_to_leaf(own[i].leaf, std::move(grad), node.name());
      if (!keep_) node.release_saved();
    }
  }

  Tensor* sum(const Edge& edge) override {
    if (options_.create_graph || !edge_needed(edge)) return nullptr;
    Tensor* sum = nullptr;
    if (edge.leaf) {
      sum = &leaves_[static_cast<size_t>(leaf_numbers_.at(edge.leaf.get()))].grad;
    } else {
      auto& grads = states_[static_cast<size_t>(nodes_.at(edge.node.get()))].grads;
      if (!grads.empty()) sum = &grads[edge.output_index];
    }
    const bool in_place = sum && sum->defined() && element_size(sum->dtype()) > 2 && unique(*sum) &&
                          sum->impl()->storage->owned() && sum->is_contiguous();
    return in_place ? sum : nullptr;
  }

  // Brings a gradient from the broadcast shape to the input's, and checks it.
  static void fit(const Node& node, const Edge& edge, size_t input, Tensor& grad) {
    const Node::OutputInfo* info = edge.leaf ? nullptr : &edge.node->output(edge.output_index);
    const Shape& shape = info ? info->shape : edge.leaf->shape;
    const DType dtype = info ? info->dtype : edge.leaf->dtype;
    const Device device = info ? info->device : edge.leaf->storage->device();
    check<DTypeError>(grad.dtype() == dtype, node.name(), "its gradient for input ", input, " has dtype ", grad.dtype(),
                      "; the input has ", dtype);
    check<DeviceError>(grad.device() == device, node.name(), "its gradient for input ", input, " is on ", grad.device(),
                       "; the input is on ", device,
                       ": bring it there with to(), and where a layer moved since, compute the loss again");
    if (grad.shape() == shape) return;
    check<ShapeError>(broadcastable_to(shape, grad.shape()), node.name(), "its gradient for input ", input,
                      " has shape ", grad.shape(), "; the input has ", shape);
    grad = sum_to(grad, shape);
  }

  const Tensors& outputs_;
  const GradOptions& options_;
  const Tensors* inputs_;
  bool keep_;
  int waiting_nodes_ = 0;  // whose gradient for a leaf is put off
  PointerMap nodes_;
  PointerMap leaf_numbers_;
  std::vector<NodeState> states_;
  std::vector<LeafStateInRun> leaves_;
  std::vector<uint32_t> stack_;
  std::vector<uint32_t> order_;
  std::vector<std::pair<size_t, size_t>> duplicates_;
  Tensors results_;
};

}  // namespace

Tensors grad(const Tensors& outputs, const Tensors& inputs, const GradOptions& options) {
  return Run(outputs, options, &inputs).run();
}

Tensors grad(const Tensor& output, const Tensors& inputs, const GradOptions& options) {
  return grad(Tensors{output}, inputs, options);
}

void backward(const Tensors& outputs, const GradOptions& options) { Run(outputs, options, nullptr).run(); }

}  // namespace regard
