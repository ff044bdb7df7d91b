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
  template <LearningRate T>
  SGD(const Tensors& parameters, T lr) : SGD(parameters, SGDOptions{.lr = static_cast<double>(lr)}) {}
  explicit SGD(const std::vector<ParameterGroup<SGDOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;
  std::optional<Shape> slot_shape(size_t group, const Tensor& parameter, size_t slot) const override {
    return options_[group].momentum != 0 ? Optimizer::slot_shape(group, parameter, slot) : std::nullopt;
  }

 private:
  std::vector<SGDOptions> options_;
};

}  // namespace regard::optim
