#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>
#include <regard/examples/common/digits.hpp>
#include <regard/examples/common/random.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace examples {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view shade_letters = "0123456789ABCDEFG";
constexpr int64_t most_classes = 1000;

[[noreturn]] void fail(const fs::path& path, int64_t line, const std::string& what) {
  throw std::runtime_error(path.string() + ":" + std::to_string(line) + ": " + what);
}

// A uniform number in [-most, most].
double between(Random& random, double most) {
  return most * (static_cast<double>(random.below(int64_t{1} << 40)) / static_cast<double>(int64_t{1} << 39) - 1);
}

// The shade at a place between pixels, by bilinear interpolation; paper outside.
float shade_at(const float* picture, int64_t side, double row, double column) {
  const double top = std::floor(row), left = std::floor(column);
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      const auto y = static_cast<int64_t>(top) + i, x = static_cast<int64_t>(left) + j;
      if (y < 0 || x < 0 || y >= side || x >= side) continue;
      const double weight =
          (1 - std::fabs(row - static_cast<double>(y))) * (1 - std::fabs(column - static_cast<double>(x)));
      sum += weight * picture[y * side + x];
    }
  return static_cast<float>(sum);
}

void distort(const float* picture, float* result, int64_t side, const Distortion& most, Random random) {
  const double down = between(random, most.shift), across = between(random, most.shift);
  const double angle = between(random, most.turn) * std::numbers::pi / 180;
  const double tall = 1 + between(random, most.stretch), wide = 1 + between(random, most.stretch);
  const double middle = static_cast<double>(side - 1) / 2;
  for (int64_t row = 0; row < side; ++row)
    for (int64_t column = 0; column < side; ++column) {  // where this pixel comes from
      const double y = (static_cast<double>(row) - middle - down) / tall;
      const double x = (static_cast<double>(column) - middle - across) / wide;
      result[row * side + column] = 2 * shade_at(picture, side, middle + std::cos(angle) * y - std::sin(angle) * x,
                                                 middle + std::sin(angle) * y + std::cos(angle) * x) -
                                    1;
    }
}

LabelledPictures part(const LabelledPictures& pictures, int64_t begin, int64_t end) {
  const int64_t pixels = pictures.side * pictures.side;
  return {.side = pictures.side,
          .shades = {pictures.shades.begin() + begin * pixels, pictures.shades.begin() + end * pixels},
          .labels = {pictures.labels.begin() + begin, pictures.labels.begin() + end}};
}

}  // namespace

int64_t LabelledPictures::classes() const {
  return labels.empty() ? 0 : *std::max_element(labels.begin(), labels.end()) + 1;
}

LabelledPictures read_pictures(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path)) throw std::runtime_error(path.string() + ": cannot read the pictures");
  LabelledPictures pictures;
  int64_t line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t space = line.find(' ');
    if (space == 0 || space == std::string::npos || space > 4 || line.find_first_not_of("0123456789") != space)
      fail(path, line_number, "a line is a class (0, 1, ...), a space, and the picture's shades");
    const int64_t label = std::stoll(line.substr(0, space));
    if (label >= most_classes)
      fail(path, line_number,
           "class " + std::to_string(label) + ": at most " + std::to_string(most_classes) + " classes are read, 0 to " +
               std::to_string(most_classes - 1));
    const auto shades = static_cast<int64_t>(line.size() - space - 1);
    if (pictures.side == 0) {
      const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(shades))));
      if (side < 1 || side * side != shades)
        fail(path, line_number, std::to_string(shades) + " shades do not make a square picture");
      pictures.side = side;
    }
    if (shades != pictures.side * pictures.side)
      fail(path, line_number,
           std::to_string(shades) + " shades, where the first picture has " +
               std::to_string(pictures.side * pictures.side));
    for (std::size_t i = space + 1; i < line.size(); ++i) {
      const std::size_t shade = shade_letters.find(line[i]);
      if (shade == std::string_view::npos)
        fail(path, line_number, "byte " + std::to_string(i + 1) + " is no shade: 0 to 9 and A to G are");
      pictures.shades.push_back(static_cast<float>(shade) / 16);
    }
    pictures.labels.push_back(label);
  }
  if (file.bad()) throw std::runtime_error(path.string() + ": cannot read the pictures");
  if (pictures.labels.empty()) throw std::runtime_error(path.string() + ": holds no picture");
  return pictures;
}

fs::path digits_file() {
  const fs::path source = fs::path(REGARD_EXAMPLES_DATA) / "digits.txt";
  std::error_code error;
  if (fs::is_regular_file(source, error)) return source;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share" / "regard" / "data" / "digits.txt";
  if (fs::is_regular_file(installed, error)) return installed;
  throw std::runtime_error("the digits are neither at " + source.string() + " nor at " + installed.string() +
                           "; give their file with --data");
}

PictureSplit split_pictures(const LabelledPictures& pictures, double share, TestPictures which) {
  const int64_t count = pictures.count(), pixels = pictures.side * pictures.side;
  const auto up_to = [&](int64_t place) {  // so many of the first ones; the addend is for 5 * 0.2 a little below 1
    return static_cast<int64_t>(std::floor(share * static_cast<double>(place) + 1e-9));
  };
  PictureSplit split;
  split.training.side = split.test.side = pictures.side;
  for (int64_t i = 0; i < count; ++i) {
    const bool held_out = which == TestPictures::last ? i >= count - up_to(count) : up_to(i + 1) > up_to(i);
    LabelledPictures& side = held_out ? split.test : split.training;
    side.labels.push_back(pictures.labels[static_cast<std::size_t>(i)]);
    side.shades.insert(side.shades.end(), pictures.shades.begin() + i * pixels,
                       pictures.shades.begin() + (i + 1) * pixels);
  }
  if (split.test.count() == 0 || split.training.count() == 0)
    throw std::runtime_error("of " + std::to_string(count) + " pictures, " + std::to_string(split.test.count()) +
                             " are for the test: some must be left on both sides; see --held-out");
  return split;
}

PictureBatch picture_batch(const LabelledPictures& pictures, int64_t begin, int64_t end) {
  LabelledPictures some = part(pictures, begin, end);
  for (float& shade : some.shades) shade = 2 * shade - 1;
  return {regard::from_vector<float>(some.shades, {some.count(), 1, some.side, some.side}),
          regard::from_vector<int64_t>(some.labels)};
}

PictureBatch distorted_batch(const LabelledPictures& pictures, const std::vector<int64_t>& numbers,
                             const Distortion& distortion, uint64_t seed, int64_t step) {
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t pixels = pictures.side * pictures.side;
  regard::Tensor images = regard::empty({count, 1, pictures.side, pictures.side});
  regard::Tensor labels = regard::empty({count}, regard::DType::i64);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t which = numbers[static_cast<std::size_t>(i)];
    // Keyed by its place in the training, so that a resumed one goes on with the same pictures.
    distort(pictures.shades.data() + which * pixels, images.data<float>() + i * pixels, pictures.side, distortion,
            Random(seed, 2, static_cast<uint64_t>(step) << 20 | static_cast<uint64_t>(i)));
    labels.data<int64_t>()[i] = pictures.labels[static_cast<std::size_t>(which)];
  }
  return {images, labels};
}

}  // namespace examples
