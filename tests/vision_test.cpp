// Patches, pooling and the vision transformer, against PyTorch's convolution and pooling and Hugging Face's ViT.
#include <regard/tests/reference/reference_layers.hpp>

#include <regard/layers/gradcheck.hpp>
#include <regard/layers/models/vision_transformer.hpp>
#include <regard/layers/models/vision_transformer_layout.hpp>
#include <regard/layers/patches.hpp>
#include <regard/layers/pooling.hpp>

namespace vision_test {

using namespace regard;          // NOLINT(google-build-using-namespace)
using namespace regard::layers;  // NOLINT(google-build-using-namespace)
using Catch::Matchers::Contains;
using reference::Json;

namespace {

template <class L>
void compare(L layer, const Json& json, DType floating) {
  reference::load_parameters(layer, json.at("parameters"), floating);
  const Tensors in = reference::leaves(json.at("inputs"), floating);
  const Tensor output = layer(in.at(0));
  reference::check("output", output, json.at("output"), floating);
  output.backward(reference::tensor(json.at("grad_output"), floating));
  reference::check_input_gradients(in, json.at("input_grads"), floating);
  reference::check_parameter_gradients(layer, json.at("parameter_grads"), floating);
}

int64_t whole(const Json& json, const char* name) { return json.at(name).get<int64_t>(); }

VisionTransformerOptions options_of(const Json& config) {
  VisionTransformerOptions options;
  options.channels = whole(config, "num_channels");
  options.image_height = options.image_width = whole(config, "image_size");
  options.patch = whole(config, "patch_size");
  options.classes = whole(config, "num_labels");
  options.width = whole(config, "hidden_size");
  options.heads = whole(config, "num_attention_heads");
  options.layers = whole(config, "num_hidden_layers");
  options.hidden = whole(config, "intermediate_size");
  options.activation = config.at("hidden_act") == "gelu" ? Activation::gelu : Activation::gelu_tanh;
  options.eps = config.at("layer_norm_eps").get<double>();
  return options;
}

VisionTransformerOptions tiny() {
  VisionTransformerOptions options;
  options.channels = 2;
  options.image_height = 4;
  options.image_width = 6;
  options.patch = 2;
  options.classes = 3;
  options.width = 4;
  options.heads = 2;
  options.layers = 2;
  options.hidden = 5;
  return options;
}

}  // namespace

TEST_CASE("PyTorch's values: PatchEmbedding is a convolution whose stride is its kernel") {
  int ran = 0;
  reference::for_each_case("vision", [&](const Json& json, DType floating) {
    if (json.at("kind") != "patches") return;
    ++ran;
    const bool bias = json.at("parameters").contains("bias");
    compare(PatchEmbedding(whole(json, "channels"), whole(json, "patch"), whole(json, "width"), bias), json, floating);
  });
  CHECK(ran == 6);
}

TEST_CASE("PyTorch's values: AvgPool2d and MaxPool2d, with windows that overlap and a rest, and ties") {
  int ran = 0;
  reference::for_each_case("vision", [&](const Json& json, DType floating) {
    if (json.at("kind") == "average")
      compare(AvgPool2d(whole(json, "kernel"), whole(json, "stride")), json, floating);
    else if (json.at("kind") == "largest")
      compare(MaxPool2d(whole(json, "kernel"), whole(json, "stride")), json, floating);
    else
      return;
    ++ran;
  });
  CHECK(ran == 10);
}

TEST_CASE("Hugging Face's values: a vision transformer with its weights gives its logits and attention") {
  int ran = 0;
  reference::for_each_case("vision", [&](const Json& json, DType floating) {
    if (json.at("kind") != "transformer") return;
    ++ran;
    VisionTransformer model(options_of(json.at("config")));
    model.to(floating);
    model.eval();
    StateDict theirs;
    for (const auto& [name, value] : json.at("parameters").items()) theirs[name] = reference::tensor(value, floating);
    model.load_state_dict(vision_transformer_from(VisionTransformerLayout::hugging_face, theirs));
    const Tensor images = reference::tensor(json.at("inputs")[0], floating);
    reference::check("logits", model(images), json.at("output"), floating);
    const auto [logits, weights] = model.forward_with_weights(images);
    reference::check("logits beside the weights", logits, json.at("output"), floating);
    REQUIRE(weights.size() == json.at("weights").size());
    for (size_t layer = 0; layer < weights.size(); ++layer)
      reference::check("attention of layer " + std::to_string(layer), weights[layer], json.at("weights")[layer],
                       floating);

    // There and back again, with every name and bit.
    const StateDict back = vision_transformer_to(VisionTransformerLayout::hugging_face, model.state_dict());
    REQUIRE(back.size() == theirs.size());
    for (const auto& [name, value] : theirs) {
      INFO(name);
      REQUIRE(back.contains(name));
      CHECK(equal(back.at(name), value));
    }
  });
  CHECK(ran == 4);
}

TEST_CASE("vision transformer: weights with timm's names load and are written") {
  manual_seed(3);
  VisionTransformer model(tiny());
  const StateDict theirs = vision_transformer_to(VisionTransformerLayout::timm, model.state_dict());
  CHECK(theirs.at("cls_token").shape() == Shape{1, 1, 4});
  CHECK(theirs.at("pos_embed").shape() == Shape{1, 7, 4});
  CHECK(theirs.at("patch_embed.proj.weight").shape() == Shape{4, 2, 2, 2});
  CHECK(theirs.at("blocks.1.attn.qkv.weight").shape() == Shape{12, 4});
  CHECK(theirs.at("blocks.1.attn.qkv.bias").shape() == Shape{12});
  // Query, key and value, in this order.
  CHECK(equal(theirs.at("blocks.1.attn.qkv.weight")[Range(4, 8)], model.blocks[1].attention.key.weight));
  for (const char* name : {"blocks.0.norm1.weight", "blocks.0.attn.proj.bias", "blocks.0.norm2.bias",
                           "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight", "norm.weight", "head.bias"})
    CHECK(theirs.contains(name));
  CHECK(theirs.size() == 4 + 2 * 12 + 4);

  VisionTransformer other(tiny());
  other.load_state_dict(vision_transformer_from(VisionTransformerLayout::timm, theirs));
  const Tensor images = randn({2, 2, 4, 6});
  CHECK(equal(other(images), model(images)));

  StateDict more = theirs;
  more["blocks.0.ls1.gamma"] = ones({4});  // a layer scale, which this model has not
  const StateDict read = vision_transformer_from(VisionTransformerLayout::timm, more);
  CHECK_THROWS_WITH(other.load_state_dict(read), Contains("unexpected: blocks.0.ls1.gamma"));
  more["blocks.0.attn.qkv.weight"] = ones({10, 4});
  CHECK_THROWS_WITH(vision_transformer_from(VisionTransformerLayout::timm, more),
                    Contains("blocks.0.attn.qkv.weight [10, 4]"));
  more = theirs;
  more["pos_embed"] = ones({7, 4});
  CHECK_THROWS_WITH(vision_transformer_from(VisionTransformerLayout::timm, more), Contains("pos_embed [7, 4]"));
}

TEST_CASE("patches: channel, row and column of a patch lie in the images' order") {
  const Tensor images = arange(0, 2 * 2 * 2 * 4).view({2, 2, 2, 4});
  const Tensor cut = image_patches(images, 2);
  CHECK(cut.shape() == Shape{2, 2, 8});
  CHECK(cut[1][1].to_vector<int64_t>() == std::vector<int64_t>{18, 19, 22, 23, 26, 27, 30, 31});
  CHECK_THROWS_WITH(image_patches(ones({1, 1, 6, 5}), 2),
                    Contains("[1, 1, 6, 5]") && Contains("multiples of the patch, 2"));
  CHECK_THROWS_AS(image_patches(ones({1, 1, 6, 5}), 2), ShapeError);
  CHECK_THROWS_WITH(image_patches(ones({1, 6, 6}), 2), Contains("[batch, channels, height, width]"));
  CHECK_THROWS_AS(image_patches(ones({1, 1, 6, 6}), 0), ValueError);
  const PatchEmbedding patches(3, 4, 8);
  CHECK_THROWS_WITH(patches(ones({1, 1, 8, 8})), Contains("3 channels"));
  CHECK_THROWS_WITH(patches(ones({1, 3, 8, 9})), Contains("width 9"));
  CHECK(patches(ones({1, 3, 8, 12})).shape() == Shape{1, 6, 8});
  CHECK(patches(ones({0, 3, 8, 12})).shape() == Shape{0, 6, 8});
  CHECK_THROWS_AS(PatchEmbedding(0, 4, 8), ValueError);
}

TEST_CASE("pooling: the mean of the tokens that a mask marks, whatever is in the others") {
  const Tensor x = from_vector<float>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {2, 3, 2});
  const MeanPooling pool;
  CHECK(pool(x).to_vector<float>() == std::vector<float>{3, 4, 9, 10});
  const Tensor mask = from_vector<int64_t>({1, 0, 1, 0, 0, 0}, {2, 3});
  CHECK(pool(x, mask).to_vector<float>() == std::vector<float>{3, 4, 0, 0});
  Tensor spoilt = x.clone();
  spoilt[0][1].fill_(std::numeric_limits<float>::quiet_NaN());
  spoilt[1].fill_(std::numeric_limits<float>::infinity());
  spoilt.set_requires_grad();
  const Tensor y = pool(spoilt, mask != 0);
  CHECK(y.to_vector<float>() == std::vector<float>{3, 4, 0, 0});
  sum(y).backward();
  CHECK(spoilt.grad().to_vector<float>() == std::vector<float>{0.5, 0.5, 0, 0, 0.5, 0.5, 0, 0, 0, 0, 0, 0});

  CHECK_THROWS_WITH(pool(x, ones({2, 2}, DType::i64)), Contains("mask [2, 2]") && Contains("[2, 3, 2]"));
  CHECK_THROWS_AS(pool(x, ones({2, 3})), DTypeError);
  CHECK_THROWS_WITH(pool(x[0]), Contains("[batch, length, width]"));
  CHECK_THROWS_WITH(FirstTokenPooling()(ones({2, 0, 3})), Contains("holds no token"));
  CHECK_THROWS_WITH(MaxPool2d(3)(ones({1, 1, 2, 5})), Contains("smaller than the window, 3 x 3"));
  CHECK_THROWS_AS(AvgPool2d(0), ValueError);
  CHECK_THROWS_AS(MaxPool2d(2, -1), ValueError);
}

TEST_CASE("pooling: attention over tokens sums to one and passes the masked ones by") {
  manual_seed(5);
  const AttentionPooling pool(4, 2);
  const Tensor x = randn({2, 3, 4});
  const Tensor mask = from_vector<bool>({true, false, true, true, true, true}, {2, 3});
  const auto [pooled, weights] = pool.forward_with_weights(x, mask);
  CHECK(pooled.shape() == Shape{2, 4});
  CHECK(weights.shape() == Shape{2, 2, 3});
  CHECK(allclose(weights.sum(-1), ones({2, 2}), 1e-6, 1e-6));
  CHECK(weights[0].select(1, 1).to_vector<float>() == std::vector<float>{0, 0});
  CHECK(allclose(pool(x, mask), pooled, 1e-6, 1e-6));
  Tensor other = x.clone();
  other[0][1].fill_(100);
  CHECK(equal(pool(other, mask), pool(x, mask)));
  CHECK_FALSE(equal(pool(other), pool(x)));
}

TEST_CASE("vision transformer: gradients of the images and of every parameter, by central differences") {
  manual_seed(9);
  for (ImageSummary summary : {ImageSummary::class_token, ImageSummary::mean}) {
    VisionTransformerOptions options = tiny();
    options.summary = summary;
    const VisionTransformer model(options);
    const GradcheckReport report = gradcheck(model, {randn({1, 2, 4, 6})});
    CAPTURE(report);
    CHECK(report.passed());
    const GradcheckReport with_weights = gradcheck(model, {randn({1, 2, 4, 6})},
                                                   [](auto& layer, const Tensors& in) {
                                                     auto [logits, weights] = layer.forward_with_weights(in[0]);
                                                     return Tensors{logits, weights[0], weights[1]};
                                                   },
                                                   {.fast = true});
    CAPTURE(with_weights);
    CHECK(with_weights.passed());
    const GradcheckReport second = gradgradcheck(model, {randn({1, 2, 4, 6})}, {.fast = true});
    CAPTURE(second);
    CHECK(second.passed());
  }
}

TEST_CASE("vision transformer: what its options say, and what it refuses") {
  VisionTransformer model(tiny());
  CHECK(model.patch_rows() == 2);
  CHECK(model.patch_columns() == 3);
  CHECK(model.positions.weight.shape() == Shape{7, 4});
  CHECK(model.state_dict().contains("class_token.weight"));
  model.eval();
  const Tensor images = randn({2, 2, 4, 6});
  const auto [logits, weights] = model.forward_with_weights(images);
  CHECK(allclose(logits, model(images), 1e-5, 1e-6));
  CHECK(allclose(model.head(model.features(images)), logits, 1e-5, 1e-6));
  CHECK(weights.size() == 2);
  CHECK(weights[1].shape() == Shape{2, 2, 7, 7});
  CHECK(allclose(weights[1].sum(-1), ones({2, 2, 7}), 1e-5, 1e-6));

  VisionTransformerOptions options = tiny();
  options.summary = ImageSummary::mean;
  VisionTransformer mean_model(options);
  CHECK(mean_model.positions.weight.shape() == Shape{6, 4});
  CHECK_FALSE(mean_model.state_dict().contains("class_token.weight"));
  CHECK(mean_model.forward_with_weights(images).second[0].shape() == Shape{2, 2, 6, 6});

  CHECK_THROWS_WITH(model(randn({2, 2, 6, 4})), Contains("[batch, 2, 4, 6] is expected"));
  CHECK_THROWS_AS(model(randn({2, 1, 4, 6})), ShapeError);
  CHECK_THROWS_AS(model(randn({2, 4, 6})), ShapeError);
  options.patch = 4;
  CHECK_THROWS_WITH(VisionTransformer(options), Contains("does not divide the image, 4 x 6"));
  options = tiny();
  options.heads = 3;
  CHECK_THROWS_AS(VisionTransformer(options), ValueError);
  options = tiny();
  options.classes = 0;
  CHECK_THROWS_AS(VisionTransformer(options), ValueError);
}

}  // namespace vision_test
