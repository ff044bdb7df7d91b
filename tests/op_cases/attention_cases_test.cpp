// Op cases: scaled dot-product attention.
#include <catch2/catch.hpp>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;

/// What a row of the table adds to queries, keys and values: inputs 3 and 4 are the masks that are there.
struct Options {
  bool mask = false;
  bool additive = false;  // the mask is floating
  bool key_mask = false;
  bool causal = false;
  std::optional<double> scale = std::nullopt;
  bool weights = false;
  std::vector<double> alibi = {};  // slopes
};

/// Output and weights, an element at a time.
Arrays attended(A in, const Options& o) {
  Array q = in[0], k = in[1], v = in[2];
  const int64_t dims = q.shape.dim();
  for (Array* x : {&q, &k, &v}) {  // [N, H, L, D]
    if (dims == 3) x->shape.insert(1, 1);
    if (dims == 2) x->shape.insert(0, 1), x->shape.insert(0, 1);
  }
  const int64_t batch = q.shape[0], heads = q.shape[1], queries = q.shape[2], keys = k.shape[2], width = q.shape[3],
                value_width = v.shape[3];
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(width)));
  const int64_t group = k.shape[1] > 0 ? heads / k.shape[1] : 1;  // query heads that share a head of keys and values
  const Array* mask = o.mask ? &in[3] : nullptr;
  const Array* key_mask = o.key_mask ? &in.back() : nullptr;
  Array weights = constant({batch, heads, queries, keys}, 0);
  Array output = constant({batch, heads, queries, value_width}, 0);
  each_index({batch, heads, queries}, [&](const Shape& row) {
    const int64_t n = row[0], h = row[1], l = row[2];
    std::vector<double> scores;
    double largest = -inf, sum = 0;
    for (int64_t s = 0; s < keys; ++s) {
      double score = 0;
      for (int64_t d = 0; d < width; ++d) score += at(q, {n, h, l, d}) * at(k, {n, h / group, s, d});
      score *= scale;
      if (!o.alibi.empty())
        score -= o.alibi[static_cast<size_t>(h)] * std::abs(static_cast<double>(l + keys - queries - s));
      if (mask && o.additive) score += at(*mask, {n, h, l, s});
      if (mask && !o.additive && at(*mask, {n, h, l, s}) == 0) score = -inf;
      if (key_mask && at(*key_mask, {n, s}) == 0) score = -inf;
      if (o.causal && s > l + keys - queries) score = -inf;
      scores.push_back(score);
      largest = std::max(largest, score);
    }
    if (largest == -inf) return;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (int64_t s = 0; s < keys; ++s) {
      const double weight = scores[static_cast<size_t>(s)] / sum;
      ref(weights, {n, h, l, s}) = weight;
      for (int64_t d = 0; d < value_width; ++d) ref(output, {n, h, l, d}) += weight * at(v, {n, h / group, s, d});
    }
  });
  for (Array* y : {&output, &weights}) {
    if (dims == 3) y->shape.erase(1);
    if (dims == 2) y->shape.erase(0), y->shape.erase(0);
  }
  return o.weights ? Arrays{output, weights} : Arrays{output};
}

AttentionOptions options(T in, const Options& o) {
  AttentionOptions options;
  if (o.mask) options.mask = in[3];
  if (o.key_mask) options.key_mask = in.back();
  options.causal = o.causal;
  options.scale = o.scale;
  if (!o.alibi.empty()) options.alibi = from_vector<double>(o.alibi).to(in[0].device());
  return options;
}

/// softmax(q k^T scale + mask) v, with rows that see nothing set to zero.
Tensors composed(T given, const Options& o) {
  Tensors in = given;
  if (in[0].dim() == 4 && in[1].size(1) != in[0].size(1))  // each head of keys and values for the queries it serves
    for (size_t i : {1, 2}) {
      Tensors heads;
      for (int64_t h = 0; h < in[0].size(1); ++h) heads.push_back(in[i].select(1, h / (in[0].size(1) / in[i].size(1))));
      in[i] = stack(heads, 1);
    }
  const double scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(in[0].size(-1))));
  Tensor scores = matmul(in[0], transpose(in[1], -2, -1)) * scale;
  const int64_t queries = scores.size(-2), keys = scores.size(-1);
  const Device device = scores.device();
  Tensor allowed = ones(scores.shape(), {DType::boolean, device});
  if (o.causal) allowed = logical_and(allowed, tril(ones({queries, keys}, device), keys - queries) != 0);
  if (o.mask && o.additive) scores = scores + in[3];
  if (!o.alibi.empty()) {
    Tensor distance = abs(arange(queries).unsqueeze(1) + (keys - queries) - arange(keys)).to(scores.dtype()).to(device);
    scores = scores - from_vector<double>(o.alibi).to(scores.dtype()).to(device).view({-1, 1, 1}) * distance;
  }
  if (o.mask && !o.additive) allowed = logical_and(allowed, in[3] != 0);
  if (o.key_mask) {
    const Tensor& mask = in.back();
    Shape shape = Shape::filled(scores.dim(), 1);
    shape[0] = mask.size(0);
    shape[scores.dim() - 1] = keys;
    allowed = logical_and(allowed, mask.contiguous().view(shape) != 0);
  }
  // Finite stand-ins: differences of infinities are NaN, and an empty row is set to zero afterwards.
  Tensor weights = softmax(where(allowed, scores, -1e30), -1);
  weights = where(logical_and(allowed, any(allowed, -1, true)), weights, 0.0);
  Tensor y = matmul(weights, in[2]);
  return o.weights ? Tensors{y, weights} : Tensors{y};
}

OpCase attention(const char* variant, Options o, std::vector<Inputs> sets) {
  const Inputs first = sets.front();
  sets.erase(sets.begin());
  OpCase row{.op = o.weights ? "scaled_dot_product_attention_with_weights" : "scaled_dot_product_attention",
             .variant = variant,
             .inputs = first,
             .function = {},
             .reference = [o](A in) { return attended(in, o); },
             .more = sets,
             .composed = [o](T in) { return composed(in, o); },
             .ulps = 32,
             .half_roundings = 2,            // weights are rounded for their product with values
             .half_gradient_roundings = 24,  // differences of numbers that are larger
             .accumulates = true};
  if (o.weights)
    row.function = [o](T in) { return scaled_dot_product_attention_with_weights(in[0], in[1], in[2], options(in, o)); };
  else
    row.function = [o](T in) { return scaled_dot_product_attention(in[0], in[1], in[2], options(in, o)); };
  return row;
}

/// Queries, keys and values of N x H x L x D over S keys, and values of width Dv.
Inputs qkv(int64_t n, int64_t h, int64_t l, int64_t s, int64_t d, int64_t dv) {
  return {{{n, h, l, d}}, {{n, h, s, d}}, {{n, h, s, dv}}};
}
/// The same with `key_heads` heads of keys and values.
Inputs grouped(int64_t n, int64_t h, int64_t key_heads, int64_t l, int64_t s, int64_t d, int64_t dv) {
  return {{{n, h, l, d}}, {{n, key_heads, s, d}}, {{n, key_heads, s, dv}}};
}
Inputs with(Inputs inputs, std::initializer_list<Input> masks) {
  inputs.insert(inputs.end(), masks);
  return inputs;
}
Input booleans(const Shape& shape) { return {shape, Fill::booleans}; }

}  // namespace

Table attention_cases() {
  Table table;
  for (bool weights : {false, true}) {
    table.push_back(attention("no masks", {.weights = weights},
                              {qkv(1, 2, 2, 3, 3, 2),
                               qkv(2, 1, 1, 1, 1, 1),
                               qkv(1, 2, 0, 3, 2, 2),
                               qkv(1, 2, 3, 0, 2, 2),
                               qkv(0, 2, 3, 3, 2, 2),
                               qkv(2, 3, 20, 37, 16, 24),
                               {{{2, 3, 2}}, {{2, 4, 2}}, {{2, 4, 3}}},
                               {{{3, 2}}, {{4, 2}}, {{4, 3}}}}));
    table.push_back(attention("causal", {.causal = true, .weights = weights},
                              {qkv(1, 1, 3, 3, 2, 2),
                               qkv(1, 2, 2, 5, 2, 3),
                               qkv(1, 1, 5, 2, 2, 2),
                               qkv(1, 2, 40, 40, 8, 8),
                               {{{3, 2}}, {{3, 2}}, {{3, 2}}}}));
    table.push_back(attention("a mask of [L, S]", {.mask = true, .weights = weights},
                              {with(qkv(1, 2, 3, 4, 2, 2), {booleans({3, 4})}),
                               {{{2, 3, 2}}, {{2, 4, 2}}, {{2, 4, 3}}, booleans({3, 4})},
                               {{{3, 2}}, {{4, 2}}, {{4, 3}}, booleans({3, 4})},
                               with(qkv(2, 2, 19, 35, 8, 8), {booleans({19, 35})})}));
    table.push_back(attention("an integer mask of [N, 1, L, S], causal",
                              {.mask = true, .causal = true, .weights = weights},
                              {with(qkv(2, 2, 3, 3, 2, 2), {{{2, 1, 3, 3}, Fill::integers, 0, 3}}),
                               with(qkv(2, 2, 2, 5, 2, 2), {{{1, 2, 1, 5}, Fill::integers, 0, 2}})}));
    table.push_back(attention("a float mask", {.mask = true, .additive = true, .weights = weights},
                              {with(qkv(1, 2, 2, 3, 2, 2), {{{2, 3}}}), with(qkv(2, 2, 3, 3, 2, 2), {{{2, 1, 1, 3}}}),
                               with(qkv(1, 2, 17, 33, 4, 4), {{{1, 2, 17, 33}}})}));
    table.push_back(attention("a key mask", {.key_mask = true, .weights = weights},
                              {with(qkv(2, 1, 2, 4, 2, 2), {booleans({2, 4})}),
                               {{{2, 3, 2}}, {{2, 4, 2}}, {{2, 4, 3}}, booleans({2, 4})},
                               with(qkv(2, 2, 18, 34, 4, 4), {booleans({2, 34})})}));
    table.push_back(attention("every mask together",
                              {.mask = true, .key_mask = true, .causal = true, .scale = 0.75, .weights = weights},
                              {with(qkv(2, 2, 3, 4, 2, 2), {booleans({3, 4}), booleans({2, 4})})}));
    table.push_back(attention("a float mask, key mask and causal",
                              {.mask = true, .additive = true, .key_mask = true, .causal = true, .weights = weights},
                              {with(qkv(2, 2, 2, 3, 2, 2), {{{2, 3}}, booleans({2, 3})})}));
    table.push_back(attention("fewer heads of keys", {.weights = weights},
                              {grouped(1, 4, 2, 2, 3, 3, 2), grouped(2, 3, 1, 3, 2, 2, 2), grouped(2, 6, 2, 1, 5, 2, 3),
                               grouped(1, 4, 2, 0, 3, 2, 2), grouped(1, 4, 2, 3, 0, 2, 2), grouped(0, 4, 2, 1, 2, 2, 2),
                               grouped(1, 6, 2, 21, 37, 8, 8)}));
    table.push_back(
        attention("fewer heads of keys, causal", {.causal = true, .weights = weights},
                  {grouped(1, 4, 2, 3, 4, 2, 2), grouped(1, 4, 1, 1, 4, 2, 2), grouped(1, 2, 1, 40, 40, 8, 8)}));
    table.push_back(attention("fewer heads of keys, a mask and a key mask",
                              {.mask = true, .key_mask = true, .weights = weights},
                              {with(grouped(2, 4, 2, 2, 4, 2, 2), {booleans({2, 4}), booleans({2, 4})}),
                               with(grouped(2, 4, 2, 1, 4, 2, 2), {booleans({1, 4, 1, 4}), booleans({2, 4})}),
                               with(grouped(2, 4, 2, 1, 4, 2, 2), {booleans({2, 1, 1, 4}), booleans({2, 4})})}));
    table.push_back(attention(
        "fewer heads of keys, a float mask", {.mask = true, .additive = true, .weights = weights},
        {with(grouped(1, 4, 2, 2, 3, 2, 2), {{{1, 4, 2, 3}}}), with(grouped(1, 4, 2, 1, 3, 2, 2), {{{1, 3}}})}));
    table.push_back(attention(
        "alibi", {.weights = weights, .alibi = {0.5, 0.125}},
        {qkv(1, 2, 3, 4, 2, 2), qkv(1, 2, 4, 2, 2, 2), qkv(2, 2, 30, 70, 8, 8), grouped(1, 2, 1, 1, 3, 2, 2)}));
    table.push_back(attention("alibi with every mask",
                              {.mask = true,
                               .additive = true,
                               .key_mask = true,
                               .causal = true,
                               .weights = weights,
                               .alibi = {0.5, 0.25, 0.125, 2}},
                              {with(grouped(2, 4, 2, 2, 3, 2, 2), {{{2, 3}}, booleans({2, 3})})}));
  }
  table.push_back(attention("a negative scale", {.scale = -1.5}, {qkv(1, 1, 2, 3, 2, 2)}));
  table.push_back(attention("a scale of 0", {.scale = 0.0}, {qkv(1, 1, 2, 3, 2, 2)}));
  return table;
}

namespace {

/// Pairs turned by the angle of their position, and the rest.
Array turned(const Array& x, int64_t offset, const RotaryOptions& o) {
  const int64_t dims = x.shape.dim(), width = x.shape[dims - 1], whole = o.width ? o.width : width, pairs = whole / 2;
  return make(x.shape, [&](const Shape& i) {
    const int64_t d = i[dims - 1];
    if (d >= whole) return at(x, i);
    const int64_t pair = o.interleaved ? d / 2 : d % pairs;
    const bool first = o.interleaved ? d % 2 == 0 : d < pairs;
    Shape other = i;
    other[dims - 1] = o.interleaved ? d + (first ? 1 : -1) : d + (first ? pairs : -pairs);
    const double angle = static_cast<double>(offset + i[dims - 2]) *
                         std::pow(o.base, -2 * static_cast<double>(pair) / static_cast<double>(whole));
    return at(x, i) * std::cos(angle) + (first ? -1 : 1) * at(x, other) * std::sin(angle);
  });
}

OpCase rotary(const char* variant, int64_t offset, RotaryOptions o, std::vector<Shape> shapes) {
  OpCase row{.op = "rotary_positions",
             .variant = variant,
             .inputs = {{shapes.front()}},
             .function = [=](T in) { return rotary_positions(in[0], offset, o); },
             .reference = [=](A in) { return turned(in[0], offset, o); },
             .ulps = 16,
             .accumulates = true};
  for (size_t i = 1; i < shapes.size(); ++i) row.more.push_back({{shapes[i]}});
  return row;
}

}  // namespace

Table rotary_cases() {
  return {rotary("halves", 0, {}, {{2, 3, 4}, {3, 2}, {2, 1, 5, 6}, {0, 3, 4}, {2, 0, 4}, {1, 2, 1, 1, 2, 1, 3, 2}}),
          rotary("halves, from an offset on", 5, {.base = 100}, {{3, 4}, {2, 3, 70, 32}}),
          rotary("pairs", 2, {.base = 50, .interleaved = true}, {{2, 3, 4}, {5, 2}, {2, 67, 16}}),
          rotary("halves of a part", 1, {.width = 4}, {{2, 3, 7}}),
          rotary("pairs of a part", 1, {.base = 10, .interleaved = true, .width = 2}, {{3, 5}})};
}

TEST_CASE("op cases: rotary positions") { run_table("rotary positions", rotary_cases()); }

TEST_CASE("op cases: attention") { run_table("attention", attention_cases()); }

}  // namespace regard::op_cases
