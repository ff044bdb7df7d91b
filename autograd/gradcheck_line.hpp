// A function along a line through the point of a gradient check: central and one-sided differences, and what a
// difference from the analytical value means. For the gradient check alone.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include <regard/autograd/gradcheck.hpp>

namespace regard::gradcheck_detail {

/// Pointers to the elements of an f64 tensor, in row-major order.
std::vector<double*> element_pointers(const Tensor& x);

/// A tensor with elements of its own and x's values; the same strides and alignment where x lies on the CPU.
Tensor copy_with_layout(const Tensor& x);

/// How far a value may be from the numerical one.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  bool accepts(double analytical, double numerical) const;  ///< no NaN, no infinity
};

struct Slopes {
  double central = 0;
  double left = 0;
  double right = 0;
};

/// The outputs at x + t direction, where `elements` are x's. Values are kept, for they are asked for again.
class Line {
 public:
  using Evaluate = std::function<std::vector<double>()>;
  Line(const Evaluate& evaluate, const std::vector<double>& base, std::vector<double*> elements,
       std::vector<double> direction)
      : evaluate_(evaluate), base_(base), elements_(std::move(elements)), direction_(std::move(direction)) {}

  const std::vector<double>& at(double t);
  Slopes slopes(size_t output, double step);
  /// What it means that `analytical` is not near the central difference at `step`.
  GradcheckProblem diagnose(size_t output, double analytical, double step, const Tolerance& tolerance);
  /// How much the remainder f(x + t d) - f(x) - t analytical shrinks from t to t / 2.
  std::optional<double> taylor_ratio(size_t output, double analytical, double t);

 private:
  const Evaluate& evaluate_;
  const std::vector<double>& base_;
  std::vector<double*> elements_;
  std::vector<double> direction_;
  std::map<double, std::vector<double>> values_;
};

}  // namespace regard::gradcheck_detail
