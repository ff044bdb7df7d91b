// ONNX files: the bytes, every layer's operations recomputed by a reader of its own, what cannot be exported.
//
// With REGARD_ONNX_FOLDER=DIR in the environment, each model is left there with an input and Regard's output, for
// tests/onnx_check.py to run it in onnxruntime.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <fstream>

#include <regard/autograd/safetensors.hpp>
#include <regard/layers/lora.hpp>
#include <regard/layers/onnx/layers.hpp>
#include <regard/layers/onnx/models.hpp>
#include <regard/layers/onnx/protobuf.hpp>

#include "onnx_reader.hpp"
#include "test_folder.hpp"

using namespace regard;          // NOLINT(google-build-using-namespace)
using namespace regard::layers;  // NOLINT(google-build-using-namespace)
using Catch::Matchers::Contains;
using onnx::Graph;
using onnx::MaskValues;
using onnx::Value;

namespace {

using Named = std::map<std::string, Tensor>;

void leave(const std::string& name, const Graph& graph, const Named& inputs, const Named& outputs) {
  const char* folder = std::getenv("REGARD_ONNX_FOLDER");
  if (folder == nullptr) return;
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  graph.save(path.string() + ".onnx");
  StateDict sample;
  for (const auto& [key, tensor] : inputs) sample["input." + key] = tensor;
  for (const auto& [key, tensor] : outputs) sample["output." + key] = tensor.detach();
  save_safetensors(path.string() + ".safetensors", sample);
}

/// The graph's outputs are those expected, to 1e-5 of the largest.
void compare(const std::string& name, const Graph& graph, const Named& inputs, const Named& expected) {
  INFO(name);
  const onnx_reader::Model model = onnx_reader::read(graph.serialized());
  const Named outputs = onnx_reader::run(model, inputs);
  REQUIRE(outputs.size() == expected.size());
  for (const auto& [key, want] : expected) {
    INFO(key);
    const Tensor& got = outputs.at(key);
    REQUIRE(got.shape() == want.shape());
    const double largest = want.numel() > 0 ? abs(want).max().item<double>() : 0;
    CHECK(allclose(got, want, 0, 1e-5 * (1 + largest)));
  }
  leave(name, graph, inputs, expected);
}

/// Parameters away from the zeros and ones that they begin with, so that one that is left out is missed.
template <class L>
L stirred(L layer) {
  Generator generator(3);
  NoGrad no_grad;
  for (const Tensor& p : layer.parameters()) p.add_(randn(p.shape(), p.dtype(), generator), 0.3);
  layer.eval();
  return layer;
}

Tensor numbers(const Shape& shape, uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {}, generator);
}

constexpr DType f32 = DType::f32;
const onnx::Sizes sequence = {"batch", "length", "width"};

/// Sizes of an output that are of no interest here.
onnx::Sizes open(int64_t dims) {
  onnx::Sizes sizes;
  for (int64_t i = 0; i < dims; ++i) sizes.emplace_back("open" + std::to_string(i));
  return sizes;
}

/// A layer of one input [N, T, width] and one output.
template <class L>
void compare_layer(const std::string& name, const L& given, const Tensor& x) {
  const L layer = stirred(given);
  Graph graph;
  onnx::Sizes sizes;
  for (int64_t i = 0; i < x.dim(); ++i) sizes.emplace_back("size" + std::to_string(i));
  graph.output("y", onnx::apply(graph, layer, graph.input("x", f32, sizes)), f32, open(layer(x).dim()));
  compare(name, graph, {{"x", x}}, {{"y", layer(x)}});
}

Tensor truth(const std::vector<bool>& values, const Shape& shape) { return from_vector<bool>(values, shape); }

}  // namespace

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

TEST_CASE("onnx: a vision transformer") {
  manual_seed(5);
  for (ImageSummary summary : {ImageSummary::class_token, ImageSummary::mean}) {
    const VisionTransformer model = stirred(VisionTransformer({.channels = 2,
                                                               .image_height = 4,
                                                               .image_width = 6,
                                                               .patch = 2,
                                                               .classes = 3,
                                                               .width = 8,
                                                               .heads = 2,
                                                               .layers = 2,
                                                               .dropout = 0.1,
                                                               .summary = summary}));
    const Graph graph = onnx::graph_of(model);
    const onnx_reader::Model file = onnx_reader::read(graph.serialized());
    CHECK(file.inputs.at(0).sizes == std::vector<std::string>{"batch", "2", "4", "6"});
    CHECK(file.outputs.at(0).sizes == std::vector<std::string>{"batch", "3"});
    CHECK(file.constants.at("blocks.1.attention.query.bias").shape() == Shape{8});
    CHECK(file.constants.at("blocks.1.feed_forward.up.weight").shape() == Shape{8, 32});  // transposed
    CHECK(std::any_of(file.nodes.begin(), file.nodes.end(),
                      [](const auto& node) { return node.name == "blocks.1.attention/Softmax"; }));
    const Tensor images = numbers({3, 2, 4, 6}, 6);
    compare(summary == ImageSummary::mean ? "vision_mean" : "vision_class", graph, {{"images", images}},
            {{"logits", model(images)}, {"features", model.features(images)}});
  }
}

TEST_CASE("onnx: a GPT, with every kind of positions, tied and not") {
  manual_seed(7);
  const Tensor ids = from_vector<int64_t>({0, 4, 2, 2, 10, 7, 1, 3}, {2, 4});
  for (PositionKind positions : {PositionKind::learned, PositionKind::rotary, PositionKind::alibi})
    for (bool tied : {true, false}) {
      GPTOptions options;
      options.vocabulary = 11;
      options.context = 6;
      options.width = 8;
      options.heads = 4;
      options.layers = 2;
      options.dropout = 0.2;
      options.key_value_heads = tied ? 0 : 2;
      options.positions = positions;
      options.tied = tied;
      options.bias = tied;
      const GPT model = stirred(GPT(options));
      const Graph graph = onnx::graph_of(model);
      const onnx_reader::Model file = onnx_reader::read(graph.serialized());
      CHECK(file.inputs.at(0).sizes == std::vector<std::string>{"batch", "length"});
      CHECK(file.outputs.at(0).sizes == std::vector<std::string>{"batch", "length", "11"});
      CHECK(file.constants.contains("tokens.weight"));
      const std::string name = std::string("gpt_") + to_string(positions) + (tied ? "_tied" : "_grouped");
      compare(name, graph, {{"input_ids", ids}}, {{"logits", model(ids)}});
      // Any length there are positions for, and one token.
      const Tensor one = ids.slice(1, 0, 1), long_ids = cat({ids, ids.slice(1, 0, 2)}, 1);
      for (const Tensor& other : {one, long_ids})
        CHECK(allclose(onnx_reader::run(file, {{"input_ids", other}}).at("logits"), model(other), 0, 1e-4));
    }
}

TEST_CASE("onnx: a BERT, and sentences as vectors") {
  manual_seed(8);
  BertOptions options;
  options.vocabulary = 11;
  options.positions = 6;
  options.width = 8;
  options.heads = 2;
  options.layers = 2;
  options.hidden = 12;
  const Bert model = stirred(Bert(options));
  const Tensor ids = from_vector<int64_t>({2, 4, 3, 0, 2, 7, 8, 3}, {2, 4});
  const Tensor mask = from_vector<int64_t>({1, 1, 1, 0, 1, 1, 1, 1}, {2, 4});
  const Tensor types = from_vector<int64_t>({0, 0, 0, 0, 0, 0, 1, 1}, {2, 4});
  const Named inputs = {{"input_ids", ids}, {"attention_mask", mask}, {"token_type_ids", types}};
  const Tensor states = model(ids, mask, types);
  compare("bert", onnx::graph_of(model), inputs,
          {{"last_hidden_state", states}, {"pooler_output", model.pool(states)}});

  const data::WordPieceTokenizer tokenizer({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"});
  for (Pooling pooling : {Pooling::mean, Pooling::first, Pooling::max})
    for (bool normalise : {true, false}) {
      SentenceEncoder encoder(model, tokenizer, {.pooling = pooling, .normalise = normalise});
      encoder.eval();
      compare(std::string("sentences_") + to_string(pooling) + (normalise ? "" : "_long"), onnx::graph_of(encoder),
              inputs, {{"sentence_embedding", encoder(ids, mask, types)}});
    }
}

TEST_CASE("onnx: encoder and decoder of a sequence-to-sequence model") {
  manual_seed(9);
  const Tensor source = from_vector<int64_t>({1, 4, 3, 0, 2, 6, 5, 3}, {2, 4});
  const Tensor mask = from_vector<int64_t>({1, 1, 1, 0, 1, 1, 1, 1}, {2, 4});
  const Tensor target = from_vector<int64_t>({1, 4, 2, 1, 3, 3}, {2, 3});
  for (bool plain : {true, false}) {
    EncoderDecoderOptions options;
    options.source_vocabulary = 7;
    options.target_vocabulary = plain ? 5 : 7;
    options.max_source = 5;
    options.max_target = 4;
    options.width = 8;
    options.heads = 2;
    options.encoder_layers = options.decoder_layers = 2;
    options.norm_first = plain;
    options.learned_positions = !plain;
    options.share_embeddings = !plain;
    options.tie_output = plain;
    const EncoderDecoder model = stirred(EncoderDecoder(options));
    const Tensor memory = model.encode(source, mask);
    const std::string kind = plain ? "_tied" : "_shared";
    compare("encoder" + kind, onnx::encoder_graph_of(model), {{"source_ids", source}, {"source_mask", mask}},
            {{"memory", memory}});
    compare("decoder" + kind, onnx::decoder_graph_of(model),
            {{"target_ids", target}, {"memory", memory}, {"source_mask", mask}},
            {{"logits", model.decode(target, memory, mask)}});
  }
}

TEST_CASE("onnx: a parameter used in two places is stored once") {
  manual_seed(6);
  const Embedding tokens(5, 4);
  Graph graph;
  const Value ids = graph.input("ids", DType::i64, {"batch", "length"});
  const Value x = onnx::apply(graph, tokens, ids);
  graph.output("scores", graph.op("MatMul", {x, graph.transposed("head", tokens.weight)}), f32, open(3));
  const onnx_reader::Model file = onnx_reader::read(graph.serialized());
  CHECK(file.constants.size() == 1);
  const Tensor given = from_vector<int64_t>({0, 4, 2, 2}, {2, 2});
  compare("tied", graph, {{"ids", given}}, {{"scores", linear(tokens(given), tokens.weight)}});
}

TEST_CASE("onnx: what cannot be exported is refused, and nothing is written") {
  const test::Folder folder;
  Graph empty_graph;
  CHECK_THROWS_WITH(empty_graph.save(folder.path / "model.onnx"), Contains("no output"));
  CHECK(folder.entries() == 0);

  VisionTransformer model({.channels = 1, .image_height = 4, .image_width = 4, .patch = 2, .width = 4, .heads = 2});
  model.to(DType::f64);
  CHECK_THROWS_AS(onnx::graph_of(model), DTypeError);
  CHECK_THROWS_WITH(onnx::graph_of(model), Contains("'patches.") && Contains("is f64") && Contains("(in patches)"));

  // 2 GiB and more, in memory that is never touched: an expanded tensor.
  Graph large;
  large.output("y", large.constant("w", ones({1}).expand({int64_t{1} << 29})), f32, open(3));
  CHECK_THROWS_WITH(large.save(folder.path / "model.onnx"), Contains("2147483647"));
  CHECK(folder.entries() == 0);

  Graph graph;
  const Value x = graph.input("x", f32, {"n"});
  CHECK_THROWS_WITH(graph.input("x", f32, {"n"}), Contains("'x'"));
  CHECK_THROWS_WITH(graph.output("x", x, f32, {"n"}), Contains("'x'"));
  CHECK_THROWS_WITH(graph.output("y", Value(), f32, {"n"}), Contains("no value"));
  CHECK_THROWS_AS(graph.constant("w", Tensor()), ValueError);
  graph.output("y", graph.op("Relu", {x}), f32, {"n"});
  CHECK_THROWS_AS(graph.save(folder.path / "missing" / "model.onnx"), FileError);
  graph.save(folder.path / "model.onnx");
  CHECK(test::read_raw(folder.path / "model.onnx") == graph.serialized());
  CHECK(folder.entries() == 1);
}
