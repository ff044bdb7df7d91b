// Op cases: reductions.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;
using Numbers = std::vector<double>;
using List = std::vector<int64_t>;

double mean_of(const Numbers& v) { return total(v) / static_cast<double>(v.size()); }
double variance_of(const Numbers& v, int correction) {
  const double mean = mean_of(v);
  double sum = 0;
  for (double x : v) sum += (x - mean) * (x - mean);
  return sum / std::max(0.0, static_cast<double>(v.size()) - correction);
}
double sample_variance(const Numbers& v) { return variance_of(v, 1); }
double population_variance(const Numbers& v) { return variance_of(v, 0); }
double logsumexp_of(const Numbers& v) {
  double largest = -inf, sum = 0;
  for (double x : v) largest = std::max(largest, x);
  if (largest == -inf) return -inf;
  for (double x : v) sum += std::exp(x - largest);
  return largest + std::log(sum);
}
double norm_of(const Numbers& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
double any_of(const Numbers& v) {
  return std::any_of(v.begin(), v.end(), [](double x) { return x != 0; });
}
double all_of(const Numbers& v) {
  return std::all_of(v.begin(), v.end(), [](double x) { return x != 0; });
}
double place_of_max(const Numbers& v) { return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin()); }
double place_of_min(const Numbers& v) { return static_cast<double>(std::min_element(v.begin(), v.end()) - v.begin()); }
double largest(const Numbers& v) { return *std::max_element(v.begin(), v.end()); }
double smallest(const Numbers& v) { return *std::min_element(v.begin(), v.end()); }

std::vector<Inputs> sets(std::initializer_list<Shape> shapes, Fill fill = Fill::normal) {
  std::vector<Inputs> list;
  for (const Shape& shape : shapes) list.push_back({{shape, fill}});
  return list;
}

OpCase over(const char* op, const char* variant, Function function, double (*reference)(const Numbers&), List dims,
            bool keepdim, std::vector<Inputs> more, Fill fill = Fill::normal) {
  return {.op = op,
          .variant = variant,
          .inputs = {{{2, 3, 4}, fill}},
          .function = std::move(function),
          .reference = [=](A in) { return reduce(in[0], dims, keepdim, reference); },
          .more = std::move(more),
          .ulps = 8,
          .accumulates = true};
}

OpCase with(OpCase row, std::optional<DType> integers, std::optional<DType> booleans) {
  row.of_integers = integers;
  row.of_booleans = booleans;
  return row;
}
OpCase composed(OpCase row, Function function) {
  row.composed = std::move(function);
  return row;
}
OpCase indices(OpCase row) {
  row.differentiable = false;
  row.results = {DType::i64};
  return with(std::move(row), DType::i64, DType::i64);
}
OpCase truth(OpCase row) {
  row.differentiable = false;
  row.results = {DType::boolean};
  return with(std::move(row), DType::boolean, DType::boolean);
}
// An extreme and its place, along one dimension. Repeats along the dimension itself are ties: the expanded layout
// repeats along another.
OpCase extreme(const char* op, const char* variant, Function function, bool max, int64_t dim, bool keepdim) {
  const int64_t other = wrap(dim, 3) == 0 ? 1 : 0;
  OpCase row{.op = op,
             .variant = variant,
             .inputs = {{{2, 3, 4}, Fill::distinct, 0, 0, other}},
             .function = std::move(function),
             .reference =
                 [=](A in) {
                   return Arrays{reduce(in[0], {dim}, keepdim, max ? largest : smallest),
                                 reduce(in[0], {dim}, keepdim, max ? place_of_max : place_of_min)};
                 },
             .more = {{{{3, 1, 3}, Fill::distinct, 0, 0, other}},
                      {{{5, 7, 9}, Fill::distinct, 0, 0, other}},
                      {{{}, Fill::distinct}}},
             .results = {std::nullopt, DType::i64},
             .of_integers = DType::i64};
  row.more.push_back({{other == 0 ? Shape{0, 3, 2} : Shape{3, 0, 2}, Fill::distinct, 0, 0, other}});
  if (dim != -1 && dim != 0) row.more.erase(row.more.begin() + 2);
  return row;
}

const std::initializer_list<Shape> shapes = {{0}, {2, 0, 3}, {}, {1}, {7, 33}, {130}, {1, 2, 1, 2, 1, 2, 1, 2}};
const std::initializer_list<Shape> deep = {{2, 0, 3}, {0, 2, 3},  {2, 3, 0},
                                           {1, 1, 1}, {5, 9, 17}, {2, 1, 3, 1, 2, 1, 2, 1}};

}  // namespace

Table reduce_cases() {
  Table table = {
      with(over(
               "sum", "of all", [](T in) { return sum(in[0]); }, total, {}, false, sets(shapes)),
           DType::i64, DType::i64),
      with(over(
               "sum", "no dims: of all", [](T in) { return sum(in[0], {}); }, total, {}, false, sets(shapes)),
           DType::i64, DType::i64),
      with(over(
               "sum", "first", [](T in) { return sum(in[0], 0); }, total, {0}, false, sets(deep)),
           DType::i64, DType::i64),
      with(over(
               "sum", "middle", [](T in) { return sum(in[0], 1); }, total, {1}, false, sets(deep)),
           DType::i64, DType::i64),
      with(over(
               "sum", "last, kept", [](T in) { return sum(in[0], -1, true); }, total, {-1}, true, sets(deep)),
           DType::i64, DType::i64),
      with(over(
               "sum", "first and last",
               [](T in) {
                 return sum(in[0], {0, -1});
               },
               total, {0, -1}, false, sets(deep)),
           DType::i64, DType::i64),
      with(over(
               "sum", "outer two, kept",
               [](T in) {
                 return sum(in[0], {1, 0}, true);
               },
               total, {1, 0}, true, sets(deep)),
           DType::i64, DType::i64),
      over(
          "mean", "of all", [](T in) { return mean(in[0]); }, mean_of, {}, false, sets(shapes)),
      composed(over(
                   "mean", "middle", [](T in) { return mean(in[0], 1); }, mean_of, {1}, false, sets(deep)),
               [](T in) { return sum(in[0], 1) / static_cast<double>(in[0].size(1)); }),
      over(
          "mean", "first and last, kept",
          [](T in) {
            return mean(in[0], {0, 2}, true);
          },
          mean_of, {0, 2}, true, sets({{5, 9, 17}, {2, 0, 3}})),
      composed(over(
                   "var", "last", [](T in) { return var(in[0], -1); }, sample_variance, {-1}, false,
                   sets({{5, 9, 17}, {2, 0, 3}, {3, 2, 2, 1, 3}})),
               [](T in) {
                 Tensor d = in[0] - mean(in[0], -1, true);
                 return sum(d * d, -1) / static_cast<double>(in[0].size(-1) - 1);
               }),
      composed(over(
                   "var", "first two, of the population, kept",
                   [](T in) {
                     return var(in[0], {0, 1}, false, true);
                   },
                   population_variance, {0, 1}, true, sets({{5, 9, 17}, {1, 1, 3}, {2, 3, 0}})),
               [](T in) {
                 return mean(square(in[0] - mean(in[0], {0, 1}, true)), {0, 1}, true);
               }),
      over(
          "var", "of all", [](T in) { return var(in[0]); }, sample_variance, {}, false, sets({{7, 33}, {2}})),
      over(
          "var", "of all, no dims named", [](T in) { return var(in[0], {}); }, sample_variance, {}, false,
          sets({{7, 33}, {2}})),
      over(
          "norm", "", [](T in) { return norm(in[0]); }, norm_of, {}, false, sets({{}, {7, 33}, {1, 2, 1, 2, 1, 2, 1}})),
      composed(over(
                   "logsumexp", "last", [](T in) { return logsumexp(in[0], -1); }, logsumexp_of, {-1}, false,
                   sets({{0, 2}, {5, 9, 17}, {3, 0}, {}})),
               [](T in) { return log(sum(exp(in[0]), -1)); }),
      composed(over(
                   "logsumexp", "first and last, kept",
                   [](T in) {
                     return logsumexp(in[0], {0, -1}, true);
                   },
                   logsumexp_of, {0, -1}, true, sets({{0, 2}, {5, 9, 17}})),
               [](T in) {
                 return log(sum(exp(in[0]), {0, -1}, true));
               }),
      over(
          "logsumexp", "of all", [](T in) { return logsumexp(in[0], {}); }, logsumexp_of, {}, false,
          sets({{}, {7, 33}, {0}})),
      truth(over(
          "any", "of all", [](T in) { return any(in[0] > 1.5); },
          [](const Numbers& v) {
            return any_of({std::any_of(v.begin(), v.end(), [](double x) { return x > 1.5; }) ? 1.0 : 0.0});
          },
          {}, false, sets(shapes))),
      truth(over(
          "any", "last", [](T in) { return any(in[0], -1); }, any_of, {-1}, false, sets(deep))),
      truth(over(
          "any", "two, kept",
          [](T in) {
            return any(in[0], {0, 1}, true);
          },
          any_of, {0, 1}, true, sets(deep))),
      truth(over(
          "all", "of all", [](T in) { return all(in[0]); }, all_of, {}, false, sets(shapes))),
      truth(over(
          "all", "first", [](T in) { return all(in[0], 0); }, all_of, {0}, false, sets(deep))),
      truth(over(
          "all", "two, kept",
          [](T in) {
            return all(in[0], {-1, 0}, true);
          },
          all_of, {-1, 0}, true, sets(deep))),

      extreme(
          "max", "last, with indices", [](T in) { return max(in[0], -1); }, true, -1, false),
      extreme(
          "max", "first, kept", [](T in) { return max(in[0], 0, true); }, true, 0, true),
      extreme(
          "max", "middle", [](T in) { return max(in[0], 1); }, true, 1, false),
      extreme(
          "min", "last, with indices", [](T in) { return min(in[0], -1); }, false, -1, false),
      extreme(
          "min", "first, kept", [](T in) { return min(in[0], 0, true); }, false, 0, true),
      indices(over(
          "argmax", "of all", [](T in) { return argmax(in[0]); }, place_of_max, {}, false,
          sets({{}, {7, 33}, {1, 2, 1, 2, 1, 2, 1, 2}}))),
      indices(over(
          "argmax", "last", [](T in) { return argmax(in[0], -1); }, place_of_max, {-1}, false,
          sets({{0, 3}, {5, 9, 17}, {}}))),
      indices(over(
          "argmax", "first, kept", [](T in) { return argmax(in[0], 0, true); }, place_of_max, {0}, true,
          sets({{3, 0}, {5, 9, 17}}))),
      indices(over(
          "argmin", "of all", [](T in) { return argmin(in[0]); }, place_of_min, {}, false, sets({{}, {7, 33}}))),
      indices(over(
          "argmin", "middle", [](T in) { return argmin(in[0], 1); }, place_of_min, {1}, false,
          sets({{0, 3}, {5, 9, 17}}))),
  };
  // Where all is one number, the expanded layout repeats the extreme: its gradient goes to the first, which central
  // differences of equal numbers cannot show. Repeats along a dimension of their own are found in extreme_test.
  for (const bool max : {true, false}) {
    table.push_back({.op = max ? "max" : "min",
                     .variant = "of all",
                     .inputs = {{{2, 3, 4}, Fill::distinct, 0, 0, -1}},
                     .function = [max](T in) { return max ? regard::max(in[0]) : regard::min(in[0]); },
                     .reference = [max](A in) { return reduce(in[0], List{}, false, max ? largest : smallest); },
                     .more = {{{{}, Fill::distinct}}, {{{7, 33}, Fill::distinct, 0, 0, -1}}},
                     .of_integers = DType::i64});
  }
  // Of several dimensions at once: repeats along another.
  struct Extreme {
    const char* variant;
    Shape dims;
    bool keepdim;
    int64_t expand_dim;
  };
  for (const Extreme& e : {Extreme{"last", {-1}, false, 0}, Extreme{"first and last, kept", {0, 2}, true, 1},
                           Extreme{"first two", {1, 0}, false, 2}, Extreme{"of all", {}, false, -1}})
    for (const bool max : {true, false}) {
      const List dims = e.dims.to_vector();
      const Input big{{5, 9, 17}, Fill::distinct, 0, 0, e.expand_dim};
      table.push_back(
          {.op = max ? "amax" : "amin",
           .variant = e.variant,
           .inputs = {{{2, 3, 4}, Fill::distinct, 0, 0, e.expand_dim}},
           .function =
               [=](T in) { return max ? amax(in[0], Dims(e.dims), e.keepdim) : amin(in[0], Dims(e.dims), e.keepdim); },
           .reference = [=](A in) { return reduce(in[0], dims, e.keepdim, max ? largest : smallest); },
           .more = {{big}, {{{1, 1, 1}, Fill::distinct, 0, 0, e.expand_dim}}},
           .of_integers = DType::i64});
    }
  auto summed_to = [](const char* variant, Shape from, Shape to, std::vector<int64_t> dims) {
    return OpCase{
        .op = "sum_to",
        .variant = variant,
        .inputs = {{from}},
        .function = [to](T in) { return sum_to(in[0], to); },
        .reference = [to, dims](A in) { return seen_as(dims.empty() ? in[0] : reduce(in[0], dims, true, total), to); },
        .of_integers = DType::i64,
        .of_booleans = dims.empty() ? std::nullopt : std::optional(DType::i64),
        .ulps = 8,
        .accumulates = true};
  };
  table.push_back(summed_to("fewer dimensions", {2, 3, 4}, {4}, {0, 1}));
  table.push_back(summed_to("sizes of 1", {2, 3, 4}, {2, 1, 4}, {1}));
  table.push_back(summed_to("both", {2, 3, 4}, {3, 1}, {0, 2}));
  table.push_back(summed_to("a single number", {2, 3, 4}, {}, {0, 1, 2}));
  table.push_back(summed_to("its own shape", {2, 3}, {2, 3}, {}));
  table.push_back(summed_to("of nothing", {0, 3}, {1, 3}, {0}));
  for (OpCase& row : table)  // their gradients are made of a mean and of the value, which are rounded
    if (row.op == "var" || row.op == "logsumexp") row.half_gradient_roundings = 8;
  return table;
}

TEST_CASE("op cases: reductions") { run_table("reductions", reduce_cases()); }

}  // namespace regard::op_cases
