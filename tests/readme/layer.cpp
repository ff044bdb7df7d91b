#include <regard/regard.hpp>
using namespace regard;

// An op with a gradient of its own, in tensor ops, so that second derivatives work too.
Tensor quick_gelu(const Tensor& x) {
  return custom_op(
      "quick_gelu", {x}, [](const Tensors& in) { return in[0] * sigmoid(1.702 * in[0]); },
      [](const Tensors& in, const Tensor& grad) {
        Tensor s = sigmoid(1.702 * in[0]);
        return Tensors{grad * (s + 1.702 * in[0] * s * (1 - s))};
      });
}

// A layer: a plain struct that lists its members once.
struct GatedAttention : layers::Layer {
  layers::LayerNorm norm;
  layers::MultiHeadAttention attention;
  layers::Parameter gate;

  GatedAttention(int64_t width, int64_t heads) : norm(width), attention(width, heads), gate(zeros({width})) {}
  Tensor operator()(const Tensor& x) const { return x + gate * quick_gelu(attention(norm(x), {.causal = true})); }
  void members(layers::Members& m) override {
    m("norm", norm);
    m("attention", attention);
    m("gate", gate);
  }
};

int main() {
  GatedAttention layer(8, 2);
  layer.gate = full({8}, 0.5f);
  return gradcheck(layer, {randn({2, 4, 8})}) ? 0 : 1;  // every input and parameter, in f64
}
