#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// A small picture in grey, and perhaps weights of its square patches, drawn over it.
struct Picture {
  std::string label = {};
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> shades = {};   // [rows, columns], 0 (paper) to 1 (ink)
  int64_t patch = 1;                 // side of a patch
  std::vector<double> weights = {};  // [rows / patch, columns / patch], at least 0; empty: none
};

struct Pictures {
  std::string title = {};
  std::string explanation = {};  // a line below the title
  std::vector<Picture> pictures = {};
  int64_t per_line = 5;
};

/// The pictures side by side as an SVG document. A patch is tinted in orange, the more the higher its weight is among
/// the picture's own; the highest one's number is the patch's tooltip, as is every other's. Throws
/// std::invalid_argument where the number of shades or weights does not fit.
std::string pictures_svg(const Pictures& pictures);

/// How often what is shown (row) was taken for what (column).
struct ConfusionMatrix {
  std::string title = {};
  std::vector<std::string> labels = {};  // of the classes
  std::vector<int64_t> counts = {};      // [classes, classes]
};

/// The matrix as an SVG document, every count written into its cell: right answers in blue, wrong ones in red, deeper
/// where they are a larger share of their row. Throws std::invalid_argument where the counts do not fit the labels.
std::string confusion_svg(const ConfusionMatrix& matrix);

}  // namespace examples
