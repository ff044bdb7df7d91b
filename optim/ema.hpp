// Exponential moving average of a model's weights.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <regard/layers/layer.hpp>

namespace regard::optim {

struct EmaOptions {
  double decay = 0.999;  ///< what the average keeps of itself in each update, in [0, 1)
  /// Keeps min(decay, (1 + n) / (10 + n)) in update n, counted from 0: an average that soon leaves the first values.
  bool warmup = false;
  bool buffers = false;  ///< averages floating buffers too; else the model keeps its own
};

/// The average of a model's parameters over training: average += (1 - decay) (parameter - average) in each update(),
/// from the values at construction on. It often evaluates better than the last values. Polyak and Juditsky, 1992;
/// decay and warm-up as in Tan and Le, 2019.
///
///     ExponentialMovingAverage ema(model, {.decay = 0.999});
///     ... optimizer.step(); ema.update();
///     {
///       auto applied = ema.apply();   // the model has the averages
///       evaluate(model);
///     }                               // and its own values again, also where evaluate() threw
///
/// Holds handles on the model's parameters, as an optimizer does; a tied one is averaged once. Frozen parameters are
/// averaged too.
class ExponentialMovingAverage {
 public:
  explicit ExponentialMovingAverage(const layers::Layer& model, const EmaOptions& options = {});
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  /// After optimizer.step(). A DTypeError where the model was cast since, a DeviceError where it was moved; a
  /// GraphError while applied.
  void update();
  int64_t updates() const { return updates_; }
  /// What update number n, counted from 0, keeps.
  double decay_at(int64_t n) const;

  /// While it lives the model has the averages; then its own values again. The average, and the parameters it holds,
  /// must outlive it. An optimizer must not step meanwhile: its step would be lost.
  class Applied {
   public:
    Applied(Applied&& other) noexcept : ema_(std::exchange(other.ema_, nullptr)) {}
    Applied& operator=(Applied&&) = delete;
    ~Applied() { restore(); }
    /// Ends it early.
    void restore() noexcept {
      if (ema_) std::exchange(ema_, nullptr)->restore();
    }

   private:
    friend class ExponentialMovingAverage;
    explicit Applied(ExponentialMovingAverage* ema) : ema_(ema) {}
    ExponentialMovingAverage* ema_;
  };
  [[nodiscard]] Applied apply();
  /// Writes the averages into another model of the same names and shapes, or for good into the model itself. A
  /// ValueError where they do not fit.
  void copy_to(layers::Layer& model) const;

  /// The averages by the model's names: what a file of weights holds. Copies.
  StateDict averages() const;
  /// The averages as `average.NAME`, and `updates`: for resuming. Copies.
  StateDict state_dict() const;
  /// Everything is checked first: a ValueError names what is missing, unexpected or of another shape.
  void load_state_dict(const StateDict& state);

 private:
  struct Entry {
    std::string name;
    Tensor source, average;
  };
  void check_fits(const char* op) const;
  void restore() noexcept;

  EmaOptions options_;
  std::vector<Entry> entries_;
  std::vector<Tensor> own_;  // the model's values while applied
  int64_t updates_ = 0;
};

}  // namespace regard::optim
