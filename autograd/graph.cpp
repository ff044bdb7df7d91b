// Nodes: recording, saved tensors, and release without recursion. backward() itself is in engine.cpp.
#include <regard/autograd/graph.hpp>

#include <algorithm>
#include <mutex>

#include <regard/autograd/counters.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

thread_local bool grad_mode = true;
thread_local uint64_t sequence_counter = 0;
std::mutex kept_outputs;  // of nodes whose output is recomputed: seen by every thread that runs one of its users

}  // namespace

bool grad_enabled() { return grad_mode; }
GradMode::GradMode(bool enabled) : former_(grad_mode) { grad_mode = enabled; }
GradMode::~GradMode() { grad_mode = former_; }

// ---- Node

Node::Node() { counters::live_nodes.fetch_add(1, std::memory_order_relaxed); }
Node::~Node() { counters::live_nodes.fetch_sub(1, std::memory_order_relaxed); }

void intrusive_ptr_add_ref(Node* node) { node->references_.fetch_add(1, std::memory_order_relaxed); }

void intrusive_ptr_release(Node* node) {
  if (node->references_.load(std::memory_order_acquire) != 1 &&
      node->references_.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  // Deleting a node drops its inputs' nodes: a chain of a million must not recurse, so nodes that die while
  // another is being deleted wait in a list. The list's own destruction at thread end may come before that of
  // a static tensor; a plain pointer tells.
  thread_local std::vector<Node*>* waiting = nullptr;
  if (waiting) {
    waiting->push_back(node);
    return;
  }
  std::vector<Node*> list;
  waiting = &list;
  delete node;
  while (!list.empty()) {
    Node* next = list.back();
    list.pop_back();
    delete next;
  }
  waiting = nullptr;
}

void Node::keep_output_for_users() {
  if (released_ || recomputed_users_.load(std::memory_order_acquire) == 0) return;
  {
    const std::lock_guard lock(kept_outputs);
    if (kept_output_.defined()) return;
  }
  NoGrad no_grad;
  Tensor value = recompute(Saved(*this, 0));
  const std::lock_guard lock(kept_outputs);
  kept_output_ = std::move(value);
}

void Node::release_saved() {
  if (stays_) return;
  released_ = true;
  for (SavedTensor& entry : saved()) {
    entry.impl.reset();
    entry.from.reset();
  }
  release_resources();
}

Tensor Node::recompute(const Saved&) { fail<GraphError>(name_, "its output cannot be computed again"); }

Tensor Node::recomputed(bool last) {
  Tensor value;
  {
    const std::lock_guard lock(kept_outputs);
    value = kept_output_;
  }
  if (!value.defined()) {
    NoGrad no_grad;
    value = recompute(Saved(*this, 0));
    if (last && recomputed_users_.load(std::memory_order_acquire) > 1) {
      const std::lock_guard lock(kept_outputs);
      kept_output_ = value;
    }
  }
  Tensor output = value.detach();
  output.impl()->node = NodePtr(this);
  output.impl()->requires_grad = true;
  return output;
}

void Recomputed::set(const NodePtr& node) {
  node_ = node;
  node->recomputed_users_.fetch_add(1, std::memory_order_relaxed);
}
void Recomputed::reset() {
  if (!node_) return;
  Tensor kept;  // freed without the lock
  if (node_->recomputed_users_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const std::lock_guard lock(kept_outputs);
    kept = std::move(node_->kept_output_);
    node_->kept_output_ = Tensor();
  }
  node_.reset();
}

bool needs_record(std::span<const Tensor* const> inputs) {
  if (!grad_mode) return false;
  for (const Tensor* input : inputs)
    if (input->defined() && input->impl()->requires_grad) return true;
  return false;
}

uint64_t latest_sequence() { return sequence_counter; }

bool Node::recomputable(const Tensor& x) {
  constexpr uint32_t most_kernels = 3;  // else chains of such ops would be computed over and over
  const Node* node = x.impl()->node.get();
  return node != nullptr && x.shape().numel() * element_size(x.dtype()) >= least_recomputed_bytes &&
         node->recomputes() && !node->released_ && node->recompute_cost_ <= most_kernels;
}

void Node::attach(const char* name, std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                  std::span<const Tensor* const> saved) {
  name_ = name;
  precision_ = matmul_precision();
  uint64_t latest = sequence_counter;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorImpl* impl = inputs[i]->impl();
    if (!impl || !impl->requires_grad) continue;
    Edge& edge = edges_[i];
    if (impl->node) {
      edge.node = impl->node;
      edge.output_index = impl->output_index;
      latest = std::max(latest, impl->node->sequence_);
    } else {
      edge.leaf = inputs[i]->impl_ptr();
    }
  }
  sequence_ = sequence_counter = latest + 1;

  for (size_t i = 0; i < saved.size(); ++i) {
    if (!saved[i]->defined()) continue;
    SavedTensor& entry = saved_[i];
    TensorImpl* impl = saved[i]->impl();
    for (size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k]->impl() == impl) entry.output_index = static_cast<int32_t>(k);
    entry.version = impl->storage->version();
    if (entry.output_index >= 0)
      entry.impl = saved[i]->detach().impl_ptr();
    else if (entry.version == 0 && recomputable(*saved[i])) {
      entry.from.set(impl->node);
      recompute_cost_ += impl->node->recompute_cost_;
    } else
      entry.impl = saved[i]->impl_ptr();
  }

  for (size_t k = 0; k < outputs.size(); ++k) {
    TensorImpl* impl = outputs[k]->impl();
    OutputInfo info{impl->shape, impl->dtype, impl->storage->device()};
    if (k == 0)
      output_ = info;
    else
      more_outputs_.push_back(info);
    impl->node = NodePtr(this);
    impl->output_index = static_cast<uint32_t>(k);
    impl->requires_grad = is_floating(impl->dtype);
    if (!impl->requires_grad) impl->node.reset();  // an output of indices
  }
  if (profiling::active()) [[unlikely]]
    profiling::node_made(*this);
}

Tensor Saved::operator[](size_t i) const {
  const SavedTensor& entry = node_.saved()[i];
  if (entry.from.get()) return entry.from.get()->recomputed(last_);
  if (!entry.impl) {
    check<GraphError>(!node_.released(), node_.name(),
                      "what its gradient needs was freed by an earlier backward: pass retain_graph, or compute the "
                      "loss again");
    return {};
  }
  uint32_t now = entry.impl->storage->version();
  if (now != entry.version)
    fail<GraphError>(node_.name(), "a tensor of shape ", entry.impl->shape,
                     " that its gradient needs was changed in place since (saved at version ", entry.version,
                     ", now at version ", now,
                     "): change a clone() instead, or, if an optimizer's step() did it, call backward() "
                     "before the step, or compute the loss again");
  if (entry.output_index < 0) return Tensor(entry.impl);
  Tensor output = Tensor(entry.impl).detach();
  output.impl()->node = NodePtr(&node_);
  output.impl()->output_index = static_cast<uint32_t>(entry.output_index);
  output.impl()->requires_grad = true;
  return output;
}

Tensor Saved::take(size_t i) const {
  Tensor x = (*this)[i];
  if (!last_ || !x.defined()) return x;
  SavedTensor& entry = node_.saved()[i];
  entry.impl.reset();
  entry.from.reset();
  return x;
}

bool reusable(const Tensor& x) {
  return x.defined() && !grad_mode && x.impl()->references.load(std::memory_order_acquire) == 1 &&
         x.impl()->storage->unique() && x.impl()->storage->owned();
}

Tensor reuse(const Tensor& spent, const Tensor& x) {
  if (reusable(spent) && spent.shape() == x.shape() && spent.dtype() == x.dtype() && spent.is_contiguous())
    return spent.requires_grad() ? spent.detach() : spent;  // what it was computed from is not the result's past
  return empty_like(x);
}

// ---- Nodes of any size

namespace {

class GeneralNode final : public Node {
 public:
  GeneralNode(std::string name, size_t inputs, size_t saved, GeneralBackward backward)
      : name_(std::move(name)), edges_(inputs), saved_(saved), backward_(std::move(backward)) {
    use_slots(edges_.data(), static_cast<uint32_t>(inputs), saved_.data(), static_cast<uint32_t>(saved));
  }
  const char* kept_name() const { return name_.c_str(); }
  Grads run(const Saved& saved, std::span<const Tensor> grads) override { return backward_(saved, grads); }

 private:
  void release_resources() override { backward_ = nullptr; }
  std::string name_;
  std::vector<Edge> edges_;
  std::vector<SavedTensor> saved_;
  GeneralBackward backward_;
};

}  // namespace

std::vector<const Tensor*> pointers(const Tensors& tensors) {
  std::vector<const Tensor*> list;
  list.reserve(tensors.size());
  for (const Tensor& tensor : tensors) list.push_back(&tensor);
  return list;
}

void record_general(std::string name, std::span<Tensor* const> outputs, std::span<const Tensor* const> inputs,
                    std::span<const Tensor* const> saved, GeneralBackward backward) {
  if (profiling::active()) [[unlikely]]
    profiling::op_done(name.c_str(), outputs, inputs, saved);
  if (!needs_record(inputs)) return;
  auto* node = new GeneralNode(std::move(name), inputs.size(), saved.size(), std::move(backward));
  NodePtr keep(node);
  node->attach(node->kept_name(), inputs, outputs, saved);
}

Tensor custom_op(const std::string& name, const Tensors& inputs, const std::function<Tensor(const Tensors&)>& forward,
                 std::function<Tensors(const Tensors&, const Tensor&)> backward) {
  check<ValueError>(forward != nullptr && backward != nullptr, name.c_str(),
                    "custom_op needs a forward and a gradient function; one of them is empty");
  // The gradient function runs without autocast, so that the forward one does, too: it sees the dtypes of its operands.
  const auto half = [](const Tensor& x) { return autocast::any_half_on_gpu({&x}); };
  if (autocast::active && std::any_of(inputs.begin(), inputs.end(), half)) [[unlikely]] {
    Tensors in_f32;
    for (const Tensor& input : inputs) in_f32.push_back(half(input) ? autocast::wide(input) : input);
    return custom_op(name, in_f32, forward, std::move(backward));
  }
  Tensor output;
  {
    NoGrad no_grad;
    const autocast::Pause pause;
    output = forward(inputs);
    check<ValueError>(output.defined(), name.c_str(), "its forward function returned an undefined tensor");
    output = output.detach();  // it may be one of the inputs
  }
  std::vector<const Tensor*> in = pointers(inputs);
  Tensor* out[] = {&output};
  size_t count = inputs.size();
  record_general(name, out, in, in,
                 [name, count, backward = std::move(backward)](const Saved& saved, std::span<const Tensor> grads) {
                   Tensors values;
                   values.reserve(count);
                   for (size_t i = 0; i < count; ++i) values.push_back(saved[i]);
                   Tensors result = backward(values, grads[0]);
                   check<GraphError>(result.size() == count, name.c_str(), "its gradient function returned ",
                                     result.size(), " gradients for ", count, " inputs");
                   return Grads(result.begin(), result.end());
                 });
  return output;
}

}  // namespace regard
