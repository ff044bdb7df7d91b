// Scaled dot-product attention. Vaswani et al., "Attention is all you need", 2017.
//
// A blocked position never reaches a result or a gradient: its score is replaced, not offset. Where a key is blocked
// for every query (a key_mask, or a mask of one row for all queries) the key and its value are replaced as well, so
// that even an infinity or NaN there does no harm. A key or value that is infinite or NaN and blocked for some queries
// only does reach those queries (0 times it is NaN): the value their outputs, the key their gradients.
#include <regard/autograd/ops/attention.hpp>

#include <atomic>
#include <cmath>
#include <limits>

#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops/softmax_rows.hpp>

namespace regard {

namespace {

constexpr const char* name = "scaled_dot_product_attention";
constexpr double infinity = std::numeric_limits<double>::infinity();

std::atomic<bool> float_mask_warning_given{false};

/// Added to the scores, a mask of zeros and ones blocks nothing: most likely it was meant as a boolean one.
void warn_of_zeros_and_ones(const Tensor& mask) {
  if (float_mask_warning_given.load(std::memory_order_relaxed) || mask.numel() < 2) return;
  Tensor zero = mask == 0, one = mask == 1;
  if (!all(logical_or(zero, one)).item<bool>() || !any(zero).item<bool>() || !any(one).item<bool>()) return;
  if (float_mask_warning_given.exchange(true)) return;
  warn(std::string(name) +
       ": a float mask is added to the scores, and this one holds only 0 and 1, which blocks nothing; where 1 means "
       "that a query may attend, pass mask.to(DType::boolean)");
}

/// a or b, where an undefined tensor blocks nothing.
Tensor either(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  if (!b.defined()) return a;
  return logical_or(a, b);
}

/// Boolean [L, S], true where query i must not see key j: beyond i + S - L. Undefined where that blocks nothing.
Tensor beyond_causal(int64_t queries, int64_t keys, Device device) {
  if (queries < 2) return {};  // the last query sees all
  Tensor last = arange_scalar(keys - queries, keys, 1, TensorOptions(DType::i64, device)).view({queries, 1});
  return arange_scalar(0, keys, 1, TensorOptions(DType::i64, device)) > last;  // [L, S]
}

bool may_attend_mask(const Tensor& mask) { return mask.defined() && !is_floating(mask.dtype()); }

/// query, key and value as [N, H, length, width], whatever was given.
Tensor four_dimensional(const Tensor& x) {
  if (x.dim() == 4) return x;
  return x.dim() == 3 ? unsqueeze(x, 1) : unsqueeze(unsqueeze(x, 0), 0);
}
Tensor as_given(const Tensor& x, int64_t dims) {
  if (dims == 4) return x;
  return dims == 3 ? squeeze(x, 1) : squeeze(squeeze(x, 0), 0);
}

void check_sizes(const Tensor& query, const Tensor& key, const Tensor& value) {
  for (const auto& [argument, x] : {std::pair{"query", &query}, {"key", &key}, {"value", &value}}) {
    check_defined(name, argument, *x);
    check_floating(name, argument, *x);
    check_same_device(name, query, *x);
    check<DTypeError>(x->dtype() == query.dtype(), name, "query is ", query.dtype(), " and ", argument, " is ",
                      x->dtype(), "; convert one with to()");
    check<ShapeError>(x->dim() >= 2 && x->dim() <= 4, name, argument, " ", x->shape(),
                      ": expected [N, H, length, width], [N, length, width] or [length, width]");
    check<ShapeError>(x->dim() == query.dim(), name, "query ", query.shape(), " and ", argument, " ", x->shape(),
                      ": expected as many dimensions in each");
    for (int64_t d = 0; d + 2 < x->dim(); ++d)
      check<ShapeError>(x->shape()[d] == query.shape()[d], name, "query ", query.shape(), " and ", argument, " ",
                        x->shape(), ": expected the same size in dimension ", d, ", found ", query.shape()[d], " and ",
                        x->shape()[d]);
  }
  check<ShapeError>(query.size(-1) == key.size(-1), name, "query ", query.shape(), " and key ", key.shape(),
                    ": expected the same width, found ", query.size(-1), " and ", key.size(-1));
  check<ShapeError>(key.size(-2) == value.size(-2), name, "key ", key.shape(), " and value ", value.shape(),
                    ": expected the same length, found ", key.size(-2), " and ", value.size(-2));
}

/// query and key are [N, H, L, D] and [N, H, S, D].
void check_options(const Tensor& query, const Tensor& key, const AttentionOptions& options) {
  int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), keys = key.size(2);
  if (const Tensor& mask = options.mask; mask.defined()) {
    Shape matrix{queries, keys}, full{batch, heads, queries, keys};
    check_same_device(name, query, mask);
    if (is_floating(mask.dtype()))
      check<DTypeError>(mask.dtype() == query.dtype(), name, "query is ", query.dtype(), " and mask is ", mask.dtype(),
                        "; use mask.to(DType::", query.dtype(), ")");
    check<ShapeError>(mask.dim() != 3, name, "mask ", mask.shape(), " has 3 dimensions: expected [L, S] = ", matrix,
                      ", or 4 that broadcast to [N, H, L, S] = ", full,
                      "; mask.unsqueeze(1) makes one a batch entry of it, mask.unsqueeze(0) one a head");
    check<ShapeError>(mask.dim() == 2 || mask.dim() == 4, name, "mask ", mask.shape(), ": expected [L, S] = ", matrix,
                      ", or 4 dimensions that broadcast to [N, H, L, S] = ", full);
    if (mask.dim() == 2)
      check<ShapeError>(mask.shape() == matrix, name, "mask ", mask.shape(), ": expected [L, S] = ", matrix,
                        "; padding goes in key_mask, [N, S] = ", Shape{batch, keys});
    else
      check<ShapeError>(broadcastable_to(mask.shape(), full), name, "mask ", mask.shape(),
                        ": expected to broadcast to [N, H, L, S] = ", full);
  }
  if (const Tensor& mask = options.key_mask; mask.defined()) {
    Shape expected{batch, keys};
    check_same_device(name, query, mask);
    check<ShapeError>(mask.shape() == expected, name, "key_mask ", mask.shape(), ": expected [N, S] = ", expected,
                      ", true where a key may be attended to");
    check<DTypeError>(!is_floating(mask.dtype()), name, "key_mask is ", mask.dtype(),
                      ": expected bool or i64, non-zero where a key may be attended to; use "
                      "key_mask.to(DType::boolean), or add numbers through mask");
  }
  check<ValueError>(options.dropout >= 0 && options.dropout <= 1, name, "dropout is ", options.dropout,
                    ", should be in [0, 1]");
  if (options.scale)
    check<ValueError>(std::isfinite(*options.scale), name, "scale is ", *options.scale, ", should be finite");
}

std::pair<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options) {
  check_sizes(query, key, value);
  Tensor q = four_dimensional(query), k = four_dimensional(key), v = four_dimensional(value);
  check_options(q, k, options);
  if (options.mask.defined() && is_floating(options.mask.dtype())) warn_of_zeros_and_ones(options.mask);
  auto [output, weights] = detail::composed_attention(q, k, v, options);
  return {as_given(output, query.dim()), as_given(weights, query.dim())};
}

}  // namespace

std::pair<Tensor, Tensor> detail::composed_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                     const AttentionOptions& options) {
  int64_t batch = query.size(0), queries = query.size(2), keys = key.size(2), width = query.size(3);

  // What is blocked: for every query alike [N or 1, H or 1, 1, S], and in all, broadcastable to [N, H, L, S].
  Tensor blocked_keys, blocked;
  if (options.key_mask.defined()) blocked_keys = (options.key_mask == 0).view({batch, 1, 1, keys});
  if (const Tensor& mask = options.mask; may_attend_mask(mask)) {
    Tensor& into = mask.dim() == 4 && mask.size(2) == 1 ? blocked_keys : blocked;
    into = either(into, mask == 0);
  } else if (mask.defined()) {
    Tensor minus_infinity = mask == -infinity;
    if (mask.numel() > 0 && any(minus_infinity).item<bool>()) blocked = minus_infinity;
  }
  if (options.causal) blocked = either(blocked, beyond_causal(queries, keys, query.device()));
  blocked = either(blocked, blocked_keys);

  Tensor q = query, k = key, v = value;
  if (blocked_keys.defined()) {
    Tensor rows = transpose(blocked_keys, 2, 3);  // [N or 1, H or 1, S, 1]
    k = masked_fill(k, rows, 0);
    v = masked_fill(v, rows, 0);
  }

  double scale = options.scale.value_or(width > 0 ? 1 / std::sqrt(static_cast<double>(width)) : 1);
  if (queries <= keys)
    q = q * scale;
  else
    k = k * scale;
  Tensor scores = matmul(q, transpose(k, 2, 3));  // [N, H, L, S]
  if (options.mask.defined() && is_floating(options.mask.dtype())) scores = scores + options.mask;
  if (blocked.defined()) scores = masked_fill(scores, blocked, -infinity);
  Tensor weights = softmax_or_zeros(scores, 3);

  Generator& generator = options.generator != nullptr ? *options.generator : default_generator();
  return {matmul(dropout(weights, options.dropout, generator), v), weights};  // [N, H, L, Dv]
}

void detail::allow_float_mask_warning() { float_mask_warning_given = false; }

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options) {
  return attention(query, key, value, options).first;
}

std::pair<Tensor, Tensor> scaled_dot_product_attention_with_weights(const Tensor& query, const Tensor& key,
                                                                    const Tensor& value,
                                                                    const AttentionOptions& options) {
  return attention(query, key, value, options);
}

}  // namespace regard
