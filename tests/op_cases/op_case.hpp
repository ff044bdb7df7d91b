// The table of op cases: one row an op or a variant of it, with inputs and a reference computed an element at a time.
// The harness in op_cases_test.cpp runs a row over dtypes and layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <regard/autograd/ops.hpp>

namespace regard::op_cases {

/// Numbers in row-major order: what references compute with, in f64 and without Regard's kernels.
struct Array {
  Shape shape = {};
  std::vector<double> values = {};
};
using Arrays = std::vector<Array>;

/// How an input's numbers are drawn. All are exact in f32, so that one reference serves f32 and f64; for bf16 and f16
/// they are rounded.
enum class Fill : uint8_t {
  normal,       ///< in [-2, 2]
  positive,     ///< in [0.3, 3]
  distinct,     ///< far from each other, from 0 and from whole numbers: away from kinks and ties
  unit,         ///< in (0, 1)
  integers,     ///< i64 in [low, high)
  booleans,     ///< boolean
  permutation,  ///< i64, each of 0 ... numel - 1 once
};

struct Input {
  Shape shape = {};
  Fill fill = Fill::normal;
  int64_t low = 0;
  int64_t high = 0;
  int64_t expand_dim = 0;  ///< the expanded layout repeats along this dimension; -1: this input is not expanded
  bool grad = true;        ///< false: a floating input that never requires a gradient
};
using Inputs = std::vector<Input>;

/// The op on tensors. Takes lambdas that return a Tensor, Tensors, a pair or a bool.
class Function {
 public:
  Function() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Function>) Function(F f)  // NOLINT(google-explicit-constructor)
      : call_([f](const Tensors& in) { return list(f(in)); }) {}
  Tensors operator()(const Tensors& in) const { return call_(in); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  static Tensors list(Tensor y) { return {std::move(y)}; }
  static Tensors list(Tensors y) { return y; }
  static Tensors list(std::pair<Tensor, Tensor> y) { return {y.first, y.second}; }
  static Tensors list(bool y) { return {scalar_tensor(y)}; }
  std::function<Tensors(const Tensors&)> call_;
};

/// The reference. Takes lambdas that return an Array or Arrays.
class Reference {
 public:
  Reference() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Reference>) Reference(F f)  // NOLINT(google-explicit-constructor)
      : call_([f](const Arrays& in) { return list(f(in)); }) {}
  Arrays operator()(const Arrays& in) const { return call_(in); }

 private:
  static Arrays list(Array y) { return {std::move(y)}; }
  static Arrays list(Arrays y) { return y; }
  std::function<Arrays(const Arrays&)> call_;
};

struct OpCase {
  std::string op;  ///< as in ops.hpp
  std::string variant;
  Inputs inputs;
  Function function;
  Reference reference;
  std::vector<Inputs> more = {};  ///< further inputs: empty, zero-dimensional, eight dimensions, long rows ...
  Function composed = {};         ///< the same made of other ops: values and gradients must agree
  bool differentiable = true;
  std::vector<std::optional<DType>> results = {};   ///< dtype of each output where it is not that of the inputs
  std::optional<DType> of_integers = std::nullopt;  ///< of the result for i64 inputs; none: they are a DTypeError
  std::optional<DType> of_booleans = std::nullopt;  ///< of the result for boolean inputs; none: not tried
  std::optional<DType> of_halves = std::nullopt;    ///< of the result for bf16 and f16 inputs where it is another
  double ulps = 4;                                  ///< allowed in f32
  /// Allowed in bf16 and f16, which GPUs compute: roundings of a number to 8 or 11 bits. An op with a kernel rounds
  /// once, one made of several ops after each of them. 0: such inputs are not tried.
  double half_roundings = 1;
  double half_gradient_roundings = 4;  ///< the same for gradients, of the largest: they are made of ops and values
  bool accumulates = false;            ///< the error is that of the largest result, not of each: sums cancel
  bool special = false;                ///< is tried on NaN, infinities, zeros, subnormals and huge numbers, too
  bool second = true;                  ///< second derivatives are checked
};

using Table = std::vector<OpCase>;

// One list a file of rows.
Table arithmetic_cases();
Table unary_cases();
Table compare_cases();
Table select_cases();
Table reduce_cases();
Table view_cases();
Table rearrange_cases();
Table index_cases();
Table matrix_cases();
Table normalise_cases();
Table loss_cases();
Table attention_cases();
Table rotary_cases();
Table random_cases();

/// Runs every row and fails with what went wrong; prints how many checks it made.
void run_table(const std::string& family, const Table& table);

/// One row, on a GPU where the program has one and else on the CPU; returns what went wrong and adds to the number of
/// checks.
std::vector<std::string> run_case(const OpCase& row, int64_t& checks);

}  // namespace regard::op_cases
