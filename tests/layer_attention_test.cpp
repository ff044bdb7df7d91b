// MultiHeadAttention and transformer layers: masks, heads, scale, padding, dropout, weights.
#include <catch2/catch.hpp>

#include <cmath>

#include <regard/regard.hpp>

namespace layer_attention_test {

using namespace regard;
using namespace regard::layers;
using Catch::Matchers::Contains;

namespace {

Tensor doubles(const std::vector<double>& values, const Shape& shape) { return from_vector<double>(values, shape); }

bool near(const Tensor& a, const std::vector<double>& right, double tolerance = 1e-6) {
  const std::vector<double> values = a.to_vector<double>();
  if (values.size() != right.size()) return false;
  for (size_t i = 0; i < right.size(); ++i)
    if (!(std::abs(values[i] - right[i]) <= tolerance)) return false;
  return true;
}

/// Queries and keys that score 0 everywhere.
MultiHeadAttention uniform(int64_t width, int64_t heads, const MultiHeadAttentionOptions& options = {}) {
  MultiHeadAttention attention(width, heads, options);
  attention.query.weight = zeros({width, width});
  attention.key.weight = zeros({width, width});
  return attention;
}

Tensors gradients(const Tensor& y, Tensors of) {
  Generator generator(3);
  return grad(y, of, {.grad_outputs = {randn(y.shape(), y.dtype(), generator)}});
}

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("attention layer: the same output and gradients with and without weights, for every kind of mask") {
  manual_seed(1);
  const Tensor allowed = doubles({1, 0, 0, 1, 1, 0, 0, 0, 0}, {3, 3}) != 0;  // the last row is empty
  const Tensor added = randn({3, 3}, DType::f64);
  const Tensor padding = from_vector<bool>({true, true, false, false, false, false}, {2, 3});
  const AttentionMasks masks[] = {{},
                                  {.mask = allowed},
                                  {.mask = added},
                                  {.mask = {}, .key_mask = padding},
                                  {.mask = {}, .key_mask = {}, .causal = true},
                                  {.mask = allowed, .key_mask = padding, .causal = true}};
  for (const AttentionMasks& mask : masks)
    for (const bool training : {true, false})
      for (const bool wide : {true, false}) {
        MultiHeadAttention attention(4, 2, {.dropout = 0.5});
        if (wide) attention.to(DType::f64);
        if (!wide && mask.mask.defined() && is_floating(mask.mask.dtype())) continue;
        attention.train(training);
        Tensor x = randn({2, 3, 4}, wide ? DType::f64 : DType::f32).set_requires_grad();
        Tensors of = attention.parameters();
        of.push_back(x);
        manual_seed(9);
        Tensor plain = attention(x, mask);
        manual_seed(9);
        auto [output, weights] = attention.forward_with_weights(x, x, x, mask);
        CHECK(plain.to_vector<double>() == output.to_vector<double>());
        CHECK(weights.shape() == Shape{2, 2, 3, 3});
        const Tensors first = gradients(plain, of), second = gradients(output, of);
        for (size_t i = 0; i < of.size(); ++i) {
          CHECK(first[i].to_vector<double>() == second[i].to_vector<double>());
          CHECK(all(isfinite(first[i])).item<bool>());
        }
      }
}

TEST_CASE("attention layer: a fully masked query gives the output's bias, and finite gradients") {
  manual_seed(2);
  MultiHeadAttention attention(4, 2);
  attention.output.bias = from_vector<float>({1, 2, 3, 4});
  Tensor x = randn({2, 3, 4}).set_requires_grad();
  const Tensor padding = from_vector<bool>({true, true, true, false, false, false}, {2, 3});
  Tensor y = attention(x, {.mask = {}, .key_mask = padding});
  for (int64_t l = 0; l < 3; ++l) CHECK(y[1][l].to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  sum(y * y).backward();
  for (const auto& [name, p] : attention.named_parameters()) {
    INFO(name);
    CHECK(all(isfinite(p.grad())).item<bool>());
  }
  CHECK(x.grad()[1].to_vector<float>() == std::vector<float>(12, 0));
}

TEST_CASE("attention layer: causal weights, and no look ahead") {
  MultiHeadAttention even = uniform(4, 2);
  Tensor x = randn({1, 3, 4});
  auto [unused, weights] = even.forward_with_weights(x, x, x, {.mask = {}, .key_mask = {}, .causal = true});
  for (int64_t h = 0; h < 2; ++h) CHECK(near(weights[0][h], {1, 0, 0, .5, .5, 0, 1.0 / 3, 1.0 / 3, 1.0 / 3}));

  manual_seed(4);
  TransformerEncoderLayer block(4, 2);
  Tensor a = randn({1, 3, 4}).set_requires_grad();
  Tensor b = a.detach().clone();
  b.slice(1, 2).fill_(100);
  Tensor ya = block(a, {.mask = {}, .key_mask = {}, .causal = true});
  Tensor yb = block(b, {.mask = {}, .key_mask = {}, .causal = true});
  CHECK(ya.slice(1, 0, 2).to_vector<float>() == yb.slice(1, 0, 2).to_vector<float>());
  CHECK(ya.slice(1, 2).to_vector<float>() != yb.slice(1, 2).to_vector<float>());
  Tensor g = grad(sum(square(ya.slice(1, 0, 2))), {a})[0];
  CHECK(g.slice(1, 2).to_vector<float>() == std::vector<float>(4, 0));
}

TEST_CASE("attention layer: causal with fewer queries than keys sees the past: what a cache of keys needs") {
  manual_seed(5);
  MultiHeadAttention attention(4, 2);
  attention.to(DType::f64);
  Tensor x = randn({1, 5, 4}, DType::f64);
  Tensor whole = attention(x, {.mask = {}, .key_mask = {}, .causal = true});
  Tensor last = attention(x.slice(1, 3), x, x, {.mask = {}, .key_mask = {}, .causal = true});
  CHECK(allclose(last, whole.slice(1, 3), 0, 1e-12));
}

TEST_CASE("attention layer: heads are split and merged in the order of the width, and tokens commute") {
  // Context of head h at token l stands in columns [h D, (h + 1) D): identity projections and one token a query.
  MultiHeadAttention attention(4, 2, {.bias = false});
  for (Linear* projection : {&attention.query, &attention.key, &attention.value, &attention.output})
    projection->weight = eye(4);
  Tensor v = doubles({1, 2, 5, 6, 3, 4, 7, 8}, {1, 2, 4}).to(DType::f32);
  Tensor q = doubles({1, 0, 1, 0, 0, 1, 0, 1}, {1, 2, 4}).to(DType::f32) * 1000.0;  // each attends to itself alone
  CHECK(attention(q, q, v).to_vector<float>() == std::vector<float>{1, 2, 5, 6, 3, 4, 7, 8});

  manual_seed(6);
  MultiHeadAttention any(6, 3);
  any.to(DType::f64);
  Tensor x = randn({2, 5, 6}, DType::f64);
  Tensor order = from_vector<int64_t>({3, 0, 4, 1, 2});
  CHECK(allclose(any(index_select(x, 1, order)), index_select(any(x), 1, order), 0, 1e-12));
}

TEST_CASE("attention layer: dropout acts in training alone, and comes back with train()") {
  manual_seed(7);
  MultiHeadAttention attention(4, 2, {.dropout = 0.9});
  MultiHeadAttention plain(4, 2);
  plain.load_state_dict(attention.state_dict());
  Tensor x = randn({1, 6, 4});
  attention.eval();
  const std::vector<float> y = attention(x).to_vector<float>();
  CHECK(attention(x).to_vector<float>() == y);
  CHECK(plain(x).to_vector<float>() == y);
  attention.train();
  CHECK(attention(x).to_vector<float>() != y);
  TransformerEncoderLayer block(4, 2, {.dropout = 0.5});
  block.eval();
  CHECK(block(x).to_vector<float>() == block(x).to_vector<float>());
}

TEST_CASE("attention layer: returned weights are those before dropout and sum to 1 in training") {
  MultiHeadAttention attention = uniform(2, 1, {.dropout = 0.5});
  Tensor x = randn({4, 2, 2});
  auto [output, weights] = attention.forward_with_weights(x, x, x);
  CHECK(near(weights, std::vector<double>(16, 0.5)));
}

TEST_CASE("attention layer: key and value widths of their own") {
  MultiHeadAttention attention(5, 1, {.dropout = 0, .bias = true, .key_width = 3, .value_width = 4});
  CHECK(attention.query.weight.shape() == Shape{5, 5});
  CHECK(attention.key.weight.shape() == Shape{5, 3});
  CHECK(attention.value.weight.shape() == Shape{5, 4});
  CHECK(attention(randn({1, 1, 5}), randn({1, 2, 3}), randn({1, 2, 4})).shape() == Shape{1, 1, 5});
  CHECK_THAT(message_of([&] {
               attention(randn({1, 1, 5}), randn({1, 2, 4}), randn({1, 2, 4}));
             }),
             Contains("[1, 2, 4]") && Contains("[5, 3]"));
}

TEST_CASE("attention layer: a width that heads do not divide is refused with both numbers") {
  CHECK_THAT(message_of([] { MultiHeadAttention(10, 3); }), Contains("10") && Contains("3") && Contains("divisible"));
  CHECK_THAT(message_of([] { MultiHeadAttention(0, 1); }), Contains("embed_dim 0"));
  CHECK_THAT(message_of([] { MultiHeadAttention(4, 2, {.dropout = 1.5}); }), Contains("1.5"));
}

TEST_CASE("encoder: outputs of real tokens do not depend on padding, whatever stands there") {
  manual_seed(8);
  for (const bool norm_first : {true, false}) {
    TransformerEncoderLayer block(8, 2, {.norm_first = norm_first});
    block.eval();
    Tensor x = randn({1, 3, 8});
    Tensor alone = block(x);
    for (const double filling : {0.0, 1e4}) {
      Tensor padded = cat({x, full({1, 2, 8}, filling)}, 1);
      Tensor y = block(padded, {.mask = {}, .key_mask = from_vector<bool>({true, true, true, false, false}, {1, 5})});
      CHECK(y.shape() == Shape{1, 5, 8});
      CHECK(allclose(y.slice(1, 0, 3), alone, 0, 1e-6));
    }
  }
}

TEST_CASE("attention layer: scores are scaled by the root of the head's width") {
  MultiHeadAttention attention(8, 2, {.bias = false});
  for (Linear* projection : {&attention.query, &attention.key, &attention.value, &attention.output})
    projection->weight = eye(8);
  Tensor q = ones({1, 1, 8}), k = cat({ones({1, 1, 8}), zeros({1, 1, 8})}, 1);
  auto [output, weights] = attention.forward_with_weights(q, k, k);
  CHECK(near(weights, {0.880797, 0.119203, 0.880797, 0.119203}));
}

TEST_CASE("attention: function and layer agree on a mask: true may attend") {
  MultiHeadAttention attention = uniform(2, 1);
  attention.value.weight = eye(2);
  attention.output.weight = eye(2);
  const Tensor mask = from_vector<bool>({true, false}, {1, 2});
  Tensor q = randn({1, 1, 2}), v = randn({1, 2, 2});
  auto [y, weights] = attention.forward_with_weights(q, v, v, {.mask = mask});
  CHECK(near(weights, {1, 0}));
  Tensor same = scaled_dot_product_attention(zeros({1, 1, 2}), zeros({1, 2, 2}), v.view({1, 2, 2}), {.mask = mask});
  CHECK(same.to_vector<float>() == y.to_vector<float>());
}

TEST_CASE("attention layer: a mask of another shape is refused, naming both shapes and the layer") {
  TransformerEncoderLayer block(4, 2);
  block.parameters();
  MultiHeadAttention& attention = block.attention;
  Tensor q = randn({2, 2, 4}), k = randn({2, 3, 4});
  CHECK_THAT(message_of([&] {
               attention(q, k, k, {.mask = ones({3, 2}, DType::boolean)});
             }),
             Contains("[3, 2]") && Contains("[2, 3]") && Contains("(in attention)"));
  CHECK_THAT(message_of([&] {
               attention(q, k, k, {.mask = {}, .key_mask = ones({2, 2}, DType::boolean)});
             }),
             Contains("key_mask") && Contains("[2, 2]") && Contains("[2, 3]"));
  CHECK_THAT(message_of([&] {
               attention(q, k, k, {.mask = ones({2, 2, 3}, DType::boolean)});
             }),
             Contains("3 dimensions"));
  CHECK_THAT(message_of([&] { attention(q, k, randn({2, 4, 4})); }), Contains("[2, 4, 4]"));
  CHECK_THAT(message_of([&] { attention(q, randn({3, 3, 4}), randn({3, 3, 4})); }), Contains("[3, 3, 4]"));
  CHECK_THAT(message_of([&] { attention(randn({4})); }), Contains("[4]"));
}

TEST_CASE("attention layer: without a batch, with an empty batch, and over no tokens") {
  manual_seed(10);
  MultiHeadAttention attention(4, 2);
  Tensor x = randn({3, 4});
  CHECK(allclose(attention(x), attention(x.unsqueeze(0)).squeeze(0), 0, 1e-6));
  auto [y, weights] = attention.forward_with_weights(x, x, x);
  CHECK(weights.shape() == Shape{2, 3, 3});
  CHECK(attention(zeros({0, 3, 4})).shape() == Shape{0, 3, 4});
  CHECK(attention(zeros({2, 0, 4})).shape() == Shape{2, 0, 4});
  Tensor none = attention(x.unsqueeze(0), zeros({1, 0, 4}), zeros({1, 0, 4}));
  CHECK(none[0][0].to_vector<float>() == attention.output.bias.to_vector<float>());
}

TEST_CASE("attention layer: masks of one padded sample and causal order combine, an element at a time") {
  manual_seed(12);
  MultiHeadAttention attention(4, 2);
  attention.to(DType::f64);
  Tensor x = randn({2, 4, 4}, DType::f64);
  const Tensor padding = from_vector<bool>({true, true, true, false, false, true, true, true}, {2, 4});
  Tensor both = attention(x, {.mask = {}, .key_mask = padding, .causal = true});
  Tensor full_mask = logical_and(padding.view({2, 1, 1, 4}), (tril(ones({4, 4})) != 0).view({1, 1, 4, 4}));
  CHECK(allclose(attention(x, {.mask = full_mask}), both, 0, 1e-12));
  Tensor added = where(full_mask, zeros({}, DType::f64), -std::numeric_limits<double>::infinity());
  CHECK(allclose(attention(x, {.mask = added}), both, 0, 1e-12));
}

TEST_CASE("decoder: causal unless told otherwise; memory's padding does not reach it") {
  manual_seed(13);
  TransformerDecoderLayer block(4, 2);
  Tensor x = randn({1, 3, 4}), memory = randn({1, 4, 4});
  Tensor changed = x.clone();
  changed.slice(1, 2).fill_(7);
  CHECK(block(x, memory).slice(1, 0, 2).to_vector<float>() == block(changed, memory).slice(1, 0, 2).to_vector<float>());
  DecoderMasks open;
  open.self.causal = false;
  CHECK(block(x, memory, open).slice(1, 0, 2).to_vector<float>() !=
        block(changed, memory, open).slice(1, 0, 2).to_vector<float>());
  DecoderMasks padded;
  padded.cross.key_mask = from_vector<bool>({true, true, false, false}, {1, 4});
  Tensor other = memory.clone();
  other.slice(1, 2).fill_(1e6);
  CHECK(block(x, memory, padded).to_vector<float>() == block(x, other, padded).to_vector<float>());
}

TEST_CASE("gradient check of an expanded input: each repeated element has its own derivative") {
  Linear layer(2, 2, false);
  layer.weight = from_vector<float>({1, 2, 3, 4}, {2, 2});
  Tensor v = doubles({0.5}, {1}).expand({2}).set_requires_grad();
  layer.to(DType::f64);
  CHECK(gradcheck([&](const Tensors& in) { return sum(layer(in[0])); }, {v}));
  CHECK(near(grad(sum(layer(v)), {v})[0], {4, 6}));
}

}  // namespace layer_attention_test
