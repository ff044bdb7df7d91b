// Adam and AdamW.
#pragma once

#include <array>

#include <regard/optim/optimizer.hpp>

namespace regard::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  ///< times the parameter, added to the gradient
};

/// Adam. Kingma and Ba, "Adam: a method for stochastic optimization", 2015: eps is added to the square root of the
/// bias-corrected second moment.
class Adam : public Optimizer {
 public:
  explicit Adam(const Tensors& parameters, const AdamOptions& options = {});
  template <LearningRate T>
  Adam(const Tensors& parameters, T lr) : Adam(parameters, AdamOptions{.lr = static_cast<double>(lr)}) {}
  explicit Adam(const std::vector<ParameterGroup<AdamOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;

 private:
  std::vector<AdamOptions> options_;
};

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;  ///< the parameter shrinks by lr * weight_decay * p, apart from the gradient
};

/// Adam with decoupled weight decay. Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.
class AdamW : public Optimizer {
 public:
  explicit AdamW(const Tensors& parameters, const AdamWOptions& options = {});
  template <LearningRate T>
  AdamW(const Tensors& parameters, T lr) : AdamW(parameters, AdamWOptions{.lr = static_cast<double>(lr)}) {}
  explicit AdamW(const std::vector<ParameterGroup<AdamWOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;

 private:
  std::vector<AdamWOptions> options_;
};

namespace adam_detail {  // for optimizers that use AdamW for part of their parameters
void check_options(const char* name, const AdamWOptions& options);
/// The moments are slots `first_slot` and the next.
void adamw_update(const AdamWOptions& options, const std::function<double()>& lr,
                  std::span<const Optimizer::Update> list, size_t first_slot);
}  // namespace adam_detail

}  // namespace regard::optim
