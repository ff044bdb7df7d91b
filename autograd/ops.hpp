// Every public op. Names, argument order and meaning are PyTorch's where it has them. A `dim` counts from the end
// when negative. Floating ops take f32 and f64; integer and boolean tensors become the float tensor's dtype beside
// one; two different float dtypes are a DTypeError. All are differentiable, twice and more, unless said otherwise.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/random.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

// ---- Arithmetic (ops/arithmetic.cpp), with broadcasting. Division of integers gives f32.
Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, Scalar b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, Scalar b);
Tensor sub(Scalar a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, Scalar b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, Scalar b);
Tensor div(Scalar a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);  ///< d/db is 0 where a is 0
Tensor pow(const Tensor& a, Scalar b);         ///< at 0: gradient 1 for exponent 1, 0 for larger ones
Tensor pow(Scalar a, const Tensor& b);
Tensor neg(const Tensor& x);
/// The larger (smaller) of two; the gradient is halved at a tie. NaN where either is.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

// x becomes a handle on the result, part of the graph; what shared x's elements keeps them. In place: add_() and so on.
inline Tensor& operator+=(Tensor& x, const Tensor& y) { return x = add(x, y); }
inline Tensor& operator+=(Tensor& x, Scalar y) { return x = add(x, y); }
inline Tensor& operator-=(Tensor& x, const Tensor& y) { return x = sub(x, y); }
inline Tensor& operator-=(Tensor& x, Scalar y) { return x = sub(x, y); }
inline Tensor& operator*=(Tensor& x, const Tensor& y) { return x = mul(x, y); }
inline Tensor& operator*=(Tensor& x, Scalar y) { return x = mul(x, y); }
inline Tensor& operator/=(Tensor& x, const Tensor& y) { return x = div(x, y); }
inline Tensor& operator/=(Tensor& x, Scalar y) { return x = div(x, y); }

// ---- Functions of one tensor (ops/unary.cpp)
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);   ///< gradient at 0: infinity
Tensor rsqrt(const Tensor& x);  ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor abs(const Tensor& x);   ///< gradient at 0: 0
Tensor sign(const Tensor& x);  ///< -1, 0 or 1; its gradient is 0
Tensor erf(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
/// x held between min and max, either may be left out; the gradient passes where min < x < max.
Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max = std::nullopt);

// ---- Activations (ops/activations.cpp)
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);  ///< gradient at 0: 0
enum class GeluApproximation : uint8_t { none, tanh };
/// x Phi(x) exactly, or its tanh approximation (what GPT-2's family uses). Hendrycks and Gimpel, 2016.
Tensor gelu(const Tensor& x, GeluApproximation approximation = GeluApproximation::none);
Tensor silu(const Tensor& x);  ///< x sigmoid(x)
enum class Activation : uint8_t { relu, gelu, gelu_tanh, silu };
/// relu(x), gelu(x), gelu(x, GeluApproximation::tanh) or silu(x), by name.
Tensor activate(const Tensor& x, Activation activation);

// ---- Comparisons and logic (ops/compare.cpp): boolean results, no derivative
Tensor operator==(const Tensor& a, const Tensor& b);
Tensor operator==(const Tensor& a, Scalar b);
Tensor operator==(Scalar a, const Tensor& b);
Tensor operator!=(const Tensor& a, const Tensor& b);
Tensor operator!=(const Tensor& a, Scalar b);
Tensor operator!=(Scalar a, const Tensor& b);
Tensor operator<(const Tensor& a, const Tensor& b);
Tensor operator<(const Tensor& a, Scalar b);
Tensor operator<(Scalar a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, Scalar b);
Tensor operator<=(Scalar a, const Tensor& b);
Tensor operator>(const Tensor& a, const Tensor& b);
Tensor operator>(const Tensor& a, Scalar b);
Tensor operator>(Scalar a, const Tensor& b);
Tensor operator>=(const Tensor& a, const Tensor& b);
Tensor operator>=(const Tensor& a, Scalar b);
Tensor operator>=(Scalar a, const Tensor& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// Whether shapes, dtypes and all elements are equal (NaN equals nothing).
bool equal(const Tensor& a, const Tensor& b);
/// Whether shapes are equal and |a - b| <= atol + rtol |b| everywhere; infinities equal themselves. Any dtypes.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);

// ---- Selection (ops/where.cpp). The gradient goes to the selected side only, by selection: an infinity or NaN on
// the other side does no harm.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
/// x with `value` where mask (boolean, or integer: non-zero) holds; the mask broadcasts to x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

// ---- Reductions (ops/reduce.cpp, ops/extreme.cpp): over all elements, or over `dims`; keepdim leaves them at size 1
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, Dims dims, Flag keepdim = false);
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, Dims dims, Flag keepdim = false);
/// Variance in two passes, divided by n - 1 (`unbiased`) or n.
Tensor var(const Tensor& x);  ///< of all elements, unbiased
Tensor var(const Tensor& x, Dims dims, Flag unbiased = true, Flag keepdim = false);
Tensor max(const Tensor& x);  ///< of all; the gradient goes to the first maximum
Tensor min(const Tensor& x);
std::pair<Tensor, Tensor> max(const Tensor& x, int64_t dim, Flag keepdim = false);  ///< values, indices
std::pair<Tensor, Tensor> min(const Tensor& x, int64_t dim, Flag keepdim = false);
/// Of several dimensions at once; equal extremes share the gradient evenly.
Tensor amax(const Tensor& x, Dims dims, Flag keepdim = false);
Tensor amin(const Tensor& x, Dims dims, Flag keepdim = false);
Tensor argmax(const Tensor& x);  ///< index in row-major order; the first of equals
Tensor argmax(const Tensor& x, int64_t dim, Flag keepdim = false);
Tensor argmin(const Tensor& x);
Tensor argmin(const Tensor& x, int64_t dim, Flag keepdim = false);
Tensor logsumexp(const Tensor& x, Dims dims, Flag keepdim = false);  ///< of all -inf: -inf, gradient 0
Tensor any(const Tensor& x);                                         ///< boolean
Tensor any(const Tensor& x, Dims dims, Flag keepdim = false);
Tensor all(const Tensor& x);
Tensor all(const Tensor& x, Dims dims, Flag keepdim = false);
Tensor norm(const Tensor& x);  ///< Euclidean, of all elements; gradient 0 at zero
/// x summed down to `shape`, the reverse of expand.
Tensor sum_to(const Tensor& x, const Shape& shape);

// ---- Views (ops/view.cpp, ops/split.cpp): the elements stay where they are, unless said
Tensor view(const Tensor& x, const Shape& shape);     ///< one size may be -1; a ShapeError where strides forbid
Tensor reshape(const Tensor& x, const Shape& shape);  ///< a view where it can be, else a copy
Tensor flatten(const Tensor& x, int64_t start_dim = 0, int64_t end_dim = -1);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor transpose(const Tensor& x, int64_t dim0, int64_t dim1);
Tensor contiguous(const Tensor& x);                  ///< x itself where it is dense, else a copy
Tensor expand(const Tensor& x, const Shape& shape);  ///< -1 keeps a size
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor unsqueeze(const Tensor& x, int64_t dim);
Tensor slice(const Tensor& x, int64_t dim, int64_t start = 0, int64_t stop = INT64_MAX, int64_t step = 1);
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
Tensors split(const Tensor& x, int64_t split_size, int64_t dim = 0);
Tensors split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim = 0);
Tensors chunk(const Tensor& x, int64_t chunks, int64_t dim = 0);

// ---- Joining and rearranging, copies (ops/rearrange.cpp, ops/copy.cpp)
Tensor cat(const Tensors& tensors, int64_t dim = 0);
Tensor stack(const Tensors& tensors, int64_t dim = 0);
Tensor flip(const Tensor& x, Dims dims);
Tensor triu(const Tensor& x, int64_t diagonal = 0);
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor clone(const Tensor& x);
/// x in another dtype; x itself where it is that already. Integers and booleans have no gradient.
Tensor to(const Tensor& x, DType dtype);
/// x on another device; x itself where it is there already. The gradient goes back to where x is.
Tensor to(const Tensor& x, Device device);

// ---- Indexing (ops/index.cpp). An index outside its range is an IndexError that names it; duplicates add up in
// the gradient.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// x with `source` added along dim at the (1-D) index, duplicates too.
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source);
/// Rows of weight [count, width] by ids of any shape: [..., width]. padding_idx >= 0: that row gets no gradient.
Tensor embedding(const Tensor& ids, const Tensor& weight, int64_t padding_idx = -1);
Tensor one_hot(const Tensor& ids, int64_t classes = -1);  ///< i64; -1: the largest id + 1

// ---- Matrices (ops/matmul.cpp)
/// PyTorch's rules: 1-D by 1-D a dot product, a 1-D side becomes a row or column for the product, the rest are
/// matrices with broadcast batch dimensions. Any strides, without a copy.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// linear(activation(linear(x, up, up_bias)), down, down_bias), plus residual: the feed-forward network of a
/// transformer as one op. x [..., in], up [hidden, in], down [out, hidden]; up_bias [hidden], down_bias [out] and
/// residual [..., out] may be undefined. All floating, of one dtype and device: else a DTypeError, DeviceError or
/// ShapeError that names the argument. In less memory than the ops one by one: backward keeps no copy of what comes
/// after the activation and computes it anew.
Tensor feed_forward(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                    const Tensor& down_bias, Activation activation, const Tensor& residual = {});

// ---- Softmax and normalisation (ops/softmax.cpp, ops/norm.cpp)
Tensor softmax(const Tensor& x, int64_t dim);
Tensor log_softmax(const Tensor& x, int64_t dim);
/// Over the last dimensions, whose sizes are weight's shape; weight and bias may be undefined, then
/// `normalized_shape` names the dimensions. Ba, Kiros, Hinton, 2016.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, const Tensor& bias = {},
                  double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dimensions. Zhang and Sennrich, 2019.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {}, double eps = 1e-6);

// ---- Dropout (ops/dropout.cpp): drops whenever p > 0; layers know train and eval. p = 0 returns x and draws nothing.
Tensor dropout(const Tensor& x, double p, Generator& generator = default_generator());

// ---- Losses (ops/loss.cpp, ops/cross_entropy.cpp). Shapes must be equal: losses never broadcast.
enum class Reduction : uint8_t { none, mean, sum };
struct CrossEntropyOptions {
  Tensor weight = {};           ///< [C], one a class
  int64_t ignore_index = -100;  ///< targets of this value count for nothing
  double label_smoothing = 0;   ///< in [0, 1]: this share of the target goes to all classes evenly
  Reduction reduction = Reduction::mean;
};
/// logits [N, C] or [C], targets i64 [N] or none. Also [N, C, d1, ...] with targets [N, d1, ...]. The mean over no
/// counted target is 0 with gradient 0. A class outside [0, C) is an IndexError. Losses of bf16 and f16 logits are f32.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});
struct NllLossOptions {
  Tensor weight = {};
  int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};
/// log-probabilities [N, C] (or [C]) and targets. Losses of bf16 and f16 ones are f32.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, const NllLossOptions& options = {});
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
struct BceOptions {
  Tensor weight = {};      ///< broadcasts to the input
  Tensor pos_weight = {};  ///< factor of the positive term, broadcasts to the input
  Reduction reduction = Reduction::mean;
};
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target, const BceOptions& options = {});
/// sum of target (log target - input), input in log-probabilities; 0 log 0 is 0. Mean divides by the number of
/// elements, `batch_mean` callers divide the sum themselves.
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);

// ---- Attention (ops/attention.cpp). Vaswani et al., 2017.
struct AttentionOptions {
  Tensor mask = {};      ///< [L, S], or 4-D broadcastable to [N, H, L, S]; bool or integer: non-zero may attend;
                         ///< float: added to the scores
  Tensor key_mask = {};  ///< [N, S], bool or integer: non-zero may attend
  bool causal = false;   ///< query i sees keys up to i + S - L
  double dropout = 0;    ///< drops weights whenever > 0
  std::optional<double> scale = std::nullopt;  ///< default 1 / sqrt(width)
  Generator* generator = nullptr;              ///< for dropout; default_generator() when null
  Tensor alibi = {};  ///< [H], floating: slope * |i + S - L - j| is taken from the score of query i and key j. Press
                      ///< et al., 2022; constants, they get no gradient
};
/// query [N, H, L, D], key [N, H, S, D], value [N, H, S, Dv] -> [N, H, L, Dv]; also 3-D [N, L, D] and 2-D [L, D]
/// (one head). A row with nothing to attend to gives zeros and zero gradients. Key and value may have fewer heads,
/// Hkv that divide H: query head h uses theirs of h / (H / Hkv), without a copy. Ainslie et al., "GQA", 2023.
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options = {});
/// The same, and the weights [N, H, L, S] before dropout.
std::pair<Tensor, Tensor> scaled_dot_product_attention_with_weights(const Tensor& query, const Tensor& key,
                                                                    const Tensor& value,
                                                                    const AttentionOptions& options = {});

// ---- Rotary positions (ops/rotary.cpp). Su et al., "RoFormer", 2021.
struct RotaryOptions {
  double base = 10000;       ///< pair j turns by t * base^(-2j / width) at position t
  bool interleaved = false;  ///< pairs are (2j, 2j + 1), as in the paper; false: (j, j + width / 2), as Llama has it
  int64_t width = 0;         ///< how many of the first elements are turned, the rest passes; 0: all
};
/// x [..., T, D], each pair of a row turned by the angle of its position offset + t: the product of two rows turned
/// depends on the difference of their positions alone.
Tensor rotary_positions(const Tensor& x, int64_t offset = 0, const RotaryOptions& options = {});

}  // namespace regard
