// SGD.
#pragma once

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< times the parameter, added to the gradient
  bool nesterov = false;    ///< needs momentum and no dampening
};

/// Stochastic gradient descent, with momentum as PyTorch does it: v = momentum v + (1 - dampening) g, p -= lr v; the
/// first v is g. Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
class SGD : public Optimizer {
 public:
  explicit SGD(const Tensors& parameters, const SGDOptions& options = {});
  explicit SGD(const std::vector<ParameterGroup<SGDOptions>>& groups);

 protected:
  void update(size_t group, const Tensor& parameter, const Tensor& grad, State& state) override;
  bool has_state(size_t group) const override { return options_[group].momentum != 0; }

 private:
  std::vector<SGDOptions> options_;
};

}  // namespace regard::optim
