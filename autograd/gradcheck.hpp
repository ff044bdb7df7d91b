// Gradient checks: whether the gradients that autograd computes are those of the function, by central differences.
// Of layers, with all their parameters: layers/gradcheck.hpp. As one line of a test: gradcheck_catch.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard {

struct GradcheckOptions {
  double eps = 1e-6;   ///< the step of the differences, times the element's size where that is above 1
  double atol = 1e-5;  ///< a derivative is right within atol + rtol |numerical|
  double rtol = 1e-3;
  bool fast = false;         ///< random projections instead of every derivative: see gradcheck()
  int64_t projections = 2;   ///< in fast mode, for each input and parameter
  uint64_t seed = 0;         ///< of the random directions; the default generator is not touched
  int64_t max_reported = 8;  ///< the report lists this many failures, the worst first, and counts the rest
};

/// What can be wrong with a derivative, the worst first.
enum class GradcheckProblem : uint8_t {
  wrong,              ///< analytical and numerical value differ
  undefined,          ///< backward gave no gradient, but the function changes with the input
  not_deterministic,  ///< two backward passes over the same values gave different gradients
  not_finite,         ///< the value or the gradient is infinite or NaN
  kink,               ///< the point lies at a kink, where there is no derivative: not a fault of the gradient
};

/// One derivative, d output[output_index] / d input[input_index]. In fast mode one of projections: no indices.
struct GradcheckFailure {
  GradcheckProblem problem = GradcheckProblem::wrong;
  std::string input;   ///< `input 0`, or a parameter's path, `query.weight`
  std::string output;  ///< `output 0`
  std::vector<int64_t> input_index = {};
  std::vector<int64_t> output_index = {};
  double analytical = 0;
  double numerical = 0;  ///< central difference
  double from_left = 0;  ///< one-sided differences: they disagree at a kink
  double from_right = 0;
  double step = 0;        ///< of the differences
  std::string note = {};  ///< what more there is to say
  double absolute_error() const;
  double relative_error() const;  ///< absolute error over the larger of both values
};

/// True when every gradient is right. Prints itself: one line when it passed, else the worst failures.
struct GradcheckReport {
  std::string check = "gradcheck";
  GradcheckOptions options = {};
  bool complete = false;  ///< every derivative was looked at
  int64_t checked = 0;    ///< derivatives (fast: projections) that were compared
  int64_t failed = 0;
  int64_t kinks = 0;                            ///< of the failed: points at a kink, to be moved away from it
  std::vector<GradcheckFailure> failures = {};  ///< the worst ones, options.max_reported at most
  /// Of the worst failure: how much the remainder of the first-order expansion shrinks when the step is halved. 4
  /// where the gradient is right, 2 where it is wrong.
  std::optional<double> taylor_ratio = std::nullopt;

  bool passed() const { return complete && failed == 0; }
  explicit operator bool() const { return passed(); }
  std::string to_string() const;
};

std::ostream& operator<<(std::ostream& out, GradcheckProblem problem);
std::ostream& operator<<(std::ostream& out, const GradcheckReport& report);

/// For the functions below and for layers.
namespace gradcheck_detail {

using Function = std::function<Tensors(const Tensors& inputs)>;
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

inline Tensors as_tensors(Tensor result) { return {std::move(result)}; }
inline Tensors as_tensors(Tensors results) { return results; }
inline Tensors as_tensors(std::pair<Tensor, Tensor> results) { return {results.first, results.second}; }

/// `parameters` are leaves that f uses beside its inputs; their elements are moved in place and put back.
GradcheckReport first_order(const Function& f, const Tensors& inputs, const NamedTensors& parameters,
                            const GradcheckOptions& options);
GradcheckReport second_order(const Function& f, const Tensors& inputs, const NamedTensors& parameters,
                             const GradcheckOptions& options);

/// What takes Tensors and is no layer: layers have named_parameters() and a check of their own.
template <class F>
concept PlainFunction = std::is_invocable_v<F&, const Tensors&> && !requires(F & f) {
  f.named_parameters();
};

template <PlainFunction F>
Function wrap(F& f) {
  return [&f](const Tensors& inputs) { return as_tensors(f(inputs)); };
}

}  // namespace gradcheck_detail

/// Checks the gradients of f(inputs), which returns a Tensor, Tensors or a pair, with respect to every input that
/// requires one, against central differences.
///
///     GradcheckReport report = gradcheck([](const Tensors& in) { return matmul(in[0], in[1]); }, {a, b});
///     if (!report) std::cerr << report << "\n";
///
/// All derivatives of all floating outputs are compared, not those of a sum, which can hide an error. Inputs that
/// require a gradient must be f64 (else DTypeError); at least one must require one (else ValueError); the others are
/// passed on as they are. f gets copies of the same strides; where elements share memory (an expanded input), central
/// differences move each alone, on a dense copy. Nothing is changed: no input's elements, gradient or graph, and not
/// the default generator. f is called at least twice on the same values: where its outputs differ, a ValueError says
/// that it is not deterministic (seed inside f; eval() a layer that drops).
///
/// Cost: two calls of f for each element of the inputs, one backward pass for each element of the outputs, and one for
/// each input alone. With `.fast = true` it is two calls of f for each input and one backward pass, times
/// `projections`: derivatives along a random direction v, weighted by random u, are compared. The weights lie in
/// [0.5, 1.5] with random signs, and the error may be atol + rtol times the root mean square of the gradient's
/// elements: a single derivative that is wrong by more than 4 times that is always found. Several wrong ones can cancel
/// each other: errors of size e stay hidden with a probability of about (error allowed / e) to the power of
/// `projections`. The full mode names the element.
template <gradcheck_detail::PlainFunction F>
GradcheckReport gradcheck(F&& f, const Tensors& inputs, const GradcheckOptions& options = {}) {
  return gradcheck_detail::first_order(gradcheck_detail::wrap(f), inputs, {}, options);
}

/// Checks second derivatives: that the gradients of f, weighted by random numbers, have right gradients with respect to
/// the inputs and those weights. It takes the first derivatives as they are: gradcheck() checks those. Cost: as
/// gradcheck() of a function that runs f and its backward pass.
template <gradcheck_detail::PlainFunction F>
GradcheckReport gradgradcheck(F&& f, const Tensors& inputs, const GradcheckOptions& options = {}) {
  return gradcheck_detail::second_order(gradcheck_detail::wrap(f), inputs, {}, options);
}

}  // namespace regard
