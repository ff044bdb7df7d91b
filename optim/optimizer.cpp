#include <regard/optim/optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include <regard/autograd/backend/captured_graph.hpp>
#include <regard/autograd/cuda_graph.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::optim {

void Optimizer::add_group(const Tensors& parameters, double lr) {
  check<ValueError>(!parameters.empty(), name_, "no parameters are given");
  check<ValueError>(std::isfinite(lr) && lr >= 0, name_, "lr ", lr, " must be finite and not negative");
  Group group;
  group.lr = group.initial_lr = lr;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& parameter = parameters[i];
    check_trainable(name_, "parameters", parameter);
    check<GraphError>(parameter.is_leaf(), name_, "parameter ", i, " of shape ", parameter.shape(),
                      " was computed by '", parameter.is_leaf() ? "" : parameter.node()->name(),
                      "': an optimizer takes leaves, such as layer.parameters()");
    check<ValueError>(parameter.is_contiguous(), name_, "parameter ", i, " of shape ", parameter.shape(),
                      " is a strided view: give the tensor itself");
    auto same = [&](const Tensor& other) { return other.impl() == parameter.impl(); };
    for (const Group& earlier : groups_)
      check<ValueError>(std::none_of(earlier.parameters.begin(), earlier.parameters.end(), same), name_, "parameter ",
                        i, " of shape ", parameter.shape(), " stands in two groups");
    if (std::none_of(group.parameters.begin(), group.parameters.end(), same)) group.parameters.push_back(parameter);
  }
  group.states.resize(group.parameters.size());
  groups_.push_back(std::move(group));
}

const Optimizer::Group& Optimizer::at(size_t group) const {
  check<IndexError>(group < groups_.size(), name_, "there is no parameter group ", group, ": there are ",
                    groups_.size(), ", numbered from 0");
  return groups_[group];
}

// What a step wants of a parameter with a gradient: checked before anything is changed.
void Optimizer::check_state(size_t group, size_t index) const {
  const Tensor& parameter = groups_[group].parameters[index];
  const Tensor grad = parameter.grad();
  if (!grad.defined()) return;
  check<ShapeError>(grad.shape() == parameter.shape() && grad.dtype() == parameter.dtype(), name_, "parameter ", index,
                    " of shape ", parameter.shape(), " and dtype ", parameter.dtype(), " has a gradient of shape ",
                    grad.shape(), " and dtype ", grad.dtype());
  check_trainable(name_, "parameters", parameter);  // to() may have changed it
  check<DeviceError>(grad.device() == parameter.device(), name_, "parameter ", index, " of shape ", parameter.shape(),
                     " is on ", parameter.device(), ", its gradient on ", grad.device(),
                     ": zero_grad(), and compute the loss again");
  check<DeviceError>(parameter.device().kind == Device::Kind::cuda || !cuda_is_capturing(), name_, "parameter ", index,
                     " of shape ", parameter.shape(), " is on ", parameter.device(),
                     ", and a capture (CudaGraph) is going on, in which nothing is done on it: move it to the GPU, or "
                     "step it by an optimizer of its own after each replay");
  check<GraphError>(
      groups_[group].states[index].step > 0 || !cuda_is_capturing(), name_, "parameter ", index, " of shape ",
      parameter.shape(),
      " takes its first step in a capture (CudaGraph), where no state can be made: take a step before it");
  for (const Tensor& slot : groups_[group].states[index].slots) {
    if (!slot.defined()) continue;
    check<DTypeError>(slot.dtype() == parameter.dtype(), name_, "parameter ", index, " of shape ", parameter.shape(),
                      " is ", parameter.dtype(), " now, its state ", slot.dtype(), ": make a new optimizer after to()");
    check<DeviceError>(slot.device() == parameter.device(), name_, "parameter ", index, " of shape ", parameter.shape(),
                       " is on ", parameter.device(), " now, its state on ", slot.device(),
                       ": load_state_dict(state_dict()) moves the state after it");
  }
}

// Parameters of a group take a step: those that agree in what update() wants together, so that a kernel does many small
// ones at once.
void Optimizer::step_group(size_t group, std::vector<size_t> indices) {
  const Tensors& parameters = groups_[group].parameters;
  std::vector<State>& states = groups_[group].states;
  std::vector<Update> list;
  std::vector<size_t> places;  // of the list's parameters
  const bool captured = cuda_is_capturing();
  list.reserve(indices.size());
  while (!indices.empty()) {
    list.clear();
    places.clear();
    std::vector<size_t> others;
    const Tensor& first = parameters[indices.front()];
    const int64_t step = states[indices.front()].step;
    for (size_t index : indices) {
      const Tensor& parameter = parameters[index];
      Tensor grad = parameter.grad();
      if (!grad.defined()) continue;
      State& state = states[index];
      if (state.step != step || parameter.dtype() != first.dtype() || !(parameter.device() == first.device())) {
        others.push_back(index);
        continue;
      }
      if (grad.requires_grad()) grad = grad.detach();
      if (!grad.is_contiguous()) grad = grad.contiguous();
      list.push_back({parameter, std::move(grad), state});
      places.push_back(index);
    }
    for (const Update& one : list) {
      if (one.state.slots.empty()) one.state.slots.resize(slot_names_.size());
      ++one.state.step;
    }
    const auto written = [&list] {
      for (const Update& one : list) one.parameter.impl()->storage->bump_version();
    };
    try {
      if (!list.empty() && captured) step_at_replay(group, places);  // before what update() has done then
      if (!list.empty()) update(group, list);
    } catch (...) {  // no memory for the state, say: the step was not taken
      for (const Update& one : list)
        if (--one.state.step == 0) one.state.slots.clear();
      written();
      throw;
    }
    written();
    for (const Update& one : list)
      if (captured) --one.state.step;  // nothing has happened yet
    indices = std::move(others);
  }
}

// In a capture: what a replay does on the CPU for a list of parameters, whose memory is looked at before.
void Optimizer::step_at_replay(size_t group, const std::vector<size_t>& indices) {
  struct Captured {
    size_t index;
    const State* state;
    std::vector<const void*> memory;
  };
  const auto memory_of = [](const Tensor& parameter, const State& state) {
    std::vector<const void*> memory{parameter.raw_data()};
    for (const Tensor& slot : state.slots) memory.push_back(slot.defined() ? slot.raw_data() : nullptr);
    return memory;
  };
  std::vector<Captured> list;
  for (size_t index : indices) {
    const Tensor& parameter = groups_[group].parameters[index];
    const State& state = groups_[group].states[index];
    list.push_back({index, &state, memory_of(parameter, state)});
    // Its memory must stay. A handle to it would do that, too, but backward() adds in place to what nobody else has.
    current_capture()->keep(parameter.grad().impl()->storage->data());
  }
  const auto check_same = [this, group, list, memory_of, life = std::weak_ptr<bool>(life_)] {
    check<GraphError>(!life.expired(), "CudaGraph.replay", "an optimizer whose step was captured is gone");
    const Group& now = groups_[group];
    for (const Captured& one : list) {
      const State& state = now.states[one.index];
      check<GraphError>(
          &state == one.state && memory_of(now.parameters[one.index], state) == one.memory, name_, "parameter ",
          one.index, " of shape ", now.parameters[one.index].shape(),
          " or its state is in another place than when the step was captured (to() and load_state_dict() do that): "
          "capture again");
      check<GraphError>(state.step == now.states[list[0].index].step, name_, "parameters ", list[0].index, " and ",
                        one.index, " have taken ", now.states[list[0].index].step, " and ", state.step,
                        " steps, and they were equal when the step was captured: capture again");
    }
  };
  const auto advance = [this, group, indices] {
    for (size_t index : indices) {
      ++groups_[group].states[index].step;
      groups_[group].parameters[index].impl()->storage->bump_version();
    }
  };
  detail::at_replay(check_same, advance);
}

void Optimizer::step() {
  check<GraphError>(!steps_in_backward(), name_,
                    "step(): parameters are stepped inside backward(), so this call has nothing to do: leave it out, "
                    "or call step_in_backward(false) first");
  NoGrad no_grad;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (size_t i = 0; i < groups_[g].parameters.size(); ++i) check_state(g, i);
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<size_t> all(groups_[g].parameters.size());
    std::iota(all.begin(), all.end(), size_t{0});
    step_group(g, std::move(all));
  }
}

Optimizer::~Optimizer() { step_in_backward(false); }

void Optimizer::step_in_backward(bool on) {
  if (on == steps_in_backward()) return;
  if (!on) {
    for (HookHandle& handle : in_backward_) handle.remove();
    in_backward_.clear();
    for (const Group& group : groups_)
      for (const Tensor& parameter : group.parameters) parameter.impl()->leaf_state().stepped_in_backward = false;
    return;
  }
  for (const Group& group : groups_)
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& parameter = group.parameters[i];
      check<GraphError>(parameter.requires_grad(), name_, "step_in_backward: parameter ", i, " of shape ",
                        parameter.shape(), " is frozen: unfreeze it before, or leave it out of the optimizer");
      check<GraphError>(!parameter.impl()->leaf_state().stepped_in_backward, name_, "step_in_backward: parameter ", i,
                        " of shape ", parameter.shape(), " is stepped inside backward() by another optimizer already");
    }
  for (size_t g = 0; g < groups_.size(); ++g)
    for (size_t i = 0; i < groups_[g].parameters.size(); ++i) {
      const Tensor& parameter = groups_[g].parameters[i];
      in_backward_.push_back(parameter.register_post_accumulate_grad_hook([this, g, i](const Tensor& leaf) {
        check<GraphError>(!leaf.grad().requires_grad(), name_,
                          "a backward() with create_graph keeps parameters as they are, and they are stepped inside "
                          "it: use grad(), or call step_in_backward(false) first");
        NoGrad no_grad;
        check_state(g, i);
        step_group(g, {i});
        leaf.zero_grad();
      }));
      parameter.impl()->leaf_state().stepped_in_backward = true;
    }
}

void check_not_stepped_in_backward(const char* op, const Tensors& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i)
    check<GraphError>(
        !parameters[i].defined() || !parameters[i].impl()->leaf || !parameters[i].impl()->leaf->stepped_in_backward, op,
        "parameter ", i, " of shape ", parameters[i].shape(),
        " is stepped inside backward(), where its gradient is freed at once: this needs all gradients "
        "together, so call step_in_backward(false) on its optimizer and step() after it");
}

void Optimizer::zero_grad() {
  for (const Group& group : groups_)
    for (const Tensor& parameter : group.parameters) parameter.zero_grad();
}

void Optimizer::set_lr(double lr, size_t group) {
  check<ValueError>(std::isfinite(lr) && lr >= 0, name_, "lr ", lr, " must be finite and not negative");
  at(group);
  groups_[group].lr = lr;
}
void Optimizer::set_lr(double lr) {
  for (size_t g = 0; g < groups_.size(); ++g) set_lr(lr, g);
}

StateDict Optimizer::state_dict() const {
  NoGrad no_grad;
  StateDict state;
  int64_t number = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    std::string prefix = "group." + std::to_string(g) + ".";
    state.emplace(prefix + "lr", scalar_tensor(group.lr, DType::f64));
    state.emplace(prefix + "initial_lr", scalar_tensor(group.initial_lr, DType::f64));
    for (const State& one : group.states) {
      std::string name = std::to_string(number++) + ".";
      state.emplace(name + "step", scalar_tensor(one.step));
      for (size_t s = 0; s < one.slots.size(); ++s)
        if (one.slots[s].defined()) state.emplace(name + slot_names_[s], one.slots[s].clone());
    }
  }
  return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
  NoGrad no_grad;
  std::vector<Group> groups = groups_;
  std::set<std::string> used;
  std::string op = std::string(name_) + ".load_state_dict";
  auto take = [&](const std::string& name) -> const Tensor& {
    auto found = state.find(name);
    check<ValueError>(found != state.end() && found->second.defined(), op.c_str(), "'", name,
                      "' is missing: the state is of another optimizer, or of other parameters");
    used.insert(name);
    return found->second;
  };
  auto take_number = [&](const std::string& name) -> const Tensor& {
    const Tensor& tensor = take(name);
    check<ValueError>(tensor.numel() == 1, op.c_str(), "'", name, "' has shape ", tensor.shape(),
                      "; a single number is expected");
    return tensor;
  };
  int64_t number = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    std::string prefix = "group." + std::to_string(g) + ".";
    group.lr = take_number(prefix + "lr").item<double>();
    group.initial_lr = take_number(prefix + "initial_lr").item<double>();
    check<ValueError>(
        std::isfinite(group.lr) && group.lr >= 0 && std::isfinite(group.initial_lr) && group.initial_lr >= 0,
        op.c_str(), "the learning rates of group ", g, ", ", group.lr, " and ", group.initial_lr,
        ", must be finite and not negative");
    for (size_t i = 0; i < group.states.size(); ++i) {
      std::string name = std::to_string(number++) + ".";
      State one;
      one.step = take_number(name + "step").item<int64_t>();
      check<ValueError>(one.step >= 0, op.c_str(), "'", name, "step' is ", one.step, ": it must not be negative");
      const Tensor& parameter = group.parameters[i];
      one.slots.resize(slot_names_.size());
      std::string missing;
      int64_t count = 0, expected = 0;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        const std::string full = name + slot_names_[s];
        const std::optional<Shape> wanted = slot_shape(g, parameter, s);
        if (!wanted) continue;  // found there, it is unexpected
        ++expected;
        if (!state.contains(full)) {  // not every parameter has taken a step
          if (missing.empty()) missing = full;
          continue;
        }
        const Tensor& given = take(full);
        check<ValueError>(given.shape() == *wanted && is_floating(given.dtype()), op.c_str(), "'", full, "' has shape ",
                          given.shape(), " and dtype ", given.dtype(), "; of a parameter of shape ", parameter.shape(),
                          " and dtype ", parameter.dtype(), " it is ", *wanted);
        one.slots[s] = given.detach().to(parameter.device()).to(parameter.dtype()).clone();
        ++count;
      }
      check<ValueError>(count == 0 || count == expected, op.c_str(), "only ", count, " of the ", expected,
                        " state tensors of parameter ", i, " are there");
      check<ValueError>(one.step == 0 || missing.empty(), op.c_str(), "'", missing, "' is missing after ", one.step,
                        " steps: the state is of another optimizer");
      if (one.step == 0) one.slots.clear();
      group.states[i] = std::move(one);
    }
  }
  for (const auto& [name, tensor] : state)
    check<ValueError>(used.contains(name), op.c_str(), "'", name,
                      "' is unexpected: the state is of more parameters, or of another optimizer");
  groups_ = std::move(groups);
}

}  // namespace regard::optim
