// Op cases: joining, rearranging and copying.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

OpCase any_dtype(OpCase row) {
  row.of_integers = DType::i64;
  row.of_booleans = DType::boolean;
  return row;
}

Array joined(A in, int64_t dim) {
  Shape shape;
  for (const Array& x : in)
    if (x.shape.dim() > shape.dim() || shape.dim() == 0) shape = x.shape;
  shape[dim] = 0;
  std::vector<std::pair<size_t, int64_t>> from;  // (array, position along dim)
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k].shape.dim() != shape.dim()) continue;
    for (int64_t p = 0; p < in[k].shape[dim]; ++p) from.emplace_back(k, p);
    shape[dim] += in[k].shape[dim];
  }
  return make(shape, [&](const Shape& i) {
    const auto& [k, p] = from[static_cast<size_t>(i[dim])];
    Shape place = i;
    place[dim] = p;
    return at(in[k], place);
  });
}
Array stacked(A in, int64_t dim) {
  Shape shape = in[0].shape;
  shape.insert(dim, static_cast<int64_t>(in.size()));
  return make(shape, [&](const Shape& i) {
    Shape place = i;
    place.erase(dim);
    return at(in[static_cast<size_t>(i[dim])], place);
  });
}
Array flipped(const Array& x, const std::vector<int64_t>& dims) {
  return make(x.shape, [&](const Shape& i) {
    Shape place = i;
    for (int64_t d : dims) place[d] = x.shape[d] - 1 - i[d];
    return at(x, place);
  });
}
Array triangle(const Array& x, int64_t diagonal, bool upper) {
  const int64_t n = x.shape.dim();
  return make(x.shape, [&](const Shape& i) {
    const int64_t above = i[n - 1] - i[n - 2] - diagonal;
    return (upper ? above >= 0 : above <= 0) ? at(x, i) : 0.0;
  });
}
std::vector<Inputs> matrices() {
  return {{{{0, 3}}}, {{{3, 0}}}, {{{1, 1}}}, {{{7, 2}}}, {{{2, 1, 2, 3, 1, 2, 5, 4}}}, {{{40, 41}}}};
}

}  // namespace

Table rearrange_cases() {
  Table table = {
      any_dtype(
          {.op = "cat",
           .variant = "first",
           .inputs = {{{2, 3}}, {{1, 3}}, {{4, 3}}},
           .function = [](T in) { return cat(in); },
           .reference = [](A in) { return joined(in, 0); },
           .more = {{{{2, 3}}, {{0, 3}}, {{1, 3}}}, {{{0, 0}}, {{0, 0}}}, {{{3}}}, {{{2, 1}}, {{2, 1}}, {{1, 1}}}}}),
      any_dtype({.op = "cat",
                 .variant = "last",
                 .inputs = {{{2, 2, 3}}, {{2, 2, 1}}},
                 .function = [](T in) { return cat(in, -1); },
                 .reference = [](A in) { return joined(in, in[0].shape.dim() - 1); },
                 .more = {{{{5, 40}}, {{5, 37}}, {{5, 3}}}, {{{1, 2, 1, 1, 1, 1, 2, 2}}, {{1, 2, 1, 1, 1, 1, 2, 3}}}}}),
      any_dtype({.op = "cat",
                 .variant = "middle",
                 .inputs = {{{2, 3, 2}}, {{2, 1, 2}}, {{2, 2, 2}}},
                 .function = [](T in) { return cat(in, 1); },
                 .reference = [](A in) { return joined(in, 1); }}),
      any_dtype({.op = "cat",
                 .variant = "the same twice",
                 .inputs = {{{2, 3}}},
                 .function =
                     [](T in) {
                       return cat({in[0], in[0]}, 1);
                     },
                 .reference =
                     [](A in) {
                       return joined({in[0], in[0]}, 1);
                     }}),
      any_dtype({.op = "stack",
                 .variant = "first",
                 .inputs = {{{2, 3}}, {{2, 3}}},
                 .function = [](T in) { return stack(in); },
                 .reference = [](A in) { return stacked(in, 0); },
                 .more = {{{{}}, {{}}}, {{{0}}, {{0}}}, {{{1, 2, 1, 1, 2, 1, 2}}, {{1, 2, 1, 1, 2, 1, 2}}}},
                 .composed =
                     [](T in) {
                       Tensors rows;
                       for (const Tensor& x : in) rows.push_back(unsqueeze(x, 0));
                       return cat(rows, 0);
                     }}),
      any_dtype({.op = "stack",
                 .variant = "last",
                 .inputs = {{{2, 3}}, {{2, 3}}, {{2, 3}}},
                 .function = [](T in) { return stack(in, -1); },
                 .reference = [](A in) { return stacked(in, in[0].shape.dim()); },
                 .more = {{{{}}, {{}}}}}),
      any_dtype({.op = "flip",
                 .variant = "one",
                 .inputs = {{{2, 3, 4}}},
                 .function = [](T in) { return flip(in[0], -1); },
                 .reference = [](A in) { return flipped(in[0], {in[0].shape.dim() - 1}); },
                 .more = {{{{0}}}, {{{67}}}, {{{2, 0}}}}}),
      any_dtype({.op = "flip",
                 .variant = "two",
                 .inputs = {{{2, 3, 4}}},
                 .function =
                     [](T in) {
                       return flip(in[0], {0, 2});
                     },
                 .reference =
                     [](A in) {
                       return flipped(in[0], {0, 2});
                     },
                 .more = {{{{2, 1, 3, 1, 1, 1, 2, 1}}}}}),
      any_dtype({.op = "triu",
                 .variant = "",
                 .inputs = {{{2, 3, 4}}},
                 .function = [](T in) { return triu(in[0]); },
                 .reference = [](A in) { return triangle(in[0], 0, true); },
                 .more = matrices()}),
      any_dtype({.op = "triu",
                 .variant = "above",
                 .inputs = {{{4, 4}}},
                 .function = [](T in) { return triu(in[0], 2); },
                 .reference = [](A in) { return triangle(in[0], 2, true); },
                 .more = matrices()}),
      any_dtype({.op = "tril",
                 .variant = "",
                 .inputs = {{{2, 3, 4}}},
                 .function = [](T in) { return tril(in[0]); },
                 .reference = [](A in) { return triangle(in[0], 0, false); },
                 .more = matrices()}),
      any_dtype({.op = "tril",
                 .variant = "below",
                 .inputs = {{{4, 4}}},
                 .function = [](T in) { return tril(in[0], -2); },
                 .reference = [](A in) { return triangle(in[0], -2, false); },
                 .more = matrices()}),
      any_dtype({.op = "clone",
                 .variant = "",
                 .inputs = {{{2, 3, 4}}},
                 .function = [](T in) { return clone(in[0]); },
                 .reference = [](A in) { return in[0]; },
                 .more = {{{{}}}, {{{0, 2}}}, {{{1, 2, 1, 2, 1, 2, 1, 2}}}, {{{33, 35}}}}}),
      {.op = "to",
       .variant = "f64",
       .inputs = {{{2, 3, 4}}},
       .function = [](T in) { return to(in[0], DType::f64); },
       .reference = [](A in) { return in[0]; },
       .more = {{{{}}}, {{{0, 2}}}, {{{33, 35}}}},
       .results = {DType::f64},
       .of_integers = DType::f64,
       .of_booleans = DType::f64},
      {.op = "to",
       .variant = "f64 and back",
       .inputs = {{{2, 3}}},
       .function =
           [](T in) { return to(to(in[0], in[0].dtype() == DType::f64 ? DType::f64 : DType::f32), in[0].dtype()); },
       .reference = [](A in) { return in[0]; },
       .of_integers = DType::i64,
       .of_booleans = DType::boolean},
      {.op = "to",
       .variant = "i64",
       .inputs = {{{2, 3, 4}}},
       .function = [](T in) { return to(in[0], DType::i64); },
       .reference = [](A in) { return map(in[0], [](double x) { return std::trunc(x); }); },
       .more = {{{{}}}, {{{0, 2}}}},
       .differentiable = false,
       .results = {DType::i64},
       .of_integers = DType::i64,
       .of_booleans = DType::i64},
      {.op = "to",
       .variant = "boolean",
       .inputs = {{{2, 3, 4}}},
       .function = [](T in) { return to(in[0], DType::boolean); },
       .reference = [](A in) { return map(in[0], [](double x) { return x != 0; }); },
       .more = {{{{}}}, {{{0, 2}}}},
       .differentiable = false,
       .results = {DType::boolean},
       .of_integers = DType::boolean,
       .of_booleans = DType::boolean},
  };
  return table;
}

TEST_CASE("op cases: joining, rearranging, copies") { run_table("joining, rearranging, copies", rearrange_cases()); }

}  // namespace regard::op_cases
