// Learning-rate schedules: closed forms of the step.
#pragma once

#include <cstdint>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

/// Base of the schedules. A schedule sets the optimizer's learning rates for step 0 when it is made, and for the next
/// step in each step(), which is called after optimizer.step(). Rates are computed from the optimizer's initial_lr and
/// the step alone, so that resuming at a step gives the same rates. The optimizer must outlive it.
class Schedule {
 public:
  virtual ~Schedule() = default;
  void step();
  int64_t current_step() const { return step_; }
  /// The learning rate at a step, for a rate `initial_lr` given to the optimizer.
  virtual double lr_at(int64_t step, double initial_lr) const = 0;

  /// The step, as `step`. Loading sets the optimizer's rates again.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 protected:
  explicit Schedule(Optimizer& optimizer) : optimizer_(optimizer) {}
  void apply();  // for constructors

 private:
  Optimizer& optimizer_;
  int64_t step_ = 0;
};

struct ConstantOptions {
  double factor = 1;
};
/// factor times the initial rate, always.
class Constant : public Schedule {
 public:
  explicit Constant(Optimizer& optimizer, const ConstantOptions& options = {});
  double lr_at(int64_t step, double initial_lr) const override;

 private:
  ConstantOptions options_;
};

struct LinearWarmupOptions {
  int64_t warmup_steps = 100;
};
/// (step + 1) / warmup_steps of the initial rate, then all of it.
class LinearWarmup : public Schedule {
 public:
  explicit LinearWarmup(Optimizer& optimizer, const LinearWarmupOptions& options = {});
  double lr_at(int64_t step, double initial_lr) const override;

 private:
  LinearWarmupOptions options_;
};

struct CosineOptions {
  int64_t total_steps = 1000;
  double min_lr = 0;
};
/// From the initial rate to min_lr along half a cosine over total_steps, and min_lr from there on. Loshchilov and
/// Hutter, "SGDR", 2017, without restarts.
class Cosine : public Schedule {
 public:
  explicit Cosine(Optimizer& optimizer, const CosineOptions& options = {});
  double lr_at(int64_t step, double initial_lr) const override;

 private:
  CosineOptions options_;
};

struct StepOptions {
  int64_t step_size = 100;
  double gamma = 0.1;
};
/// The initial rate times gamma for each step_size steps done.
class Step : public Schedule {
 public:
  explicit Step(Optimizer& optimizer, const StepOptions& options = {});
  double lr_at(int64_t step, double initial_lr) const override;

 private:
  StepOptions options_;
};

struct WarmupCosineOptions {
  int64_t warmup_steps = 100;
  int64_t total_steps = 1000;  ///< with the warm-up; more than warmup_steps
  double min_lr = 0;
};
/// LinearWarmup, then Cosine over the steps that are left.
class WarmupCosine : public Schedule {
 public:
  explicit WarmupCosine(Optimizer& optimizer, const WarmupCosineOptions& options = {});
  double lr_at(int64_t step, double initial_lr) const override;

 private:
  WarmupCosineOptions options_;
};

}  // namespace regard::optim
