// Loss scaling, for training in f16.
#pragma once

#include <cstdint>
#include <vector>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        ///< of the scale, after growth_interval steps in a row
  double backoff_factor = 0.5;     ///< of the scale, after a step that was left out
  int64_t growth_interval = 2000;  ///< steps
  bool enabled = true;             ///< false: a scale of 1, and every step is taken
};

/// Multiplies the loss by a large number, so that gradients in f16, whose smallest number is 6e-8, do not become 0 on
/// their way, and divides the parameters' gradients by it before a step. A step whose gradients are not all finite is
/// left out, and the scale falls; after many good ones it rises. As PyTorch's GradScaler. Micikevicius et al., "Mixed
/// precision training", 2018.
///
///     GradScaler scaler;
///     for (...) {
///       optimizer.zero_grad();
///       Tensor loss;
///       {
///         AutocastScope scope(DType::f16);
///         loss = cross_entropy(model(x), targets);
///       }
///       scaler.scale(loss).backward();
///       scaler.unscale(optimizer);                      // only where gradients are looked at, as here
///       clip_grad_norm_on_device(model.parameters(), 1);
///       scaler.step(optimizer);
///       scaler.update();
///     }
///
/// bf16 has the range of f32 and needs no scaler. Where the gradients are on a GPU, step() waits for it once, and
/// nothing else does. Several optimizers may share a scaler: one unscale() and step() each, and one update(). Where it
/// is enabled, scale(), unscale(), step() and update() are a DeviceError in a capture (CudaGraph).
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss times the scale, recorded; a 16-bit loss in f32.
  Tensor scale(const Tensor& loss) const;
  /// Divides the gradients of the optimizer's parameters by the scale, in place. A ValueError where that was done
  /// since the last update(), or where no parameter has a gradient.
  void unscale(Optimizer& optimizer);
  /// unscale() where it was not called, and then optimizer.step() where every gradient is finite; returns whether it
  /// stepped. A ValueError where the optimizer stepped since the last update().
  bool step(Optimizer& optimizer);
  /// The scale for the next step: smaller where a step was left out, larger after growth_interval without one. A
  /// ValueError where there was no step() or unscale() since the last.
  void update();

  double current_scale() const { return options_.enabled ? scale_ : 1; }
  /// Another scale from now on, positive and finite.
  void set_scale(double scale);
  const GradScalerOptions& options() const { return options_; }

  /// `scale`, `growth_factor`, `backoff_factor`, `growth_interval` and `growth_tracker`, how many good steps there were
  /// since the scale changed; nothing where it is not enabled.
  StateDict state_dict() const;
  /// Checked first: a ValueError names what is missing, unexpected or out of range, and nothing is changed then.
  void load_state_dict(const StateDict& state);

 private:
  // What was done with an optimizer since the last update().
  struct Progress {
    const Optimizer* optimizer;
    Tensors squares;  // of its gradients, a device each
    bool stepped = false;
    bool finite = true;
  };
  Progress* find(const Optimizer& optimizer);
  void read(Progress& progress);

  GradScalerOptions options_;
  double scale_;
  int64_t tracker_ = 0;
  std::vector<Progress> progress_;
};

}  // namespace regard::optim
