// Op cases: views. The same elements, seen otherwise.
#include <catch2/catch.hpp>

#include <regard/autograd/graph.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

// Views take every dtype and change none.
OpCase view_of(const char* op, const char* variant, Shape shape, Function function, Reference reference,
               std::vector<Inputs> more = {}) {
  return {.op = op,
          .variant = variant,
          .inputs = {{shape}},
          .function = std::move(function),
          .reference = std::move(reference),
          .more = std::move(more),
          .of_integers = DType::i64,
          .of_booleans = DType::boolean};
}
OpCase reshaped(const char* op, const char* variant, Shape from, Function function, Shape to) {
  return view_of(op, variant, from, std::move(function), [to](A in) { return seen_as(in[0], to); });
}
/// The part of x from `start` on along `dim`, every `step`-th of `count`.
Array part(const Array& x, int64_t dim, int64_t start, int64_t count, int64_t step = 1) {
  Shape shape = x.shape;
  shape[dim] = count;
  return make(shape, [&](const Shape& i) {
    Shape from = i;
    from[dim] = start + i[dim] * step;
    return at(x, from);
  });
}
Array without(const Array& x, int64_t dim) {
  Array y = x;
  y.shape.erase(dim);
  return y;
}
Array permuted(const Array& x, const std::vector<int64_t>& dims) {
  Shape shape;
  for (int64_t d : dims) shape.push_back(x.shape[d]);
  return make(shape, [&](const Shape& i) {
    Shape from = x.shape;
    for (size_t d = 0; d < dims.size(); ++d) from[dims[d]] = i[static_cast<int64_t>(d)];
    return at(x, from);
  });
}
Arrays parts(const Array& x, int64_t dim, const std::vector<int64_t>& sizes) {
  Arrays list;
  int64_t start = 0;
  for (int64_t size : sizes) {
    list.push_back(part(x, dim, start, size));
    start += size;
  }
  return list;
}

}  // namespace

Table view_cases() {
  Table table = {
      // view() wants strides that allow it: of a dense copy, and of what every layout allows.
      reshaped("view", "of a dense tensor", {2, 3, 4},
               [](T in) {
                 return in[0].clone().view({6, -1});
               },
               {6, 4}),
      reshaped("view", "sizes of 1 added", {2, 3},
               [](T in) {
                 return view(in[0], {2, 1, 3, 1});
               },
               {2, 1, 3, 1}),
      reshaped("view", "of nothing", {0, 3},
               [](T in) {
                 return view(in[0], {3, 0, 2});
               },
               {3, 0, 2}),
      reshaped("view", "a number", {1, 1}, [](T in) { return view(in[0], {}); }, {}),
      reshaped("view", "eight dimensions", {2, 2},
               [](T in) {
                 return view(in[0], {1, 2, 1, 1, 1, 2, 1, 1});
               },
               {1, 2, 1, 1, 1, 2, 1, 1}),
      reshaped("reshape", "two dimensions", {2, 3, 4},
               [](T in) {
                 return reshape(in[0], {4, 6});
               },
               {4, 6}),
      reshaped("reshape", "an open size", {2, 3, 4},
               [](T in) {
                 return reshape(in[0], {-1, 8});
               },
               {3, 8}),
      reshaped("reshape", "to eight dimensions", {2, 3, 4},
               [](T in) {
                 return reshape(in[0], {2, 1, 3, 1, 2, 2, 1, 1});
               },
               {2, 1, 3, 1, 2, 2, 1, 1}),
      reshaped("reshape", "of nothing", {0, 3},
               [](T in) {
                 return reshape(in[0], {3, 0});
               },
               {3, 0}),
      reshaped("reshape", "a number", {},
               [](T in) {
                 return reshape(in[0], {1, 1});
               },
               {1, 1}),
      reshaped("flatten", "all", {2, 3, 4}, [](T in) { return flatten(in[0]); }, {24}),
      reshaped("flatten", "the first two", {2, 3, 4}, [](T in) { return flatten(in[0], 0, 1); }, {6, 4}),
      reshaped("flatten", "the last two", {2, 3, 4}, [](T in) { return flatten(in[0], -2); }, {2, 12}),
      reshaped("flatten", "a number", {}, [](T in) { return flatten(in[0]); }, {1}),
      reshaped("flatten", "of nothing", {2, 0, 3}, [](T in) { return flatten(in[0], 1); }, {2, 0}),
      view_of(
          "permute", "three dimensions", {2, 3, 4},
          [](T in) {
            return permute(in[0], {2, 0, 1});
          },
          [](A in) {
            return permuted(in[0], {2, 0, 1});
          },
          {{{{2, 0, 4}}}}),
      view_of(
          "permute", "negative", {2, 3, 4},
          [](T in) {
            return permute(in[0], {-2, -1, 0});
          },
          [](A in) {
            return permuted(in[0], {1, 2, 0});
          }),
      view_of(
          "permute", "eight dimensions", {1, 2, 1, 3, 1, 2, 1, 2},
          [](T in) {
            return permute(in[0], {7, 3, 0, 1, 6, 5, 4, 2});
          },
          [](A in) {
            return permuted(in[0], {7, 3, 0, 1, 6, 5, 4, 2});
          }),
      view_of(
          "permute", "a number", {}, [](T in) { return permute(in[0], {}); }, [](A in) { return in[0]; }),
      view_of(
          "transpose", "first and last", {2, 3, 4}, [](T in) { return transpose(in[0], 0, -1); },
          [](A in) {
            return permuted(in[0], {2, 1, 0});
          },
          {{{{0, 3, 2}}}}),
      view_of(
          "transpose", "a dimension with itself", {2, 3}, [](T in) { return transpose(in[0], 1, 1); },
          [](A in) { return in[0]; }),
      view_of(
          "transpose", "a number", {}, [](T in) { return transpose(in[0], 0, -1); }, [](A in) { return in[0]; }),
      view_of(
          "contiguous", "", {2, 3, 4}, [](T in) { return contiguous(in[0]); }, [](A in) { return in[0]; },
          {{{{}}}, {{{2, 0}}}, {{{1, 2, 1, 2, 1, 2, 1, 2}}}, {{{19, 23}}}}),
      view_of(
          "expand", "a size of 1", {2, 1, 3},
          [](T in) {
            return expand(in[0], {2, 4, 3});
          },
          [](A in) {
            return make({2, 4, 3}, [&](const Shape& i) { return at(in[0], i); });
          }),
      view_of(
          "expand", "new dimensions, kept sizes", {2, 1},
          [](T in) {
            return expand(in[0], {3, -1, 2});
          },
          [](A in) {
            return make({3, 2, 2}, [&](const Shape& i) { return at(in[0], i); });
          }),
      view_of(
          "expand", "to nothing", {1, 3},
          [](T in) {
            return expand(in[0], {0, 3});
          },
          [](A) {
            return Array{{0, 3}, {}};
          }),
      view_of(
          "expand", "a number", {},
          [](T in) {
            return expand(in[0], {2, 2});
          },
          [](A in) {
            return constant({2, 2}, in[0].values[0]);
          }),
      reshaped("squeeze", "all", {1, 2, 1, 3}, [](T in) { return squeeze(in[0]); }, {2, 3}),
      reshaped("squeeze", "to a number", {1, 1}, [](T in) { return squeeze(in[0]); }, {}),
      reshaped("squeeze", "one dimension", {2, 1, 3}, [](T in) { return squeeze(in[0], 1); }, {2, 3}),
      reshaped("squeeze", "a larger dimension stays", {2, 1, 3}, [](T in) { return squeeze(in[0], -1); }, {2, 1, 3}),
      reshaped("unsqueeze", "first", {2, 3}, [](T in) { return unsqueeze(in[0], 0); }, {1, 2, 3}),
      reshaped("unsqueeze", "last", {2, 3}, [](T in) { return unsqueeze(in[0], -1); }, {2, 3, 1}),
      reshaped("unsqueeze", "a number", {}, [](T in) { return unsqueeze(in[0], 0); }, {1}),
      view_of(
          "slice", "a middle part", {2, 5, 3}, [](T in) { return slice(in[0], 1, 1, 4); },
          [](A in) { return part(in[0], 1, 1, 3); }, {{{{2, 5, 0}}}}),
      view_of(
          "slice", "every second from the end", {2, 7}, [](T in) { return slice(in[0], -1, -5, INT64_MAX, 2); },
          [](A in) { return part(in[0], 1, 2, 3, 2); }),
      view_of(
          "slice", "bounds beyond the end", {4}, [](T in) { return slice(in[0], 0, -9, 99); },
          [](A in) { return in[0]; }),
      view_of(
          "slice", "nothing", {4, 2}, [](T in) { return slice(in[0], 0, 3, 1); },
          [](A) {
            return Array{{0, 2}, {}};
          }),
      view_of(
          "narrow", "", {2, 5}, [](T in) { return narrow(in[0], 1, 2, 2); }, [](A in) { return part(in[0], 1, 2, 2); }),
      view_of(
          "narrow", "from the end, nothing", {3, 2}, [](T in) { return narrow(in[0], 0, -1, 0); },
          [](A) {
            return Array{{0, 2}, {}};
          }),
      view_of(
          "select", "first", {3, 4}, [](T in) { return select(in[0], 0, 1); },
          [](A in) { return without(part(in[0], 0, 1, 1), 0); }, {{{{3, 0}}}}),
      view_of(
          "select", "from the end", {2, 3, 4}, [](T in) { return select(in[0], -1, -2); },
          [](A in) { return without(part(in[0], 2, 2, 1), 2); }),
      view_of(
          "select", "to a number", {3}, [](T in) { return select(in[0], 0, 2); },
          [](A in) {
            return Array{{}, {in[0].values[2]}};
          }),
      view_of(
          "split", "a size that does not divide", {5, 2}, [](T in) { return split(in[0], 2); },
          [](A in) {
            return parts(in[0], 0, {2, 2, 1});
          },
          {{{{5, 0}}}}),
      view_of(
          "split", "sizes", {2, 6},
          [](T in) {
            return split(in[0], std::vector<int64_t>{1, 3, 0, 2}, -1);
          },
          [](A in) {
            return parts(in[0], 1, {1, 3, 0, 2});
          }),
      view_of(
          "chunk", "equal", {2, 6}, [](T in) { return chunk(in[0], 3, 1); },
          [](A in) {
            return parts(in[0], 1, {2, 2, 2});
          }),
      view_of(
          "chunk", "fewer than asked for", {7}, [](T in) { return chunk(in[0], 5); },
          [](A in) {
            return parts(in[0], 0, {2, 2, 2, 1});
          }),
  };
  return table;
}

TEST_CASE("op cases: views") { run_table("views", view_cases()); }

TEST_CASE("op cases: some outputs of split alone have a gradient, the others' parts are zero") {
  Tensor x = arange(0, 6, 1, DType::f64).view({2, 3}).set_requires_grad();
  Tensors parts = split(x, 1, 1);
  Tensor g = grad(sum(parts[1] * parts[1]), {x})[0];
  CHECK(g.to_vector<double>() == std::vector<double>{0, 2, 0, 0, 8, 0});
}

}  // namespace regard::op_cases
