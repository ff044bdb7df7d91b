// ONNX files: the bytes, and every layer's operations recomputed from them.

#include <regard/layers/lora.hpp>
#include <regard/layers/onnx/protobuf.hpp>

#include "onnx_compare.hpp"

namespace onnx_test {

using namespace regard;          // NOLINT(google-build-using-namespace)
using namespace regard::layers;  // NOLINT(google-build-using-namespace)
using namespace onnx_test;       // NOLINT(google-build-using-namespace)
using Catch::Matchers::Contains;
using onnx::MaskValues;
using onnx::Value;

TEST_CASE("onnx: the wire format of protocol buffers, byte by byte") {
  const auto hex = [](const std::string& bytes) {
    std::string text;
    for (unsigned char byte : bytes) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  };
  using onnx::MessageWriter;
  // From the documentation: 150 in field 1, "testing" in field 2, the first message in field 3.
  CHECK(hex(MessageWriter().number(1, 150).text()) == "089601");
  CHECK(hex(MessageWriter().bytes(2, "testing").text()) == "120774657374696e67");
  CHECK(hex(MessageWriter().message(3, MessageWriter().number(1, 150)).text()) == "1a03089601");
  CHECK(hex(MessageWriter().number(1, 0).text()) == "0800");
  CHECK(hex(MessageWriter().number(1, 127).number(1, 128).text()) == "087f088001");
  CHECK(hex(MessageWriter().number(1, -1).text()) == "08ffffffffffffffffff01");
  CHECK(hex(MessageWriter().number(1, INT64_MIN).text()) == "0880808080808080808001");
  CHECK(hex(MessageWriter().number(16, 1).text()) == "800101");
  CHECK(hex(MessageWriter().real(2, 1.0F).text()) == "150000803f");
  CHECK(hex(MessageWriter().bytes(1, "").text()) == "0a00");
  CHECK(hex(MessageWriter().length(7, 300).text()) == "3aac02");
}

TEST_CASE("onnx: layers without attention compute what Regard computes") {
  manual_seed(1);
  const Tensor x = numbers({2, 3, 4}, 1);
  compare_layer("linear", Linear(4, 5), x);
  compare_layer("linear_no_bias", Linear(4, 5, false), x);
  compare_layer("layer_norm", LayerNorm(4), x);
  compare_layer("layer_norm_no_bias", LayerNorm(4, 0.1, false), x);
  compare_layer("rms_norm", RMSNorm(4), x);
  compare_layer("learned_positions", LearnedPositionalEncoding(5, 4), x);
  compare_layer("sinusoidal_positions", SinusoidalPositionalEncoding(5, 4), x);
  compare_layer("class_token", ClassToken(4), x);
  compare_layer("mean_pooling", MeanPooling(), x);
  compare_layer("first_token", FirstTokenPooling(), x);
  compare_layer("attention_pooling", AttentionPooling(4, 2), x);
  compare_layer("patches", PatchEmbedding(2, 2, 3), numbers({2, 2, 4, 6}, 2));
  compare_layer("patches_no_bias", PatchEmbedding(1, 3, 3, false), numbers({1, 1, 3, 6}, 3));
  compare_layer("average_pooling", AvgPool2d(3, 2), numbers({2, 2, 6, 8}, 4));
  compare_layer("max_pooling", MaxPool2d(2), numbers({2, 2, 4, 7}, 5));
  for (Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu})
    compare_layer(std::string("feed_forward_") + to_string(activation), FeedForward(4, 6, {.activation = activation}),
                  x);

  const Embedding embedding = stirred(Embedding(7, 3));
  Graph graph;
  graph.output("y", onnx::apply(graph, embedding, graph.input("ids", DType::i64, {"batch", "length"})), f32, open(3));
  const Tensor ids = from_vector<int64_t>({0, 6, 3, 3, 1, 5}, {2, 3});
  compare("embedding", graph, {{"ids", ids}}, {{"y", embedding(ids)}});

  const MeanPooling pool;
  const Tensor mask = truth({true, false, true, false, false, false}, {2, 3});
  Graph masked;
  const Value tokens = masked.input("x", f32, sequence),
              marks = masked.input("mask", DType::boolean, {"batch", "length"});
  masked.output("y", onnx::apply(masked, pool, tokens, marks), f32, open(2));
  compare("mean_pooling_mask", masked, {{"x", x}, {"mask", mask}}, {{"y", pool(x, mask)}});
}

TEST_CASE("onnx: an adapter is merged into its layer") {
  manual_seed(2);
  Linear layer(4, 5);
  layer.lora.emplace(4, 5, 2, 3);
  compare_layer("lora", layer, numbers({2, 3, 4}, 1));
}

TEST_CASE("onnx: attention with every kind of heads, positions and masks computes what Regard computes") {
  manual_seed(3);
  const Tensor x = numbers({2, 3, 8}, 1), memory = numbers({2, 5, 8}, 2);
  const Tensor key_mask = truth({true, true, false, false, false, false}, {2, 3});  // one row with nothing to attend to
  const Tensor memory_mask = truth({true, true, false, true, false, true, true, true, true, true}, {2, 5});
  const auto self = [&](const std::string& name, const MultiHeadAttentionOptions& options, bool causal, bool masked) {
    const MultiHeadAttention layer = stirred(MultiHeadAttention(8, 4, options));
    Graph graph;
    const Value in = graph.input("x", f32, sequence);
    Named inputs = {{"x", x}};
    MaskValues masks;
    masks.causal = causal;
    if (masked) {
      masks.key_mask = graph.input("mask", DType::boolean, {"batch", "length"});
      inputs["mask"] = key_mask;
    }
    const auto [y, weights] = onnx::apply_with_weights(graph, layer, in, in, in, masks);
    graph.output("y", y, f32, open(3));
    graph.output("weights", weights, f32, open(4));
    const auto [output, expected] =
        layer.forward_with_weights(x, x, x, {.mask = {}, .key_mask = masked ? key_mask : Tensor(), .causal = causal});
    compare(name, graph, inputs, {{"y", output}, {"weights", expected}});
  };
  self("attention", {}, false, false);
  self("attention_causal", {.bias = false}, true, false);
  self("attention_mask", {}, false, true);
  self("attention_causal_mask", {}, true, true);
  self("attention_grouped", {.key_value_heads = 2}, true, false);
  self("attention_one_key_head", {.key_value_heads = 1}, false, true);
  self("attention_rotary", {.rotary = true}, true, false);
  self("attention_rotary_pairs", {.key_value_heads = 2, .rotary = true, .rotary_base = 50, .rotary_interleaved = true},
       false, false);
  self("attention_alibi", {.alibi = true}, true, true);
  // Heads of width 2 are turned whole; here, half of heads of width 4.
  const MultiHeadAttention part = stirred(MultiHeadAttention(8, 2, {.rotary = true, .rotary_width = 2}));
  Graph graph;
  const Value in = graph.input("x", f32, sequence);
  graph.output("y", onnx::apply(graph, part, in, in, in), f32, open(3));
  compare("attention_rotary_part", graph, {{"x", x}}, {{"y", part(x)}});

  for (bool alibi : {false, true}) {  // over a memory, causal: fewer queries than keys
    const MultiHeadAttention cross = stirred(MultiHeadAttention(8, 4, {.key_value_heads = 2, .alibi = alibi}));
    Graph other;
    const Value query = other.input("x", f32, sequence),
                keys = other.input("memory", f32, {"batch", "source", "width"});
    MaskValues masks;
    masks.key_mask = other.input("mask", DType::boolean, {"batch", "source"});
    masks.causal = true;
    other.output("y", onnx::apply(other, cross, query, keys, keys, masks), f32, open(3));
    compare(alibi ? "attention_cross_alibi" : "attention_cross", other,
            {{"x", x}, {"memory", memory}, {"mask", memory_mask}},
            {{"y", cross(x, memory, memory, {.mask = {}, .key_mask = memory_mask, .causal = true})}});
  }

  const MultiHeadAttention plain = stirred(MultiHeadAttention(8, 2));
  const Tensor allowed = truth({true, false, false, true, true, false, false, true, true}, {3, 3});
  Graph with_mask;
  const Value tokens = with_mask.input("x", f32, sequence);
  MaskValues masks;
  masks.mask = with_mask.constant("allowed", allowed);
  with_mask.output("y", onnx::apply(with_mask, plain, tokens, tokens, tokens, masks), f32, open(3));
  compare("attention_any_mask", with_mask, {{"x", x}}, {{"y", plain(x, {.mask = allowed})}});

  const MultiHeadAttention turning = stirred(MultiHeadAttention(8, 2, {.rotary = true}));
  CHECK_THROWS_WITH(onnx::apply(graph, turning, in, graph.op("Identity", {in}), in), Contains("self-attention only"));
}

TEST_CASE("onnx: transformer layers, pre-norm and post-norm, compute what Regard computes") {
  manual_seed(4);
  const Tensor x = numbers({2, 3, 8}, 1), memory = numbers({2, 5, 8}, 2);
  const Tensor memory_mask = truth({true, true, false, true, false, true, true, true, true, true}, {2, 5});
  for (bool norm_first : {true, false}) {
    const std::string kind = norm_first ? "pre" : "post";
    const TransformerEncoderLayer encoder =
        stirred(TransformerEncoderLayer(8, 2, {.hidden = 12, .dropout = 0.3, .norm_first = norm_first}));
    Graph graph;
    const Value in = graph.input("x", f32, sequence);
    MaskValues causal;
    causal.mask = onnx::causal_mask(graph, in, in);
    graph.output("y", onnx::apply(graph, encoder, in, causal), f32, open(3));
    compare("encoder_layer_" + kind, graph, {{"x", x}}, {{"y", encoder(x, {.causal = true})}});

    const TransformerDecoderLayer decoder =
        stirred(TransformerDecoderLayer(8, 2, {.hidden = 12, .norm_first = norm_first, .bias = norm_first}));
    Graph other;
    const Value target = other.input("x", f32, sequence);
    const Value source = other.input("memory", f32, {"batch", "source", "width"});
    onnx::DecoderMaskValues masks;
    masks.cross.key_mask = other.input("mask", DType::boolean, {"batch", "source"});
    other.output("y", onnx::apply(other, decoder, target, source, masks), f32, open(3));
    DecoderMasks wanted;
    wanted.cross.key_mask = memory_mask;
    compare("decoder_layer_" + kind, other, {{"x", x}, {"memory", memory}, {"mask", memory_mask}},
            {{"y", decoder(x, memory, wanted)}});
  }
}

}  // namespace onnx_test
