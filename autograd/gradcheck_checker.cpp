#include <regard/autograd/gradcheck_checker.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <regard/autograd/gradcheck_line.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>

namespace regard::gradcheck_detail {

namespace {

// How many analytical derivatives are held at once (128 MiB): larger Jacobians are taken in blocks of columns.
constexpr int64_t block_entries = int64_t{1} << 24;

// A tensor by whose elements f is differentiated.
struct Variable {
  std::string name;
  Tensor leaf;   // what the analytical gradient is taken by
  Tensor point;  // what differences move: the same values, no two elements in one place; a parameter is both
  std::vector<double*> elements;
  int64_t begin = 0;  // its first column in the Jacobian
  int64_t numel() const { return leaf.numel(); }
};

void check_options(const char* op, const GradcheckOptions& options) {
  check<ValueError>(options.eps > 0 && options.atol >= 0 && options.rtol >= 0 && options.projections >= 1 &&
                        options.max_reported >= 1,
                    op, "eps ", options.eps, ", atol ", options.atol, ", rtol ", options.rtol, ", projections ",
                    options.projections, ", max_reported ", options.max_reported,
                    ": eps must be positive, the tolerances not negative, and the numbers at least 1");
}

// The index of the element that is number `at` in row-major order.
std::vector<int64_t> index_of(int64_t at, const Shape& shape) {
  std::vector<int64_t> index(static_cast<size_t>(shape.dim()));
  for (int64_t d = shape.dim() - 1; d >= 0; --d) {
    index[static_cast<size_t>(d)] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

class Checker {
 public:
  Checker(const Subject& subject, const GradcheckOptions& options)
      : subject_(subject), options_(options), generator_(options.seed) {
    report_.check = subject.check;
    report_.options = options;
    check_options(subject.check, options);
    make_variables();
  }

  GradcheckReport run() {
    base_ = evaluate();
    const uint64_t former_seed = default_generator().seed(), former_offset = default_generator().offset();
    check_same_outputs(1);
    // A function that draws random numbers and does not seed can give equal outputs twice by chance.
    if (default_generator().seed() != former_seed || default_generator().offset() != former_offset)
      check_same_outputs(32);
    outputs_ = floating(subject_.f(leaf_inputs_));
    for (const Tensor& output : outputs_)
      if (output.requires_grad()) differentiable_.push_back(output);
    for (const Variable& variable : variables_) leaves_.push_back(variable.leaf);
    check_backward();
    if (options_.fast) {
      for (int64_t i = 0; i < options_.projections; ++i) check_projection();
    } else {
      check_all();
    }
    // So can one with a generator of its own: before a gradient is blamed, look closer.
    if (report_.failed > 0) check_same_outputs(16);
    finish();
    return std::move(report_);
  }

 private:
  struct Found {
    GradcheckFailure failure;
    const Variable* variable;
    int64_t element;  // -1: a projection
    int64_t row;
  };

  void make_variables() {
    int64_t columns = 0;
    auto add = [&](Variable variable) {
      variable.elements = element_pointers(variable.point);
      variable.begin = columns;
      columns += variable.numel();
      variables_.push_back(std::move(variable));
    };
    for (size_t i = 0; i < subject_.inputs.size(); ++i) {
      const Tensor& input = subject_.inputs[i];
      leaf_inputs_.push_back(input);
      point_inputs_.push_back(input);
      if (!wants_gradient(input)) continue;
      check_input(subject_.check, subject_.input_names[i], input);
      leaf_inputs_[i] = leaf_of(input);
      std::vector<double*> elements = element_pointers(leaf_inputs_[i]);
      std::sort(elements.begin(), elements.end());
      bool shared = std::adjacent_find(elements.begin(), elements.end()) != elements.end();
      point_inputs_[i] = shared ? input.detach().clone().set_requires_grad() : leaf_of(input);
      add({subject_.input_names[i], leaf_inputs_[i], point_inputs_[i], {}});
    }
    for (const auto& [name, parameter] : subject_.parameters) {
      if (!wants_gradient(parameter)) continue;
      check_input(subject_.check, name, parameter);
      add({name, parameter, parameter, {}});
    }
    check<ValueError>(!variables_.empty(), subject_.check, "none of the ", subject_.inputs.size(),
                      " inputs requires a gradient, so there is nothing to check: call set_requires_grad()");
  }

  // ---- Values

  Tensors floating(const Tensors& results) const {
    Tensors list;
    for (const Tensor& result : results) {
      check<ValueError>(result.defined(), subject_.check, "the function returned an undefined tensor");
      if (!is_floating(result.dtype())) continue;
      check<DTypeError>(result.dtype() == DType::f64, subject_.check, "the function returned a ", result.dtype(),
                        " tensor for f64 inputs: it must compute in f64");
      list.push_back(result);
    }
    check<ValueError>(!list.empty(), subject_.check, "the function returned no floating tensor to differentiate");
    return list;
  }

  // All floating outputs at the variables' points, one after the other.
  std::vector<double> evaluate() {
    Tensors results = floating(subject_.f(point_inputs_));
    if (shapes_.empty())
      for (const Tensor& result : results) shapes_.push_back(result.shape());
    std::vector<double> values;
    values.reserve(base_.size());
    bool same = results.size() == shapes_.size();
    for (size_t k = 0; k < results.size(); ++k) {
      same = same && results[k].shape() == shapes_[k];
      std::vector<double> part = results[k].to_vector<double>();
      values.insert(values.end(), part.begin(), part.end());
    }
    check<ValueError>(same, subject_.check, "the function's outputs have other shapes each time it is called");
    return values;
  }

  void check_same_outputs(int times) {
    for (int i = 0; i < times; ++i) {
      std::vector<double> again = evaluate();
      for (size_t row = 0; row < base_.size(); ++row)
        check<ValueError>(same_bits(base_[row], again[row]), subject_.check,
                          "the function is not deterministic: on the same inputs, element ", row,
                          " of its outputs was ", base_[row], " and then ", again[row],
                          "; seed inside the function (manual_seed), or call eval() on layers that drop");
    }
  }

  // ---- Gradients

  // Undefined where the outputs do not depend on a variable.
  Tensors gradients(const Tensors& outputs, const Tensors& weights, const Tensors& leaves) {
    if (outputs.empty()) return Tensors(leaves.size());
    GradOptions options;
    options.grad_outputs = weights;
    options.retain_graph = true;
    options.allow_unused = true;
    return grad(outputs, leaves, options);
  }

  // Weights for all outputs as one list, and as tensors for those that have a graph.
  Tensors weight_tensors(const std::vector<double>& weights) const {
    Tensors tensors;
    size_t row = 0;
    for (const Tensor& output : outputs_) {
      auto begin = weights.begin() + static_cast<int64_t>(row);
      if (output.requires_grad())
        tensors.push_back(from_vector<double>(std::vector<double>(begin, begin + output.numel()), output.shape()));
      row += static_cast<size_t>(output.numel());
    }
    return tensors;
  }

  static std::vector<double> values_of(const Tensor& gradient, int64_t count) {
    return gradient.defined() ? gradient.to_vector<double>() : std::vector<double>(static_cast<size_t>(count));
  }

  // Whether two backward passes agree to the last bit, and whether a gradient stays what it is when no other is
  // asked for, when ops leave out what is not needed.
  void check_backward() {
    Tensors weights = weight_tensors(random_weights(static_cast<int64_t>(base_.size()), generator_));
    Tensors first = gradients(differentiable_, weights, leaves_);
    Tensors others;
    for (const Tensor& output : floating(subject_.f(leaf_inputs_)))
      if (output.requires_grad()) others.push_back(output);
    Tensors second = others.size() == differentiable_.size() ? gradients(others, weights, leaves_) : Tensors();
    for (size_t i = 0; i < variables_.size(); ++i) {
      const Variable& variable = variables_[i];
      std::vector<double> a = values_of(first[i], variable.numel());
      std::vector<double> b = values_of(second.empty() ? Tensor() : second[i], variable.numel());
      std::vector<double> c = values_of(gradients(differentiable_, weights, {variable.leaf})[0], variable.numel());
      double size = 0;
      for (double value : a) size = std::isfinite(value) ? std::max(size, std::abs(value)) : size;
      for (size_t e = 0; e < a.size(); ++e) {
        bool repeats = same_bits(a[e], b[e]);
        bool alone = a[e] == c[e] || std::abs(a[e] - c[e]) <= 1e-9 * size || (std::isnan(a[e]) && std::isnan(c[e]));
        if (repeats && alone) continue;
        GradcheckFailure failure;
        failure.problem = repeats ? GradcheckProblem::wrong : GradcheckProblem::not_deterministic;
        failure.input = variable.name;
        failure.input_index = index_of(static_cast<int64_t>(e), variable.leaf.shape());
        failure.output = "the randomly weighted outputs";
        failure.analytical = repeats ? c[e] : a[e];
        failure.numerical = repeats ? a[e] : b[e];
        if (repeats) failure.note = "the gradient when it alone is asked for, against all gradients at once";
        add({failure, &variable, -1, 0});
        break;  // one for each variable tells enough
      }
    }
  }

  // ---- Every derivative

  void check_all() {
    const auto rows = static_cast<int64_t>(base_.size());
    const int64_t columns = variables_.back().begin + variables_.back().numel();
    const int64_t width = std::max<int64_t>(1, block_entries / std::max<int64_t>(rows, 1));
    for (int64_t begin = 0; begin < columns; begin += width) check_columns(begin, std::min(columns, begin + width));
  }

  // Columns [begin, end) of the Jacobian; a row is an element of the outputs.
  void check_columns(int64_t begin, int64_t end) {
    const int64_t width = end - begin;
    std::vector<const Variable*> inside;
    Tensors leaves;
    for (const Variable& variable : variables_)
      if (variable.numel() > 0 && variable.begin < end && variable.begin + variable.numel() > begin) {
        inside.push_back(&variable);
        leaves.push_back(variable.leaf);
      }
    std::vector<double> analytical(base_.size() * static_cast<size_t>(width));
    std::vector<std::vector<bool>> undefined(inside.size(), std::vector<bool>(base_.size(), true));
    size_t row = 0;
    for (const Tensor& output : outputs_) {
      Tensor weight = zeros(output.shape(), TensorOptions(DType::f64, output.device()));
      double* weights = weight.data<double>();
      for (int64_t i = 0; i < output.numel(); ++i, ++row) {
        if (!output.requires_grad()) continue;
        weights[i] = 1;
        Tensors grads = gradients({output}, {weight}, leaves);
        for (size_t n = 0; n < inside.size(); ++n) {
          if (!grads[n].defined()) continue;
          undefined[n][row] = false;
          std::vector<double> values = grads[n].to_vector<double>();
          int64_t from = std::max(begin, inside[n]->begin);
          int64_t to = std::min(end, inside[n]->begin + inside[n]->numel());
          std::copy(values.begin() + (from - inside[n]->begin), values.begin() + (to - inside[n]->begin),
                    analytical.begin() + static_cast<int64_t>(row) * width + (from - begin));
        }
        weights[i] = 0;  // only now: a gradient may be the weights themselves
      }
    }
    if (base_.empty()) return;  // outputs without elements
    for (size_t n = 0; n < inside.size(); ++n) {
      const Variable& variable = *inside[n];
      int64_t to = std::min(end, variable.begin + variable.numel());
      for (int64_t column = std::max(begin, variable.begin); column < to; ++column)
        check_column(variable, column - variable.begin, analytical.data() + (column - begin), width, undefined[n]);
    }
  }

  void check_column(const Variable& variable, int64_t element, const double* analytical, int64_t stride,
                    const std::vector<bool>& undefined) {
    double* at = variable.elements[static_cast<size_t>(element)];
    const double step = options_.eps * (std::isfinite(*at) ? std::max(1.0, std::abs(*at)) : 1.0);
    const Tolerance tolerance{options_.atol, options_.rtol};
    Line line(evaluate_, base_, {at}, {1.0});
    for (size_t row = 0; row < base_.size(); ++row) {
      double value = analytical[static_cast<int64_t>(row) * stride];
      ++report_.checked;
      if (tolerance.accepts(value, line.slopes(row, step).central)) continue;
      Found found = describe(line, row, value, step, tolerance, undefined[row], variable);
      found.failure.input_index = index_of(element, variable.leaf.shape());
      found.element = element;
      found.row = static_cast<int64_t>(row);
      name_output(found.failure, row);
      add(std::move(found));
    }
  }

  // ---- Projections

  void check_projection() {
    const std::vector<double> u = random_weights(static_cast<int64_t>(base_.size()), generator_);
    Tensors grads = gradients(differentiable_, weight_tensors(u), leaves_);
    // Only what changes is summed, so that large outputs do not drown it.
    const Line::Evaluate projected = [&] {
      std::vector<double> values = evaluate();
      long double sum = 0;
      for (size_t row = 0; row < values.size(); ++row)
        if (values[row] != base_[row]) sum += static_cast<long double>(u[row]) * (values[row] - base_[row]);
      return std::vector<double>{static_cast<double>(sum)};
    };
    const std::vector<double> zero = {0.0};
    for (size_t i = 0; i < variables_.size(); ++i) {
      const Variable& variable = variables_[i];
      if (variable.numel() == 0) continue;
      const std::vector<double> v = random_weights(variable.numel(), generator_);
      const std::vector<double> gradient = values_of(grads[i], variable.numel());
      double value = std::inner_product(v.begin(), v.end(), gradient.begin(), 0.0);
      double square = std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0);
      const auto count = static_cast<double>(variable.numel());
      double size = 0;
      for (const double* at : variable.elements) size += std::isfinite(*at) ? *at * *at / count : 0;
      const double step = options_.eps * std::max(1.0, std::sqrt(size));
      const Tolerance tolerance{options_.atol + options_.rtol * std::sqrt(square / count), 0};
      Line line(projected, zero, variable.elements, v);
      ++report_.checked;
      if (tolerance.accepts(value, line.slopes(0, step).central)) continue;
      Found found = describe(line, 0, value, step, tolerance, !grads[i].defined(), variable);
      found.failure.output = "a random projection of the outputs";
      found.failure.note = "along a random direction";
      add(std::move(found));
    }
  }

  // ---- Report

  static Found describe(Line& line, size_t row, double analytical, double step, const Tolerance& tolerance,
                        bool undefined, const Variable& variable) {
    Slopes slopes = line.slopes(row, step);
    GradcheckFailure failure;
    failure.problem = line.diagnose(row, analytical, step, tolerance);
    if (undefined && failure.problem == GradcheckProblem::wrong) failure.problem = GradcheckProblem::undefined;
    failure.input = variable.name;
    failure.analytical = analytical;
    failure.numerical = slopes.central;
    failure.from_left = slopes.left;
    failure.from_right = slopes.right;
    failure.step = step;
    return {std::move(failure), &variable, -1, 0};
  }

  void name_output(GradcheckFailure& failure, size_t row) const {
    size_t k = 0;
    auto at = static_cast<int64_t>(row);
    while (at >= shapes_[k].numel()) at -= shapes_[k++].numel();
    failure.output = k < subject_.output_names.size() ? subject_.output_names[k] : "output " + std::to_string(k);
    failure.output_index = index_of(at, shapes_[k]);
  }

  void add(Found found) {
    ++report_.failed;
    if (found.failure.problem == GradcheckProblem::kink) ++report_.kinks;
    found_.push_back(std::move(found));
    if (static_cast<int64_t>(found_.size()) > 4 * options_.max_reported + 64) keep_worst();
  }

  void keep_worst() {
    auto error = [](const Found& found) {
      double size = found.failure.absolute_error();
      return std::isnan(size) ? std::numeric_limits<double>::infinity() : size;
    };
    std::stable_sort(found_.begin(), found_.end(), [&](const Found& a, const Found& b) {
      if (a.failure.problem != b.failure.problem) return a.failure.problem < b.failure.problem;
      return error(a) > error(b);
    });
    if (static_cast<int64_t>(found_.size()) > options_.max_reported)
      found_.erase(found_.begin() + options_.max_reported, found_.end());
  }

  void finish() {
    keep_worst();
    if (!found_.empty() && found_[0].element >= 0 && found_[0].failure.problem <= GradcheckProblem::undefined) {
      const Found& worst = found_[0];
      double* at = worst.variable->elements[static_cast<size_t>(worst.element)];
      Line line(evaluate_, base_, {at}, {1.0});
      // A step that is large enough for the remainder to rise above rounding.
      double step = 1e-3 * (std::isfinite(*at) ? std::max(1.0, std::abs(*at)) : 1.0);
      report_.taylor_ratio = line.taylor_ratio(static_cast<size_t>(worst.row), worst.failure.analytical, step);
    }
    for (Found& found : found_) report_.failures.push_back(std::move(found.failure));
    report_.complete = true;
  }

  RestoredGenerator restored_;
  GradMode recording_{true};
  const Subject& subject_;
  const GradcheckOptions& options_;
  Generator generator_;
  const Line::Evaluate evaluate_ = [this] { return evaluate(); };
  Tensors leaf_inputs_;   // for analytical gradients
  Tensors point_inputs_;  // for differences
  std::vector<Variable> variables_;
  Tensors leaves_;  // of the variables
  std::vector<Shape> shapes_;
  std::vector<double> base_;
  Tensors outputs_;         // at leaf_inputs_, with their graph
  Tensors differentiable_;  // those that have one
  std::vector<Found> found_;
  GradcheckReport report_;
};

}  // namespace

void check_input(const char* op, const std::string& name, const Tensor& x) {
  check<DTypeError>(x.dtype() == DType::f64, op, name, " is ", x.dtype(),
                    ", too coarse for differences: convert it with to(DType::f64), then set_requires_grad()");
}

bool wants_gradient(const Tensor& x) { return x.defined() && x.requires_grad(); }

Tensor leaf_of(const Tensor& x) { return copy_with_layout(x).set_requires_grad(); }

std::vector<double> random_weights(int64_t count, Generator& generator) {
  std::vector<double> weights(static_cast<size_t>(count));
  uint64_t first = generator.reserve(count);
  for (size_t i = 0; i < weights.size(); ++i) {
    auto bits = philox(generator.seed(), first + i);
    weights[i] = (0.5 + uniform_double(bits[0], bits[1])) * ((bits[2] & 1U) != 0 ? 1 : -1);
  }
  return weights;
}

GradcheckReport run_check(const Subject& subject, const GradcheckOptions& options) {
  return Checker(subject, options).run();
}

}  // namespace regard::gradcheck_detail
