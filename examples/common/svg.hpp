#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// A line of a chart: points (x[i], y[i]) joined in order. A point that is not finite (or, on a logarithmic axis, not
/// positive) is left out and leaves a gap; a point alone between gaps is drawn as a dot.
struct Series {
  std::string label = {};
  std::vector<double> x = {};
  std::vector<double> y = {};
};

struct LineChart {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<Series> series = {};
  bool log_y = false;
  int width = 760;   // pixels, at least 240
  int height = 440;  // pixels, at least 180
};

/// The chart as an SVG document: title, legend, axes with ticks at round numbers, one line a series. It needs no font
/// or style sheet of its own and brings its own light background, so that it reads on light and dark pages alike.
/// Throws std::invalid_argument where a series has different numbers of x and y, or the size is too small.
std::string line_chart(const LineChart& chart);

/// One map: `values` row by row, rows * columns of them, and a label for each row and column (or none at all).
struct HeatMap {
  std::string label = {};
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values = {};  // [rows, columns]
  std::vector<std::string> row_labels = {};
  std::vector<std::string> column_labels = {};
};

struct HeatMaps {
  std::string title = {};
  std::string row_axis = {};     // what the rows are, "output", say
  std::string column_axis = {};  // what the columns are
  std::string value_label = {};  // what the colours are
  std::vector<HeatMap> maps = {};
  int64_t maps_per_line = 4;
  std::optional<double> low = std::nullopt;   // the value of the darkest colour; default: the smallest, or 0
  std::optional<double> high = std::nullopt;  // the value of the brightest colour; default: the largest
};

/// The maps side by side as an SVG document, with one colour scale for all of them: heads by layers of attention, say.
/// Labels too many for their rows are thinned out, labels too long are cut; values that are not finite are grey.
/// Throws std::invalid_argument where the number of values or labels does not fit a map's rows and columns.
std::string heat_maps(const HeatMaps& maps);

/// `text` for use in XML: & < > " ' escaped, invalid UTF-8 and characters that XML cannot hold replaced.
std::string escape_xml(std::string_view text);

/// About `count` round numbers (1, 2 or 5 times a power of ten apart) that lie in [low, high]; low < high, finite.
std::vector<double> round_ticks(double low, double high, int count);

/// A tick's label, with no more digits than ticks `spacing` apart need: "0.25", "2000", "5e-07".
std::string tick_label(double value, double spacing);

/// A colour from dark violet (0) over green to yellow (1) as red, green and blue in [0, 255], lightness rising evenly.
/// It is Matt Zucker's polynomial fit of matplotlib's viridis by Smith and van der Walt. Outside [0, 1] it is clamped.
std::array<int, 3> viridis(double t);

namespace svg {  // what the two writers share

/// The width of `text` in pixels at `size` pixels, estimated on the safe side: the viewer's font is not known here.
double text_width(std::string_view text, double size);

/// `text` cut with an ellipsis so that it is at most `width` pixels wide.
std::string fitted(std::string_view text, double size, double width);

/// A number with at most two decimals.
std::string number(double value);

/// A text element; `style` holds further attributes. Text wider than `width` is cut, with the whole as its tooltip.
std::string text_element(double x, double y, std::string_view text, double size, double width, std::string_view style);

/// The beginning of a document of this size, with its background. It ends with "</svg>\n".
std::string document(double width, double height, std::string_view title);

}  // namespace svg
}  // namespace examples
