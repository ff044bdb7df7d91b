// Gradient accumulation: one step from several smaller batches.
#pragma once

#include <regard/autograd/tensor.hpp>

namespace regard::optim {

/// Adds up the gradients of micro-batches so that the step is that of all of them as one batch, also where they are
/// uneven: each loss, a mean over its items (examples, or tokens that count), weighs as many items as it is a mean of.
///
///     GradientAccumulation accumulation(model.parameters());
///     optimizer.zero_grad();
///     for (const Batch& part : parts)
///       accumulation.backward(cross_entropy(model(part.x), part.y), part.size());
///     double loss = accumulation.finish();               // gradients are those of the mean over all items
///     clip_grad_norm(model.parameters(), 1.0);           // from here on as ever
///     optimizer.step();
///
/// Where the number of items of all parts is known beforehand, the same by hand:
/// `(loss * (double(part.size()) / total)).backward()` for each part.
class GradientAccumulation {
 public:
  /// The parameters whose gradients are divided in finish(); one listed twice counts once.
  explicit GradientAccumulation(const Tensors& parameters);

  /// Adds the gradients of `items * mean_loss`, a single number; 0 items, such as a batch of nothing but ignored
  /// targets, add nothing. The first call after finish() wants gradients undefined: a GraphError that says zero_grad()
  /// otherwise. `items` must be finite and not negative. zero_grad() in between gives up what was added, after an
  /// exception for example: the next call begins anew.
  void backward(const Tensor& mean_loss, double items = 1);
  /// Divides the gradients by the items that were added, and returns the mean loss over all of them. A ValueError where
  /// there were none.
  double finish();

  double items() const { return items_; }  ///< added since the last finish()

 private:
  Tensors parameters_;
  double items_ = 0;
  double loss_ = 0;
  bool started_ = false;
};

}  // namespace regard::optim
