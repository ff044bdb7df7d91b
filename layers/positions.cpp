#include <regard/layers/positions.hpp>

#include <bit>
#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/rotary.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

Tensor add_positions(const Tensor& x, const Tensor& table, int64_t offset) {
  const char* op = "positional encoding";
  check_defined(op, "x", x);
  check<ShapeError>(x.dim() >= 2 && x.size(-1) == table.size(1), op, "input ", x.shape(), ": [..., length, ",
                    table.size(1), "] is expected");
  check<ValueError>(offset >= 0, op, "offset ", offset, " must not be negative");
  check<ShapeError>(offset <= table.size(0) - x.size(-2), op, "input ", x.shape(), " at offset ", offset,
                    " does not lie within the ", table.size(0),
                    " positions that there are: make it with a larger max_length");
  return x + table.slice(0, offset, offset + x.size(-2));
}

std::string described(const char* type, const Tensor& table) {
  return std::string(type) + "(" + std::to_string(table.size(0)) + ", " + std::to_string(table.size(1)) + ")";
}

void check_sizes(const char* layer, int64_t max_length, int64_t width) {
  check<ValueError>(max_length > 0 && width > 0, layer, "max_length ", max_length, " and width ", width,
                    " must be positive");
}

}  // namespace

LearnedPositionalEncoding::LearnedPositionalEncoding(int64_t max_length, int64_t width) {
  check_sizes("LearnedPositionalEncoding", max_length, width);
  weight = Parameter(empty({max_length, width}));
  init::normal_(weight, 0, 0.02);
}

Tensor LearnedPositionalEncoding::operator()(const Tensor& x, int64_t offset) const {
  LayerScope scope(*this);
  return add_positions(x, weight, offset);
}

std::string LearnedPositionalEncoding::describe() const { return described("LearnedPositionalEncoding", weight); }

SinusoidalPositionalEncoding::SinusoidalPositionalEncoding(int64_t max_length, int64_t width) {
  check_sizes("SinusoidalPositionalEncoding", max_length, width);
  Tensor values = empty({max_length, width}, DType::f64);
  double* data = values.data<double>();
  for (int64_t t = 0; t < max_length; ++t)
    for (int64_t i = 0; i < width; ++i) {
      double angle =
          static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i - i % 2) / static_cast<double>(width));
      data[t * width + i] = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  table = Buffer::computed(values);
}

Tensor SinusoidalPositionalEncoding::operator()(const Tensor& x, int64_t offset) const {
  LayerScope scope(*this);
  return add_positions(x, table, offset);
}

std::string SinusoidalPositionalEncoding::describe() const { return described("SinusoidalPositionalEncoding", table); }

RotaryPositionalEncoding::RotaryPositionalEncoding(const RotaryOptions& given) : options(given) {
  check<ValueError>(options.width >= 0, "RotaryPositionalEncoding", "width ", options.width, " must not be negative");
  regard::detail::check_rotary("RotaryPositionalEncoding", options.width > 0 ? options.width : 2, options);
}

Tensor RotaryPositionalEncoding::operator()(const Tensor& x, int64_t offset) const {
  LayerScope scope(*this);
  return rotary_positions(x, offset, options);
}

std::string RotaryPositionalEncoding::describe() const {
  std::ostringstream text;
  text << "RotaryPositionalEncoding(base " << options.base;
  if (options.width > 0) text << ", width " << options.width;
  text << (options.interleaved ? ", interleaved)" : ")");
  return text.str();
}

Tensor alibi_slopes(int64_t heads) {
  check<ValueError>(heads > 0, "alibi_slopes", "heads ", heads, " must be positive");
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto slope = [](int64_t i, int64_t count) {  // the i-th of a power of two
    return std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(count));
  };
  std::vector<double> slopes;
  for (int64_t i = 0; i < below; ++i) slopes.push_back(slope(i, below));
  for (int64_t i = 0; i < heads - below; ++i) slopes.push_back(slope(2 * i, 2 * below));
  return from_vector<double>(slopes);
}

}  // namespace regard::layers
