// Each layer's forward and backward pass, the gradients of its input and parameters with it, on [8, 64, 128] unless its
// name says otherwise. `GFLOP` counts the matrix products, twice the forward's in the backward pass.
#include <memory>
#include <regard/bench/suite.hpp>
#include <regard/regard.hpp>

namespace {

using namespace regard;
using namespace regard::layers;

constexpr int64_t batch = 8, length = 64, width = 128, heads = 4;
constexpr double tokens = batch * length;
constexpr double scores = 4 * tokens * length * width;  // forward, of one attention
constexpr double projection = 2 * tokens * width * width;

// `call(layer, x)` gives the output of a layer that `make` made.
template <class Make, class Input, class Call>
void add(const std::string& name, double forward_flops, Make make, Input input, Call call) {
  bench::add(name, {.flops = 3 * forward_flops}, [=] {
    auto layer = std::make_shared<decltype(make())>(make());
    layer->parameters();
    const Tensor x = input();
    auto gradient = std::make_shared<Tensor>();
    return [=] {
      layer->zero_grad();
      x.zero_grad();
      const Tensor y = call(*layer, x);
      if (!gradient->defined()) *gradient = randn(y.shape());
      y.backward(*gradient);
    };
  });
}

Tensor sequence() { return randn({batch, length, width}).set_requires_grad(); }
Tensor ids() { return randint(0, 1000, {batch, length}); }

template <class Make>
void add(const std::string& name, double forward_flops, Make make) {
  add(name, forward_flops, make, sequence, [](const auto& layer, const Tensor& x) { return layer(x); });
}

}  // namespace

int main(int argc, char** argv) {
  const auto apply = [](const auto& layer, const Tensor& x) { return layer(x); };
  const auto causal = [](const auto& layer, const Tensor& x) { return layer(x, {.causal = true}); };
  add("Linear 128 -> 512", 4 * projection, [] { return Linear(width, 4 * width); });
  add("Linear 128 -> 512 without bias", 4 * projection, [] { return Linear(width, 4 * width, false); });
  add("LayerNorm", 0, [] { return LayerNorm(width); });
  add("RMSNorm", 0, [] { return RMSNorm(width); });
  add("Dropout", 0, [] { return Dropout(0.1); });
  add("GELU", 0, [] { return GELU(); });
  add(
      "Embedding 1000", 0, [] { return Embedding(1000, width); }, ids, apply);
  add("LearnedPositionalEncoding", 0, [] { return LearnedPositionalEncoding(length, width); });
  add("SinusoidalPositionalEncoding", 0, [] { return SinusoidalPositionalEncoding(length, width); });
  add("RotaryPositionalEncoding", 0, [] { return RotaryPositionalEncoding(); });
  add("FeedForward", 8 * projection, [] { return FeedForward(width, 4 * width); });
  add("MultiHeadAttention", 4 * projection + scores, [] { return MultiHeadAttention(width, heads); });
  add(
      "MultiHeadAttention, causal", 4 * projection + 0.5 * scores, [] { return MultiHeadAttention(width, heads); },
      sequence, causal);
  add("MultiHeadAttention, one head of keys, rotary", 2.5 * projection + scores,
      [] { return MultiHeadAttention(width, heads, {.key_value_heads = 1, .rotary = true}); });
  add("TransformerEncoderLayer", 12 * projection + scores, [] { return TransformerEncoderLayer(width, heads); });
  add(
      "TransformerEncoderLayer, causal", 12 * projection + 0.5 * scores,
      [] { return TransformerEncoderLayer(width, heads); }, sequence, causal);
  add(
      "TransformerDecoderLayer", 16 * projection + 1.5 * scores, [] { return TransformerDecoderLayer(width, heads); },
      sequence, [](const auto& layer, const Tensor& x) { return layer(x, x); });
  add("MeanPooling", 0, [] { return MeanPooling(); });
  add("AttentionPooling", 0, [] { return AttentionPooling(width, heads); });
  add(
      "PatchEmbedding 28x28, patches of 7", 2.0 * 8 * 16 * 49 * width, [] { return PatchEmbedding(1, 7, width); },
      [] {
        return randn({8, 1, 28, 28});
      },
      apply);
  add(
      "GPT, 4 layers, vocabulary 65", 4 * (12 * projection + 0.5 * scores) + 2 * tokens * width * 65,
      [] { return GPT({.vocabulary = 65, .context = length, .width = width, .heads = heads, .layers = 4}); },
      [] {
        return randint(0, 65, {batch, length});
      },
      apply);
  return bench::run(argc, argv);
}
