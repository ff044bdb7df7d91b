#include <regard/layers/pooling.hpp>

#include <cmath>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

void check_tokens(const char* op, const Tensor& x) {
  check_defined(op, "x", x);
  check<ShapeError>(x.dim() == 3, op, "input ", x.shape(), ": tokens [batch, length, width] are expected");
  check<ShapeError>(x.size(1) > 0, op, "input ", x.shape(), " holds no token");
}

void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  check<DTypeError>(!is_floating(mask.dtype()), op, "the mask is ", mask.dtype(),
                    ": boolean or integer, non-zero counts");
  check<ShapeError>(mask.shape() == Shape({x.size(0), x.size(1)}), op, "mask ", mask.shape(), " and input ", x.shape(),
                    ": the mask must be [batch, length]");
}

// The windows of each place beside each other: [N, C, H', W', kernel kernel].
Tensor windows(const char* op, const Tensor& images, int64_t kernel, int64_t stride) {
  check_defined(op, "images", images);
  check<ShapeError>(images.dim() == 4, op, "images ", images.shape(), ": [batch, channels, height, width] is expected");
  check<ShapeError>(images.size(2) >= kernel && images.size(3) >= kernel, op, "images ", images.shape(),
                    " are smaller than the window, ", kernel, " x ", kernel);
  const int64_t down = (images.size(2) - kernel) / stride, across = (images.size(3) - kernel) / stride;
  Tensors places;
  for (int64_t row = 0; row < kernel; ++row)
    for (int64_t column = 0; column < kernel; ++column)
      places.push_back(
          images.slice(2, row, row + down * stride + 1, stride).slice(3, column, column + across * stride + 1, stride));
  return stack(places, -1);
}

int64_t checked_stride(const char* op, int64_t kernel, int64_t stride) {
  check<ValueError>(kernel > 0 && stride >= 0, op, "kernel ", kernel, " must be positive, stride ", stride,
                    " not negative");
  return stride ? stride : kernel;
}

std::string described(const char* type, int64_t kernel, int64_t stride) {
  return std::string(type) + "(" + std::to_string(kernel) + ", stride " + std::to_string(stride) + ")";
}

}  // namespace

Tensor MeanPooling::operator()(const Tensor& x, const Tensor& mask) const {
  LayerScope scope(*this);
  check_tokens("MeanPooling", x);
  if (!mask.defined()) return mean(x, 1);
  check_mask("MeanPooling", x, mask);
  const Tensor counts = mask != 0;                                             // [N, T]
  const Tensor kept = masked_fill(x, logical_not(counts).unsqueeze(-1), 0.0);  // [N, T, width]
  return sum(kept, 1) / counts.to(x.dtype()).sum(1, true).clamp(1.0);
}

Tensor FirstTokenPooling::operator()(const Tensor& x) const {
  LayerScope scope(*this);
  check_tokens("FirstTokenPooling", x);
  return x.select(1, 0);
}

AttentionPooling::AttentionPooling(int64_t width, int64_t num_heads, const MultiHeadAttentionOptions& options)
    : attention(width, num_heads, options) {
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  query = Parameter(empty({width}));
  init::uniform_(query, -bound, bound);
}

Tensor AttentionPooling::queries(const Tensor& x) const {
  check_tokens("AttentionPooling", x);
  return query.expand({x.size(0), 1, query.size(0)});
}

Tensor AttentionPooling::operator()(const Tensor& x, const Tensor& mask) const {
  LayerScope scope(*this);
  return attention(queries(x), x, x, {.mask = {}, .key_mask = mask}).squeeze(1);
}

std::pair<Tensor, Tensor> AttentionPooling::forward_with_weights(const Tensor& x, const Tensor& mask) const {
  LayerScope scope(*this);
  auto [pooled, weights] = attention.forward_with_weights(queries(x), x, x, {.mask = {}, .key_mask = mask});
  return {pooled.squeeze(1), weights.squeeze(2)};  // [N, width], [N, H, T]
}

void AttentionPooling::members(Members& m) {
  m("query", query);
  m("attention", attention);
}

std::string AttentionPooling::describe() const {
  return "AttentionPooling(" + std::to_string(query.size(0)) + ", " + std::to_string(attention.num_heads) + " heads)";
}

AvgPool2d::AvgPool2d(int64_t size, int64_t step) : kernel(size), stride(checked_stride("AvgPool2d", size, step)) {}

Tensor AvgPool2d::operator()(const Tensor& images) const {
  LayerScope scope(*this);
  return mean(windows("AvgPool2d", images, kernel, stride), -1);
}

std::string AvgPool2d::describe() const { return described("AvgPool2d", kernel, stride); }

MaxPool2d::MaxPool2d(int64_t size, int64_t step) : kernel(size), stride(checked_stride("MaxPool2d", size, step)) {}

Tensor MaxPool2d::operator()(const Tensor& images) const {
  LayerScope scope(*this);
  return max(windows("MaxPool2d", images, kernel, stride), -1).first;
}

std::string MaxPool2d::describe() const { return described("MaxPool2d", kernel, stride); }

}  // namespace regard::layers
