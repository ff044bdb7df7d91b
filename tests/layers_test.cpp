// Gradient checks of every layer, with all of its parameters and options.
#include <catch2/catch.hpp>

#include <iostream>

#include <regard/regard.hpp>

#include "layer_cases.hpp"

using namespace regard;
using namespace regard::layers;

namespace regard::layer_cases {

namespace {

/// Parameters that start at 0 or 1 are moved away from it, so that a gradient that ignores them is found.
template <class L>
L stirred(L layer) {
  Generator generator(7);
  NoGrad no_grad;
  for (const Tensor& p : layer.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.2);
  return layer;
}

template <class L, class Call>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs, Call call) {
  L layer = stirred(given);
  return {std::move(name), std::move(variant),
          [=](const GradcheckOptions& options) { return gradcheck(layer, inputs, call, options); },
          [=](const GradcheckOptions& options) { return gradgradcheck(layer, inputs, call, options); }};
}
template <class L>
LayerCase row(std::string name, std::string variant, L given, Tensors inputs) {
  return row(std::move(name), std::move(variant), std::move(given), std::move(inputs),
             [](auto& layer, const Tensors& in) { return layer(in[0]); });
}

/// Away from the kink of relu.
Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  Tensor x = randn(shape, DType::f64, generator);
  return x + where(x >= 0, 0.05, x * 0.0 - 0.05);
}
Tensor truth(const std::vector<bool>& values, const Shape& shape) { return from_vector<bool>(values, shape); }

}  // namespace

std::vector<LayerCase> layer_cases() {
  manual_seed(11);
  const Tensor x = numbers({2, 3, 4}, 1);
  const Tensor memory = numbers({2, 5, 4}, 2);
  const Tensor padding = truth({true, true, false, true, true, true}, {2, 3});
  const Tensor memory_padding = truth({true, true, true, false, false, true, false, true, true, true}, {2, 5});
  const Tensor causal_mask = tril(ones({3, 3})) != 0;
  const Tensor added = numbers({3, 3}, 4).detach();

  std::vector<LayerCase> rows = {
      row("Linear", "", Linear(4, 3), {x}),
      row("Linear", "no bias", Linear(4, 2, false), {x}),
      row("Linear", "one row", Linear(4, 2), {numbers({4}, 3)}),
      row("Embedding", "", Embedding(5, 3), {from_vector<int64_t>({0, 4, 2, 2, 1, 4}, {2, 3})}),
      row("Embedding", "rows beside the padding", Embedding(5, 3, 1), {from_vector<int64_t>({0, 4, 2, 2}, {2, 2})}),
      row("LayerNorm", "", LayerNorm(4), {x}),
      row("LayerNorm", "no bias, large eps", LayerNorm(4, 0.5, false), {x}),
      row("RMSNorm", "", RMSNorm(4), {x}),
      row("ReLU", "", ReLU(), {x}),
      row("GELU", "", GELU(), {x}),
      row("GELU", "tanh", GELU(GeluApproximation::tanh), {x}),
      row("SiLU", "", SiLU(), {x}),
      row("Tanh", "", layers::Tanh(), {x}),
      row("Sigmoid", "", layers::Sigmoid(), {x}),
      row("LearnedPositionalEncoding", "", LearnedPositionalEncoding(6, 4), {x}),
      row("LearnedPositionalEncoding", "from an offset on", LearnedPositionalEncoding(6, 4), {x},
          [](auto& layer, const Tensors& in) { return layer(in[0], 2); }),
      row("SinusoidalPositionalEncoding", "", SinusoidalPositionalEncoding(6, 4), {x}),
      row("Sequential", "", Sequential(Linear(4, 5), layers::Tanh(), LayerNorm(5), Linear(5, 2, false)), {x}),
      row("Sequential", "of nothing", Sequential(), {x}),
      row("FeedForward", "", FeedForward(4, 6), {x}),
      row("FeedForward", "silu, no bias", FeedForward(4, 6, {.activation = Activation::silu, .bias = false}), {x}),
      row("FeedForward", "tanh gelu", FeedForward(4, 3, {.activation = Activation::gelu_tanh}), {x}),
      row("MultiHeadAttention", "self", MultiHeadAttention(4, 2), {x}),
      row("MultiHeadAttention", "no bias, one head", MultiHeadAttention(4, 1, {.bias = false}), {x}),
      row("MultiHeadAttention", "no batch", MultiHeadAttention(4, 2), {numbers({3, 4}, 5)}),
      row("MultiHeadAttention", "causal", MultiHeadAttention(4, 2), {x},
          [](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); }),
      row("MultiHeadAttention", "boolean mask", MultiHeadAttention(4, 2), {x},
          [causal_mask](auto& layer, const Tensors& in) { return layer(in[0], {.mask = causal_mask}); }),
      row("MultiHeadAttention", "float mask", MultiHeadAttention(4, 2), {x, added},
          [](auto& layer, const Tensors& in) { return layer(in[0], {.mask = in[1]}); }),
      row("MultiHeadAttention", "key mask and causal", MultiHeadAttention(4, 2), {x},
          [padding](auto& layer, const Tensors& in) {
            return layer(in[0], {.mask = {}, .key_mask = padding, .causal = true});
          }),
      row("MultiHeadAttention", "a row with nothing to attend to", MultiHeadAttention(4, 2), {x},
          [](auto& layer, const Tensors& in) {
            return layer(in[0], {.mask = {}, .key_mask = zeros({2, 3}, DType::boolean)});
          }),
      row("MultiHeadAttention", "cross, widths of their own",
          MultiHeadAttention(4, 2, {.dropout = 0, .bias = true, .key_width = 3, .value_width = 5}),
          {x, numbers({2, 2, 3}, 6), numbers({2, 2, 5}, 7)},
          [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[2]); }),
      row("MultiHeadAttention", "widths 5, 3 and 4, one head",
          MultiHeadAttention(5, 1, {.dropout = 0, .bias = true, .key_width = 3, .value_width = 4}),
          {numbers({1, 1, 5}, 6), numbers({1, 2, 3}, 8), numbers({1, 2, 4}, 9)},
          [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[2]); }),
      row("MultiHeadAttention", "with weights", MultiHeadAttention(4, 2), {x, memory},
          [memory_padding](auto& layer, const Tensors& in) {
            return layer.forward_with_weights(in[0], in[1], in[1], {.mask = {}, .key_mask = memory_padding});
          }),
      row("PatchEmbedding", "", PatchEmbedding(2, 2, 3), {numbers({2, 2, 4, 2}, 12)}),
      row("PatchEmbedding", "no bias", PatchEmbedding(1, 1, 3, false), {numbers({1, 1, 2, 3}, 13)}),
      row("ClassToken", "", ClassToken(4), {x}),
      row("MeanPooling", "", MeanPooling(), {x}),
      row("MeanPooling", "of the tokens that a mask marks", MeanPooling(), {x},
          [padding](auto& layer, const Tensors& in) { return layer(in[0], padding); }),
      row("FirstTokenPooling", "", FirstTokenPooling(), {x}),
      row("AttentionPooling", "key mask", AttentionPooling(4, 2), {x},
          [padding](auto& layer, const Tensors& in) { return layer(in[0], padding); }),
      row("AttentionPooling", "with weights", AttentionPooling(4, 2), {x},
          [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0]); }),
      row("AvgPool2d", "windows that overlap", AvgPool2d(2, 1), {numbers({1, 2, 3, 3}, 14)}),
      row("MaxPool2d", "side by side", MaxPool2d(2), {numbers({1, 2, 4, 5}, 15)}),
      row("TransformerEncoderLayer", "pre-norm", TransformerEncoderLayer(4, 2, {.hidden = 5}), {x}),
      row("TransformerEncoderLayer", "post-norm, no bias",
          TransformerEncoderLayer(4, 2, {.hidden = 5, .norm_first = false, .bias = false}), {x}),
      row("TransformerEncoderLayer", "causal, silu, key mask",
          TransformerEncoderLayer(4, 1, {.hidden = 3, .activation = Activation::silu}), {x},
          [padding](auto& layer, const Tensors& in) {
            return layer(in[0], {.mask = {}, .key_mask = padding, .causal = true});
          }),
      row("TransformerEncoderLayer", "with weights", TransformerEncoderLayer(4, 2, {.hidden = 3}), {x},
          [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0]); }),
      row("TransformerDecoderLayer", "pre-norm", TransformerDecoderLayer(4, 2, {.hidden = 5}), {x, memory},
          [](auto& layer, const Tensors& in) { return layer(in[0], in[1]); }),
      row("TransformerDecoderLayer", "post-norm, masks",
          TransformerDecoderLayer(4, 2, {.hidden = 5, .norm_first = false}), {x, memory},
          [padding, memory_padding](auto& layer, const Tensors& in) {
            DecoderMasks masks;
            masks.self.key_mask = padding;
            masks.cross.key_mask = memory_padding;
            return layer(in[0], in[1], masks);
          }),
  };
  Dropout dropout(0.5);
  dropout.eval();
  rows.push_back(row("Dropout", "evaluation", dropout, {x}));
  rows.push_back(row("Dropout", "training, seeded inside", Dropout(0.5), {x}, [](auto& layer, const Tensors& in) {
    manual_seed(3);
    return layer(in[0]);
  }));
  TransformerEncoderLayer dropping(4, 2, {.hidden = 4, .dropout = 0.3});
  rows.push_back(
      row("TransformerEncoderLayer", "dropping, seeded inside", dropping, {x}, [](auto& layer, const Tensors& in) {
        manual_seed(3);
        return layer(in[0]);
      }));
  return rows;
}

}  // namespace regard::layer_cases

TEST_CASE("layers: gradients of every layer, its inputs and all its parameters, by central differences") {
  int64_t checked = 0, count = 0;
  for (const layer_cases::LayerCase& row : layer_cases::layer_cases()) {
    INFO(row.layer << " (" << row.variant << ")");
    const GradcheckReport report = row.first({});
    CAPTURE(report);
    CHECK(report.passed());
    checked += report.checked;
    ++count;
  }
  std::cout << "layers: " << checked << " derivatives of " << count << " cases\n";
  CHECK(checked > 10000);
}

TEST_CASE("layers: second derivatives of every layer, along random directions") {
  for (const layer_cases::LayerCase& row : layer_cases::layer_cases()) {
    INFO(row.layer << " (" << row.variant << ")");
    const GradcheckReport report = row.second({.fast = true});
    CAPTURE(report);
    CHECK(report.passed());
  }
}

TEST_CASE("layers: no silent cut: a random weighting of the output reaches every parameter and input") {
  manual_seed(17);
  Tensor x = randn({2, 4, 6}).set_requires_grad();
  Tensor memory = randn({2, 3, 6}).set_requires_grad();
  auto reached = [](const Layer& layer, const Tensor& y, const Tensors& inputs) {
    Generator generator(5);
    sum(y * randn(y.shape(), {}, generator)).backward();
    for (const auto& [name, p] : layer.named_parameters()) {
      INFO(layer << "\nparameter " << name);
      REQUIRE(p.grad().defined());
      // A bias of the keys moves all scores of a row alike: its gradient is 0 but for rounding.
      if (name.ends_with("key.bias")) continue;
      CHECK(p.grad().abs().max().item<float>() > 1e-6f);
      CHECK(all(isfinite(p.grad())).item<bool>());
    }
    for (const Tensor& input : inputs) {
      REQUIRE(input.grad().defined());
      CHECK(input.grad().abs().max().item<float>() > 1e-6f);
      input.zero_grad();
    }
  };
  for (bool norm_first : {true, false}) {
    TransformerEncoderLayer encoder(6, 2, {.dropout = 0.1, .norm_first = norm_first});
    reached(encoder, encoder(x, {.causal = true}), {x});
    TransformerDecoderLayer decoder(6, 3, {.dropout = 0.1, .norm_first = norm_first});
    reached(decoder, decoder(x, memory), {x, memory});
  }
  MultiHeadAttention attention(6, 2);
  reached(attention, attention(x, memory, memory), {x, memory});
  Sequential model(LayerNorm(6), FeedForward(6, 8), RMSNorm(6), Linear(6, 3));
  reached(model, model(x), {x});
}
