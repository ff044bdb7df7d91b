// Op cases: losses.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

/// One loss an element, reduced.
Array reduced(const Array& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  const double sum = total(losses.values);
  return {{}, {reduction == Reduction::sum ? sum : sum / static_cast<double>(losses.values.size())}};
}
Tensor reduced(const Tensor& losses, Reduction reduction) {
  return reduction == Reduction::none ? losses : reduction == Reduction::sum ? sum(losses) : mean(losses);
}
constexpr Reduction reductions[] = {Reduction::none, Reduction::mean, Reduction::sum};
const char* name_of(Reduction reduction) {
  return reduction == Reduction::none ? "none" : reduction == Reduction::mean ? "mean" : "sum";
}

struct Classes {
  int64_t ignore = -100;
  double smoothing = 0;
  Reduction reduction = Reduction::mean;
  bool weighted = false;
  bool of_probabilities = false;  // nll_loss: scores are log-probabilities already
};

/// in: scores [N, C, ...] or [C], targets, and class weights where there are any.
Array over_classes(A in, const Classes& o) {
  const Array& x = in[0];
  const bool single = x.shape.dim() == 1;
  const int64_t classes = x.shape[single ? 0 : 1];
  const Shape shape = in[1].shape;
  auto weight = [&](int64_t c) { return o.weighted ? in[2].values[static_cast<size_t>(c)] : 1.0; };
  double weights = 0;
  Array losses = make(shape, [&](const Shape& i) {
    const auto target = static_cast<int64_t>(at(in[1], i));
    auto score = [&](int64_t c) {
      Shape place = i;
      place.insert(single ? 0 : 1, c);
      return at(x, place);
    };
    if (target == o.ignore) return 0.0;
    double largest = -inf, sum = 0;
    for (int64_t c = 0; c < classes; ++c) largest = std::max(largest, score(c));
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(score(c) - largest);
    auto logp = [&](int64_t c) { return o.of_probabilities ? score(c) : score(c) - largest - std::log(sum); };
    double even = 0;
    for (int64_t c = 0; c < classes; ++c) even += weight(c) * logp(c);
    weights += weight(target);
    return -(1 - o.smoothing) * weight(target) * logp(target) - o.smoothing / static_cast<double>(classes) * even;
  });
  if (o.reduction != Reduction::mean) return reduced(losses, o.reduction);
  const double sum = total(losses.values);
  return {{}, {weights == 0 ? 0.0 : sum / weights}};
}

OpCase summed(OpCase row) {
  row.ulps = 16;
  row.accumulates = true;
  return row;
}

OpCase cross(const char* variant, Classes o, std::vector<Inputs> sets) {
  Inputs first = sets.front();
  sets.erase(sets.begin());
  return summed({.op = "cross_entropy",
                 .variant = variant,
                 .inputs = first,
                 .function =
                     [o](T in) {
                       return cross_entropy(in[0], in[1],
                                            {.weight = o.weighted ? in[2] : Tensor(),
                                             .ignore_index = o.ignore,
                                             .label_smoothing = o.smoothing,
                                             .reduction = o.reduction});
                     },
                 .reference = [o](A in) { return over_classes(in, o); },
                 .more = sets,
                 .composed =
                     [o](T in) {
                       const int64_t dim = in[0].dim() == 1 ? 0 : 1, classes = in[0].size(dim);
                       Tensor logp = log_softmax(in[0], dim);
                       Tensor counted = in[1] != o.ignore;
                       Tensor safe = masked_fill(in[1], logical_not(counted), 0);
                       Tensor weight = o.weighted ? in[2] : ones({classes}, {in[0].dtype(), in[0].device()});
                       Shape along = Shape::filled(in[0].dim(), 1);
                       along[dim] = classes;
                       Tensor weighted = logp * weight.view(along);
                       Tensor hit = -squeeze(gather(weighted, dim, unsqueeze(safe, dim)), dim);
                       Tensor losses =
                           hit * (1 - o.smoothing) - sum(weighted, dim) * (o.smoothing / static_cast<double>(classes));
                       losses = where(counted, losses, 0.0);
                       if (o.reduction != Reduction::mean) return reduced(losses, o.reduction);
                       Tensor share = index_select(weight, 0, reshape(safe, {-1})).view(safe.shape());
                       return sum(losses) / sum(where(counted, share, 0.0));
                     },
                 .of_halves = DType::f32});
}

Input classes(const Shape& shape, int64_t low, int64_t high) { return {shape, Fill::integers, low, high}; }

std::function<Tensor(T)> bce(Reduction reduction, bool weight, bool pos_weight) {
  return [=](T in) {
    return binary_cross_entropy_with_logits(
        in[0], in[1],
        {.weight = weight ? in[2] : Tensor(), .pos_weight = pos_weight ? in.back() : Tensor(), .reduction = reduction});
  };
}
Reference bce_reference(Reduction reduction, bool weight, bool pos_weight) {
  return [=](A in) {
    Array losses = make(in[0].shape, [&](const Shape& i) {
      const double x = at(in[0], i), y = at(in[1], i);
      const double below = std::log1p(std::exp(-std::abs(x)));
      const double minus_log_p = below + std::max(-x, 0.0), minus_log_q = below + std::max(x, 0.0);
      const double loss = y * minus_log_p * (pos_weight ? at(in.back(), i) : 1) + (1 - y) * minus_log_q;
      return loss * (weight ? at(in[2], i) : 1);
    });
    return reduced(losses, reduction);
  };
}

}  // namespace

Table loss_cases() {
  Table table;
  const Input logits{{4, 3}}, weight{{3}, Fill::positive, 0, 0, 0, false};
  for (Reduction reduction : reductions)
    table.push_back(
        cross(name_of(reduction), {.reduction = reduction},
              {{logits, classes({4}, 0, 3)}, {{{30, 67}}, classes({30}, 0, 67)}, {{{5, 1}}, classes({5}, 0, 1)}}));
  for (Reduction reduction : reductions)
    table.push_back(cross((std::string("ignored targets, smoothing, ") + name_of(reduction)).c_str(),
                          {.ignore = 2, .smoothing = 0.25, .reduction = reduction},
                          {{logits, classes({4}, 0, 3)}, {{{20, 5}}, classes({20}, 0, 5)}}));
  for (Reduction reduction : reductions)
    table.push_back(cross((std::string("class weights, smoothing, ") + name_of(reduction)).c_str(),
                          {.ignore = -1, .smoothing = 0.1, .reduction = reduction, .weighted = true},
                          {{logits, classes({4}, -1, 3), weight}}));
  table.push_back(cross("one sample", {}, {{{{5}}, classes({}, 0, 5)}}));
  table.push_back(cross("smoothing of 1", {.smoothing = 1}, {{logits, classes({4}, 0, 3)}}));
  table.push_back(cross("[N, C, d1, d2]", {.ignore = 1, .smoothing = 0.1},
                        {{{{2, 3, 2, 2}}, classes({2, 2, 2}, 0, 3)}, {{{3, 4, 5}}, classes({3, 5}, 0, 4)}}));
  table.push_back(cross("[N, C, d1], none, weights", {.reduction = Reduction::none, .weighted = true},
                        {{{{2, 3, 2}}, classes({2, 2}, 0, 3), weight}}));
  // Over nothing the mean is 0, which the composed form's 0 / 0 is not.
  OpCase none_counted =
      cross("every target ignored", {.ignore = 0}, {{logits, classes({4}, 0, 1)}, {{{0, 3}}, classes({0}, 0, 3)}});
  none_counted.composed = {};
  table.push_back(none_counted);

  auto nll = [](const char* variant, Classes o, std::vector<Inputs> sets) {
    o.of_probabilities = true;
    OpCase row = cross(variant, o, std::move(sets));
    row.op = "nll_loss";
    row.composed = {};
    row.function = [o](T in) {
      return nll_loss(in[0], in[1],
                      {.weight = o.weighted ? in[2] : Tensor(), .ignore_index = o.ignore, .reduction = o.reduction});
    };
    return row;
  };
  for (Reduction reduction : reductions)
    table.push_back(nll(name_of(reduction), {.ignore = 1, .reduction = reduction}, {{logits, classes({4}, 0, 3)}}));
  table.push_back(nll("class weights", {.weighted = true}, {{logits, classes({4}, 0, 3), weight}}));
  table.push_back(nll("one sample", {}, {{{{5}}, classes({}, 0, 5)}}));
  table.push_back(nll("[N, C, d1]", {.ignore = 0}, {{{{2, 3, 2}}, classes({2, 2}, 0, 3)}}));

  const Input x{{2, 3, 4}}, y{{2, 3, 4}};
  for (Reduction reduction : reductions) {
    table.push_back(summed(
        {.op = "mse_loss",
         .variant = name_of(reduction),
         .inputs = {x, y},
         .function = [reduction](T in) { return mse_loss(in[0], in[1], reduction); },
         .reference =
             [reduction](A in) {
               return reduced(zip(in[0], in[1], [](double a, double b) { return (a - b) * (a - b); }), reduction);
             },
         .more = {{{{}}, {{}}}, {{{0}}, {{0}}}, {{{9, 37}}, {{9, 37}}}},
         .composed = [reduction](T in) { return reduced(square(in[0] - in[1]), reduction); }}));
    table.push_back(
        summed({.op = "binary_cross_entropy_with_logits",
                .variant = name_of(reduction),
                .inputs = {x, {{2, 3, 4}, Fill::unit}},
                .function = bce(reduction, false, false),
                .reference = bce_reference(reduction, false, false),
                .more = {{{{}}, {{}, Fill::unit}}, {{{0}}, {{0}, Fill::unit}}, {{{9, 37}}, {{9, 37}, Fill::unit}}},
                .composed = [reduction](T in) {
                  Tensor p = sigmoid(in[0]);
                  return reduced(-(in[1] * log(p) + (1.0 - in[1]) * log(1.0 - p)), reduction);
                }}));
    table.push_back(
        summed({.op = "kl_div",
                .variant = name_of(reduction),
                .inputs = {x, {{2, 3, 4}, Fill::unit}},
                .function = [reduction](T in) { return kl_div(in[0], in[1], reduction); },
                .reference =
                    [reduction](A in) {
                      return reduced(
                          zip(in[0], in[1], [](double q, double t) { return t == 0 ? 0.0 : t * (std::log(t) - q); }),
                          reduction);
                    },
                .more = {{{{}}, {{}, Fill::unit}}, {{{0}}, {{0}, Fill::unit}}},
                .composed = [reduction](T in) { return reduced(in[1] * (log(in[1]) - in[0]), reduction); }}));
  }
  const Input factor{{4}, Fill::positive, 0, 0, 0, false};
  table.push_back(summed({.op = "binary_cross_entropy_with_logits",
                          .variant = "weight and pos_weight",
                          .inputs = {x, {{2, 3, 4}, Fill::unit}, {{3, 1}, Fill::positive, 0, 0, 0, false}, factor},
                          .function = bce(Reduction::mean, true, true),
                          .reference = bce_reference(Reduction::mean, true, true)}));
  table.push_back(summed({.op = "binary_cross_entropy_with_logits",
                          .variant = "pos_weight, none",
                          .inputs = {x, {{2, 3, 4}, Fill::unit}, factor},
                          .function = bce(Reduction::none, false, true),
                          .reference = bce_reference(Reduction::none, false, true)}));
  table.push_back(summed({.op = "mse_loss",
                          .variant = "an integer target",
                          .inputs = {x, classes({2, 3, 4}, -2, 3)},
                          .function = [](T in) { return mse_loss(in[0], in[1]); },
                          .reference =
                              [](A in) {
                                return reduced(zip(in[0], in[1], [](double a, double b) { return (a - b) * (a - b); }),
                                               Reduction::mean);
                              }}));
  // All but cross_entropy are made of several ops, each of which rounds, and terms of these may cancel.
  for (OpCase& row : table) {
    if (row.op == "cross_entropy") continue;
    row.half_roundings = row.op == "kl_div" ? 16 : row.op == "nll_loss" ? 2 : 3;
    if (row.op == "kl_div" || row.op == "binary_cross_entropy_with_logits") row.half_gradient_roundings = 16;
  }
  return table;
}

TEST_CASE("op cases: losses") { run_table("losses", loss_cases()); }

}  // namespace regard::op_cases
