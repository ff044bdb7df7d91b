#include <algorithm>
#include <cmath>
#include <cstdio>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/utf8.hpp>

namespace examples {

std::string escape_xml(std::string_view text) {
  std::string result;
  for (char32_t c : from_utf8_lossy(text)) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '"')
      result += "&quot;";
    else if (c == '\'')
      result += "&#39;";
    else if (c < 0x20)
      result += to_utf8(0x2400 + c);  // the visible picture of a control character; XML forbids most of the real ones
    else if (c == 0x7F)
      result += to_utf8(char32_t{0x2421});
    else if (c == 0xFFFE || c == 0xFFFF)
      result += to_utf8(char32_t{0xFFFD});
    else
      result += to_utf8(c);
  }
  return result;
}

std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = high / std::max(count, 1) - low / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  if (!(power > 0) || !std::isfinite(rough)) return {low, high};
  double spacing = power;
  for (double factor : {2.0, 5.0, 10.0})
    if (rough > spacing * 1.0000001) spacing = factor * power;
  std::vector<double> ticks;
  const double first = std::ceil(low / spacing - 1e-9);
  const double last = std::floor(high / spacing + 1e-9);
  // Where neighbouring doubles are farther apart than the spacing, counting up would never end.
  if (last - first > 1000 || first + 1 == first) return {low, high};
  for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0.0 : i * spacing);
  return ticks;
}

std::string tick_label(double value, double spacing) {
  char buffer[64];
  const double largest = std::max(std::fabs(value), std::fabs(spacing));
  if (value == 0) return "0";
  if (largest >= 1e6 || largest < 1e-4) {
    std::snprintf(buffer, sizeof buffer, "%.3g", value);
  } else {
    const double decimals = spacing > 0 ? std::ceil(-std::log10(spacing) - 1e-9) : 0;
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(std::clamp(decimals, 0.0, 8.0)), value);
  }
  return buffer;
}

std::array<int, 3> viridis(double t) {
  static constexpr double coefficients[7][3] = {
      {0.2777273272234177, 0.005407344544966578, 0.3340998053353061},
      {0.1050930431085774, 1.404613529898575, 1.384590162594685},
      {-0.3308618287255563, 0.214847559468213, 0.09509516302823659},
      {-4.634230498983486, -5.799100973351585, -19.33244095627987},
      {6.228269936347081, 14.17993336680509, 56.69055260068105},
      {4.776384997670288, -13.74514537774601, -65.35303263337234},
      {-5.435455855934631, 4.645852612178535, 26.3124352495832},
  };
  t = std::isnan(t) ? 0.0 : std::clamp(t, 0.0, 1.0);
  std::array<int, 3> colour{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    double value = 0;
    for (int power = 6; power >= 0; --power) value = value * t + coefficients[power][channel];
    colour[channel] = static_cast<int>(std::lround(255 * std::clamp(value, 0.0, 1.0)));
  }
  return colour;
}

namespace svg {
namespace {

double character_width(char32_t c) {  // in parts of the font size
  if ((c >= 0x300 && c < 0x370) || (c >= 0x200B && c <= 0x200F) || (c >= 0xFE00 && c <= 0xFE0F)) return 0;  // combining
  if (c >= 0x1100 && (c < 0x1160 || (c >= 0x2E80 && c < 0xD7A4) || (c >= 0xF900 && c < 0xFB00) ||
                      (c >= 0xFE30 && c < 0xFE70) || (c >= 0xFF00 && c < 0xFF61) || c >= 0x1F000))
    return 1.05;  // wide: Chinese, Japanese, Korean, pictures
  if (c == 'm' || c == 'w' || c == 'M' || c == 'W' || c == '@' || c == '%' || c == 0x2026) return 0.98;
  if (c == 'i' || c == 'j' || c == 'l' || c == '.' || c == ',' || c == ':' || c == '|' || c == '\'' || c == ' ')
    return 0.34;
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? 0.72 : 0.63;
  return 0.75;
}

}  // namespace

double text_width(std::string_view text, double size) {
  double width = 0;
  for (char32_t c : from_utf8_lossy(text)) width += character_width(c);
  return width * size;
}

std::string fitted(std::string_view text, double size, double width) {
  if (text_width(text, size) <= width) return std::string(text);
  double room = width / size - character_width(0x2026);
  std::u32string kept;
  for (char32_t c : from_utf8_lossy(text)) {
    room -= character_width(c);
    if (room < 0) break;
    kept.push_back(c);
  }
  while (!kept.empty() && kept.back() == ' ') kept.pop_back();
  return to_utf8(kept) + "…";
}

std::string number(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f", value);
  std::string text = buffer;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string text_element(double x, double y, std::string_view text, double size, double width, std::string_view style) {
  const std::string shown = fitted(text, size, width);
  std::string element = "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" font-size=\"" + number(size) + "\"";
  if (!style.empty()) element += " " + std::string(style);
  element += ">" + escape_xml(shown);
  if (shown != text) element += "<title>" + escape_xml(text) + "</title>";
  return element + "</text>\n";
}

std::string document(double width, double height, std::string_view title) {
  const std::string w = number(width), h = number(height);
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
                     "\" viewBox=\"0 0 " + w + " " + h +
                     "\" font-family=\"'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif\" "
                     "fill=\"#1f2937\" role=\"img\">\n";
  if (!title.empty()) text += "<title>" + escape_xml(title) + "</title>\n";
  return text + "<rect x=\"0.5\" y=\"0.5\" width=\"" + number(width - 1) + "\" height=\"" + number(height - 1) +
         "\" rx=\"8\" fill=\"#ffffff\" stroke=\"#d8dce3\"/>\n";
}

}  // namespace svg
}  // namespace examples
