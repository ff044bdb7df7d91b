#include <regard/optim/accumulate.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/optim/optimizer.hpp>

namespace regard::optim {

namespace {
const char* const kOp = "GradientAccumulation";
}  // namespace

GradientAccumulation::GradientAccumulation(const Tensors& parameters) {
  check<ValueError>(!parameters.empty(), kOp, "no parameters are given");
  std::set<const TensorImpl*> seen;
  for (const Tensor& parameter : parameters) {
    check_floating(kOp, "parameters", parameter);
    if (seen.insert(parameter.impl()).second) parameters_.push_back(parameter);
  }
}

void GradientAccumulation::backward(const Tensor& mean_loss, double items) {
  check_floating(kOp, "mean_loss", mean_loss);
  check<ShapeError>(mean_loss.numel() == 1, kOp, "the loss has shape ", mean_loss.shape(),
                    "; a single number is expected, the mean over the items");
  check<ValueError>(std::isfinite(items) && items >= 0, kOp, "items ", items, " must be finite and not negative");
  check_not_stepped_in_backward(kOp, parameters_);
  if (started_ && std::none_of(parameters_.begin(), parameters_.end(),
                               [](const Tensor& parameter) { return parameter.grad().defined(); }))
    items_ = loss_ = 0;  // zero_grad() has taken the sums away, so what they weighed goes, too
  if (!started_)
    for (size_t i = 0; i < parameters_.size(); ++i)
      check<GraphError>(!parameters_[i].grad().defined(), kOp, "parameter ", i, " of shape ", parameters_[i].shape(),
                        " has a gradient already: call zero_grad() before the first of the micro-batches");
  if (items > 0) {
    const double value = mean_loss.item<double>();
    (mean_loss * items).backward();
    loss_ += items * value;
    items_ += items;
  }
  started_ = true;
}

double GradientAccumulation::finish() {
  check<ValueError>(items_ > 0, kOp, "finish() without items: call backward() for each micro-batch first");
  NoGrad no_grad;
  for (const Tensor& parameter : parameters_) {
    Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    parameter.set_grad(grad.detach() / items_);  // never in place: a gradient may be held elsewhere
  }
  const double mean = loss_ / items_;
  items_ = loss_ = 0;
  started_ = false;
  return mean;
}

}  // namespace regard::optim
