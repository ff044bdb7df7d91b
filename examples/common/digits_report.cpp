#include <algorithm>
#include <cstdio>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/digits_report.hpp>
#include <regard/examples/common/svg.hpp>
#include <regard/examples/common/svg_pictures.hpp>
#include <vector>

namespace examples {
namespace {

std::size_t index(int64_t i) { return static_cast<std::size_t>(i); }

// The first picture of each class that was read right, then wrong ones; twelve at most.
std::vector<int64_t> chosen(const LabelledPictures& pictures, const PictureTest& test) {
  constexpr std::size_t most = 12, most_right = 10;
  std::vector<int64_t> numbers;
  for (int64_t label = 0; label < pictures.classes() && numbers.size() < most_right; ++label)
    for (int64_t i = 0; i < pictures.count(); ++i)
      if (pictures.labels[index(i)] == label && test.answers[index(i)] == label) {
        numbers.push_back(i);
        break;
      }
  for (int64_t i = 0; i < pictures.count() && numbers.size() < most; ++i)
    if (test.answers[index(i)] != pictures.labels[index(i)]) numbers.push_back(i);
  return numbers;
}

std::string read_as(int64_t label, int64_t answer, double certainty) {
  char text[64];
  std::snprintf(text, sizeof text, "%lld read as %lld, %.0f%%", static_cast<long long>(label),
                static_cast<long long>(answer), 100 * certainty);
  return text;
}

}  // namespace

void draw_picture_loss(const std::filesystem::path& path, const std::string& title, const PictureCourse& course) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "step";
  chart.y_label = "loss (cross entropy of a picture)";
  chart.log_y = true;
  chart.series = {{.label = "training, distorted pictures", .x = course.steps, .y = course.losses},
                  {.label = "test", .x = course.test_steps, .y = course.test_losses}};
  write_file_atomically(path, line_chart(chart));
}

void draw_confusion(const std::filesystem::path& path, const LabelledPictures& pictures, const PictureTest& test) {
  ConfusionMatrix matrix;
  const int64_t classes = std::max(
      pictures.classes(), test.answers.empty() ? 0 : *std::max_element(test.answers.begin(), test.answers.end()) + 1);
  char title[96];
  std::snprintf(title, sizeof title, "%lld of %lld pictures read right, %.2f%%", static_cast<long long>(test.right),
                static_cast<long long>(pictures.count()), 100 * test.accuracy());
  matrix.title = title;
  for (int64_t label = 0; label < classes; ++label) matrix.labels.push_back(std::to_string(label));
  matrix.counts.resize(index(classes * classes));
  for (int64_t i = 0; i < pictures.count(); ++i)
    ++matrix.counts[index(pictures.labels[index(i)] * classes + test.answers[index(i)])];
  write_file_atomically(path, confusion_svg(matrix));
}

void draw_picture_attention(const std::filesystem::path& path, const regard::layers::VisionTransformer& model,
                            const LabelledPictures& pictures, const PictureTest& test) {
  regard::NoGrad no_grad;
  Pictures drawn;
  drawn.title = "Where the model looks";
  drawn.explanation = std::string(model.class_token ? "The class token's attention to the patches"
                                                    : "What the patches' attention gives to each patch") +
                      ", mean of the heads: the deeper the orange, the more";
  drawn.per_line = 1 + static_cast<int64_t>(model.blocks.size());
  if (drawn.per_line <= 5) drawn.per_line *= 2;  // two pictures a line
  for (int64_t number : chosen(pictures, test)) {
    const auto [logits, weights] =
        model.forward_with_weights(picture_batch(pictures, number, number + 1).to(model.device()).images);
    const auto first = pictures.shades.begin() + number * pictures.side * pictures.side;
    Picture picture;
    picture.rows = picture.columns = pictures.side;
    picture.shades = {first, first + pictures.side * pictures.side};
    picture.patch = model.options.patch;
    picture.label = read_as(pictures.labels[index(number)], test.answers[index(number)], test.certainty[index(number)]);
    drawn.pictures.push_back(picture);
    for (std::size_t layer = 0; layer < weights.size(); ++layer) {
      const regard::Tensor heads = mean(weights[layer][0], 0);  // [T, T]
      const regard::Tensor given = model.class_token ? heads[0].slice(0, 1) : mean(heads, 0);
      picture.label = "layer " + std::to_string(layer + 1);
      picture.weights = given.to_vector<double>();
      drawn.pictures.push_back(picture);
    }
  }
  write_file_atomically(path, pictures_svg(drawn));
}

}  // namespace examples
