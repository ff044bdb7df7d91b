// PatchEmbedding: pictures as rows of tokens.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// The square patches of images [N, C, H, W] that lie side by side, left to right, then top to bottom:
/// [N, (H / patch) (W / patch), C patch patch]. The numbers of a patch are in the images' order: channel, row, column.
/// A ShapeError where `patch` does not divide both sides.
Tensor image_patches(const Tensor& images, int64_t patch);

/// Images [N, channels, H, W] -> tokens [N, (H / patch) (W / patch), width]: an affine map of each patch, which is a
/// convolution whose stride is its kernel. H and W may be any multiples of `patch`; others are a ShapeError. Parameters
/// weight [width, channels, patch, patch], as torch.nn.Conv2d has it, and bias [width], uniform in
/// +-1 / sqrt(channels patch patch) at first. Dosovitskiy et al., "An image is worth 16x16 words", 2021.
struct PatchEmbedding : Layer {
  Parameter weight;
  Parameter bias;  ///< undefined without a bias

  PatchEmbedding(int64_t channels, int64_t patch, int64_t width, bool with_bias = true);
  Tensor operator()(const Tensor& images) const;
  void members(Members& m) override;
  std::string describe() const override;
};

/// Tokens [N, T, width] -> [N, T + 1, width]: one trained vector before them, which gathers what a picture (or text) as
/// a whole is; FirstTokenPooling takes it out again. Parameter weight [width], N(0, 0.02^2) at first. Devlin et al.,
/// "BERT", 2019; Dosovitskiy et al., 2021.
struct ClassToken : Layer {
  Parameter weight;

  explicit ClassToken(int64_t width);
  Tensor operator()(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight); }
  std::string describe() const override;
};

}  // namespace regard::layers
