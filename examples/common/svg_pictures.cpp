#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/svg_pictures.hpp>
#include <stdexcept>

namespace examples {
namespace {

using svg::number;

constexpr double margin = 24, title_size = 15, label_size = 12;

std::string mixed(const std::array<int, 3>& from, const std::array<int, 3>& to, double t) {
  char buffer[16];
  int parts[3];
  for (std::size_t i = 0; i < 3; ++i)
    parts[i] = static_cast<int>(std::lround(from[i] + (to[i] - from[i]) * std::clamp(t, 0.0, 1.0)));
  std::snprintf(buffer, sizeof buffer, "#%02x%02x%02x", parts[0], parts[1], parts[2]);
  return buffer;
}

void check(const Picture& picture) {
  const std::string name = "pictures_svg: '" + picture.label + "' of " + std::to_string(picture.rows) + " rows and " +
                           std::to_string(picture.columns) + " columns has ";
  if (picture.rows < 1 || picture.columns < 1 || picture.patch < 1)
    throw std::invalid_argument(name + "a size below 1");
  if (static_cast<int64_t>(picture.shades.size()) != picture.rows * picture.columns)
    throw std::invalid_argument(name + std::to_string(picture.shades.size()) + " shades");
  const int64_t patches = (picture.rows / picture.patch) * (picture.columns / picture.patch);
  if (!picture.weights.empty() && static_cast<int64_t>(picture.weights.size()) != patches)
    throw std::invalid_argument(name + std::to_string(picture.weights.size()) + " weights for " +
                                std::to_string(patches) + " patches");
}

std::string draw_shades(const Picture& picture) {
  std::map<std::string, std::string> paths;  // one path a shade, in pixels of the picture as units
  for (int64_t row = 0; row < picture.rows; ++row)
    for (int64_t column = 0; column < picture.columns; ++column) {
      const double shade = picture.shades[static_cast<std::size_t>(row * picture.columns + column)];
      if (!(shade > 0)) continue;
      paths[mixed({255, 255, 255}, {31, 41, 55}, std::round(shade * 32) / 32)] +=
          "M" + std::to_string(column) + " " + std::to_string(row) + "h1v1h-1z";
    }
  std::string text = "<rect width=\"" + std::to_string(picture.columns) + "\" height=\"" +
                     std::to_string(picture.rows) + "\" fill=\"#ffffff\"/>\n";
  for (const auto& [colour, path] : paths) text += "<path fill=\"" + colour + "\" d=\"" + path + "\"/>\n";
  return text;
}

std::string draw_weights(const Picture& picture) {
  double largest = 0;
  for (double weight : picture.weights) largest = std::max(largest, weight);
  std::string text;
  const int64_t across = picture.columns / picture.patch;
  for (std::size_t i = 0; i < picture.weights.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / across, column = static_cast<int64_t>(i) % across;
    const double weight = picture.weights[i];
    char tooltip[32];
    std::snprintf(tooltip, sizeof tooltip, "%.3f", weight);
    text += "<rect x=\"" + std::to_string(column * picture.patch) + "\" y=\"" + std::to_string(row * picture.patch) +
            "\" width=\"" + std::to_string(picture.patch) + "\" height=\"" + std::to_string(picture.patch) +
            "\" fill=\"#f97316\" fill-opacity=\"" + number(largest > 0 ? 0.8 * weight / largest : 0) + "\"><title>" +
            tooltip + "</title></rect>\n";
  }
  return text;
}

}  // namespace

std::string pictures_svg(const Pictures& all) {
  if (all.per_line < 1) throw std::invalid_argument("pictures_svg: per_line must be at least 1");
  int64_t rows = 1, columns = 1;
  bool labelled = false;
  for (const Picture& picture : all.pictures) {
    check(picture);
    rows = std::max(rows, picture.rows);
    columns = std::max(columns, picture.columns);
    labelled = labelled || !picture.label.empty();
  }
  const double pixel = std::max(1.0, std::floor(104 / static_cast<double>(std::max(rows, columns))));
  const double wide = static_cast<double>(columns) * pixel, high = static_cast<double>(rows) * pixel;
  const double label_room = labelled ? 20 : 0, gap = 18;
  const auto count = static_cast<int64_t>(all.pictures.size());
  const int64_t per_line = std::clamp<int64_t>(count, 1, all.per_line);
  const int64_t lines = std::max<int64_t>(1, (count + per_line - 1) / per_line);

  const double head = margin + (all.title.empty() ? 0 : 26) + (all.explanation.empty() ? 0 : 22);
  const double texts =
      std::max(svg::text_width(all.title, title_size) * 1.06, svg::text_width(all.explanation, label_size));
  const double width =
      2 * margin + std::max(static_cast<double>(per_line) * (wide + gap) - gap, std::min(texts, 900.0));
  const double height = head + static_cast<double>(lines) * (high + label_room + gap) - gap + margin;

  std::string text = svg::document(width, height, all.title);
  if (!all.title.empty())
    text += svg::text_element(margin, margin + 14, all.title, title_size, width - 2 * margin, "font-weight=\"600\"");
  if (!all.explanation.empty())
    text += svg::text_element(margin, head - 12, all.explanation, label_size, width - 2 * margin, "fill=\"#4b5563\"");
  for (int64_t i = 0; i < count; ++i) {
    const Picture& picture = all.pictures[static_cast<std::size_t>(i)];
    const double x = margin + static_cast<double>(i % per_line) * (wide + gap);
    const double y = head + static_cast<double>(i / per_line) * (high + label_room + gap);
    if (!picture.label.empty())
      text += svg::text_element(x, y + 13, picture.label, label_size, wide + gap - 4, "fill=\"#374151\"");
    text += "<g transform=\"translate(" + number(x) + " " + number(y + label_room) + ") scale(" + number(pixel) +
            ")\" shape-rendering=\"crispEdges\">\n" + draw_shades(picture) + draw_weights(picture) + "</g>\n";
    text += "<rect x=\"" + number(x) + "\" y=\"" + number(y + label_room) + "\" width=\"" +
            number(static_cast<double>(picture.columns) * pixel) + "\" height=\"" +
            number(static_cast<double>(picture.rows) * pixel) +
            "\" fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"0.75\"/>\n";
  }
  return text + "</svg>\n";
}

std::string confusion_svg(const ConfusionMatrix& matrix) {
  const std::size_t classes = matrix.labels.size();
  if (classes == 0 || matrix.counts.size() != classes * classes)
    throw std::invalid_argument("confusion_svg: " + std::to_string(matrix.counts.size()) + " counts for " +
                                std::to_string(classes) + " labels");
  double widest = 0;
  for (const std::string& label : matrix.labels) widest = std::max(widest, svg::text_width(label, label_size));
  const double room = std::min(widest, 96.0) + 30;  // for the row labels, and the axis' own
  const double cell = std::clamp(std::min(widest, 96.0) + 10, 34.0, 60.0);
  const double side = static_cast<double>(classes) * cell;
  const double head = margin + (matrix.title.empty() ? 0 : 30) + 44;
  const double width = 2 * margin + room + std::max({side, 220.0, svg::text_width(matrix.title, title_size) - room});
  std::string text = svg::document(width, head + side + margin, matrix.title);
  if (!matrix.title.empty())
    text += svg::text_element(margin, margin + 14, matrix.title, title_size, width - 2 * margin, "font-weight=\"600\"");
  const double left = margin + room, top = head;
  text += svg::text_element(left, top - 26, "rows: written, columns: read", label_size, width - left - 4,
                            "fill=\"#4b5563\"");
  for (std::size_t row = 0; row < classes; ++row) {
    int64_t total = 0;
    for (std::size_t column = 0; column < classes; ++column) total += matrix.counts[row * classes + column];
    const double y = top + static_cast<double>(row) * cell;
    const double along = left + (static_cast<double>(row) + 0.5) * cell;
    text += svg::text_element(left - 8, y + cell / 2 + 4, matrix.labels[row], label_size, 96,
                              "text-anchor=\"end\" fill=\"#374151\"");
    text += svg::text_element(along, top - 7, matrix.labels[row], label_size, cell - 2,
                              "text-anchor=\"middle\" fill=\"#374151\"");
    for (std::size_t column = 0; column < classes; ++column) {
      const int64_t count = matrix.counts[row * classes + column];
      const double share = total > 0 ? static_cast<double>(count) / static_cast<double>(total) : 0;
      // A single mistake in a hundred has to be seen: the colour rises steeply from zero on.
      const double depth = count == 0 ? 0 : 0.15 + 0.85 * std::sqrt(share);
      const bool right = row == column;
      const double x = left + static_cast<double>(column) * cell;
      text += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(cell) + "\" height=\"" +
              number(cell) + "\" fill=\"" +
              (right ? mixed({255, 255, 255}, {0, 94, 150}, depth) : mixed({255, 255, 255}, {200, 30, 30}, depth)) +
              "\" stroke=\"#d1d5db\" stroke-width=\"0.75\"/>\n";
      text += svg::text_element(x + cell / 2, y + cell / 2 + 4, std::to_string(count), label_size, cell,
                                std::string("text-anchor=\"middle\" fill=\"") +
                                    (count == 0     ? "#9ca3af"
                                     : depth > 0.55 ? "#ffffff"
                                                    : "#111827") +
                                    "\"");
    }
  }
  return text + "</svg>\n";
}

}  // namespace examples
