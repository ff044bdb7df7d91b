// Gradient checks of every layer, with all of its parameters and options.
#include <catch2/catch.hpp>

#include <iostream>

#include <regard/regard.hpp>

#include "layer_cases.hpp"

using namespace regard;
using namespace regard::layers;

namespace regard::layer_cases {

namespace {

Linear with_adapter(Linear layer) {
  add_lora(layer, {.rank = 2, .alpha = 3});
  layer.set_requires_grad(true);
  return layer;
}

/// Away from the kink of relu.
Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  Tensor x = randn(shape, DType::f64, generator);
  return x + where(x >= 0, 0.05, x * 0.0 - 0.05);
}
Tensor truth(const std::vector<bool>& values, const Shape& shape) { return from_vector<bool>(values, shape); }

void add_rows_of_pictures(std::vector<LayerCase>& rows) {
  const Tensor x = numbers({2, 3, 4}, 1);
  const Tensor padding = truth({true, true, false, true, true, true}, {2, 3});
  rows.push_back(row("PatchEmbedding", "", PatchEmbedding(2, 2, 3), {numbers({2, 2, 4, 2}, 12)}));
  rows.push_back(row("PatchEmbedding", "no bias", PatchEmbedding(1, 1, 3, false), {numbers({1, 1, 2, 3}, 13)}));
  rows.push_back(row("ClassToken", "", ClassToken(4), {x}));
  rows.push_back(row("MeanPooling", "", MeanPooling(), {x}));
  rows.push_back(row("MeanPooling", "of the tokens that a mask marks", MeanPooling(), {x},
                     [padding](auto& layer, const Tensors& in) { return layer(in[0], beside(padding, in)); }));
  rows.push_back(row("FirstTokenPooling", "", FirstTokenPooling(), {x}));
  rows.push_back(row("AttentionPooling", "key mask", AttentionPooling(4, 2), {x},
                     [padding](auto& layer, const Tensors& in) { return layer(in[0], beside(padding, in)); }));
  rows.push_back(row("AttentionPooling", "with weights", AttentionPooling(4, 2), {x},
                     [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0]); }));
  rows.push_back(row("AvgPool2d", "windows that overlap", AvgPool2d(2, 1), {numbers({1, 2, 3, 3}, 14)}));
  rows.push_back(row("MaxPool2d", "side by side", MaxPool2d(2), {numbers({1, 2, 4, 5}, 15)}));
}

}  // namespace

std::vector<LayerCase> layer_cases() {
  manual_seed(11);
  const Tensor x = numbers({2, 3, 4}, 1);
  const Tensor memory = numbers({2, 5, 4}, 2);
  const Tensor padding = truth({true, true, false, true, true, true}, {2, 3});
  const Tensor memory_padding = truth({true, true, true, false, false, true, false, true, true, true}, {2, 5});
  const Tensor causal_mask = tril(ones({3, 3})) != 0;
  const Tensor added = numbers({3, 3}, 4).detach();

  std::vector<LayerCase> rows;
  rows.push_back(row("Linear", "", Linear(4, 3), {x}));
  rows.push_back(row("Linear", "no bias", Linear(4, 2, false), {x}));
  rows.push_back(row("Linear", "one row", Linear(4, 2), {numbers({4}, 3)}));
  rows.push_back(row("Linear", "with an adapter", with_adapter(Linear(4, 3)), {x}));
  rows.push_back(row("LoraAdapter", "", LoraAdapter(4, 3, 2, 3), {x}));
  rows.push_back(row("Embedding", "", Embedding(5, 3), {from_vector<int64_t>({0, 4, 2, 2, 1, 4}, {2, 3})}));
  rows.push_back(
      row("Embedding", "rows beside the padding", Embedding(5, 3, 1), {from_vector<int64_t>({0, 4, 2, 2}, {2, 2})}));
  rows.push_back(row("LayerNorm", "", LayerNorm(4), {x}));
  rows.push_back(row("LayerNorm", "no bias, large eps", LayerNorm(4, 0.5, false), {x}));
  rows.push_back(row("RMSNorm", "", RMSNorm(4), {x}));
  rows.push_back(row("ReLU", "", ReLU(), {x}));
  rows.push_back(row("GELU", "", GELU(), {x}));
  rows.push_back(row("GELU", "tanh", GELU(GeluApproximation::tanh), {x}));
  rows.push_back(row("SiLU", "", SiLU(), {x}));
  rows.push_back(row("Tanh", "", layers::Tanh(), {x}));
  rows.push_back(row("Sigmoid", "", layers::Sigmoid(), {x}));
  rows.push_back(row("LearnedPositionalEncoding", "", LearnedPositionalEncoding(6, 4), {x}));
  rows.push_back(row("LearnedPositionalEncoding", "from an offset on", LearnedPositionalEncoding(6, 4), {x},
                     [](auto& layer, const Tensors& in) { return layer(in[0], 2); }));
  rows.push_back(row("SinusoidalPositionalEncoding", "", SinusoidalPositionalEncoding(6, 4), {x}));
  rows.push_back(row("RotaryPositionalEncoding", "", RotaryPositionalEncoding(), {x}));
  rows.push_back(row("RotaryPositionalEncoding", "pairs of a part, from an offset on",
                     RotaryPositionalEncoding({.base = 20, .interleaved = true, .width = 2}), {x},
                     [](auto& layer, const Tensors& in) { return layer(in[0], 3); }));
  rows.push_back(
      row("Sequential", "", Sequential(Linear(4, 5), layers::Tanh(), LayerNorm(5), Linear(5, 2, false)), {x}));
  rows.push_back(row("Sequential", "of nothing", Sequential(), {x}));
  rows.push_back(row("FeedForward", "", FeedForward(4, 6), {x}));
  rows.push_back(
      row("FeedForward", "silu, no bias", FeedForward(4, 6, {.activation = Activation::silu, .bias = false}), {x}));
  rows.push_back(row("FeedForward", "tanh gelu", FeedForward(4, 3, {.activation = Activation::gelu_tanh}), {x}));
  rows.push_back(row("MultiHeadAttention", "self", MultiHeadAttention(4, 2), {x}));
  rows.push_back(row("MultiHeadAttention", "no bias, one head", MultiHeadAttention(4, 1, {.bias = false}), {x}));
  rows.push_back(row("MultiHeadAttention", "no batch", MultiHeadAttention(4, 2), {numbers({3, 4}, 5)}));
  rows.push_back(row("MultiHeadAttention", "causal", MultiHeadAttention(4, 2), {x},
                     [](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); }));
  rows.push_back(
      row("MultiHeadAttention", "boolean mask", MultiHeadAttention(4, 2), {x},
          [causal_mask](auto& layer, const Tensors& in) { return layer(in[0], {.mask = beside(causal_mask, in)}); }));
  rows.push_back(row("MultiHeadAttention", "float mask", MultiHeadAttention(4, 2), {x, added},
                     [](auto& layer, const Tensors& in) { return layer(in[0], {.mask = in[1]}); }));
  rows.push_back(row("MultiHeadAttention", "key mask and causal", MultiHeadAttention(4, 2), {x},
                     [padding](auto& layer, const Tensors& in) {
                       return layer(in[0], {.mask = {}, .key_mask = beside(padding, in), .causal = true});
                     }));
  rows.push_back(row("MultiHeadAttention", "a row with nothing to attend to", MultiHeadAttention(4, 2), {x},
                     [](auto& layer, const Tensors& in) {
                       return layer(in[0], {.mask = {}, .key_mask = zeros({2, 3}, {DType::boolean, in[0].device()})});
                     }));
  rows.push_back(row("MultiHeadAttention", "cross, widths of their own",
                     MultiHeadAttention(4, 2, {.dropout = 0, .bias = true, .key_width = 3, .value_width = 5}),
                     {x, numbers({2, 2, 3}, 6), numbers({2, 2, 5}, 7)},
                     [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[2]); }));
  rows.push_back(row("MultiHeadAttention", "widths 5, 3 and 4, one head",
                     MultiHeadAttention(5, 1, {.dropout = 0, .bias = true, .key_width = 3, .value_width = 4}),
                     {numbers({1, 1, 5}, 6), numbers({1, 2, 3}, 8), numbers({1, 2, 4}, 9)},
                     [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[2]); }));
  rows.push_back(row("MultiHeadAttention", "with weights", MultiHeadAttention(4, 2), {x, memory},
                     [memory_padding](auto& layer, const Tensors& in) {
                       return layer.forward_with_weights(in[0], in[1], in[1],
                                                         {.mask = {}, .key_mask = beside(memory_padding, in)});
                     }));
  rows.push_back(row("MultiHeadAttention", "grouped, causal", MultiHeadAttention(4, 4, {.key_value_heads = 2}), {x},
                     [](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); }));
  rows.push_back(row(
      "MultiHeadAttention", "one head of keys, with weights", MultiHeadAttention(4, 2, {.key_value_heads = 1}),
      {x, memory}, [memory_padding](auto& layer, const Tensors& in) {
        return layer.forward_with_weights(in[0], in[1], in[1], {.mask = {}, .key_mask = beside(memory_padding, in)});
      }));
  rows.push_back(row("MultiHeadAttention", "rotary", MultiHeadAttention(4, 2, {.rotary = true}), {x}));
  rows.push_back(
      row("MultiHeadAttention", "rotary pairs, grouped, fewer queries than keys",
          MultiHeadAttention(
              8, 2,
              {.key_value_heads = 1, .rotary = true, .rotary_base = 20, .rotary_interleaved = true, .rotary_width = 2}),
          {numbers({2, 2, 8}, 10), numbers({2, 3, 8}, 11)},
          [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[1], {.causal = true}); }));
  rows.push_back(row("MultiHeadAttention", "rotary, more queries than keys", MultiHeadAttention(4, 2, {.rotary = true}),
                     {x, numbers({2, 2, 4}, 12)},
                     [](auto& layer, const Tensors& in) { return layer(in[0], in[1], in[1]); }));
  rows.push_back(row("MultiHeadAttention", "alibi, padding", MultiHeadAttention(4, 2, {.alibi = true}), {x},
                     [padding](auto& layer, const Tensors& in) {
                       return layer(in[0], {.mask = {}, .key_mask = beside(padding, in)});
                     }));
  rows.push_back(row("MultiHeadAttention", "alibi, rotary, grouped, a float mask",
                     MultiHeadAttention(4, 2, {.key_value_heads = 1, .rotary = true, .alibi = true}), {x, added},
                     [](auto& layer, const Tensors& in) { return layer(in[0], {.mask = in[1]}); }));
  rows.push_back(row("TransformerEncoderLayer", "grouped, rotary, causal",
                     TransformerEncoderLayer(4, 2, {.hidden = 3, .key_value_heads = 1, .rotary = true}), {x},
                     [](auto& layer, const Tensors& in) { return layer(in[0], {.causal = true}); }));
  rows.push_back(
      row("TransformerEncoderLayer", "alibi", TransformerEncoderLayer(4, 2, {.hidden = 3, .alibi = true}), {x}));
  rows.push_back(row("TransformerDecoderLayer", "with weights, grouped",
                     TransformerDecoderLayer(4, 2, {.hidden = 3, .key_value_heads = 1, .alibi = true}), {x, memory},
                     [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0], in[1]); }));
  rows.push_back(row("TransformerEncoderLayer", "pre-norm", TransformerEncoderLayer(4, 2, {.hidden = 5}), {x}));
  rows.push_back(row("TransformerEncoderLayer", "post-norm, no bias",
                     TransformerEncoderLayer(4, 2, {.hidden = 5, .norm_first = false, .bias = false}), {x}));
  rows.push_back(row("TransformerEncoderLayer", "causal, silu, key mask",
                     TransformerEncoderLayer(4, 1, {.hidden = 3, .activation = Activation::silu}), {x},
                     [padding](auto& layer, const Tensors& in) {
                       return layer(in[0], {.mask = {}, .key_mask = beside(padding, in), .causal = true});
                     }));
  rows.push_back(row("TransformerEncoderLayer", "with weights", TransformerEncoderLayer(4, 2, {.hidden = 3}), {x},
                     [](auto& layer, const Tensors& in) { return layer.forward_with_weights(in[0]); }));
  rows.push_back(row("TransformerDecoderLayer", "pre-norm", TransformerDecoderLayer(4, 2, {.hidden = 5}), {x, memory},
                     [](auto& layer, const Tensors& in) { return layer(in[0], in[1]); }));
  rows.push_back(row("TransformerDecoderLayer", "post-norm, masks",
                     TransformerDecoderLayer(4, 2, {.hidden = 5, .norm_first = false}), {x, memory},
                     [padding, memory_padding](auto& layer, const Tensors& in) {
                       DecoderMasks masks;
                       masks.self.key_mask = beside(padding, in);
                       masks.cross.key_mask = beside(memory_padding, in);
                       return layer(in[0], in[1], masks);
                     }));
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
  add_rows_of_pictures(rows);
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
