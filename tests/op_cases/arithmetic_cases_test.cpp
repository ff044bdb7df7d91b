// Op cases: arithmetic of two tensors, or of a tensor and a number.
#include <catch2/catch.hpp>

#include "rows.hpp"

namespace regard::op_cases {

namespace {

using Numbers = double (*)(double, double);

struct Promotion {
  std::optional<DType> integers = DType::i64;
  std::optional<DType> booleans = DType::i64;
};

OpCase of_two(const char* op, const char* variant, Tensor (*function)(const Tensors&), Numbers reference,
              Promotion promotion, Fill first = Fill::normal, Fill second = Fill::normal) {
  const Input a{{2, 3, 4}, first}, b{{2, 3, 4}, second};
  return {.op = op,
          .variant = variant,
          .inputs = {a, b},
          .function = function,
          .reference = [reference](const Arrays& in) { return zip(in[0], in[1], reference); },
          .more = pair_sets(a, b),
          .of_integers = promotion.integers,
          .of_booleans = promotion.booleans};
}

OpCase of_one(const char* op, const char* variant, Tensor (*function)(const Tensors&), double (*reference)(double),
              Promotion promotion, Fill fill = Fill::normal) {
  const Input x{{2, 3, 4}, fill};
  return {.op = op,
          .variant = variant,
          .inputs = {x},
          .function = function,
          .reference = [reference](const Arrays& in) { return map(in[0], reference); },
          .more = elementwise_sets(x),
          .of_integers = promotion.integers,
          .of_booleans = promotion.booleans};
}

OpCase special(OpCase row) {
  row.special = true;
  return row;
}

double plus(double a, double b) { return a + b; }
double minus(double a, double b) { return a - b; }
double times(double a, double b) { return a * b; }
double over(double a, double b) { return a / b; }
double power(double a, double b) { return std::pow(a, b); }
double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::max(a, b); }
double smaller(double a, double b) { return std::isnan(a) || std::isnan(b) ? nan : std::min(a, b); }

constexpr Promotion to_float{DType::f32, DType::f32};

}  // namespace

Table arithmetic_cases() {
  using T = const Tensors&;
  Table table = {
      special(of_two("add", "two tensors", [](T in) { return add(in[0], in[1]); }, plus, {})),
      special(of_two("operator+", "two tensors", [](T in) { return in[0] + in[1]; }, plus, {})),
      special(of_two("sub", "two tensors", [](T in) { return sub(in[0], in[1]); }, minus, {})),
      special(of_two("operator-", "two tensors", [](T in) { return in[0] - in[1]; }, minus, {})),
      special(of_two("mul", "two tensors", [](T in) { return mul(in[0], in[1]); }, times, {})),
      special(of_two("operator*", "two tensors", [](T in) { return in[0] * in[1]; }, times, {})),
      special(of_two(
          "div", "two tensors", [](T in) { return div(in[0], in[1]); }, over, to_float, Fill::normal, Fill::distinct)),
      special(of_two(
          "operator/", "two tensors", [](T in) { return in[0] / in[1]; }, over, to_float, Fill::normal,
          Fill::positive)),
      special(of_two(
          "pow", "two tensors", [](T in) { return pow(in[0], in[1]); }, power, {}, Fill::positive, Fill::positive)),
      special(of_two(
          "maximum", "two tensors", [](T in) { return maximum(in[0], in[1]); }, larger, {}, Fill::distinct,
          Fill::distinct)),
      special(of_two(
          "minimum", "two tensors", [](T in) { return minimum(in[0], in[1]); }, smaller, {}, Fill::distinct,
          Fill::distinct)),

      special(of_one(
          "add", "and a number", [](T in) { return add(in[0], 1.5); }, [](double x) { return x + 1.5; }, to_float)),
      of_one(
          "add", "and a whole number", [](T in) { return add(in[0], 3); }, [](double x) { return x + 3; }, {}),
      of_one(
          "operator+", "and a number", [](T in) { return in[0] + 0.25; }, [](double x) { return x + 0.25; }, to_float),
      of_one(
          "operator+", "a number and", [](T in) { return 2 + in[0]; }, [](double x) { return 2 + x; }, {}),
      of_one(
          "sub", "and a number", [](T in) { return sub(in[0], 0.75); }, [](double x) { return x - 0.75; }, to_float),
      of_one(
          "sub", "a number and", [](T in) { return sub(5, in[0]); }, [](double x) { return 5 - x; }, {}),
      of_one(
          "operator-", "and a number", [](T in) { return in[0] - 3; }, [](double x) { return x - 3; }, {}),
      of_one(
          "operator-", "a number and", [](T in) { return 0.5 - in[0]; }, [](double x) { return 0.5 - x; }, to_float),
      special(of_one(
          "operator-", "negative", [](T in) { return -in[0]; }, [](double x) { return -x; },
          {DType::i64, std::nullopt})),
      special(of_one(
          "neg", "of a tensor", [](T in) { return neg(in[0]); }, [](double x) { return -x; },
          {DType::i64, std::nullopt})),
      special(of_one(
          "mul", "and a number", [](T in) { return mul(in[0], -2.5); }, [](double x) { return x * -2.5; }, to_float)),
      of_one(
          "operator*", "and a number", [](T in) { return in[0] * 3; }, [](double x) { return x * 3; }, {}),
      of_one(
          "operator*", "a number and", [](T in) { return 1.25 * in[0]; }, [](double x) { return 1.25 * x; }, to_float),
      special(of_one(
          "div", "and a number", [](T in) { return div(in[0], 2); }, [](double x) { return x / 2; }, to_float)),
      special(of_one(
          "div", "a number and", [](T in) { return div(2, in[0]); }, [](double x) { return 2 / x; }, to_float,
          Fill::distinct)),
      of_one(
          "operator/", "and a number", [](T in) { return in[0] / 0.75; }, [](double x) { return x / 0.75; }, to_float),
      of_one(
          "operator/", "a number and", [](T in) { return 1.0 / in[0]; }, [](double x) { return 1 / x; }, to_float,
          Fill::positive),
      special(of_one(
          "pow", "a number as exponent", [](T in) { return pow(in[0], 2.5); },
          [](double x) { return std::pow(x, 2.5); }, to_float, Fill::positive)),
      special(of_one(
          "pow", "a number as base", [](T in) { return pow(1.5, in[0]); }, [](double x) { return std::pow(1.5, x); },
          to_float, Fill::positive)),
      special(of_one(
          "pow", "squared", [](T in) { return pow(in[0], 2); }, [](double x) { return x * x; }, {})),
      special(of_one(
          "pow", "cubed", [](T in) { return pow(in[0], 3); }, [](double x) { return x * x * x; }, {})),
      special(of_one(
          "pow", "exponent 0", [](T in) { return pow(in[0], 0); }, [](double) { return 1.0; }, {})),
      special(of_one(
          "pow", "exponent 1", [](T in) { return pow(in[0], 1); }, [](double x) { return x; }, {})),
      special(of_one(
          "pow", "exponent -1", [](T in) { return pow(in[0], -1.0); }, [](double x) { return 1 / x; }, to_float,
          Fill::distinct)),
      special(of_one(
          "pow", "exponent 0.5", [](T in) { return pow(in[0], 0.5); }, [](double x) { return std::sqrt(x); }, to_float,
          Fill::positive)),
      special(of_one(
          "pow", "negative base, whole exponent", [](T in) { return pow(-2.0, in[0] * 0.0 + 3.0); },
          [](double x) { return std::isfinite(x) ? -8.0 : nan; }, to_float)),
  };
  table.back().inputs[0].grad = false;  // the logarithm of a negative base is NaN, and so is the gradient
  for (Inputs& set : table.back().more) set[0].grad = false;
  // The same tensor twice: its gradient is the sum of both.
  const Input x{{2, 3}};
  table.push_back({.op = "mul",
                   .variant = "a tensor and itself",
                   .inputs = {x},
                   .function = [](T in) { return mul(in[0], in[0]); },
                   .reference = [](const Arrays& in) { return map(in[0], [](double v) { return v * v; }); },
                   .composed = [](T in) { return square(in[0]); },
                   .of_integers = DType::i64});
  table.push_back({.op = "div",
                   .variant = "composed of mul and pow",
                   .inputs = {{{3, 4}}, {{4}, Fill::positive}},
                   .function = [](T in) { return div(in[0], in[1]); },
                   .reference = [](const Arrays& in) { return zip(in[0], in[1], over); },
                   .composed = [](T in) { return in[0] * pow(in[1], -1.0); },
                   .of_integers = DType::f32});
  return table;
}

TEST_CASE("op cases: arithmetic") { run_table("arithmetic", arithmetic_cases()); }

}  // namespace regard::op_cases
