// Op cases: matrix products.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

/// PyTorch's rules, one dot product at a time.
Array product(Array a, Array b) {
  const bool row = a.shape.dim() == 1, column = b.shape.dim() == 1;
  if (row) a.shape.insert(0, 1);
  if (column) b.shape.push_back(1);
  const int64_t p = a.shape.dim(), q = b.shape.dim(), inner = a.shape[p - 1];
  Shape a_batch = a.shape, b_batch = b.shape;
  for (int i = 0; i < 2; ++i) {
    a_batch.erase(a_batch.dim() - 1);
    b_batch.erase(b_batch.dim() - 1);
  }
  Shape shape = broadcast(a_batch, b_batch);
  shape.push_back(a.shape[p - 2]);
  shape.push_back(b.shape[q - 1]);
  const int64_t n = shape.dim();
  Array y = make(shape, [&](const Shape& i) {
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      Shape left = i, right = i;
      left[n - 1] = k;
      right[n - 2] = k;
      sum += at(a, left) * at(b, right);
    }
    return sum;
  });
  if (column) y.shape.erase(n - 1);
  if (row) y.shape.erase(y.shape.dim() - (column ? 1 : 2));
  return y;
}

OpCase of(const char* variant, Shape a, Shape b, std::vector<Inputs> more = {}) {
  return {.op = "matmul",
          .variant = variant,
          .inputs = {{a}, {b}},
          .function = [](T in) { return matmul(in[0], in[1]); },
          .reference = [](A in) { return product(in[0], in[1]); },
          .more = std::move(more),
          .ulps = 64,
          .accumulates = true};
}

}  // namespace

Table matrix_cases() {
  Table table = {
      of("matrices", {3, 4}, {4, 2},
         {{{{1, 1}}, {{1, 1}}},
          {{{0, 4}}, {{4, 2}}},
          {{{3, 0}}, {{0, 2}}},
          {{{3, 4}}, {{4, 0}}},
          {{{1, 5}}, {{5, 1}}},
          {{{33, 17}}, {{17, 35}}},
          {{{70, 8}}, {{8, 3}}},
          {{{5, 129}}, {{129, 66}}}}),
      of("a vector by a vector", {5}, {5}, {{{{0}}, {{0}}}, {{{1}}, {{1}}}, {{{300}}, {{300}}}}),
      of("a vector by a matrix", {4}, {4, 3}, {{{{0}}, {{0, 3}}}, {{{67}}, {{67, 9}}}}),
      of("a matrix by a vector", {3, 4}, {4}, {{{{0, 4}}, {{4}}}, {{{9, 67}}, {{67}}}}),
      of("a vector by a batch", {3}, {2, 3, 2}),
      of("a batch by a vector", {2, 2, 3}, {3}, {{{{2, 0, 3}}, {{3}}}}),
      of("batches", {2, 2, 3}, {2, 3, 2}, {{{{0, 2, 3}}, {{0, 3, 2}}}, {{{3, 16, 16}}, {{3, 16, 16}}}}),
      of("a batch by a matrix", {2, 2, 3}, {3, 2}, {{{{4, 3, 8}}, {{8, 5}}}, {{{2, 3, 2, 4}}, {{4, 3}}}}),
      of("a matrix by a batch", {2, 3}, {2, 3, 2}),
      of("broadcast batches", {2, 1, 2, 3}, {2, 3, 2},
         {{{{1, 3, 2, 2}}, {{2, 1, 2, 2}}}, {{{2, 1, 2, 3}}, {{0, 3, 2}}}}),
      of("eight dimensions", {1, 2, 1, 1, 2, 1, 2, 2}, {2, 1, 2, 1}),
  };
  table[0].composed = [](T in) { return sum(unsqueeze(in[0], -1) * unsqueeze(in[1], -3), -2); };
  table.push_back({.op = "matmul",
                   .variant = "a tensor by its transpose",
                   .inputs = {{{3, 4}}},
                   .function = [](T in) { return matmul(in[0], in[0].t()); },
                   .reference =
                       [](A in) {
                         return make({in[0].shape[0], in[0].shape[0]}, [&](const Shape& i) {
                           double sum = 0;
                           for (int64_t k = 0; k < in[0].shape[1]; ++k)
                             sum += at(in[0], {i[0], k}) * at(in[0], {i[1], k});
                           return sum;
                         });
                       },
                   .ulps = 64,
                   .accumulates = true});
  auto affine = [](A in) {
    return make(
        [&] {
          Shape shape = in[0].shape;
          shape[shape.dim() - 1] = in[1].shape[0];
          return shape;
        }(),
        [&](const Shape& i) {
          const int64_t out = i[i.dim() - 1];
          double sum = in.size() > 2 ? in[2].values[static_cast<size_t>(out)] : 0;
          for (int64_t k = 0; k < in[1].shape[1]; ++k) {
            Shape place = i;
            place[i.dim() - 1] = k;
            // x's last size may be 1, which at() takes for any: read by its own sizes.
            sum += at(in[0], place) * at(in[1], {out, k});
          }
          return sum;
        });
  };
  table.push_back({.op = "linear",
                   .variant = "with a bias",
                   .inputs = {{{2, 3, 4}}, {{5, 4}}, {{5}}},
                   .function = [](T in) { return linear(in[0], in[1], in[2]); },
                   .reference = affine,
                   .more = {{{{4}}, {{5, 4}}, {{5}}},
                            {{{0, 4}}, {{5, 4}}, {{5}}},
                            {{{2, 0}}, {{5, 0}}, {{5}}},
                            {{{40, 33}}, {{19, 33}}, {{19}}},
                            {{{1, 2, 1, 1, 1, 2, 1, 3}}, {{2, 3}}, {{2}}}},
                   .composed = [](T in) { return matmul(in[0], in[1].t()) + in[2]; },
                   .ulps = 64,
                   .accumulates = true});
  table.push_back({.op = "linear",
                   .variant = "without a bias",
                   .inputs = {{{3, 4}}, {{2, 4}}},
                   .function = [](T in) { return linear(in[0], in[1]); },
                   .reference = affine,
                   .more = {{{{4}}, {{1, 4}}}, {{{2, 0, 4}}, {{2, 4}}}},
                   .composed = [](T in) { return matmul(in[0], in[1].t()); },
                   .ulps = 64,
                   .accumulates = true});
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    const auto composed = [activation](T in) {
      const Tensor y = linear(activate(linear(in[0], in[1], in[2]), activation), in[3], in[4]);
      return in.size() > 5 ? in[5] + y : y;
    };
    const auto bend = [activation](double v) {
      const double z = 0.79788456080286535588 * (v + 0.044715 * v * v * v);
      const double share[] = {v > 0 ? 1.0 : 0.0, 0.5 * std::erfc(-v / std::sqrt(2.0)), 1 / (1 + std::exp(-2 * z)),
                              1 / (1 + std::exp(-v))};
      return v * share[static_cast<size_t>(activation)];
    };
    const auto reference = [affine, bend](A in) {
      const Array h = map(affine({in[0], in[1], in[2]}), bend);
      Array y = affine({h, in[3], in[4]});
      if (in.size() > 5)
        for (size_t i = 0; i < y.values.size(); ++i) y.values[i] += in[5].values[i];
      return y;
    };
    constexpr const char* names[] = {"relu", "gelu", "gelu_tanh", "silu"};
    const std::string name = names[static_cast<size_t>(activation)];
    const auto row = [&](const std::string& variant, Inputs inputs, std::vector<Inputs> more) {
      table.push_back({.op = "feed_forward",
                       .variant = variant,
                       .inputs = std::move(inputs),
                       .function =
                           [activation](T in) {
                             return feed_forward(in[0], in[1], in[2], in[3], in[4], activation,
                                                 in.size() > 5 ? in[5] : Tensor());
                           },
                       .reference = reference,
                       .more = std::move(more),
                       .composed = composed,
                       .ulps = 64,
                       .half_roundings = 2,  // of the hidden layer, too
                       .accumulates = true});
    };
    table.push_back({.op = "activate",
                     .variant = name,
                     .inputs = {{{5, 7}, Fill::distinct}},
                     .function = [activation](T in) { return activate(in[0], activation); },
                     .reference = [bend](A in) { return map(in[0], bend); },
                     .ulps = 64});
    row(name, {{{2, 3, 4}}, {{5, 4}}, {{5}}, {{3, 5}}, {{3}}},
        {{{{4}}, {{5, 4}}, {{5}}, {{3, 5}}, {{3}}},
         {{{0, 4}}, {{5, 4}}, {{5}}, {{2, 5}}, {{2}}},
         {{{40, 33}}, {{19, 33}}, {{19}}, {{21, 19}}, {{21}}}});
    row(name + " with a residual", {{{2, 3, 4}}, {{5, 4}}, {{5}}, {{3, 5}}, {{3}}, {{2, 3, 3}}},
        {{{{7, 33}}, {{19, 33}}, {{19}}, {{2, 19}}, {{2}}, {{7, 2}}}});
  }
  return table;
}

TEST_CASE("op cases: matrix products") { run_table("matrix products", matrix_cases()); }

}  // namespace regard::op_cases
