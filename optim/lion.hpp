// Lion.
#pragma once

#include <array>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct LionOptions {
  double lr = 1e-4;  ///< a third to a tenth of what AdamW would have
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  ///< the parameter shrinks by lr * weight_decay * p; three to ten times AdamW's
};

/// Lion: p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), then m = beta2 m + (1 - beta2) g. Each element moves
/// by lr, whatever its gradient's size; one moment is kept. Chen et al., "Symbolic discovery of optimization
/// algorithms", 2023.
class Lion : public Optimizer {
 public:
  explicit Lion(const Tensors& parameters, const LionOptions& options = {});
  template <LearningRate T>
  Lion(const Tensors& parameters, T lr) : Lion(parameters, LionOptions{.lr = static_cast<double>(lr)}) {}
  explicit Lion(const std::vector<ParameterGroup<LionOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;

 private:
  std::vector<LionOptions> options_;
};

}  // namespace regard::optim
