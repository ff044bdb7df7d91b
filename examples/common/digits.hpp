#pragma once

#include <cstdint>
#include <filesystem>
#include <regard/autograd/tensor.hpp>
#include <vector>

namespace examples {

/// Pictures with the class that each one shows.
struct LabelledPictures {
  int64_t side = 0;                // rows and columns of a picture
  std::vector<float> shades = {};  // [count, side, side], 0 (paper) to 1 (ink)
  std::vector<int64_t> labels = {};

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
  int64_t classes() const;  // the largest label and one
};

/// Reads a file of pictures: a line each, its class, a space, and its shades row by row, one of 0 to 9 and A to G each,
/// for 0 to 16. Pictures are square and of one size, which the first line gives. Throws std::runtime_error that names
/// file, line and fault.
LabelledPictures read_pictures(const std::filesystem::path& path);

/// Where the handwritten digits are that come with the examples: in the source tree, or where they were installed
/// beside this program. Throws std::runtime_error that names both places.
std::filesystem::path digits_file();

/// Pictures to train on, and pictures for the test. Their places in the file decide, not chance: a `share` of them,
/// spread evenly over the file (for 0.2 every fifth one), or the last ones. The digits stand there by writer, so that
/// the last ones are mostly of hands that no other picture shows, which is harder.
struct PictureSplit {
  LabelledPictures training, test;
};
enum class TestPictures { spread, last };
PictureSplit split_pictures(const LabelledPictures& pictures, double share, TestPictures which = TestPictures::spread);

/// How far training pictures are moved and turned, at most, each time they are shown.
struct Distortion {
  double shift = 0;    // pixels, in both directions
  double turn = 0;     // degrees
  double stretch = 0;  // share of the size, in both directions
};

struct PictureBatch {
  regard::Tensor images;  // [B, 1, side, side], -1 (paper) to 1 (ink): numbers around zero are learned from faster
  regard::Tensor labels;  // [B], i64

  PictureBatch to(regard::Device device) const { return {images.to(device), labels.to(device)}; }
};

/// Pictures `begin` to `end`, as they are.
PictureBatch picture_batch(const LabelledPictures& pictures, int64_t begin, int64_t end);
/// The pictures of these numbers, distorted; `seed` and `step` fix how.
PictureBatch distorted_batch(const LabelledPictures& pictures, const std::vector<int64_t>& numbers,
                             const Distortion& distortion, uint64_t seed, int64_t step);

}  // namespace examples
