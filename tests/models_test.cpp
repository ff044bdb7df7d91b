// Gradient checks of every model, small, with all of its parameters: what layers_test.cpp is for layers.
#include <catch2/catch.hpp>

#include <iostream>

#include <regard/layers/models/bert.hpp>
#include <regard/layers/models/encoder_decoder.hpp>
#include <regard/layers/models/gpt.hpp>
#include <regard/layers/models/sentence_encoder.hpp>
#include <regard/layers/models/vision_transformer.hpp>

#include "layer_cases.hpp"

using namespace regard;
using namespace regard::layers;

namespace regard::layer_cases {

namespace {

BertOptions tiny_bert(int64_t vocabulary) {
  BertOptions options;
  options.vocabulary = vocabulary;
  options.positions = 4;
  options.width = 4;
  options.heads = 2;
  options.layers = 1;
  options.hidden = 6;
  options.dropout = options.attention_dropout = 0;
  options.padding = -1;
  return options;
}

VisionTransformerOptions tiny_vision() {
  VisionTransformerOptions options;
  options.channels = 1;
  options.image_height = options.image_width = 4;
  options.patch = 2;
  options.classes = 3;
  options.width = 4;
  options.heads = 2;
  options.layers = 1;
  options.hidden = 5;
  return options;
}

}  // namespace

std::vector<LayerCase> model_cases() {
  manual_seed(13);
  const Tensor ids = from_vector<int64_t>({1, 2, 3, 4, 5, 0}, {2, 3});
  const Tensor types = from_vector<int64_t>({0, 1, 1, 0, 0, 1}, {2, 3});
  const Tensor mask = from_vector<int64_t>({1, 1, 1, 1, 1, 0}, {2, 3});
  Generator generator(3);

  std::vector<LayerCase> rows;
  rows.push_back(row("GPT", "", GPT({.vocabulary = 6, .context = 3, .width = 4, .heads = 2, .layers = 1}), {ids}));
  rows.push_back(row("EncoderDecoder", "padded source",
                     EncoderDecoder({.source_vocabulary = 6,
                                     .target_vocabulary = 6,
                                     .max_source = 3,
                                     .max_target = 3,
                                     .width = 4,
                                     .heads = 2,
                                     .encoder_layers = 1,
                                     .decoder_layers = 1,
                                     .hidden = 5}),
                     {ids},
                     [mask](auto& model, const Tensors& in) { return model(in[0], in[0], beside(mask, in) != 0); }));
  rows.push_back(
      row("VisionTransformer", "", VisionTransformer(tiny_vision()), {randn({1, 1, 4, 4}, DType::f64, generator)}));
  rows.push_back(row("Bert", "with the pooler", Bert(tiny_bert(6)), {ids}, [=](auto& model, const Tensors& in) {
    const Tensor x = model(in[0], beside(mask, in), beside(types, in));
    return Tensors{x, model.pool(x)};
  }));
  BertOptions without_pooler = tiny_bert(7);  // it has no part in a sentence's vector
  without_pooler.pooler = false;
  const data::WordPieceTokenizer tokenizer({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"});
  rows.push_back(
      row("SentenceEncoder", "mean, normalised", SentenceEncoder(Bert(without_pooler), tokenizer, {.longest = 4}),
          {ids}, [=](auto& model, const Tensors& in) { return model(in[0], beside(mask, in), beside(types, in)); }));
  return rows;
}

}  // namespace regard::layer_cases

TEST_CASE("models: gradients of every model, its inputs and all its parameters, by central differences") {
  int64_t checked = 0, count = 0;
  for (const layer_cases::LayerCase& row : layer_cases::model_cases()) {
    INFO(row.layer << " (" << row.variant << ")");
    const GradcheckReport report = row.first({});
    CAPTURE(report);
    CHECK(report.passed());
    CHECK(report.checked > 500);
    checked += report.checked;
    ++count;
  }
  std::cout << "models: " << checked << " derivatives of " << count << " cases\n";
}

TEST_CASE("models: second derivatives of every model, along random directions") {
  for (const layer_cases::LayerCase& row : layer_cases::model_cases()) {
    INFO(row.layer << " (" << row.variant << ")");
    const GradcheckReport report = row.second({.fast = true});
    CAPTURE(report);
    CHECK(report.passed());
  }
}
