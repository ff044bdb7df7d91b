#include <regard/layers/patches.hpp>

#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

Tensor image_patches(const Tensor& images, int64_t patch) {
  const char* op = "image_patches";
  check_defined(op, "images", images);
  check<ValueError>(patch > 0, op, "patch ", patch, " must be positive");
  check<ShapeError>(images.dim() == 4, op, "images ", images.shape(),
                    ": [batch, channels, height, width] is expected; unsqueeze(0) makes a batch of one image");
  const int64_t count = images.size(0), channels = images.size(1), height = images.size(2), width = images.size(3);
  check<ShapeError>(height % patch == 0 && width % patch == 0 && height > 0 && width > 0, op, "images ", images.shape(),
                    ": height ", height, " and width ", width, " must be multiples of the patch, ", patch,
                    ": pad or cut the images, or choose a patch that divides both");
  const int64_t rows = height / patch, columns = width / patch;
  return images.reshape({count, channels, rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})  // [N, rows, columns, C, P, P]
      .reshape({count, rows * columns, channels * patch * patch});
}

PatchEmbedding::PatchEmbedding(int64_t channels, int64_t patch, int64_t width, bool with_bias) {
  check<ValueError>(channels > 0 && patch > 0 && width > 0, "PatchEmbedding", "channels ", channels, ", patch ", patch,
                    " and width ", width, " must be positive");
  const double bound = 1 / std::sqrt(static_cast<double>(channels * patch * patch));
  weight = Parameter(empty({width, channels, patch, patch}));
  init::uniform_(weight, -bound, bound);
  if (with_bias) {
    bias = Parameter(empty({width}));
    init::uniform_(bias, -bound, bound);
  }
}

Tensor PatchEmbedding::operator()(const Tensor& images) const {
  LayerScope scope(*this);
  check_defined("PatchEmbedding", "images", images);
  check<ShapeError>(images.dim() == 4 && images.size(1) == weight.size(1), "PatchEmbedding", "images ", images.shape(),
                    ": [batch, ", weight.size(1), " channels, height, width] is expected");
  return linear(image_patches(images, weight.size(2)), weight.flatten(1), bias);  // [N, T, width]
}

void PatchEmbedding::members(Members& m) {
  m("weight", weight);
  m("bias", bias);
}

std::string PatchEmbedding::describe() const {
  return "PatchEmbedding(" + std::to_string(weight.size(1)) + " channels, patch " + std::to_string(weight.size(2)) +
         ", " + std::to_string(weight.size(0)) + (bias.defined() ? ")" : ", no bias)");
}

ClassToken::ClassToken(int64_t width) {
  check<ValueError>(width > 0, "ClassToken", "width ", width, " must be positive");
  weight = Parameter(empty({width}));
  init::normal_(weight, 0, 0.02);
}

Tensor ClassToken::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  check_defined("ClassToken", "x", x);
  check<ShapeError>(x.dim() == 3 && x.size(2) == weight.size(0), "ClassToken", "input ", x.shape(),
                    ": [batch, length, ", weight.size(0), "] is expected");
  return cat({weight.expand({x.size(0), 1, weight.size(0)}), x}, 1);  // [N, T + 1, width]
}

std::string ClassToken::describe() const { return "ClassToken(" + std::to_string(weight.size(0)) + ")"; }

}  // namespace regard::layers
