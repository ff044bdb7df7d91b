#include <regard/autograd/checkpoint.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

using Function = std::function<Tensors(const Tensors&)>;

struct RandomState {
  Generator* generator;
  uint64_t seed, offset;
  bool used() const { return generator->seed() != seed || generator->offset() != offset; }
};

// Generators are where they were, until the end of the scope.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<RandomState>& states) {
    former_.reserve(states.size());
    for (const RandomState& state : states) {
      former_.push_back({state.generator, state.generator->seed(), state.generator->offset()});
      state.generator->set_state(state.seed, state.offset);
    }
  }
  ~RandomStates() {
    for (const RandomState& state : former_) state.generator->set_state(state.seed, state.offset);
  }
  RandomStates(const RandomStates&) = delete;
  RandomStates& operator=(const RandomStates&) = delete;

 private:
  std::vector<RandomState> former_;
};

// What an output was the first time.
struct Expected {
  bool defined;
  Shape shape;
  DType dtype;
  bool matches(const Tensor& x) const {
    return x.defined() == defined && (!defined || (x.shape() == shape && x.dtype() == dtype));
  }
};

// All that the second run needs but tensors, which the graph keeps.
struct Block {
  std::string name;
  Function function;
  size_t input_count = 0;
  std::vector<bool> required;  // inputs, then parameters: whether they needed a gradient
  std::vector<RandomState> random;
  std::optional<DType> autocast;                            // what held the first time
  MatmulPrecision outside_autocast = MatmulPrecision::f32;  // and before the outermost scope
  std::vector<Expected> outputs;
};
using BlockPtr = std::shared_ptr<const Block>;

// Whether the graph that was recorded since `start` ends in `leaves` alone: a gradient that leads elsewhere would be
// lost without a word.
void check_ends(const Block& block, const Tensors& outputs, const std::set<const TensorImpl*>& leaves, uint64_t start) {
  auto lost = [&](const Shape& shape, const std::string& origin) {
    fail<GraphError>(block.name.c_str(), "the function uses a tensor of shape ", shape, origin,
                     " that needs a gradient and is neither an input nor among the parameters, so its gradient would "
                     "be lost: pass it as an input (a leaf: among the parameters), or detach() it");
  };
  std::set<const Node*> seen;
  std::vector<Node*> waiting;
  auto visit = [&](const NodePtr& node, uint32_t output) {
    if (node->sequence() <= start)
      lost(node->output(output).shape, std::string(", computed before by '") + node->name() + "',");
    if (seen.insert(node.get()).second) waiting.push_back(node.get());
  };
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    if (output.node())
      visit(output.node(), output.impl()->output_index);
    else if (!leaves.contains(output.impl()))
      lost(output.shape(), "");
  }
  while (!waiting.empty()) {
    Node* node = waiting.back();
    waiting.pop_back();
    for (const Edge& edge : node->edges()) {
      if (edge.node)
        visit(edge.node, edge.output_index);
      else if (edge.leaf && !leaves.contains(edge.leaf.get()))
        lost(edge.leaf->shape, std::string(", used by '") + node->name() + "',");
    }
  }
}

// The second run, and the gradients of the wanted ones of (inputs, then parameters) from those of the outputs in
// `which`. Recorded where gradient mode is on; the inputs are leaves then.
Tensors gradients(const Block& block, const Tensors& values, const Tensors& grads, const std::vector<size_t>& which,
                  const std::vector<bool>& wanted) {
  const bool create_graph = grad_enabled();
  GradMode mode(true);
  Tensors all = values;
  std::set<const TensorImpl*> leaves;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].defined()) continue;
    if (i < block.input_count && !create_graph) {
      all[i] = all[i].detach();
      if (block.required[i]) all[i].set_requires_grad();
    }
    leaves.insert(all[i].impl());
  }
  const Tensors inputs(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(block.input_count));

  const uint64_t start = latest_sequence();
  Tensors outputs;
  {
    RandomStates random(block.random);
    const autocast::Replay scope(block.autocast, block.outside_autocast);
    outputs = block.function(inputs);
  }
  check<GraphError>(outputs.size() == block.outputs.size(), block.name.c_str(), "the function returned ",
                    outputs.size(), " outputs where it returned ", block.outputs.size(), " the first time");
  for (size_t k = 0; k < outputs.size(); ++k)
    check<GraphError>(block.outputs[k].matches(outputs[k]), block.name.c_str(), "output ", k,
                      " is not what it was the first time, of shape ", block.outputs[k].shape, " and dtype ",
                      block.outputs[k].dtype, ": the function must compute the same again");
  check_ends(block, outputs, leaves, start);

  Tensors from, targets;
  GradOptions options{.grad_outputs = {},
                      .create_graph = create_graph,
                      .retain_graph = false,
                      .allow_unused = true,
                      .leaf_hooks = false};
  for (size_t k = 0; k < which.size(); ++k) {
    if (!outputs[which[k]].requires_grad()) continue;
    from.push_back(outputs[which[k]]);
    options.grad_outputs.push_back(grads[k]);
  }
  outputs.clear();
  Tensors result(all.size());
  for (size_t i = 0; i < all.size(); ++i)
    if (wanted[i]) targets.push_back(all[i]);
  if (from.empty() || targets.empty()) return result;
  Tensors found = grad(from, targets, options);
  for (size_t i = 0, next = 0; i < all.size(); ++i)
    if (wanted[i]) result[i] = std::move(found[next++]);
  return result;
}

Tensors run(const Function& function, const Tensors& inputs, const Tensors& parameters,
            const std::vector<Generator*>& generators, const std::string& name);

// What backward() calls: the gradients, or, where they are to have a graph, the same as a recomputed function.
Grads backward_of(const BlockPtr& block, const Saved& saved, std::span<const Tensor> grads) {
  const size_t count = block->required.size();
  Tensors values;
  values.reserve(count);
  std::vector<bool> wanted(count);
  for (size_t i = 0; i < count; ++i) {
    values.push_back(saved[i]);
    wanted[i] = block->required[i] && saved.needs(i);
    if (wanted[i] && i >= block->input_count)
      check<GraphError>(values[i].requires_grad(), block->name.c_str(), "parameter ", i - block->input_count,
                        " of shape ", values[i].shape(),
                        " was frozen after the forward pass: freeze parameters before it, or after backward()");
  }
  // `grads` counts the defined outputs alone; those of them that have a gradient.
  Tensors given;
  std::vector<size_t> which;
  for (size_t k = 0, next = 0; k < block->outputs.size(); ++k) {
    if (!block->outputs[k].defined) continue;
    if (grads.size() > next && grads[next].defined()) {
      given.push_back(grads[next]);
      which.push_back(k);
    }
    ++next;
  }
  Tensors result;
  if (!grad_enabled()) {
    result = gradients(*block, values, given, which, wanted);
  } else {
    const auto inputs_end = values.begin() + static_cast<std::ptrdiff_t>(block->input_count);
    Tensors inputs(values.begin(), inputs_end), parameters(inputs_end, values.end());
    inputs.insert(inputs.end(), given.begin(), given.end());
    Function again = [block, parameters, which, wanted](const Tensors& in) {
      const auto middle = in.begin() + static_cast<std::ptrdiff_t>(block->input_count);
      Tensors all(in.begin(), middle);
      all.insert(all.end(), parameters.begin(), parameters.end());
      return gradients(*block, all, Tensors(middle, in.end()), which, wanted);
    };
    result = run(again, inputs, parameters, {}, block->name);
  }
  return Grads(result.begin(), result.end());
}

Tensors run(const Function& function, const Tensors& inputs, const Tensors& parameters,
            const std::vector<Generator*>& generators, const std::string& name) {
  Tensors all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  std::vector<const Tensor*> in;
  in.reserve(all.size());
  for (const Tensor& tensor : all) in.push_back(&tensor);
  if (!needs_record(in)) return function(inputs);

  auto block = std::make_shared<Block>();
  block->name = name;
  block->function = function;
  block->input_count = inputs.size();
  block->autocast = autocast_dtype();
  block->outside_autocast = autocast::outside();
  for (const Tensor& tensor : all) block->required.push_back(tensor.defined() && tensor.requires_grad());
  block->random.push_back({&default_generator(), default_generator().seed(), default_generator().offset()});
  for (Generator* generator : generators) block->random.push_back({generator, generator->seed(), generator->offset()});

  Tensors outputs;
  {
    NoGrad no_grad;
    Tensors detached;
    detached.reserve(inputs.size());
    for (const Tensor& input : inputs) detached.push_back(input.defined() ? input.detach() : input);
    outputs = function(detached);
    // An output may be an input, a parameter or another output: each becomes a tensor of its own.
    for (Tensor& output : outputs)
      if (output.defined()) output = output.detach();
  }
  // Where nothing was drawn, backward() leaves the generator alone.
  std::erase_if(block->random, [](const RandomState& state) { return !state.used(); });
  std::vector<Tensor*> out;
  for (Tensor& output : outputs) {
    block->outputs.push_back({output.defined(), output.defined() ? output.shape() : Shape(),
                              output.defined() ? output.dtype() : DType::f32});
    if (output.defined()) out.push_back(&output);
  }
  if (out.empty()) return outputs;
  BlockPtr kept = std::move(block);
  record_general(name, out, in, in,
                 [kept](const Saved& saved, std::span<const Tensor> grads) { return backward_of(kept, saved, grads); });
  return outputs;
}

}  // namespace

Tensors checkpoint(std::function<Tensors(const Tensors&)> function, const Tensors& inputs, const Tensors& parameters,
                   const CheckpointOptions& options) {
  const char* name = options.name;
  check<ValueError>(function != nullptr, name, "the function is empty");
  for (const Generator* generator : options.generators)
    check<ValueError>(generator != nullptr, name, "a generator is a null pointer");
  Tensors once;
  std::set<const TensorImpl*> seen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_defined(name, "parameters", parameters[i]);
    check<GraphError>(parameters[i].is_leaf(), name, "parameter ", i, " of shape ", parameters[i].shape(),
                      " was computed by '", parameters[i].is_leaf() ? "" : parameters[i].node()->name(),
                      "': pass it as an input");
    if (seen.insert(parameters[i].impl()).second) once.push_back(parameters[i]);
  }
  return run(function, inputs, once, options.generators, name);
}

Tensor checkpoint(std::function<Tensor(const Tensors&)> function, const Tensors& inputs, const Tensors& parameters,
                  const CheckpointOptions& options) {
  check<ValueError>(function != nullptr, options.name, "the function is empty");
  Function list = [function = std::move(function), name = std::string(options.name)](const Tensors& in) {
    Tensor y = function(in);
    check<ValueError>(y.defined(), name.c_str(), "the function returned an undefined tensor");
    return Tensors{std::move(y)};
  };
  return checkpoint(std::move(list), inputs, parameters, options)[0];
}

}  // namespace regard
