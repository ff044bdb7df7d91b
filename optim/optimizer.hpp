// Optimizer: what all optimizers share: parameter groups, learning rates, state.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <regard/autograd/tensor.hpp>
#include <regard/layers/layer.hpp>

namespace regard::optim {

/// Some parameters with options of their own: `AdamW optimizer({{decayed, {.lr = 1e-3}}, {rest, {.weight_decay =
/// 0}}})`.
template <class Options>
struct ParameterGroup {
  Tensors parameters;
  Options options = {};
};

/// A learning rate given as a plain number: `Adam optimizer(parameters, 1e-3)`. A template takes no `{}`, which means
/// the default options.
template <class T>
concept LearningRate = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

/// Base of the optimizers. step() updates every parameter that has a gradient; one whose gradient is undefined is
/// skipped entirely. A parameter given twice in one list counts once. Holds handles on the parameters' tensors:
/// values assigned to a layer's parameters are seen. step() can be captured in a CudaGraph: each replay counts as a
/// step.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  void step();
  /// Leaves every gradient undefined.
  void zero_grad();

  /// From now on each parameter is stepped inside backward(), as soon as its gradient is complete, and the gradient is
  /// freed at once: those of a whole model are never in memory together. The results are those of step() to the bit.
  ///
  ///     AdamW optimizer(model.parameters(), 3e-4);
  ///     optimizer.step_in_backward();
  ///     for (...) {
  ///       cross_entropy(model(x), targets).backward();  // steps
  ///       schedule.step();
  ///     }
  ///
  /// Every backward() is a step then, and what needs all gradients at once does not go with it: step(),
  /// clip_grad_norm(), clip_grad_value(), GradientAccumulation and create_graph are GraphErrors. Hooks on a parameter
  /// see its gradient before. A parameter that two optimizers would step, or that is frozen now, is a GraphError here;
  /// a gradient that is there already is a part of the first step. When a backward() ends in an exception, the
  /// parameters reached before have taken their step. `false` ends it. As PyTorch's hooks after the accumulation of
  /// gradients, with which the same is built there.
  void step_in_backward(bool on = true);
  bool steps_in_backward() const { return !in_backward_.empty(); }

  size_t group_count() const { return groups_.size(); }
  // A group that is not there is an IndexError.
  const Tensors& parameters(size_t group = 0) const { return at(group).parameters; }
  double lr(size_t group = 0) const { return at(group).lr; }
  /// The learning rate given at first, from which schedules compute.
  double initial_lr(size_t group = 0) const { return at(group).initial_lr; }
  void set_lr(double lr, size_t group);
  void set_lr(double lr);  ///< of every group

  /// Moments, step counts and learning rates, by name: `0.exp_avg`, `0.step`, `group.0.lr` ... Copies.
  StateDict state_dict() const;
  /// Replaces the state, brought to the parameters' dtypes and devices. Everything is checked first: a ValueError names
  /// what is missing, unexpected or of another shape, and nothing is changed then.
  void load_state_dict(const StateDict& state);

  /// What one parameter has: tensors by slot (undefined until the first step), and how many steps it took.
  struct State {
    std::vector<Tensor> slots;
    int64_t step = 0;
  };
  /// A parameter that takes a step, dense like its gradient; state.step was counted up already.
  struct Update {
    const Tensor& parameter;
    Tensor grad;
    State& state;
  };

 protected:
  struct Group {
    Tensors parameters;
    std::vector<State> states;
    double lr = 0;
    double initial_lr = 0;
  };

  /// `name` shows in errors; `slots` names the state tensors.
  Optimizer(const char* name, std::vector<const char*> slots) : name_(name), slot_names_(std::move(slots)) {}
  void add_group(const Tensors& parameters, double lr);
  /// Updates parameters of a group, one at least, that agree in dtype, device and step count; recording is off.
  virtual void update(size_t group, std::span<const Update> list) = 0;
  /// The shape of a parameter's state tensor once it took a step; none where it keeps no such tensor.
  virtual std::optional<Shape> slot_shape(size_t group, const Tensor& parameter, size_t slot) const {
    (void)group, (void)slot;
    return parameter.shape();
  }
  const char* name() const { return name_; }
  /// The learning rate of the moment in which it is asked for: of each replay, where a step is captured.
  std::function<double()> lr_of(size_t group) const {
    return [this, group] { return lr(group); };
  }

 private:
  const Group& at(size_t group) const;
  void check_state(size_t group, size_t index) const;
  void step_group(size_t group, std::vector<size_t> indices);
  void step_at_replay(size_t group, const std::vector<size_t>& indices);

  const char* name_;
  std::vector<const char*> slot_names_;
  std::vector<Group> groups_;
  std::vector<HookHandle> in_backward_;                        // a parameter each
  std::shared_ptr<bool> life_ = std::make_shared<bool>(true);  // what was captured looks whether it is over
};

/// For what needs all gradients at once: a GraphError where a parameter is stepped inside backward().
void check_not_stepped_in_backward(const char* op, const Tensors& parameters);

}  // namespace regard::optim
