// What a device must provide: a table of kernels. Ops check their arguments and allocate outputs; kernels compute.
//
// Conventions: `y` is the output, allocated, of its final shape, usually dense; inputs have any strides (0 where
// expanded) and are already expanded to the common shape where an op broadcasts. Dtypes are checked by the op:
// compute kernels meet f32 and f64 (and i64 or boolean where said), on GPUs bf16 and f16 wherever f32 is said, which
// they compute with as f32 and round once, when they write. Kernels work on x.raw_data(), shape() and
// strides(), record nothing, and do not bump versions. Sums are kept in f64 or in fixed trees of partial sums, so
// that they do not depend on threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <regard/autograd/tensor.hpp>

namespace regard {

/// y[i] = op(a[i]). f32, f64; neg, abs, sign also i64; logical_not: any dtype to boolean.
enum class UnaryOp : uint8_t {
  neg,
  abs,
  sign,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  tanh,
  sigmoid,
  relu,
  gelu,
  gelu_tanh,
  silu,
  erf,
  sin,
  cos,
  logical_not,
  is_finite
};

/// y[i] = op(a[i], b[i]). Arithmetic: a, b, y of one dtype (f32, f64; i64 too). Comparisons: y boolean, a and b of
/// one dtype (any). Logic: y boolean, a and b boolean. The *_grad rows take (a = the op's input x or output y as
/// named, b = the gradient g) and are f32, f64.
enum class BinaryOp : uint8_t {
  add,
  sub,
  mul,
  div,
  pow,
  maximum,
  minimum,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  logical_and,
  logical_or,
  logical_xor,
  tanh_grad_y,
  sigmoid_grad_y,
  relu_grad_y,
  gelu_grad_x,
  gelu_tanh_grad_x,
  silu_grad_x
};

/// boolean y for any, all; sum of i64 and boolean inputs gives i64; the others keep the dtype;
/// sum_of_squares of f32 may be asked for in f64.
enum class ReduceOp : uint8_t { sum, mean, max, min, any, all, sum_of_squares };

/// Offsets of a batch of matrices (elements), see Kernels::gemm.
struct GemmBatch {
  int64_t count = 1;
  const int64_t* a = nullptr;
  const int64_t* b = nullptr;
  const int64_t* c = nullptr;
};

/// What is done to a product c while it is in the cache, in this order; each may be left out. Matrices lie as c does:
/// [m, n], dense.
struct GemmEpilogue {
  const void* bias = nullptr;  ///< [n]: is added to every row, before the product
  int64_t bias_stride = 1;
  void* before = nullptr;                        ///< gets what c is before the activation
  std::optional<UnaryOp> activation = {};        ///< c = activation(c)
  std::optional<BinaryOp> activation_grad = {};  ///< c = activation_grad(x, c): one of the *_grad rows
  const void* x = nullptr;                       ///< what activation_grad takes beside the gradient
  std::optional<UnaryOp> activation_again = {};  ///< of x, into `activated`
  void* activated = nullptr;
  const void* residual = nullptr;  ///< c = residual + c
};

/// What a step of SGD reads and writes of one parameter: dense, of one shape. References for the duration of a call;
/// the tensors of a list have one dtype, f32 or f64.
struct SgdTensors {
  const Tensor& p;
  const Tensor& grad;
  const Tensor& velocity;  ///< undefined: no momentum; so are those of the whole list
};

/// The same for Adam.
struct AdamTensors {
  const Tensor& p;
  const Tensor& grad;
  const Tensor& exp_avg;
  const Tensor& exp_avg_sq;
};

/// The same for Lion.
struct LionTensors {
  const Tensor& p;
  const Tensor& grad;
  const Tensor& exp_avg;
};

// Steps have an `at_replay` where they are captured (cuda_graph.hpp): it gives the numbers of each replay.

/// One step of SGD. Sutskever et al., 2013, as PyTorch does it.
struct SgdStep {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first;  ///< first: the velocity starts as the gradient
  std::function<SgdStep()> at_replay = {};
};

/// One step of Adam or AdamW; step counts from 1.
struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;  ///< AdamW: decay by lr * weight_decay * p, apart from the gradient
  int64_t step;
  std::function<AdamStep()> at_replay = {};

  // Corrections of the moments, which start at 0: the step is corrected_lr * m / (root_scale * sqrt(v) + eps).
  double corrected_lr() const { return lr / (1 - std::pow(beta1, static_cast<double>(step))); }
  double root_scale() const { return 1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(step))); }
};

/// One step of Lion. Chen et al., 2023.
struct LionStep {
  double lr, beta1, beta2, weight_decay;  ///< decay by lr * weight_decay * p
  std::function<LionStep()> at_replay = {};
};

/// What attention's kernels need beside tensors. Dropout of weight (n, h, l, s) uses counter
/// offset + ((n * H + h) * L + l) * S + s, as the dropout row does on the weights [N, H, L, S].
struct AttentionSettings {
  double scale;
  bool causal;     ///< query i sees keys up to i + S - L
  double dropout;  ///< 0: none
  uint64_t seed, offset;
};

struct Kernels {
  // ---- Elementwise
  void (*unary)(UnaryOp op, const Tensor& y, const Tensor& a);
  void (*binary)(BinaryOp op, const Tensor& y, const Tensor& a, const Tensor& b);
  /// One side a number: a op b, or b op a with `scalar_first`.
  void (*binary_scalar)(BinaryOp op, const Tensor& y, const Tensor& a, Scalar b, bool scalar_first);
  void (*clamp)(const Tensor& y, const Tensor& a, double low, double high);
  /// y[i] = condition[i] ? a[i] : b[i]; condition boolean; y, a, b of one dtype (any).
  void (*where)(const Tensor& y, const Tensor& condition, const Tensor& a, const Tensor& b);
  void (*masked_fill)(const Tensor& y, const Tensor& a, const Tensor& mask, Scalar value);
  /// y[i] = a[i] with any strides on both sides and any pair of dtypes.
  void (*copy)(const Tensor& y, const Tensor& a);
  void (*fill)(const Tensor& y, Scalar value);
  void (*arange)(const Tensor& y, Scalar start, Scalar step);
  /// y += alpha * a, in place, f32 and f64, same shape.
  void (*axpy)(const Tensor& y, const Tensor& a, double alpha);

  // ---- Reductions. `y` has a's shape with the reduced dimensions at size 1.
  void (*reduce)(ReduceOp op, const Tensor& y, const Tensor& a);
  /// First extreme along dim (NaN counts as extreme): values may be undefined; indices i64; both keepdim-shaped.
  void (*extreme)(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a, int64_t dim);
  /// Two-pass variance over the dimensions of size 1 in y, divided by max(0, count - correction); mean may be
  /// undefined, else it is y-shaped and filled too.
  void (*variance)(const Tensor& y, const Tensor& mean, const Tensor& a, int64_t correction);
  void (*logsumexp)(const Tensor& y, const Tensor& a);

  // ---- Rows: along one dimension
  /// Empty rows (all -inf) give NaN as in softmax, or zeros with `empty_rows_zero` (attention).
  void (*softmax)(const Tensor& y, const Tensor& a, int64_t dim, bool empty_rows_zero);
  void (*softmax_grad)(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim);
  void (*log_softmax)(const Tensor& y, const Tensor& a, int64_t dim);
  void (*log_softmax_grad)(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim);
  /// Over the last `width` elements (a seen as [rows, width], dense); weight, bias [width] or undefined; mean and
  /// rstd: [rows], in a's dtype, or f32 where that has 16 bits.
  void (*layer_norm)(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a, const Tensor& weight,
                     const Tensor& bias, double eps);
  /// da, dweight, dbias may be undefined: not wanted.
  void (*layer_norm_grad)(const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                          const Tensor& a, const Tensor& mean, const Tensor& rstd, const Tensor& weight);
  void (*rms_norm)(const Tensor& y, const Tensor& rstd, const Tensor& a, const Tensor& weight, double eps);
  void (*rms_norm_grad)(const Tensor& da, const Tensor& dweight, const Tensor& dy, const Tensor& a, const Tensor& rstd,
                        const Tensor& weight);
  /// Per-row loss of softmax + cross-entropy over logits [rows, classes], dense; targets [rows] i64, checked by the
  /// op; weight [classes] or undefined. losses [rows] and log_sum_exp [rows] are filled, f32 where logits have 16 bits;
  /// ignored rows give 0.
  void (*cross_entropy)(const Tensor& losses, const Tensor& log_sum_exp, const Tensor& logits, const Tensor& targets,
                        const Tensor& weight, int64_t ignore_index, double label_smoothing);
  /// dlogits from the gradient of each row's loss, [rows], of the losses' dtype.
  void (*cross_entropy_grad)(const Tensor& dlogits, const Tensor& dlosses, const Tensor& log_sum_exp,
                             const Tensor& logits, const Tensor& targets, const Tensor& weight, int64_t ignore_index,
                             double label_smoothing);

  // ---- Indices (i64, any strides, checked by the op where it must throw: see index_range)
  /// The smallest and largest entry of an i64 tensor with at least one element.
  void (*index_range)(const Tensor& index, int64_t* smallest, int64_t* largest);
  void (*gather)(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index);
  /// y += source at index along dim, in logical order of source: deterministic.
  void (*scatter_add)(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source);
  void (*index_select)(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index);
  /// y += source along dim at index (1-D), deterministic.
  void (*index_add)(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source);
  void (*triangle)(const Tensor& y, const Tensor& a, int64_t diagonal, bool upper);
  /// y = a with the listed dimensions reversed.
  void (*flip)(const Tensor& y, const Tensor& a, const Shape& dims);

  // ---- Matrices: c = alpha a b + beta c for each of the batch, any strides, f32 and f64
  void (*gemm)(DType dtype, int64_t m, int64_t n, int64_t k, double alpha, const void* a, int64_t a_row,
               int64_t a_column, const void* b, int64_t b_row, int64_t b_column, double beta, void* c, int64_t c_row,
               int64_t c_column, const GemmBatch& batch);
  /// c = a b [m, n], dense, with an epilogue: the bits are those of one op after the other.
  void (*gemm_epilogue)(DType dtype, int64_t m, int64_t n, int64_t k, const void* a, int64_t a_row, int64_t a_column,
                        const void* b, int64_t b_row, int64_t b_column, void* c, const GemmEpilogue& epilogue);

  // ---- Attention: y = dropout(softmax(scale q k^T + mask)) v without the weights in memory
  /// q [N, H, L, D], k [N, Hkv, S, D], v [N, Hkv, S, Dv], any strides, head h of q over head h / (H / Hkv) of k and v;
  /// y [N, H, L, Dv], its last dimension dense. alibi: undefined, or slopes [H], f64, dense. mask:
  /// undefined, or expanded to [N, H, L, S], boolean or i64 (0 blocks) or of q's dtype (added; -inf blocks); key_mask:
  /// undefined, or [N, S], boolean or i64. statistics [N, H, 2, L], dense: of each row the largest score and the
  /// inverse of the sum of exponentials, 0 for rows with nothing to attend to; in q's dtype, or f32 where that has 16
  /// bits. Such q, k and v are given to this row and the next two up to `widest_narrow_attention` alone.
  void (*attention)(const Tensor& y, const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& mask, const Tensor& key_mask, const Tensor& alibi, const AttentionSettings& settings);
  /// Of each row the sum of dy y, [N, H, L], dense, in the statistics' dtype; the last dimension of dy and y is dense.
  void (*attention_delta)(const Tensor& delta, const Tensor& dy, const Tensor& y);
  /// The gradients of q, k and v, their last dimension dense; each may be undefined: not wanted. Each may be the tensor
  /// itself of which it is the gradient, written over. y may be attention_delta()'s result in place of the output.
  void (*attention_grad)(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dy, const Tensor& y,
                         const Tensor& statistics, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                         const AttentionSettings& settings);

  // ---- Rotary positions: y and x [..., T, D], any strides but y's last dimension dense; cosines and sines [T, pairs],
  /// dense, of their dtype or f32 where that has 16 bits. Pairs of the first elements are turned, `back` by the
  /// opposite angle; the rest is copied.
  void (*rotate)(const Tensor& y, const Tensor& x, const Tensor& cosines, const Tensor& sines, bool interleaved,
                 bool back);

  // ---- Random numbers: element i (logical row-major index) uses counter offset + i
  void (*uniform)(const Tensor& y, double low, double high, uint64_t seed, uint64_t offset);
  void (*normal)(const Tensor& y, double mean, double std, uint64_t seed, uint64_t offset);
  void (*randint)(const Tensor& y, int64_t low, int64_t high, uint64_t seed, uint64_t offset);
  void (*bernoulli)(const Tensor& y, const Tensor& p, uint64_t seed, uint64_t offset);
  /// y[i] = kept ? a[i] / (1 - p) : 0; kept where the counter's uniform number is at least p.
  void (*dropout)(const Tensor& y, const Tensor& a, double p, uint64_t seed, uint64_t offset);

  // ---- Optimizers: parameters and their state are written in place in one pass over memory. A list is done as one
  // loop or launch, however small its tensors are.
  void (*sgd_step)(std::span<const SgdTensors> list, const SgdStep& options);
  void (*adam_step)(std::span<const AdamTensors> list, const AdamStep& options);
  void (*lion_step)(std::span<const LionTensors> list, const LionStep& options);
  /// y, one f64 number: the sum of the squares of all elements, in f64. Dense tensors of one device, f32 and f64.
  void (*norm_squared)(const Tensor& y, std::span<const Tensor> list);
  /// Multiplies the same by largest / (norm + 1e-6) where that is below 1 and the norm, one f64 number, finite.
  void (*limit_norm)(std::span<const Tensor> list, const Tensor& norm, double largest);

  // ---- Limits
  /// The widest heads, D and Dv, that attention takes in 16 bits; -1: it takes none.
  int64_t widest_narrow_attention;
};

/// The table of a device.
const Kernels& kernels(Device device);
inline const Kernels& kernels(const Tensor& x) { return kernels(x.device()); }

/// The device's own, whatever stands in for it.
const Kernels& own_kernels(Device device);
/// Lets another table stand in for that of all devices of a kind, from now on and on all threads; null ends it. For the
/// Profiler, whose tables call the originals.
void use_kernels(Device::Kind kind, const Kernels* table);

}  // namespace regard
