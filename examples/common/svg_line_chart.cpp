#include <algorithm>
#include <cmath>
#include <limits>
#include <regard/examples/common/svg.hpp>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

using svg::number;

// Told apart by colour-blind readers as well (after Okabe and Ito), darkened to stand out on white.
constexpr const char* palette[] = {"#0072b2", "#d55e00", "#00875f", "#b04a86",
                                   "#b8860b", "#3a9bd1", "#4b5563", "#7c3aed"};
constexpr double font = 12;

struct Tick {
  double at;  // on the axis' own scale: a logarithm where the axis is logarithmic
  std::string label;
};

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;
  std::vector<double> minor;  // lines without a label

  double scale(double value) const { return logarithmic ? std::log10(value) : value; }
  bool holds(double value) const { return std::isfinite(value) && (!logarithmic || value > 0); }
  double place(double value) const {  // 0 at the low end, 1 at the high end; halves: high - low may overflow
    return (scale(value) / 2 - low / 2) / (high / 2 - low / 2);
  }
};

void set_logarithmic_ticks(Axis& axis) {
  const double decades = axis.high - axis.low;
  if (decades < 1) {  // too narrow for powers of ten: round numbers, spaced as the logarithm has it
    const std::vector<double> ticks = round_ticks(std::pow(10, axis.low), std::pow(10, axis.high), 6);
    const double spacing = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
    for (double tick : ticks)
      if (tick > 0) axis.ticks.push_back({std::log10(tick), tick_label(tick, spacing)});
    return;
  }
  const int step = std::max(1, static_cast<int>(std::ceil(decades / 8)));
  for (int power = static_cast<int>(std::floor(axis.low)); power <= axis.high + 1e-9; ++power) {
    for (int digit = 1; digit < 10; ++digit) {
      const double at = power + std::log10(digit);
      if (at < axis.low - 1e-9 || at > axis.high + 1e-9) continue;
      const bool labelled = digit == 1 ? power % step == 0 : decades < 2.5 && (digit == 2 || digit == 5);
      if (labelled)
        axis.ticks.push_back({at, tick_label(digit * std::pow(10.0, power), std::pow(10.0, power))});
      else if (step == 1)
        axis.minor.push_back(at);
    }
  }
}

Axis make_axis(const std::vector<double>& values, bool logarithmic, bool padded, int tick_count) {
  Axis axis;
  axis.logarithmic = logarithmic;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (double value : values) {
    if (!axis.holds(value)) continue;
    low = std::min(low, axis.scale(value));
    high = std::max(high, axis.scale(value));
  }
  if (low > high) {
    low = logarithmic ? -1 : 0;
    high = 1;
  }
  const double smallest = std::max(std::fabs(low), std::fabs(high)) * 1e-9;
  if (high - low <= smallest) {  // one value only (or nearly): make room around it
    const double room = logarithmic ? 0.5 : low == 0 ? 1 : std::fabs(low) / 2;
    low -= room;
    high += room;
  } else if (padded) {
    const double room = (high / 2 - low / 2) * 0.08;
    if (!logarithmic && low >= 0 && low < 0.25 * high)
      low = 0;  // a loss or an accuracy is best read from zero
    else
      low -= room;
    high += room;
  }
  axis.low = std::max(low, std::numeric_limits<double>::lowest());
  axis.high = std::min(high, std::numeric_limits<double>::max());
  if (logarithmic) {
    axis.low = std::max(axis.low, -323.0);  // within what a double can be
    axis.high = std::min(axis.high, 308.25);
    set_logarithmic_ticks(axis);
  } else {
    const std::vector<double> ticks = round_ticks(axis.low, axis.high, tick_count);
    const double spacing = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
    for (double tick : ticks) axis.ticks.push_back({tick, tick_label(tick, spacing)});
  }
  return axis;
}

struct Point {
  double x, y;
};

// A run of points without a gap, with no more than four points a pixel column: first, lowest, highest, last. That
// looks the same as all of them and keeps the picture of a long training small.
std::vector<Point> thinned(const std::vector<Point>& run) {
  if (run.size() < 2000) return run;
  std::vector<Point> result;
  for (std::size_t begin = 0; begin < run.size();) {
    std::size_t end = begin, lowest = begin, highest = begin;
    for (; end < run.size() && std::floor(run[end].x) == std::floor(run[begin].x); ++end) {
      if (run[end].y < run[lowest].y) lowest = end;
      if (run[end].y > run[highest].y) highest = end;
    }
    std::vector<std::size_t> keep{begin, lowest, highest, end - 1};
    std::sort(keep.begin(), keep.end());
    keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
    for (std::size_t i : keep) result.push_back(run[i]);
    begin = end;
  }
  return result;
}

std::string draw_run(const std::vector<Point>& run, const std::string& colour) {
  if (run.size() == 1)
    return "<circle cx=\"" + number(run[0].x) + "\" cy=\"" + number(run[0].y) + "\" r=\"3.5\" fill=\"" + colour +
           "\"/>\n";
  std::string text = "<polyline fill=\"none\" stroke=\"" + colour +
                     "\" stroke-width=\"1.8\" stroke-linejoin=\"round\" stroke-linecap=\"round\" points=\"";
  for (const Point& point : thinned(run)) text += number(point.x) + "," + number(point.y) + " ";
  text.back() = '"';
  return text + "/>\n";
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  if (chart.width < 240 || chart.height < 180)
    throw std::invalid_argument("line_chart: " + std::to_string(chart.width) + " x " + std::to_string(chart.height) +
                                " pixels is too small; at least 240 x 180");
  std::vector<double> xs, ys;  // of the points that will be seen
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size())
      throw std::invalid_argument("line_chart: series '" + series.label + "' has " + std::to_string(series.x.size()) +
                                  " x and " + std::to_string(series.y.size()) + " y; both must be as many");
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!std::isfinite(series.x[i]) || !std::isfinite(series.y[i]) || (chart.log_y && series.y[i] <= 0)) continue;
      xs.push_back(series.x[i]);
      ys.push_back(series.y[i]);
    }
  }
  const Axis x_axis = make_axis(xs, false, false, std::max(2, chart.width / 110));
  const Axis y_axis = make_axis(ys, chart.log_y, true, std::max(2, chart.height / 70));

  double tick_width = 0;
  for (const Tick& tick : y_axis.ticks) tick_width = std::max(tick_width, svg::text_width(tick.label, font));
  const double left = 20 + (chart.y_label.empty() ? 0 : 20) + std::min(tick_width, 90.0) + 8;
  double last_width = x_axis.ticks.empty() ? 0 : svg::text_width(x_axis.ticks.back().label, font);
  const double right = chart.width - std::max(24.0, last_width / 2 + 10);
  const double bottom = chart.height - (chart.x_label.empty() ? 36 : 58);

  std::string text = svg::document(chart.width, chart.height, chart.title);
  double top = 20;
  if (!chart.title.empty()) {
    text += svg::text_element(left, 30, chart.title, 15, (right - left) * 0.94, "font-weight=\"600\"");
    top = 44;
  }

  // The legend, in as many lines as it takes.
  const bool legend = chart.series.size() > 1 || (chart.series.size() == 1 && !chart.series[0].label.empty());
  if (legend) {
    double at = left, line = top + 10;
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      const std::string& label = chart.series[i].label;
      const double room = std::min(svg::text_width(label, font), std::max(60.0, right - left - 30));
      if (at > left && at + 24 + room > right) {
        at = left;
        line += 18;
      }
      if (line > bottom - 80) break;  // the lines themselves need the room more
      const std::string colour = palette[i % std::size(palette)];
      text += "<rect x=\"" + number(at) + "\" y=\"" + number(line - 5.5) +
              "\" width=\"16\" height=\"3\" rx=\"1.5\" fill=\"" + colour + "\"/>\n";
      text += svg::text_element(at + 22, line, label, font, room + 1, "fill=\"#374151\"");
      at += 22 + room + 20;
      top = line + 14;
    }
  }

  const auto x_at = [&](double value) { return left + x_axis.place(value) * (right - left); };
  const auto y_at = [&](double place) { return bottom - place * (bottom - top); };
  const auto y_tick = [&](double at) { return y_at((at / 2 - y_axis.low / 2) / (y_axis.high / 2 - y_axis.low / 2)); };
  const auto line_across = [&](double y, const char* colour) {
    return "<path d=\"M" + number(left) + " " + number(y) + "H" + number(right) + "\" stroke=\"" + colour + "\"/>\n";
  };
  for (double at : y_axis.minor) text += line_across(y_tick(at), "#f3f4f6");
  for (const Tick& tick : y_axis.ticks) {
    text += line_across(y_tick(tick.at), "#e2e5ea");
    text +=
        svg::text_element(left - 8, y_tick(tick.at) + 4, tick.label, font, 90, "text-anchor=\"end\" fill=\"#4b5563\"");
  }
  text += line_across(bottom, "#9ca3af");
  for (const Tick& tick : x_axis.ticks) {
    const double x = x_at(tick.at);
    text += "<path d=\"M" + number(x) + " " + number(bottom) + "v5\" stroke=\"#9ca3af\"/>\n";
    text += svg::text_element(x, bottom + 19, tick.label, font, 90, "text-anchor=\"middle\" fill=\"#4b5563\"");
  }
  if (!chart.x_label.empty())
    text += svg::text_element((left + right) / 2, bottom + 42, chart.x_label, 13, right - left,
                              "text-anchor=\"middle\" fill=\"#374151\"");
  if (!chart.y_label.empty()) {
    const double middle = (top + bottom) / 2;
    text += svg::text_element(
        24, middle, chart.y_label, 13, bottom - top + 20,
        "text-anchor=\"middle\" fill=\"#374151\" transform=\"rotate(-90 24 " + number(middle) + ")\"");
  }
  if (xs.empty())
    text += svg::text_element((left + right) / 2, (top + bottom) / 2 + 5, "no data", 14, right - left,
                              "text-anchor=\"middle\" fill=\"#6b7280\"");

  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    std::vector<Point> run;
    for (std::size_t i = 0; i <= series.x.size(); ++i) {
      if (i < series.x.size() && x_axis.holds(series.x[i]) && y_axis.holds(series.y[i])) {
        run.push_back({x_at(series.x[i]), y_at(y_axis.place(series.y[i]))});
      } else if (!run.empty()) {
        text += draw_run(run, palette[s % std::size(palette)]);
        run.clear();
      }
    }
  }
  return text + "</svg>\n";
}

}  // namespace examples
