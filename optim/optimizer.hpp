// Optimizer: what all optimizers share: parameter groups, learning rates, state.
#pragma once

#include <optional>
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
/// values assigned to a layer's parameters are seen.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  void step();
  /// Leaves every gradient undefined.
  void zero_grad();

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
  /// Replaces the state. Everything is checked first: a ValueError names what is missing, unexpected or of another
  /// shape, and nothing is changed then.
  void load_state_dict(const StateDict& state);

 protected:
  /// What one parameter has: tensors by slot (undefined until the first step), and how many steps it took.
  struct State {
    std::vector<Tensor> slots;
    int64_t step = 0;
  };
  struct Group {
    Tensors parameters;
    std::vector<State> states;
    double lr = 0;
    double initial_lr = 0;
  };

  /// `name` shows in errors; `slots` names the state tensors.
  Optimizer(const char* name, std::vector<const char*> slots) : name_(name), slot_names_(std::move(slots)) {}
  void add_group(const Tensors& parameters, double lr);
  /// Updates one parameter, dense like its gradient; recording is off. state.step was counted up already.
  virtual void update(size_t group, const Tensor& parameter, const Tensor& grad, State& state) = 0;
  /// The shape of a parameter's state tensor once it took a step; none where it keeps no such tensor.
  virtual std::optional<Shape> slot_shape(size_t group, const Tensor& parameter, size_t slot) const {
    (void)group, (void)slot;
    return parameter.shape();
  }
  const char* name() const { return name_; }

 private:
  const Group& at(size_t group) const;

  const char* name_;
  std::vector<const char*> slot_names_;
  std::vector<Group> groups_;
};

}  // namespace regard::optim
