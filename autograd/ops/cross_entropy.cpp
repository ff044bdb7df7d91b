// Losses of classification: softmax with cross-entropy, fused, and negative log-likelihood.
#include <sstream>
#include <string>
#include <vector>

#include <regard/autograd/backend/entry_check.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace {

// Scores and targets as rows, and which rows count.
struct ClassRows {
  Tensor scores;   // [rows, C], dense
  Tensor targets;  // [rows], i64
  Tensor ignored;  // [rows], boolean; undefined where every row counts
  Shape shape;     // of the targets as given
  int64_t classes = 0;
};

std::string valid_targets(const ClassRows& rows, int64_t ignore_index) {
  std::ostringstream text;
  text << " is not a class: with " << rows.classes << " classes the valid range is [0, " << rows.classes
       << "), and ignore_index is " << ignore_index;
  return text.str();
}

// Every target must be a class or the ignored value. A GPU is not waited for: any may be ignored then.
void check_targets(const char* op, ClassRows& rows, int64_t ignore_index) {
  if (rows.targets.numel() == 0) return;
  if (rows.targets.device() != cpu()) {
    check_entries_later(reshape(rows.targets, rows.shape), {.low = 0,
                                                            .high = rows.classes - 1,
                                                            .ignored = ignore_index,
                                                            .before = std::string(op) + ": target ",
                                                            .after = valid_targets(rows, ignore_index)});
    rows.ignored = rows.targets == ignore_index;
    return;
  }
  int64_t smallest = 0, largest = 0;
  kernels(rows.targets).index_range(rows.targets, &smallest, &largest);
  if (smallest <= ignore_index && ignore_index <= largest) {
    rows.ignored = rows.targets == ignore_index;
    kernels(rows.targets).index_range(where(rows.ignored, 0, rows.targets), &smallest, &largest);
  }
  if (smallest >= 0 && largest < rows.classes) return;
  const std::vector<int64_t> targets = rows.targets.to_vector<int64_t>();
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t target = targets[i];
    if (target == ignore_index || (target >= 0 && target < rows.classes)) continue;
    fail<IndexError>(op, "target ", target, " at position ", position_of(static_cast<int64_t>(i), rows.shape),
                     valid_targets(rows, ignore_index));
  }
}

ClassRows class_rows(const char* op, const char* argument, const Tensor& scores, const Tensor& targets,
                     const Tensor& weight, int64_t ignore_index) {
  check_floating(op, argument, scores);
  check_integer(op, "targets", targets);
  check_same_device(op, scores, targets);
  const Shape& shape = scores.shape();
  check<ShapeError>(shape.dim() >= 1, op, argument, " ", shape, " has no dimension of classes: it must be [C], [N, C] ",
                    "or [N, C, d1, ...]");
  const int64_t class_dim = shape.dim() == 1 ? 0 : 1;
  Shape expected = shape;
  expected.erase(class_dim);
  check<ShapeError>(targets.shape() == expected, op, argument, " ", shape, " want targets ", expected, ", not ",
                    targets.shape());
  ClassRows rows;
  rows.classes = shape[class_dim];
  rows.shape = expected;
  check<ShapeError>(rows.classes > 0 || expected.numel() == 0, op, argument, " ", shape, " have no classes");
  if (weight.defined()) {
    check<ShapeError>(weight.shape() == Shape{rows.classes}, op, "weight ", weight.shape(), " for ", rows.classes,
                      " classes: it must be [", rows.classes, "]");
    check<DTypeError>(weight.dtype() == scores.dtype(), op, argument, " are ", scores.dtype(), " and weight is ",
                      weight.dtype(), "; convert one with to()");
    check<GraphError>(!weight.requires_grad(), op,
                      "weight requires a gradient, and class weights have none: pass weight.detach()");
    check_same_device(op, scores, weight);
  }
  rows.scores = scores;
  if (shape.dim() > 2) {
    Shape order{0};
    for (int64_t d = 2; d < shape.dim(); ++d) order.push_back(d);
    order.push_back(1);
    rows.scores = permute(scores, order);  // [N, d1, ..., C]
  }
  rows.scores = contiguous(reshape(rows.scores, {expected.numel(), rows.classes}));
  rows.targets = reshape(targets, {expected.numel()});
  check_targets(op, rows, ignore_index);
  return rows;
}

// The targets with class 0 where they are ignored.
Tensor safe_targets(const ClassRows& rows) {
  return rows.ignored.defined() ? where(rows.ignored, 0, rows.targets) : rows.targets;
}

// What losses of 16-bit scores are computed and given in: a mean of thousands has no digits to spare.
DType loss_dtype(const Tensor& scores) { return element_size(scores.dtype()) == 2 ? DType::f32 : scores.dtype(); }

// What the mean divides by: how many rows count, or the sum of their classes' weights.
double total_weight(const ClassRows& rows, const Tensor& weight) {
  const NoGrad no_grad;
  if (weight.defined()) {
    Tensor weights = to(index_select(weight, 0, safe_targets(rows)), loss_dtype(weight));
    if (rows.ignored.defined()) weights = masked_fill(weights, rows.ignored, 0);
    return sum(weights).item<double>();
  }
  const int64_t ignored = rows.ignored.defined() ? sum(rows.ignored).item<int64_t>() : 0;
  return static_cast<double>(rows.targets.numel() - ignored);
}

// The mean of rows that sum to `total`, without waiting for the GPU.
Tensor mean_on_device(const Tensor& total, const ClassRows& rows, const Tensor& weight) {
  Tensor divisor;
  {
    const NoGrad no_grad;
    if (!weight.defined()) {
      divisor = clamp(to(sum(logical_not(rows.ignored)), total.dtype()), 1);  // where none counts the total is 0
    } else {
      const Tensor weights = to(index_select(weight, 0, safe_targets(rows)), loss_dtype(weight));
      divisor = sum(masked_fill(weights, rows.ignored, 0));
    }
  }
  if (!weight.defined()) return total / divisor;
  const Tensor nothing = divisor == 0;
  return masked_fill(total / masked_fill(divisor, nothing, 1), nothing, 0);
}

Tensor reduce_rows(const Tensor& losses, const ClassRows& rows, const Tensor& weight, Reduction reduction) {
  if (reduction == Reduction::none) return reshape(losses, rows.shape);
  const Tensor total = sum(losses);
  if (reduction == Reduction::sum) return total;
  if (total.device() != cpu() && rows.targets.numel() > 0) return mean_on_device(total, rows, weight);
  const double divisor = total_weight(rows, weight);
  return divisor == 0 ? total * 0.0 : total / divisor;
}

struct SmoothedTarget {
  int64_t ignore_index;
  double label_smoothing;
};

// How much of a row's target is given out in all: its class's weight, and the share that all classes get. [rows, 1]
Tensor target_mass(const Tensor& targets, const Tensor& ignored, const Tensor& weight, const SmoothedTarget& form,
                   DType dtype) {
  Tensor mass = ones({targets.numel()}, {dtype, targets.device()});
  if (weight.defined()) {
    const Tensor weights = to(weight, dtype);
    mass = index_select(weights, 0, where(ignored, 0, targets)) * (1 - form.label_smoothing) +
           mean(weights) * form.label_smoothing;
  }
  return unsqueeze(masked_fill(mass, ignored, 0), 1);
}

// The logits' gradient for the gradient `g` [rows] of each row's loss. Recorded: its own gradient is composed. Written
// over the logits where nobody else holds them: no caller reads them after this.
Tensor cross_entropy_grad(const Tensor& g, const Tensor& logits, const Tensor& log_sum_exp, const Tensor& targets,
                          const Tensor& weight, SmoothedTarget form) {
  Tensor dlogits = reuse(logits, logits);
  kernels(g).cross_entropy_grad(dlogits, g, log_sum_exp, logits, targets, weight, form.ignore_index,
                                form.label_smoothing);
  return record("cross_entropy_grad", dlogits, inputs(g, logits), saved(g, logits, log_sum_exp, targets, weight),
                [form](const Saved& s, const Tensor& h) {
                  const Tensor g = s[0], logits = s[1], targets = s[3], weight = s[4];
                  Grads grads(2);
                  if (s.needs(0)) {
                    const Tensor one_each = cross_entropy_grad(ones_like(g), logits, s[2], targets, weight, form);
                    grads[0] = sum(to(h * one_each, g.dtype()), 1);
                  }
                  if (s.needs(1)) {
                    const Tensor ignored = targets == form.ignore_index;
                    // In the losses' dtype, which is wider than that of 16-bit logits.
                    const Tensor x = to(logits, g.dtype()), dx = to(h, g.dtype());
                    const Tensor p = masked_fill(softmax(x, 1), unsqueeze(ignored, 1), 0);
                    const Tensor scale = unsqueeze(g, 1) * target_mass(targets, ignored, weight, form, g.dtype());
                    grads[1] = to(p * (dx - sum(dx * p, 1, true)) * scale, logits.dtype());
                  }
                  return grads;
                });
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  // Logits alone are widened by the kernel, as it reads them.
  if (options.weight.defined() && autocast::widens("cross_entropy", logits, options.weight)) [[unlikely]] {
    CrossEntropyOptions in_f32 = options;
    in_f32.weight = autocast::wide(options.weight);
    return cross_entropy(autocast::wide(logits), targets, in_f32);
  }
  check<ValueError>(options.label_smoothing >= 0 && options.label_smoothing <= 1, "cross_entropy",
                    "label_smoothing is ", options.label_smoothing, "; it must lie in [0, 1]");
  const ClassRows rows = class_rows("cross_entropy", "logits", logits, targets, options.weight, options.ignore_index);
  const Tensor weight = options.weight.defined() ? contiguous(options.weight) : Tensor();
  const TensorOptions kind{loss_dtype(logits), logits.device()};
  Tensor losses = empty({rows.targets.numel()}, kind), log_sum_exp = empty({rows.targets.numel()}, kind);
  kernels(logits).cross_entropy(losses, log_sum_exp, rows.scores, rows.targets, weight, options.ignore_index,
                                options.label_smoothing);
  const SmoothedTarget form{options.ignore_index, options.label_smoothing};
  losses = record("cross_entropy", losses, inputs(rows.scores), saved(rows.scores, log_sum_exp, rows.targets, weight),
                  [form](const Saved& s, const Tensor& g) {
                    return Grads{cross_entropy_grad(g, s.take(0), s[1], s[2], s[3], form)};
                  });
  return reduce_rows(losses, rows, weight, options.reduction);
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, const NllLossOptions& options) {
  if (autocast::widens("nll_loss", log_probabilities, options.weight)) [[unlikely]] {
    NllLossOptions in_f32 = options;
    in_f32.weight = autocast::wide(options.weight);
    return nll_loss(autocast::wide(log_probabilities), targets, in_f32);
  }
  const ClassRows rows =
      class_rows("nll_loss", "log_probabilities", log_probabilities, targets, options.weight, options.ignore_index);
  const Tensor safe = safe_targets(rows);
  const DType dtype = loss_dtype(rows.scores);
  Tensor losses = to(-squeeze(gather(rows.scores, 1, unsqueeze(safe, 1)), 1), dtype);
  if (options.weight.defined()) losses = losses * to(index_select(options.weight, 0, safe), dtype);
  if (rows.ignored.defined()) losses = masked_fill(losses, rows.ignored, 0);
  return reduce_rows(losses, rows, options.weight, options.reduction);
}

}  // namespace regard
