// Op cases: softmax and normalisation.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

Array softened(const Array& x, int64_t dim, bool logarithm) {
  dim = wrap(dim, x.shape.dim());
  return make(x.shape, [&](const Shape& i) {
    double largest = -inf, sum = 0;
    Shape place = i;
    const int64_t size = x.shape.dim() == 0 ? 1 : x.shape[dim];
    for (int64_t k = 0; k < size; ++k) {
      if (x.shape.dim() > 0) place[dim] = k;
      largest = std::max(largest, at(x, place));
    }
    for (int64_t k = 0; k < size; ++k) {
      if (x.shape.dim() > 0) place[dim] = k;
      sum += std::exp(at(x, place) - largest);
    }
    const double shifted = at(x, i) - largest;
    return logarithm ? shifted - std::log(sum) : std::exp(shifted) / sum;
  });
}

/// Rows over the last `dims` dimensions, each through f(row) -> row.
template <class F>
Array by_rows(const Array& x, int64_t dims, const F& f) {
  int64_t width = 1;
  for (int64_t d = x.shape.dim() - dims; d < x.shape.dim(); ++d) width *= x.shape[d];
  Array y{x.shape, {}};
  for (size_t start = 0; start < x.values.size(); start += static_cast<size_t>(width)) {
    std::vector<double> row(x.values.begin() + static_cast<int64_t>(start),
                            x.values.begin() + static_cast<int64_t>(start) + width);
    for (double v : f(row)) y.values.push_back(v);
  }
  return y;
}
Array layer_normed(A in, int64_t dims, double eps) {
  return by_rows(in[0], dims, [&](std::vector<double> row) {
    const double n = static_cast<double>(row.size()), mean = total(row) / n;
    double variance = 0;
    for (double x : row) variance += (x - mean) * (x - mean) / n;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = (row[i] - mean) / std::sqrt(variance + eps);
      if (in.size() > 1) row[i] *= in[1].values[i];
      if (in.size() > 2) row[i] += in[2].values[i];
    }
    return row;
  });
}
Array rms_normed(A in, int64_t dims, double eps) {
  return by_rows(in[0], dims, [&](std::vector<double> row) {
    double squares = 0;
    for (double x : row) squares += x * x / static_cast<double>(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] /= std::sqrt(squares + eps);
      if (in.size() > 1) row[i] *= in[1].values[i];
    }
    return row;
  });
}
Tensor composed_layer_norm(const Tensor& x, Dims dims, double eps) {
  Tensor centred = x - mean(x, dims, true);
  return centred * rsqrt(mean(square(centred), dims, true) + eps);
}
Tensor composed_rms_norm(const Tensor& x, Dims dims, double eps) {
  return x * rsqrt(mean(square(x), dims, true) + eps);
}
OpCase summed(OpCase row) {
  row.ulps = 16;
  row.accumulates = true;
  return row;
}
OpCase soft(const char* variant, int64_t dim, bool logarithm, std::vector<Inputs> more) {
  return summed({.op = logarithm ? "log_softmax" : "softmax",
                 .variant = variant,
                 .inputs = {{{2, 3, 4}}},
                 .function = [=](T in) { return logarithm ? log_softmax(in[0], dim) : softmax(in[0], dim); },
                 .reference = [=](A in) { return softened(in[0], dim, logarithm); },
                 .more = std::move(more),
                 .composed =
                     [=](T in) {
                       Tensor e = exp(in[0]);
                       return logarithm ? in[0] - log(sum(e, dim, true)) : e / sum(e, dim, true);
                     }});
}

}  // namespace

Table normalise_cases() {
  Table table;
  for (bool logarithm : {false, true}) {
    table.push_back(
        soft("last", -1, logarithm,
             {{{{}}}, {{{0}}}, {{{2, 0}}}, {{{0, 3}}}, {{{1}}}, {{{67}}}, {{{9, 37}}}, {{{1, 2, 1, 1, 2, 1, 1, 3}}}}));
    table.push_back(soft("middle", 1, logarithm, {{{{2, 0, 3}}}, {{{0, 2, 3}}}, {{{4, 33, 18}}}}));
    table.push_back(soft("first", 0, logarithm, {{{{5, 70}}}, {{{3, 0}}}}));
  }
  // Rows partly of minus infinity, as masks make them.
  for (bool logarithm : {false, true})
    table.push_back({.op = logarithm ? "log_softmax" : "softmax",
                     .variant = "masked by minus infinity",
                     .inputs = {{{3, 5}}},
                     .function =
                         [logarithm](T in) {
                           Tensor blocked = triu(ones({3, 5}, in[0].device()), 2) != 0;
                           Tensor x = masked_fill(in[0], blocked, -std::numeric_limits<double>::infinity());
                           Tensor y = logarithm ? log_softmax(x, -1) : softmax(x, -1);
                           return masked_fill(y, blocked, 0.0);
                         },
                     .reference =
                         [logarithm](A in) {
                           Array x = make(in[0].shape,
                                          [&](const Shape& i) { return i[1] - i[0] >= 2 ? -inf : at(in[0], i); });
                           x = softened(x, -1, logarithm);
                           return make(x.shape, [&](const Shape& i) { return i[1] - i[0] >= 2 ? 0 : at(x, i); });
                         },
                     .ulps = 16,
                     .accumulates = true});

  const std::vector<Inputs> wide = {{{{4}}, {{4}}, {{4}}},
                                    {{{0, 4}}, {{4}}, {{4}}},
                                    {{{3, 1}}, {{1}}, {{1}}},
                                    {{{6, 67}}, {{67}}, {{67}}},
                                    {{{1, 2, 1, 1, 2, 1, 1, 4}}, {{4}}, {{4}}}};
  const std::vector<Inputs> narrow_sets = {{{{4}}, {{4}}}, {{{0, 4}}, {{4}}}, {{{6, 67}}, {{67}}}};
  // The expanded layout must not make a row constant: there the norm's gradient is very steep.
  const Input x{{2, 3, 4}};
  table.push_back(summed({.op = "layer_norm",
                          .variant = "weight and bias",
                          .inputs = {x, {{4}}, {{4}}},
                          .function = [](T in) { return layer_norm(in[0], in[1].shape(), in[1], in[2]); },
                          .reference = [](A in) { return layer_normed(in, 1, 1e-5); },
                          .more = wide,
                          .composed = [](T in) { return composed_layer_norm(in[0], -1, 1e-5) * in[1] + in[2]; }}));
  table.back().more[0][0].expand_dim = -1;
  table.push_back(summed({.op = "layer_norm",
                          .variant = "neither",
                          .inputs = {x},
                          .function = [](T in) { return layer_norm(in[0], {in[0].size(-1)}, {}, {}, 0.1); },
                          .reference = [](A in) { return layer_normed(in, 1, 0.1); },
                          .more = {{{{0, 3}}}, {{{6, 67}}}},
                          .composed = [](T in) { return composed_layer_norm(in[0], -1, 0.1); }}));
  table.push_back(summed({.op = "layer_norm",
                          .variant = "weight alone",
                          .inputs = {x, {{4}}},
                          .function = [](T in) { return layer_norm(in[0], in[1].shape(), in[1]); },
                          .reference = [](A in) { return layer_normed(in, 1, 1e-5); },
                          .composed = [](T in) { return composed_layer_norm(in[0], -1, 1e-5) * in[1]; }}));
  table.push_back(summed(
      {.op = "layer_norm",
       .variant = "bias alone",
       .inputs = {x, {{4}}},
       .function = [](T in) { return layer_norm(in[0], in[1].shape(), {}, in[1]); },
       .reference =
           [](A in) { return zip(layer_normed({in[0]}, 1, 1e-5), in[1], [](double a, double b) { return a + b; }); },
       .composed = [](T in) { return composed_layer_norm(in[0], -1, 1e-5) + in[1]; }}));
  table.push_back(summed({.op = "layer_norm",
                          .variant = "two dimensions",
                          .inputs = {x, {{3, 4}}, {{3, 4}}},
                          .function =
                              [](T in) {
                                return layer_norm(in[0], {3, 4}, in[1], in[2]);
                              },
                          .reference = [](A in) { return layer_normed(in, 2, 1e-5); },
                          .composed =
                              [](T in) {
                                return composed_layer_norm(in[0], {-2, -1}, 1e-5) * in[1] + in[2];
                              }}));
  table.push_back(summed({.op = "rms_norm",
                          .variant = "weight",
                          .inputs = {x, {{4}}},
                          .function = [](T in) { return rms_norm(in[0], in[1].shape(), in[1]); },
                          .reference = [](A in) { return rms_normed(in, 1, 1e-6); },
                          .more = narrow_sets,
                          .composed = [](T in) { return composed_rms_norm(in[0], -1, 1e-6) * in[1]; }}));
  table.push_back(summed({.op = "rms_norm",
                          .variant = "two dimensions, no weight",
                          .inputs = {x},
                          .function =
                              [](T in) {
                                return rms_norm(in[0], {3, 4}, {}, 0.25);
                              },
                          .reference = [](A in) { return rms_normed(in, 2, 0.25); },
                          .composed =
                              [](T in) {
                                return composed_rms_norm(in[0], {1, 2}, 0.25);
                              }}));
  return table;
}

TEST_CASE("op cases: softmax and normalisation") { run_table("softmax and normalisation", normalise_cases()); }

}  // namespace regard::op_cases
