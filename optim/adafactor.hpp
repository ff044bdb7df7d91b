// Adafactor.
#pragma once

#include <optional>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct AdafactorOptions {
  double lr = 1e-2;                           ///< the most that a step is, relative to the parameter's size
  double beta2_decay = -0.8;                  ///< the second moment keeps 1 - step^beta2_decay of itself
  std::optional<double> eps1 = std::nullopt;  ///< the least root of the second moment; default: the dtype's epsilon
  double eps2 = 1e-3;                         ///< the least size of a parameter that counts
  double d = 1;                               ///< an update of a larger root mean square is scaled down to it
  double weight_decay = 0;                    ///< the parameter shrinks by lr * weight_decay * p
};

/// Adafactor: no first moment, and of a matrix's second moment only the means of its rows and columns, so that the
/// state of [n, m] is n + m numbers; a tensor of more dimensions is taken as a stack of matrices. A step is
/// min(lr, 1 / sqrt(step)) max(eps2, rms(p)) in size. Shazeer and Stern, "Adafactor: adaptive learning rates with
/// sublinear memory cost", 2018, with the role of lr and eps1 as in torch.optim.Adafactor, whose values it gives.
class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const Tensors& parameters, const AdafactorOptions& options = {});
  template <LearningRate T>
  Adafactor(const Tensors& parameters, T lr) : Adafactor(parameters, AdafactorOptions{.lr = static_cast<double>(lr)}) {}
  explicit Adafactor(const std::vector<ParameterGroup<AdafactorOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;
  /// row_var [..., n, 1] and col_var [..., 1, m] of a matrix [..., n, m], variance of a vector or number.
  std::optional<Shape> slot_shape(size_t group, const Tensor& parameter, size_t slot) const override;

 private:
  void update_one(size_t group, const Update& one) const;

  std::vector<AdafactorOptions> options_;
};

}  // namespace regard::optim
