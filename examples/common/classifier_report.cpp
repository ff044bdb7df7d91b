#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <regard/examples/common/classifier_report.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/utf8.hpp>

namespace examples {
namespace {

// counts[true class * classes + guessed class]
std::vector<int64_t> confusion(std::size_t classes, const std::vector<LabelledLine>& lines,
                               const Judgement& judgement) {
  std::vector<int64_t> counts(classes * classes, 0);
  for (std::size_t i = 0; i < lines.size(); ++i)
    ++counts[static_cast<std::size_t>(lines[i].label) * classes + static_cast<std::size_t>(judgement.guesses[i].label)];
  return counts;
}

std::string percent(int64_t part, int64_t whole) {
  if (whole == 0) return "     -";
  char text[32];
  std::snprintf(text, sizeof text, "%5.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

}  // namespace

void show_classes(std::ostream& out, const std::vector<std::string>& labels, const std::vector<LabelledLine>& lines,
                  const Judgement& judgement) {
  const std::size_t classes = labels.size();
  const std::vector<int64_t> counts = confusion(classes, lines, judgement);
  std::size_t width = 5;
  for (const std::string& label : labels) width = std::max(width, std::min<std::size_t>(label.size(), 40));
  out << std::string(width + 4, ' ') << "texts  precision  recall\n";
  int64_t most = 0;
  for (std::size_t c = 0; c < classes; ++c) {
    int64_t there = 0, guessed = 0;
    for (std::size_t other = 0; other < classes; ++other) {
      there += counts[c * classes + other];
      guessed += counts[other * classes + c];
    }
    most = std::max(most, there);
    char number[32];
    std::snprintf(number, sizeof number, "%7lld", static_cast<long long>(there));
    out << "  " << labels[c] << std::string(width - std::min(width, labels[c].size()), ' ') << number << "     "
        << percent(counts[c * classes + c], guessed) << "  " << percent(counts[c * classes + c], there) << "\n";
  }
  out << "always the most frequent class: " << percent(most, static_cast<int64_t>(lines.size())) << "\n";
}

void show_mistakes(std::ostream& out, const std::vector<std::string>& labels, const std::vector<LabelledLine>& lines,
                   const Judgement& judgement) {
  int shown = 0;
  for (std::size_t i = 0; i < lines.size() && shown < 3; ++i) {
    const Guess& guess = judgement.guesses[i];
    if (guess.label == lines[i].label) continue;
    out << "  wrong  " << labels[static_cast<std::size_t>(guess.label)] << ", not "
        << labels[static_cast<std::size_t>(lines[i].label)] << ": " << in_quotes(lines[i].text) << "\n";
    ++shown;
  }
}

void draw_confusion(const std::filesystem::path& path, const std::vector<std::string>& labels,
                    const std::vector<LabelledLine>& lines, const Judgement& judgement) {
  const std::size_t classes = labels.size();
  const std::vector<int64_t> counts = confusion(classes, lines, judgement);
  HeatMap map;
  map.rows = map.columns = static_cast<int64_t>(classes);
  map.row_labels = map.column_labels = labels;
  for (std::size_t row = 0; row < classes; ++row) {
    int64_t there = 0;
    for (std::size_t column = 0; column < classes; ++column) there += counts[row * classes + column];
    for (std::size_t column = 0; column < classes; ++column)
      map.values.push_back(there == 0
                               ? std::numeric_limits<double>::quiet_NaN()
                               : static_cast<double>(counts[row * classes + column]) / static_cast<double>(there));
  }
  HeatMaps picture;
  picture.title = "How the validation texts of each class were guessed";
  picture.row_axis = "class";
  picture.column_axis = "guess";
  picture.value_label = "share";
  picture.low = 0;
  picture.high = 1;
  picture.maps.push_back(std::move(map));
  write_file_atomically(path, heat_maps(picture));
}

void draw_course(const std::filesystem::path& path, const std::string& title, const ClassifierCourse& course) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = "loss (cross entropy of a text)";
  chart.series = {{.label = "training", .x = course.steps, .y = course.losses},
                  {.label = "validation", .x = course.validation_steps, .y = course.validation_losses}};
  write_file_atomically(path, line_chart(chart));
}

}  // namespace examples
