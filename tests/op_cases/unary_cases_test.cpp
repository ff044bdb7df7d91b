// Op cases: functions of one tensor, and activations.
#include <catch2/catch.hpp>

#include "rows.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;

OpCase of(const char* op, const char* variant, Tensor (*function)(T), double (*reference)(double),
          Fill fill = Fill::normal, Function composed = {}) {
  const Input x{{2, 3, 4}, fill};
  return {.op = op,
          .variant = variant,
          .inputs = {x},
          .function = function,
          .reference = [reference](const Arrays& in) { return map(in[0], reference); },
          .more = elementwise_sets(x),
          .composed = std::move(composed),
          .special = true};
}

OpCase integers(OpCase row) {
  row.of_integers = DType::i64;
  return row;
}

double logistic(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double held(double x, double low, double high) { return std::isnan(x) ? x : std::min(std::max(x, low), high); }
constexpr double root_two = 1.4142135623730950488;
constexpr double root_two_over_pi = 0.79788456080286535588;

// At minus infinity these three have the limit, 0, where the formula has infinity times 0.
double exact_gelu(double x) { return x == -inf ? 0 : x * 0.5 * std::erfc(-x / root_two); }
double tanh_gelu(double x) {
  if (x == -inf) return 0;
  // 0.5 (1 + tanh z) = logistic(2 z), which keeps its digits for negative z.
  return x * logistic(2 * root_two_over_pi * (x + 0.044715 * x * x * x));
}

}  // namespace

Table unary_cases() {
  Table table = {
      of(
          "exp", "", [](T in) { return exp(in[0]); }, [](double x) { return std::exp(x); }),
      of(
          "log", "", [](T in) { return log(in[0]); }, [](double x) { return std::log(x); }, Fill::positive),
      of(
          "sqrt", "", [](T in) { return sqrt(in[0]); }, [](double x) { return std::sqrt(x); }, Fill::positive,
          [](T in) { return pow(in[0], 0.5); }),
      of(
          "rsqrt", "", [](T in) { return rsqrt(in[0]); }, [](double x) { return 1 / std::sqrt(x); }, Fill::positive,
          [](T in) { return 1.0 / sqrt(in[0]); }),
      of(
          "reciprocal", "", [](T in) { return reciprocal(in[0]); }, [](double x) { return 1 / x; }, Fill::distinct,
          [](T in) { return 1.0 / in[0]; }),
      integers(of(
          "square", "", [](T in) { return square(in[0]); }, [](double x) { return x * x; }, Fill::normal,
          [](T in) { return in[0] * in[0]; })),
      integers(of(
          "abs", "", [](T in) { return abs(in[0]); }, [](double x) { return std::abs(x); }, Fill::distinct,
          [](T in) { return in[0] * sign(in[0].detach()); })),
      integers(of(
          "sign", "", [](T in) { return sign(in[0]); }, [](double x) { return static_cast<double>((x > 0) - (x < 0)); },
          Fill::distinct)),
      of(
          "erf", "", [](T in) { return erf(in[0]); }, [](double x) { return std::erf(x); }),
      of(
          "tanh", "", [](T in) { return tanh(in[0]); }, [](double x) { return std::tanh(x); }, Fill::normal,
          [](T in) { return 2.0 * sigmoid(2.0 * in[0]) - 1.0; }),
      of(
          "sigmoid", "", [](T in) { return sigmoid(in[0]); }, logistic, Fill::normal,
          [](T in) { return 1.0 / (1.0 + exp(-in[0])); }),
      of(
          "relu", "", [](T in) { return relu(in[0]); }, [](double x) { return std::isnan(x) ? x : std::max(x, 0.0); },
          Fill::distinct, [](T in) { return where(in[0] > 0, in[0], 0.0); }),
      of(
          "silu", "", [](T in) { return silu(in[0]); }, [](double x) { return x == -inf ? 0 : x * logistic(x); },
          Fill::normal, [](T in) { return in[0] * sigmoid(in[0]); }),
      integers(of(
          "clamp", "both bounds", [](T in) { return clamp(in[0], -1, 2); }, [](double x) { return held(x, -1, 2); },
          Fill::distinct,
          [](T in) {
            const TensorOptions like(in[0].dtype(), in[0].device());
            return minimum(maximum(in[0], scalar_tensor(-1.0, like)), scalar_tensor(2.0, like));
          })),
      integers(of(
          "clamp", "below", [](T in) { return clamp(in[0], 0); }, [](double x) { return held(x, 0, inf); },
          Fill::distinct)),
      integers(of(
          "clamp", "above", [](T in) { return clamp(in[0], std::nullopt, 1); },
          [](double x) { return held(x, -inf, 1); }, Fill::distinct)),
      integers(of(
          "clamp", "max below min gives max", [](T in) { return clamp(in[0], 2, -1); },
          [](double x) { return std::isnan(x) ? x : -1.0; }, Fill::distinct)),
  };
  auto gelu_row = [](const char* variant, GeluApproximation approximation, double (*reference)(double),
                     Function composed) {
    OpCase row = of("gelu", variant, nullptr, reference, Fill::normal, std::move(composed));
    row.function = [approximation](T in) { return gelu(in[0], approximation); };
    return row;
  };
  table.push_back(gelu_row("exact", GeluApproximation::none, exact_gelu,
                           [](T in) { return 0.5 * in[0] * (1.0 + erf(in[0] / root_two)); }));
  table.push_back(gelu_row("tanh", GeluApproximation::tanh, tanh_gelu, [](T in) {
    return 0.5 * in[0] * (1.0 + tanh(root_two_over_pi * (in[0] + 0.044715 * pow(in[0], 3))));
  }));
  // Sines of huge numbers are another matter: no special numbers but those that have one answer.
  OpCase sine = of(
      "sin", "", [](T in) { return sin(in[0]); }, [](double x) { return std::sin(x); });
  OpCase cosine = of(
      "cos", "", [](T in) { return cos(in[0]); }, [](double x) { return std::cos(x); }, Fill::normal,
      [](T in) { return sin(in[0] + 1.57079632679489661923); });
  table.push_back(sine);
  table.push_back(cosine);
  return table;
}

TEST_CASE("op cases: functions of one tensor") { run_table("functions of one tensor", unary_cases()); }

}  // namespace regard::op_cases
