#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <regard/examples/common/svg.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace svg_test {

using namespace examples;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Enough of an XML reader for what the writers make: every tag closed in order, no bare & or <, attributes quoted.
bool well_formed(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '&') {
      const std::string entity = text.substr(at, text.find(';', at) - at + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" && entity != "&#39;")
        return false;
    }
    if (text[at] != '<') continue;
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (count(tag, "\"") % 2 != 0 || tag.find('<') != std::string::npos) return false;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end;
  }
  return open.empty() && text.starts_with("<svg ") && text.ends_with("</svg>\n") && count(text, "nan") == 0 &&
         count(text, "inf") == 0;
}

// The lightness L* of CIELAB, 0 to 100.
double lightness(const std::array<int, 3>& colour) {
  double luminance = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = colour[i] / 255.0;
    luminance += weights[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return luminance > 0.008856 ? 116 * std::cbrt(luminance) - 16 : 903.3 * luminance;
}

const double nan_value = std::numeric_limits<double>::quiet_NaN();
const double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("svg: ticks are round numbers within the range", "[svg]") {
  CHECK(round_ticks(0, 1, 5) == std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1});
  CHECK(round_ticks(0, 2000, 6) == std::vector<double>{0, 500, 1000, 1500, 2000});
  CHECK(round_ticks(-3, 7, 5) == std::vector<double>{-2, 0, 2, 4, 6});
  CHECK(tick_label(0.6000000000000001, 0.2) == "0.6");
  CHECK(tick_label(1500, 500) == "1500");
  CHECK(tick_label(0.25, 0.05) == "0.25");
  CHECK(tick_label(2e-7, 1e-7) == "2e-07");
  CHECK(tick_label(0, 0.1) == "0");
  for (double low : {-1e300, -5.0, 0.0, 1e-12, 1e15})
    for (double width : {1e-13, 0.7, 3.0, 1e6, 1e299}) {
      if (low + width == low) continue;
      const auto ticks = round_ticks(low, low + width, 5);
      CHECK(!ticks.empty());
      CHECK(ticks.size() <= 12);
    }
}

TEST_CASE("svg: colours grow evenly lighter", "[svg]") {
  const auto dark = viridis(0), bright = viridis(1);
  CHECK(lightness(dark) < 20);
  CHECK(lightness(bright) > 88);
  const double step = (lightness(bright) - lightness(dark)) / 20;
  for (int i = 0; i < 20; ++i) {
    const double rise = lightness(viridis((i + 1) / 20.0)) - lightness(viridis(i / 20.0));
    CHECK(rise == Approx(step).margin(0.45 * step));
  }
  CHECK(viridis(-3) == dark);
  CHECK(viridis(7) == bright);
}

TEST_CASE("svg: text is escaped and fitted", "[svg]") {
  CHECK(escape_xml("<a & \"b\" 'c'>") == "&lt;a &amp; &quot;b&quot; &#39;c&#39;&gt;");
  CHECK(escape_xml("字é") == "字é");
  CHECK(escape_xml("\x01\n") == "␁␊");
  CHECK(escape_xml("a\xff") == "a\xEF\xBF\xBD");
  CHECK(svg::fitted("short", 12, 200) == "short");
  const std::string cut = svg::fitted("a very long label that has no room", 12, 80);
  CHECK(cut.ends_with("…"));
  CHECK(svg::text_width(cut, 12) <= 80);
}

TEST_CASE("svg: line chart", "[svg]") {
  LineChart chart{.title = "loss <1>", .x_label = "step", .y_label = "nats"};
  SECTION("two series and a gap") {
    chart.series = {{"train & test", {0, 1, 2, 3, 4}, {1, 2, nan_value, 3, 4}}, {"b", {0, 4}, {4, 1}}};
    const std::string text = line_chart(chart);
    CHECK(well_formed(text));
    CHECK(count(text, "<polyline") == 3);
    CHECK(count(text, "<circle") == 0);
    CHECK(count(text, "train &amp; test") == 1);
    CHECK(count(text, ">step<") == 1);
  }
  SECTION("a point alone is a dot") {
    chart.series = {{"a", {0, 1, 2}, {1, infinity, 3}}};
    const std::string text = line_chart(chart);
    CHECK(well_formed(text));
    CHECK(count(text, "<circle") == 2);
    CHECK(count(text, "<polyline") == 0);
  }
  SECTION("nothing to draw") {
    CHECK(count(line_chart(chart), "no data") == 1);
    chart.series = {{"a", {0, 1}, {nan_value, infinity}}};
    CHECK(count(line_chart(chart), "no data") == 1);
    CHECK(well_formed(line_chart(chart)));
  }
  SECTION("a logarithmic axis leaves out what is not positive") {
    chart.log_y = true;
    chart.series = {{"a", {0, 1, 2, 3, 4}, {100, 10, 0, 1, 0.1}}};
    const std::string text = line_chart(chart);
    CHECK(well_formed(text));
    CHECK(count(text, "<polyline") == 2);
    for (const char* tick : {">0.1<", ">1<", ">10<", ">100<"}) CHECK(count(text, tick) >= 1);
  }
  SECTION("extreme values") {
    for (const bool logarithmic : {false, true})
      for (const auto& y : std::vector<std::vector<double>>{
               {5, 5}, {0, 0}, {-1e308, 1e308}, {1e-320, 1e308}, {1, 1 + 1e-15}, {1e-300, 2e-300}}) {
        chart.log_y = logarithmic;
        chart.series = {{"a", {0, 1}, y}};
        CHECK(well_formed(line_chart(chart)));
      }
  }
  SECTION("a long series is thinned, its extremes kept") {
    Series series{"a"};
    for (int i = 0; i < 200000; ++i) {
      series.x.push_back(i);
      series.y.push_back(i == 123456 ? 50 : i % 2);
    }
    chart.series = {series};
    const std::string text = line_chart(chart);
    CHECK(text.size() < 60000);
    CHECK(well_formed(text));
  }
  SECTION("mistakes") {
    chart.series = {{"a", {0, 1}, {1}}};
    CHECK_THROWS_AS(line_chart(chart), std::invalid_argument);
    CHECK_THROWS_AS(line_chart({.width = 10}), std::invalid_argument);
  }
}

TEST_CASE("svg: heat maps", "[svg]") {
  HeatMaps maps{.title = "attention", .row_axis = "output", .column_axis = "input", .value_label = "weight"};
  SECTION("labels, blanks and values that are not finite") {
    maps.maps = {
        {"layer 1, head 1", 2, 3, {0, 0.5, 1, nan_value, 0.25, 0}, {"<", "&"}, {"字", " ", "incomprehensible"}}};
    const std::string text = heat_maps(maps);
    CHECK(well_formed(text));
    CHECK(count(text, ">&lt;<") == 1);
    CHECK(count(text, ">字<") == 1);
    CHECK(count(text, "␣") == 1);
    CHECK(count(text, "rotate(-90") == 1);
    CHECK(count(text, "grey: not a finite number") == 1);
    CHECK(count(text, "fill=\"#c9ccd1\"") == 1);
    CHECK(count(text, "layer 1, head 1") == 1);
  }
  SECTION("the scale spans all maps") {
    maps.maps = {{"a", 1, 1, {0.0}}, {"b", 1, 1, {2.0}}, {"c", 1, 1, {1.0}}};
    const std::string text = heat_maps(maps);
    CHECK(well_formed(text));
    for (const char* colour : {"path fill=\"#47015", "path fill=\"#fc"}) CHECK(count(text, colour) == 1);
    CHECK(count(text, ">2<") + count(text, ">2.0<") == 1);
  }
  SECTION("small and empty") {
    CHECK(count(heat_maps(maps), "no data") == 1);
    maps.maps = {{"", 0, 0}};
    CHECK(count(heat_maps(maps), "no data") == 1);
    maps.maps = {{"one", 1, 1, {infinity}, {"a"}, {"b"}}};
    CHECK(well_formed(heat_maps(maps)));
    maps.maps = {{"one", 1, 1, {-3.0}}};
    CHECK(well_formed(heat_maps(maps)));
    maps.maps = {{"huge", 1, 2, {-1e308, 1e308}}};
    CHECK(well_formed(heat_maps(maps)));
  }
  SECTION("many labels are thinned out") {
    HeatMap map{"a", 100, 100, std::vector<double>(10000, 0.5)};
    map.row_labels.assign(100, "r");
    map.column_labels.assign(100, "c");
    maps.maps.assign(4, map);
    const std::string text = heat_maps(maps);
    CHECK(count(text, ">r<") >= 4 * 10);
    CHECK(count(text, ">r<") <= 4 * 40);
  }
  SECTION("mistakes") {
    maps.maps = {{"a", 2, 2, {1, 2, 3}}};
    CHECK_THROWS_WITH(heat_maps(maps), "heat_maps: map 'a' of 2 rows and 2 columns has 3 values");
    maps.maps = {{"a", 1, 2, {1, 2}, {}, {"x"}}};
    CHECK_THROWS_WITH(heat_maps(maps), "heat_maps: map 'a' of 1 rows and 2 columns has 1 column labels");
    maps.maps = {{"a", 1, 2, {1, 2}, {"x", "y"}, {}}};
    CHECK_THROWS_WITH(heat_maps(maps), "heat_maps: map 'a' of 1 rows and 2 columns has 2 row labels");
    maps.maps.clear();
    maps.low = 2;
    maps.high = 1;
    CHECK_THROWS_AS(heat_maps(maps), std::invalid_argument);
  }
}

}  // namespace svg_test
