// VisionTransformer: pictures into classes.
#pragma once

#include <optional>
#include <vector>

#include <regard/layers/patches.hpp>
#include <regard/layers/pooling.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::layers {

/// What stands for the whole picture.
enum class ImageSummary : uint8_t {
  class_token,  ///< a trained token before the patches, as it is behind the last layer
  mean          ///< the mean of the patches' tokens
};

struct VisionTransformerOptions {
  int64_t channels = 1;
  int64_t image_height = 28;
  int64_t image_width = 28;
  int64_t patch = 4;     ///< side of a patch; must divide both sides of the image
  int64_t classes = 10;  ///< numbers that come out
  int64_t width = 64;    ///< of a token inside the model
  int64_t heads = 4;     ///< must divide the width
  int64_t layers = 4;
  int64_t hidden = 0;  ///< width inside the feed-forward networks; 0: four times the width
  double dropout = 0;  ///< of the embedded tokens, and inside the layers
  ImageSummary summary = ImageSummary::class_token;
  Activation activation = Activation::gelu;
  double eps = 1e-6;  ///< of the layer norms
  /// Positions are N(0, position_std^2) at first. Where there are few pictures to learn from, a value near the size of
  /// the patches' tokens, 0.5 or so, learns several times faster.
  double position_std = 0.02;
};

/// Images [N, channels, image_height, image_width], floating -> logits [N, classes]: patches as tokens, with a class
/// token (or without), learned positions and pre-norm encoder layers; then a norm, what stands for the whole picture,
/// and a Linear. Parameters patches, class_token, positions, blocks, norm, head. Images of another size are a
/// ShapeError: positions are learned for the one size. Dosovitskiy et al., "An image is worth 16x16 words", 2021.
///
/// Weights of timm and of Hugging Face's ViT load through layers/models/vision_transformer_layout.hpp.
struct VisionTransformer : Layer {
  VisionTransformerOptions options;
  PatchEmbedding patches;
  std::optional<ClassToken> class_token;
  LearnedPositionalEncoding positions;
  Dropout drop;
  std::vector<TransformerEncoderLayer> blocks;
  LayerNorm norm;
  Linear head;

  explicit VisionTransformer(const VisionTransformerOptions& options = {});

  Tensor operator()(const Tensor& images) const;
  /// What the head is given, [N, width]: a description of each picture, for a head or a search of one's own.
  Tensor features(const Tensor& images) const;
  /// The logits, and each layer's attention weights [N, H, T, T]. With a class token T is one more than there are
  /// patches, and token 0 is the class token.
  std::pair<Tensor, Tensors> forward_with_weights(const Tensor& images) const;

  int64_t patch_rows() const { return options.image_height / options.patch; }
  int64_t patch_columns() const { return options.image_width / options.patch; }
  void members(Members& m) override;
  std::string describe() const override;

 private:
  Tensor embed(const Tensor& images) const;
  Tensor summary(const Tensor& tokens) const;
};

}  // namespace regard::layers
