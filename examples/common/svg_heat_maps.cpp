#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <regard/examples/common/svg.hpp>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

using svg::number;

constexpr double longest_label = 96;  // pixels
constexpr double title_size = 15, label_size = 12, margin = 24;

std::string hex(const std::array<int, 3>& colour) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "#%02x%02x%02x", colour[0], colour[1], colour[2]);
  return buffer;
}

// A label that is blank could not be seen: its spaces are shown as such.
std::string visible(const std::string& label) {
  if (label.find_first_not_of(' ') != std::string::npos) return label;
  std::string text;
  for (std::size_t i = 0; i < label.size(); ++i) text += "␣";
  return text;
}

void check(const HeatMap& map) {
  const std::string name = "heat_maps: map '" + map.label + "' of " + std::to_string(map.rows) + " rows and " +
                           std::to_string(map.columns) + " columns has ";
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  if (map.rows < 0 || map.columns < 0) throw std::invalid_argument(name + "a negative size");
  if (size(map.values) != map.rows * map.columns)
    throw std::invalid_argument(name + std::to_string(size(map.values)) + " values");
  if (!map.row_labels.empty() && size(map.row_labels) != map.rows)
    throw std::invalid_argument(name + std::to_string(size(map.row_labels)) + " row labels");
  if (!map.column_labels.empty() && size(map.column_labels) != map.columns)
    throw std::invalid_argument(name + std::to_string(size(map.column_labels)) + " column labels");
}

// The measures that all maps of a picture share, so that they line up.
struct Layout {
  double cell = 0;         // side of a cell
  double font = 0;         // of the row and column labels
  double row_room = 0;     // beside the cells
  double column_room = 0;  // above the cells
  double label_room = 0;   // for the maps' own labels
  int64_t rows = 0, columns = 0;

  double width() const { return row_room + std::max(static_cast<double>(columns) * cell, 60.0); }
  double height() const { return label_room + column_room + std::max(static_cast<double>(rows) * cell, 20.0); }
};

Layout make_layout(const HeatMaps& maps, int64_t per_line) {
  Layout layout;
  for (const HeatMap& map : maps.maps) {
    layout.rows = std::max(layout.rows, map.rows);
    layout.columns = std::max(layout.columns, map.columns);
    if (!map.label.empty()) layout.label_room = 22;
  }
  const double wanted = per_line == 1 ? 440 : per_line == 2 ? 340 : per_line == 3 ? 280 : 220;
  layout.cell = std::min(34.0, wanted / static_cast<double>(std::max<int64_t>({layout.rows, layout.columns, 1})));
  if (layout.cell > 4) layout.cell = std::floor(layout.cell);
  layout.font = std::clamp(layout.cell * 0.75, 8.0, 13.0);
  double widest_row = 0, widest_column = 0;
  for (const HeatMap& map : maps.maps) {
    for (const auto& label : map.row_labels)
      widest_row = std::max(widest_row, svg::text_width(visible(label), layout.font));
    for (const auto& label : map.column_labels)
      widest_column = std::max(widest_column, svg::text_width(visible(label), layout.font));
  }
  const double room_across = layout.cell * std::ceil((layout.font + 1) / layout.cell);  // as labels are thinned
  const bool upright = widest_column <= room_across;
  if (widest_row > 0) layout.row_room = std::min(widest_row, longest_label) + 7;
  if (widest_column > 0) layout.column_room = upright ? layout.font + 6 : std::min(widest_column, longest_label) + 8;
  return layout;
}

std::string draw_map(const HeatMap& map, const Layout& layout, double x, double y, double low, double high) {
  std::string text;
  const double width = static_cast<double>(map.columns) * layout.cell;
  const double height = static_cast<double>(map.rows) * layout.cell;
  const double left = x + layout.row_room, top = y + layout.label_room + layout.column_room;
  if (!map.label.empty())
    text += svg::text_element(left, y + 13, map.label, label_size, std::max(width, 60.0) * 0.94, "font-weight=\"600\"");

  // One path a colour, in cells as units: a map of a thousand cells stays a few kilobytes.
  std::map<std::string, std::string> paths;
  for (int64_t row = 0; row < map.rows; ++row) {
    for (int64_t column = 0; column < map.columns;) {
      const auto colour_of = [&](int64_t c) -> std::string {
        const double value = map.values[static_cast<std::size_t>(row * map.columns + c)];
        if (!std::isfinite(value)) return "#c9ccd1";
        const double t = std::clamp((value / 2 - low / 2) / (high / 2 - low / 2), 0.0, 1.0);
        return hex(viridis(std::round(t * 255) / 255));
      };
      const std::string colour = colour_of(column);
      int64_t end = column + 1;
      while (end < map.columns && colour_of(end) == colour) ++end;
      const std::string run = std::to_string(end - column);
      paths[colour] += "M" + std::to_string(column) + " " + std::to_string(row) + "h" + run + "v1h-" + run + "z";
      column = end;
    }
  }
  if (map.rows > 0 && map.columns > 0) {
    text += "<g transform=\"translate(" + number(left) + " " + number(top) + ") scale(" + number(layout.cell) +
            ")\" shape-rendering=\"crispEdges\">\n";
    for (const auto& [colour, path] : paths) text += "<path fill=\"" + colour + "\" d=\"" + path + "\"/>\n";
    text += "</g>\n<rect x=\"" + number(left) + "\" y=\"" + number(top) + "\" width=\"" + number(width) +
            "\" height=\"" + number(height) + "\" fill=\"none\" stroke=\"#9ca3af\" stroke-width=\"0.75\"/>\n";
  } else {
    text += svg::text_element(left, top + 14, "no data", label_size, 80, "fill=\"#6b7280\"");
  }

  // Labels closer than a line of text are thinned out.
  const auto step = std::max<int64_t>(1, static_cast<int64_t>(std::ceil((layout.font + 1) / layout.cell)));
  for (int64_t i = 0; i < static_cast<int64_t>(map.row_labels.size()); i += step) {
    const double middle = top + (static_cast<double>(i) + 0.5) * layout.cell;
    text +=
        svg::text_element(left - 6, middle + layout.font * 0.36, visible(map.row_labels[static_cast<std::size_t>(i)]),
                          layout.font, longest_label, "text-anchor=\"end\" fill=\"#374151\"");
  }
  for (int64_t i = 0; i < static_cast<int64_t>(map.column_labels.size()); i += step) {
    const double middle = left + (static_cast<double>(i) + 0.5) * layout.cell;
    const std::string label = visible(map.column_labels[static_cast<std::size_t>(i)]);
    // A short label stands upright even where a longer neighbour has to be turned.
    const bool upright = svg::text_width(label, layout.font) <= layout.cell * static_cast<double>(step);
    const double across = upright ? middle : middle + layout.font * 0.36;
    const double foot = top - 6;
    const std::string turn = " transform=\"rotate(-90 " + number(across) + " " + number(foot) + ")\"";
    text += svg::text_element(across, foot, label, layout.font, longest_label,
                              upright ? "text-anchor=\"middle\" fill=\"#374151\"" : "fill=\"#374151\"" + turn);
  }
  return text;
}

std::string draw_scale(double x, double y, double length, double low, double high, const std::string& label) {
  std::string text = "<defs><linearGradient id=\"scale\" x1=\"0\" y1=\"1\" x2=\"0\" y2=\"0\">";
  for (int i = 0; i <= 16; ++i)
    text += "<stop offset=\"" + number(i / 16.0) + "\" stop-color=\"" + hex(viridis(i / 16.0)) + "\"/>";
  text += "</linearGradient></defs>\n<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"14\" height=\"" +
          number(length) + "\" fill=\"url(#scale)\" stroke=\"#9ca3af\" stroke-width=\"0.75\"/>\n";
  const std::vector<double> ticks = round_ticks(low, high, std::max(2, static_cast<int>(length / 40)));
  const double spacing = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (double tick : ticks) {
    const double at = y + length * (1 - (tick / 2 - low / 2) / (high / 2 - low / 2));
    text += "<path d=\"M" + number(x + 14) + " " + number(at) + "h4\" stroke=\"#9ca3af\"/>\n";
    text += svg::text_element(x + 22, at + 4, tick_label(tick, spacing), 11, 70, "fill=\"#4b5563\"");
  }
  if (!label.empty()) text += svg::text_element(x, y - 9, label, 11, 84, "fill=\"#374151\"");
  return text;
}

}  // namespace

std::string heat_maps(const HeatMaps& maps) {
  double smallest = std::numeric_limits<double>::infinity(), largest = -smallest;
  bool missing = false;
  for (const HeatMap& map : maps.maps) {
    check(map);
    for (double value : map.values) {
      if (!std::isfinite(value)) {
        missing = true;
        continue;
      }
      smallest = std::min(smallest, value);
      largest = std::max(largest, value);
    }
  }
  if (smallest > largest) smallest = 0, largest = 1;
  double low = maps.low.value_or(std::min(smallest, 0.0));
  double high = maps.high.value_or(std::max(largest, low));
  if (!std::isfinite(low) || !std::isfinite(high) || low > high)
    throw std::invalid_argument("heat_maps: the colour scale runs from " + std::to_string(low) + " to " +
                                std::to_string(high) + "; low must be at most high, both finite");
  if (low == high) high = low + (low == 0 ? 1 : std::fabs(low));
  if (maps.maps_per_line < 1) throw std::invalid_argument("heat_maps: maps_per_line must be at least 1");

  const auto count = static_cast<int64_t>(maps.maps.size());
  const int64_t per_line = std::clamp<int64_t>(count, 1, maps.maps_per_line);
  const int64_t lines = std::max<int64_t>(1, (count + per_line - 1) / per_line);
  const Layout layout = make_layout(maps, per_line);
  const double gap = 22;
  const double grid_width = static_cast<double>(per_line) * (layout.width() + gap) - gap;
  const double grid_height = static_cast<double>(lines) * (layout.height() + gap) - gap;

  std::string axes;
  if (!maps.row_axis.empty()) axes += "rows: " + maps.row_axis;
  if (!maps.column_axis.empty()) axes += (axes.empty() ? "" : ", ") + ("columns: " + maps.column_axis);
  if (missing) axes += std::string(axes.empty() ? "" : "; ") + "grey: not a finite number";
  const double head = margin + (maps.title.empty() ? 0 : 26) + (axes.empty() ? 0 : 20);
  const double text_width = std::max(svg::text_width(maps.title, title_size) * 1.06, svg::text_width(axes, label_size));
  const double scale_room = 30 + 14 + 22 + 48 + 18;  // gap, bar, ticks, and what the label may take beyond them
  const double width = std::max(2 * margin + grid_width + scale_room, std::min(text_width, 900.0) + 2 * margin);
  const double scale_top = head + layout.label_room + layout.column_room + (maps.value_label.empty() ? 0 : 4);
  const double scale_length = std::clamp(head + grid_height - scale_top, 110.0, 240.0);
  const double height = std::max(head + grid_height, scale_top + scale_length) + margin;

  std::string text = svg::document(width, height, maps.title);
  if (!maps.title.empty())
    text += svg::text_element(margin, 36, maps.title, title_size, (width - 2 * margin) * 0.95, "font-weight=\"600\"");
  if (!axes.empty())
    text += svg::text_element(margin, head - 12, axes, label_size, width - 2 * margin, "fill=\"#4b5563\"");
  if (maps.maps.empty()) text += svg::text_element(margin, head + 24, "no data", 14, 200, "fill=\"#6b7280\"");
  for (int64_t i = 0; i < count; ++i) {
    const double x = margin + static_cast<double>(i % per_line) * (layout.width() + gap);
    const double y = head + static_cast<double>(i / per_line) * (layout.height() + gap);
    text += draw_map(maps.maps[static_cast<std::size_t>(i)], layout, x, y, low, high);
  }
  text += draw_scale(margin + grid_width + 30, scale_top, scale_length, low, high, maps.value_label);
  return text + "</svg>\n";
}

}  // namespace examples
