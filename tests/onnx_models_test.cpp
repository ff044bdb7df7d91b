// ONNX files of whole models, recomputed from their bytes; what cannot be exported.

#include <algorithm>

#include "onnx_compare.hpp"
#include "test_folder.hpp"

namespace onnx_models_test {

using namespace regard;          // NOLINT(google-build-using-namespace)
using namespace regard::layers;  // NOLINT(google-build-using-namespace)
using namespace onnx_test;       // NOLINT(google-build-using-namespace)
using Catch::Matchers::Contains;
using onnx::Value;

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

}  // namespace onnx_models_test
