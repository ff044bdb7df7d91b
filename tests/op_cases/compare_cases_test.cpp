// Op cases: comparisons and logic. Results are boolean and have no derivative.
#include <catch2/catch.hpp>

#include "rows.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;

OpCase boolean(OpCase row) {
  row.differentiable = false;
  row.results = {DType::boolean};
  row.of_integers = row.of_booleans = DType::boolean;
  row.special = true;
  return row;
}

OpCase of_two(const char* op, const char* variant, Tensor (*function)(T), bool (*reference)(double, double),
              Fill fill = Fill::normal) {
  const Input x{{2, 3, 4}, fill};
  return boolean({.op = op,
                  .variant = variant,
                  .inputs = {x, x},
                  .function = function,
                  .reference = [reference](const Arrays& in) { return zip(in[0], in[1], reference); },
                  .more = pair_sets(x, x)});
}

OpCase of_one(const char* op, const char* variant, Tensor (*function)(T), bool (*reference)(double)) {
  const Input x{{2, 3, 4}};
  return boolean({.op = op,
                  .variant = variant,
                  .inputs = {x},
                  .function = function,
                  .reference = [reference](const Arrays& in) { return map(in[0], reference); },
                  .more = elementwise_sets(x)});
}

// With a copy of the first that differs in one element, equal elements occur among real numbers, too.
OpCase against_copy(const char* op, Tensor (*function)(T), bool (*reference)(double, double)) {
  return boolean({.op = op,
                  .variant = "equal elements",
                  .inputs = {{{3, 4}}},
                  .function = function,
                  .reference =
                      [reference](const Arrays& in) {
                        Array other = in[0];
                        for (size_t i = 0; i < other.values.size(); i += 2) other.values[i] = 0;
                        return zip(in[0], other, reference);
                      },
                  .more = elementwise_sets({})});
}
Tensor half_zeroed(const Tensor& x) {
  Tensor keep = arange(x.numel()).view(x.shape()).to(x.device());
  keep = keep - (keep.to(DType::f64) * 0.5).to(DType::i64) * 2;  // the remainder of 2
  return masked_fill(x, keep == 0, x.dtype() == DType::boolean ? Scalar(false) : Scalar(0));
}

}  // namespace

Table compare_cases() {
  Table table = {
      of_two(
          "operator==", "two tensors", [](T in) { return in[0] == in[1]; }, [](double a, double b) { return a == b; }),
      of_two(
          "operator!=", "two tensors", [](T in) { return in[0] != in[1]; }, [](double a, double b) { return a != b; }),
      of_two(
          "operator<", "two tensors", [](T in) { return in[0] < in[1]; }, [](double a, double b) { return a < b; }),
      of_two(
          "operator<=", "two tensors", [](T in) { return in[0] <= in[1]; }, [](double a, double b) { return a <= b; }),
      of_two(
          "operator>", "two tensors", [](T in) { return in[0] > in[1]; }, [](double a, double b) { return a > b; }),
      of_two(
          "operator>=", "two tensors", [](T in) { return in[0] >= in[1]; }, [](double a, double b) { return a >= b; }),
      of_one(
          "operator==", "and a number", [](T in) { return in[0] == 1; }, [](double x) { return x == 1; }),
      of_one(
          "operator==", "a number and", [](T in) { return 0.0 == in[0]; }, [](double x) { return x == 0; }),
      of_one(
          "operator!=", "and a number", [](T in) { return in[0] != 1; }, [](double x) { return x != 1; }),
      of_one(
          "operator!=", "a number and", [](T in) { return 0 != in[0]; }, [](double x) { return x != 0; }),
      of_one(
          "operator<", "and a number", [](T in) { return in[0] < 0.5; }, [](double x) { return x < 0.5; }),
      of_one(
          "operator<", "a number and", [](T in) { return 0.5 < in[0]; }, [](double x) { return 0.5 < x; }),
      of_one(
          "operator<=", "and a number", [](T in) { return in[0] <= 1; }, [](double x) { return x <= 1; }),
      of_one(
          "operator<=", "a number and", [](T in) { return 1 <= in[0]; }, [](double x) { return 1 <= x; }),
      of_one(
          "operator>", "and a number", [](T in) { return in[0] > -0.5; }, [](double x) { return x > -0.5; }),
      of_one(
          "operator>", "a number and", [](T in) { return 0 > in[0]; }, [](double x) { return 0 > x; }),
      of_one(
          "operator>=", "and a number", [](T in) { return in[0] >= 0; }, [](double x) { return x >= 0; }),
      of_one(
          "operator>=", "a number and", [](T in) { return 0.25 >= in[0]; }, [](double x) { return 0.25 >= x; }),
      against_copy(
          "operator==", [](T in) { return in[0] == half_zeroed(in[0]); }, [](double a, double b) { return a == b; }),
      against_copy(
          "operator<=", [](T in) { return in[0] <= half_zeroed(in[0]); }, [](double a, double b) { return a <= b; }),
      of_two(
          "logical_and", "", [](T in) { return logical_and(in[0], in[1]); },
          [](double a, double b) { return a != 0 && b != 0; }),
      of_two(
          "logical_or", "", [](T in) { return logical_or(in[0], in[1]); },
          [](double a, double b) { return a != 0 || b != 0; }),
      of_two(
          "logical_xor", "", [](T in) { return logical_xor(in[0], in[1]); },
          [](double a, double b) { return (a != 0) != (b != 0); }),
      of_one(
          "logical_not", "", [](T in) { return logical_not(in[0]); }, [](double x) { return x == 0; }),
      of_one(
          "isfinite", "", [](T in) { return isfinite(in[0]); }, [](double x) { return std::isfinite(x); }),
  };
  auto whole = [](const char* op, const char* variant, Function function, Reference reference) {
    OpCase row = boolean({.op = op,
                          .variant = variant,
                          .inputs = {{{2, 3}}},
                          .function = std::move(function),
                          .reference = std::move(reference),
                          .more = {{{{0}}}, {{{}}}, {{{67}}}}});
    row.special = false;
    return row;
  };
  auto one = [](bool value) { return Array{{}, {value ? 1.0 : 0.0}}; };
  table.push_back(whole(
      "equal", "to itself", [](T in) { return equal(in[0], in[0].clone()); },
      [one](const Arrays&) { return one(true); }));
  table.push_back(whole(
      "equal", "to another", [](T in) { return equal(in[0], logical_not(in[0]).to(in[0].dtype())); },
      [one](const Arrays& in) { return one(in[0].values.empty()); }));
  table.push_back(whole(
      "equal", "of another shape", [](T in) { return equal(in[0], in[0].unsqueeze(0)); },
      [one](const Arrays&) { return one(false); }));
  table.push_back(whole(
      "allclose", "within the tolerance", [](T in) { return allclose(in[0], in[0] * 1.000001); },
      [one](const Arrays&) { return one(true); }));
  table.push_back(whole(
      "allclose", "outside of it", [](T in) { return allclose(in[0], in[0] + 0.25, 1e-5, 0.125); },
      [one](const Arrays& in) { return one(in[0].values.empty()); }));
  return table;
}

TEST_CASE("op cases: comparisons and logic") { run_table("comparisons and logic", compare_cases()); }

}  // namespace regard::op_cases
