#include <regard/layers/models/vision_transformer.hpp>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

const VisionTransformerOptions& checked(const VisionTransformerOptions& o) {
  const char* op = "VisionTransformer";
  check<ValueError>(o.channels > 0 && o.image_height > 0 && o.image_width > 0 && o.patch > 0 && o.classes > 0, op,
                    "channels ", o.channels, ", image ", o.image_height, " x ", o.image_width, ", patch ", o.patch,
                    " and classes ", o.classes, " must be positive");
  check<ValueError>(o.image_height % o.patch == 0 && o.image_width % o.patch == 0, op, "the patch, ", o.patch,
                    ", does not divide the image, ", o.image_height, " x ", o.image_width,
                    ": choose one that divides both sides");
  check<ValueError>(o.position_std >= 0, op, "position_std ", o.position_std, " must not be negative");
  check<ValueError>(o.layers >= 0, op, "layers ", o.layers, " must not be negative");
  return o;
}

int64_t token_count(const VisionTransformerOptions& o) {
  return (o.image_height / o.patch) * (o.image_width / o.patch) + (o.summary == ImageSummary::class_token ? 1 : 0);
}

}  // namespace

VisionTransformer::VisionTransformer(const VisionTransformerOptions& given)
    : options(checked(given)),
      patches(given.channels, given.patch, given.width),
      positions(token_count(given), given.width),
      drop(given.dropout),
      norm(given.width, given.eps),
      head(given.width, given.classes) {
  init::normal_(positions.weight, 0, given.position_std);
  if (given.summary == ImageSummary::class_token) class_token.emplace(given.width);
  TransformerLayerOptions layer;
  layer.hidden = given.hidden;
  layer.dropout = given.dropout;
  layer.activation = given.activation;
  layer.eps = given.eps;
  blocks.reserve(static_cast<size_t>(given.layers));
  for (int64_t i = 0; i < given.layers; ++i) blocks.emplace_back(given.width, given.heads, layer);
}

Tensor VisionTransformer::embed(const Tensor& images) const {
  check_defined("VisionTransformer", "images", images);
  check<ShapeError>(images.dim() == 4 && images.size(1) == options.channels && images.size(2) == options.image_height &&
                        images.size(3) == options.image_width,
                    "VisionTransformer", "images ", images.shape(), ": [batch, ", options.channels, ", ",
                    options.image_height, ", ", options.image_width,
                    "] is expected; resize the images, or make the model for their size");
  Tensor x = patches(images);              // [N, patches, width]
  if (class_token) x = (*class_token)(x);  // [N, 1 + patches, width]
  return drop(positions(x));
}

Tensor VisionTransformer::summary(const Tensor& tokens) const {
  const Tensor x = norm(tokens);                             // [N, T, width]
  return class_token ? x.select(1, 0) : regard::mean(x, 1);  // [N, width]
}

Tensor VisionTransformer::features(const Tensor& images) const {
  LayerScope scope(*this);
  Tensor x = embed(images);
  for (const TransformerEncoderLayer& block : blocks) x = block(x);
  return summary(x);
}

Tensor VisionTransformer::operator()(const Tensor& images) const {
  LayerScope scope(*this);
  return head(features(images));
}

std::pair<Tensor, Tensors> VisionTransformer::forward_with_weights(const Tensor& images) const {
  LayerScope scope(*this);
  Tensor x = embed(images);
  Tensors all;
  for (const TransformerEncoderLayer& block : blocks) {
    auto [output, weights] = block.forward_with_weights(x);
    x = output;
    all.push_back(weights);
  }
  return {head(summary(x)), std::move(all)};
}

void VisionTransformer::members(Members& m) {
  m("patches", patches);
  m("class_token", class_token);
  m("positions", positions);
  m("drop", drop);
  m("blocks", blocks);
  m("norm", norm);
  m("head", head);
}

std::string VisionTransformer::describe() const {
  return "VisionTransformer(" + std::to_string(options.channels) + " x " + std::to_string(options.image_height) +
         " x " + std::to_string(options.image_width) + ", patch " + std::to_string(options.patch) + ", " +
         std::to_string(options.classes) + " classes)";
}

}  // namespace regard::layers
