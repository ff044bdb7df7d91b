// Op cases: indexing.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

int64_t whole(double x) { return static_cast<int64_t>(x); }
Input positions(const Shape& shape, int64_t below) { return {shape, Fill::integers, 0, below}; }

Array gathered(const Array& x, int64_t dim, const Array& index) {
  return make(index.shape, [&](const Shape& i) {
    Shape place = i;
    place[dim] = whole(at(index, i));
    return at(x, place);
  });
}
Array scattered(const Array& x, int64_t dim, const Array& index, const Array& source) {
  Array y = x;
  each_index(index.shape, [&](const Shape& i) {
    Shape place = i;
    place[dim] = whole(at(index, i));
    // source may be larger than index: read at i by its own sizes.
    int64_t from = 0;
    for (int64_t d = 0; d < i.dim(); ++d) from = from * source.shape[d] + i[d];
    ref(y, place) += source.values[static_cast<size_t>(from)];
  });
  return y;
}
Array listed(const Array& x, int64_t dim, const Array& index) {
  Shape shape = x.shape;
  shape[dim] = static_cast<int64_t>(index.values.size());
  return make(shape, [&](const Shape& i) {
    Shape place = i;
    place[dim] = whole(index.values[static_cast<size_t>(i[dim])]);
    int64_t from = 0;
    for (int64_t d = 0; d < place.dim(); ++d) from = from * x.shape[d] + place[d];
    return x.values[static_cast<size_t>(from)];
  });
}
Array added(const Array& x, int64_t dim, const Array& index, const Array& source) {
  Array y = x;
  each_index(source.shape, [&](const Shape& i) {
    Shape place = i;
    place[dim] = whole(index.values[static_cast<size_t>(i[dim])]);
    ref(y, place) += at(source, i);
  });
  return y;
}
Array looked_up(const Array& ids, const Array& weight) {
  Shape shape = ids.shape;
  shape.push_back(weight.shape[1]);
  return make(shape, [&](const Shape& i) {
    Shape place = i;
    place.erase(i.dim() - 1);
    return at(weight, {whole(at(ids, place)), i[i.dim() - 1]});
  });
}
Array hot(const Array& ids, int64_t classes) {
  Shape shape = ids.shape;
  shape.push_back(classes);
  return make(shape, [&](const Shape& i) {
    Shape place = i;
    place.erase(i.dim() - 1);
    return whole(at(ids, place)) == i[i.dim() - 1];
  });
}
OpCase integers(OpCase row) {
  row.of_integers = DType::i64;
  row.accumulates = true;
  return row;
}

}  // namespace

Table index_cases() {
  Table table = {
      integers({.op = "gather",
                .variant = "last",
                .inputs = {{{3, 4}}, positions({3, 5}, 4)},
                .function = [](T in) { return gather(in[0], -1, in[1]); },
                .reference = [](A in) { return gathered(in[0], 1, in[1]); },
                .more = {{{{3, 4}}, positions({2, 2}, 4)},
                         {{{3, 4}}, positions({0, 2}, 4)},
                         {{{9, 37}}, positions({9, 70}, 37)}}}),
      integers({.op = "gather",
                .variant = "middle",
                .inputs = {{{2, 3, 2}}, positions({2, 4, 2}, 3)},
                .function = [](T in) { return gather(in[0], 1, in[1]); },
                .reference = [](A in) { return gathered(in[0], 1, in[1]); }}),
      integers({.op = "gather",
                .variant = "first of eight",
                .inputs = {{{2, 1, 2, 1, 1, 2, 1, 1}}, positions({3, 1, 2, 1, 1, 2, 1, 1}, 2)},
                .function = [](T in) { return gather(in[0], 0, in[1]); },
                .reference = [](A in) { return gathered(in[0], 0, in[1]); }}),
      integers({.op = "gather",
                .variant = "a number",
                .inputs = {{{}}, positions({}, 1)},
                .function = [](T in) { return gather(in[0], 0, in[1]); },
                .reference = [](A in) { return in[0]; }}),
      integers({.op = "scatter_add",
                .variant = "first, duplicates",
                .inputs = {{{3, 4}}, positions({5, 4}, 3), {{5, 4}}},
                .function = [](T in) { return scatter_add(in[0], 0, in[1], in[2]); },
                .reference = [](A in) { return scattered(in[0], 0, in[1], in[2]); },
                .more = {{{{3, 4}}, positions({0, 4}, 3), {{0, 4}}}, {{{5, 9}}, positions({40, 9}, 5), {{40, 9}}}}}),
      integers({.op = "scatter_add",
                .variant = "a source larger than the index",
                .inputs = {{{2, 3, 2}}, positions({2, 2, 1}, 2), {{3, 4, 2}}},
                .function = [](T in) { return scatter_add(in[0], 2, in[1], in[2]); },
                .reference = [](A in) { return scattered(in[0], 2, in[1], in[2]); }}),
      integers(
          {.op = "index_select",
           .variant = "first, duplicates",
           .inputs = {{{3, 4}}, positions({5}, 3)},
           .function = [](T in) { return index_select(in[0], 0, in[1]); },
           .reference = [](A in) { return listed(in[0], 0, in[1]); },
           .more = {{{{3, 4}}, positions({0}, 3)}, {{{3, 0}}, positions({2}, 3)}, {{{11, 33}}, positions({40}, 11)}}}),
      integers({.op = "index_select",
                .variant = "last",
                .inputs = {{{2, 3, 4}}, positions({3}, 4)},
                .function = [](T in) { return index_select(in[0], -1, in[1]); },
                .reference = [](A in) { return listed(in[0], 2, in[1]); },
                .more = {{{{2, 0, 4}}, positions({3}, 4)}}}),
      integers({.op = "index_add",
                .variant = "first, duplicates",
                .inputs = {{{3, 4}}, positions({5}, 3), {{5, 4}}},
                .function = [](T in) { return index_add(in[0], 0, in[1], in[2]); },
                .reference = [](A in) { return added(in[0], 0, in[1], in[2]); },
                .more = {{{{3, 4}}, positions({0}, 3), {{0, 4}}}, {{{3, 0}}, positions({2}, 3), {{2, 0}}}}}),
      integers({.op = "index_add",
                .variant = "last",
                .inputs = {{{2, 2, 3}}, positions({4}, 3), {{2, 2, 4}}},
                .function = [](T in) { return index_add(in[0], -1, in[1], in[2]); },
                .reference = [](A in) { return added(in[0], 2, in[1], in[2]); }}),
      integers(
          {.op = "embedding",
           .variant = "ids of two dimensions",
           .inputs = {positions({2, 3}, 5), {{5, 4}}},
           .function = [](T in) { return embedding(in[0], in[1]); },
           .reference = [](A in) { return looked_up(in[0], in[1]); },
           .more = {{positions({}, 5), {{5, 4}}}, {positions({0, 2}, 5), {{5, 4}}}, {positions({50}, 3), {{3, 40}}}},
           .composed =
               [](T in) {
                 Tensor rows = matmul(one_hot(in[0], in[1].size(0)).to(in[1].dtype()), in[1]);
                 return rows;
               }}),
      {.op = "one_hot",
       .variant = "classes given",
       .inputs = {positions({2, 3}, 4)},
       .function = [](T in) { return one_hot(in[0], 5); },
       .reference = [](A in) { return hot(in[0], 5); },
       .more = {{positions({}, 4)}, {positions({0, 2}, 4)}},
       .differentiable = false,
       .results = {DType::i64}},
      {.op = "one_hot",
       .variant = "classes from the largest id",
       .inputs = {{{7}, Fill::permutation, 0, 0, -1}},
       .function = [](T in) { return one_hot(in[0]); },
       .reference = [](A in) { return hot(in[0], 7); },
       .differentiable = false,
       .results = {DType::i64}},
  };
  // What comes of the padding row is replaced: it has no gradient, so central differences must not see it.
  table.push_back(
      {.op = "embedding",
       .variant = "with a padding row",
       .inputs = {positions({7}, 3), {{3, 2}, Fill::normal, 0, 0, -1}},
       .function = [](T in) { return masked_fill(embedding(in[0], in[1], 0), unsqueeze(in[0] == 0, -1), 5); },
       .reference =
           [](A in) {
             Array weight = in[1];
             weight.values[0] = weight.values[1] = 5;
             return looked_up(in[0], weight);
           },
       .composed =
           [](T in) {
             Tensor keep = (arange(3) > 0).view({3, 1}).to(in[0].device());
             return embedding(in[0], where(keep, in[1], 5));
           },
       .of_integers = DType::i64});
  return table;
}

TEST_CASE("op cases: indexing") { run_table("indexing", index_cases()); }

}  // namespace regard::op_cases
