// Scaled dot-product attention. Vaswani et al., "Attention is all you need", 2017.
//
// It is computed in one pass over tiles of the scores, and so are its gradients, without the weights in memory: Dao et
// al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness", 2022. The same composed of ops is
// what gives second derivatives, the gradient of a mask and the weights, and what tests compare with.
//
// A blocked position never reaches a result or a gradient: its score is replaced, not offset. Where a key is blocked
// for every query (a key_mask, or a mask of one row for all queries) the key and its value are replaced as well, so
// that even an infinity or NaN there does no harm. A key or value that is infinite or NaN and blocked for some queries
// only may reach those queries (0 times it is NaN): the value their outputs, the key their gradients.
#include <regard/autograd/ops/attention.hpp>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include <regard/autograd/backend/captured_graph.hpp>
#include <regard/autograd/backend/entry_check.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>
#include <regard/autograd/ops/softmax_rows.hpp>

namespace regard {

namespace {

using autocast::narrow;

constexpr const char* name = "scaled_dot_product_attention";
constexpr double infinity = std::numeric_limits<double>::infinity();

std::atomic<bool> float_mask_warning_given{false};

constexpr const char* zeros_and_ones =
    ": a float mask is added to the scores, and this one holds only 0 and 1, which blocks nothing; where 1 means that "
    "a query may attend, pass mask.to(DType::boolean)";

/// On a GPU, which is not waited for: the warning comes later, and only of one of the first masks. Not in a capture,
/// where every replay would look again.
void warn_of_zeros_and_ones_later(const Tensor& mask) {
  if (current_capture()) return;
  constexpr int most = 64;
  static std::atomic<int> looked_at{0};
  if (looked_at.fetch_add(1, std::memory_order_relaxed) >= most) return;
  const NoGrad no_grad;
  const Tensor zero = mask == 0, one = mask == 1;
  const Tensor both = logical_and(logical_and(all(logical_or(zero, one)), any(zero)), any(one));
  check_entries_later(both.to(DType::i64), {.low = 0,
                                            .high = 0,
                                            .raises = EntryCheck::Raises::warning,
                                            .names = EntryCheck::Names::nothing,
                                            .before = std::string(name) + zeros_and_ones,
                                            .given = &float_mask_warning_given});
}

/// Added to the scores, a mask of zeros and ones blocks nothing: most likely it was meant as a boolean one.
void warn_of_zeros_and_ones(const Tensor& mask) {
  if (float_mask_warning_given.load(std::memory_order_relaxed) || mask.numel() < 2) return;
  if (mask.device() != cpu()) return warn_of_zeros_and_ones_later(mask);
  Tensor zero = mask == 0, one = mask == 1;
  if (!all(logical_or(zero, one)).item<bool>() || !any(zero).item<bool>() || !any(one).item<bool>()) return;
  if (float_mask_warning_given.exchange(true)) return;
  warn(std::string(name) + zeros_and_ones);
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
      check<ShapeError>((d == 1 && x != &query) || x->shape()[d] == query.shape()[d], name, "query ", query.shape(),
                        " and ", argument, " ", x->shape(), ": expected the same size in dimension ", d, ", found ",
                        query.shape()[d], " and ", x->shape()[d]);
  }
  if (query.dim() == 4) {
    const int64_t heads = query.size(1), key_heads = key.size(1);
    check<ShapeError>(value.size(1) == key_heads, name, "key ", key.shape(), " and value ", value.shape(),
                      ": expected the same number of heads (dimension 1), found ", key_heads, " and ", value.size(1));
    check<ShapeError>(key_heads == heads || (key_heads > 0 && heads > 0 && heads % key_heads == 0), name, "query ",
                      query.shape(), " and key ", key.shape(), ": expected the same size in dimension 1, or one that ",
                      "divides the query's ", heads, " heads, found ", key_heads);
  }
  check<ShapeError>(query.size(-1) == key.size(-1), name, "query ", query.shape(), " and key ", key.shape(),
                    ": expected the same width, found ", query.size(-1), " and ", key.size(-1));
  check<ShapeError>(key.size(-2) == value.size(-2), name, "key ", key.shape(), " and value ", value.shape(),
                    ": expected the same length, found ", key.size(-2), " and ", value.size(-2));
}

/// query and key are [N, H, L, D] and [N, Hkv, S, D].
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
  if (const Tensor& alibi = options.alibi; alibi.defined()) {
    check_floating(name, "alibi", alibi);
    check_same_device(name, query, alibi);
    check<ShapeError>(alibi.shape() == Shape{heads}, name, "alibi ", alibi.shape(),
                      ": expected a slope a head, [H] = ", Shape{heads});
    check<ValueError>(
        !alibi.requires_grad(), name,
        "alibi requires a gradient, and slopes get none: detach() them, or add a float mask made of them");
    constexpr const char* mistake = "alibi holds a slope that is not finite";
    if (alibi.device() != cpu())
      check_entries_later(alibi, {.low = std::numeric_limits<double>::lowest(),
                                  .high = std::numeric_limits<double>::max(),
                                  .raises = EntryCheck::Raises::value_error,
                                  .names = EntryCheck::Names::nothing,
                                  .before = std::string(name) + ": " + mistake});
    else
      check<ValueError>(all(isfinite(alibi)).item<bool>(), name, mistake);
  }
}

double scale_of(const AttentionOptions& options, int64_t width) {
  return options.scale.value_or(width > 0 ? 1 / std::sqrt(static_cast<double>(width)) : 1);
}

/// What is composed, and what kernels need beside q, k and v, is f32 where elements have 16 bits.
DType wide(DType dtype) { return element_size(dtype) == 2 ? DType::f32 : dtype; }
Tensor wide(const Tensor& x) { return x.defined() ? to(x, wide(x.dtype())) : x; }

// ---- Composed

/// Keys or values [N, Hkv, S, D] for each of `heads` query heads, a copy.
Tensor for_heads(const Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const int64_t batch = x.size(0), key_heads = x.size(1), length = x.size(2), width = x.size(3);
  return reshape(expand(unsqueeze(x, 2), {batch, key_heads, heads / key_heads, length, width}),
                 {batch, heads, length, width});
}

/// What ALiBi adds to the scores, [1, H, L, S].
Tensor alibi_bias(const Tensor& slopes, int64_t queries, int64_t keys, DType dtype) {
  const TensorOptions options(dtype, slopes.device());
  Tensor place = arange_scalar(keys - queries, keys, 1, options).view({queries, 1});
  Tensor distance = abs(place - arange_scalar(0, keys, 1, options));  // [L, S]
  return -(to(slopes, dtype).reshape({1, slopes.size(0), 1, 1}) * distance);
}

/// The weights [N, H, L, S] of queries and keys of as many heads; zeros in place of values that no query may see, where
/// `value` is given.
Tensor composed_weights(const Tensor& query, const Tensor& key, Tensor* value, const AttentionOptions& options) {
  int64_t batch = query.size(0), queries = query.size(2), keys = key.size(2), width = query.size(3);

  // What is blocked: for every query alike [N or 1, H or 1, 1, S], and in all, broadcastable to [N, H, L, S].
  Tensor blocked_keys, blocked;
  if (options.key_mask.defined()) blocked_keys = (options.key_mask == 0).view({batch, 1, 1, keys});
  if (const Tensor& mask = options.mask; may_attend_mask(mask)) {
    Tensor& into = mask.dim() == 4 && mask.size(2) == 1 ? blocked_keys : blocked;
    into = either(into, mask == 0);
  } else if (mask.defined()) {
    Tensor minus_infinity = mask == -infinity;
    if (mask.device() != cpu() || (mask.numel() > 0 && any(minus_infinity).item<bool>())) blocked = minus_infinity;
  }
  if (options.causal) blocked = either(blocked, beyond_causal(queries, keys, query.device()));
  blocked = either(blocked, blocked_keys);

  Tensor q = query, k = key;
  if (blocked_keys.defined()) {
    Tensor rows = transpose(blocked_keys, 2, 3);  // [N or 1, H or 1, S, 1]
    k = masked_fill(k, rows, 0);
    if (value != nullptr) *value = masked_fill(*value, rows, 0);
  }

  double scale = scale_of(options, width);
  if (queries <= keys)
    q = q * scale;
  else
    k = k * scale;
  Tensor scores = matmul(q, transpose(k, 2, 3));  // [N, H, L, S]
  if (options.mask.defined() && is_floating(options.mask.dtype())) scores = scores + options.mask;
  if (options.alibi.defined()) scores = scores + alibi_bias(options.alibi, queries, keys, query.dtype());
  if (blocked.defined()) scores = masked_fill(scores, blocked, -infinity);
  return softmax_or_zeros(scores, 3);
}

// ---- Fused: nothing of the size of the weights in memory

/// An uninitialised [N, H, length, width] laid out as `like` is: where that is a view of [N, length, H, width], heads
/// are split and merged without a copy.
Tensor empty_heads(const Tensor& like, int64_t width) {
  int64_t batch = like.size(0), heads = like.size(1), length = like.size(2);
  TensorOptions options(like.dtype(), like.device());
  if (heads == 1 || length == 1 || like.strides()[1] >= like.strides()[2])
    return empty({batch, heads, length, width}, options);
  Tensor x = empty({batch, length, heads, width}, options);
  return make_view(x, {batch, heads, length, width}, {length * heads * width, width, heads * width, 1}, 0);
}

/// The mask as [N, H, L, S], through strides of 0.
Tensor whole_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  if (!mask.defined()) return mask;
  return expand(mask.detach(), {q.size(0), q.size(1), q.size(2), k.size(2)});
}

/// A node of its own, so that gradients with respect to it stop there.
Tensor alias(const Tensor& x) {
  return record("alias", make_view(x, x.shape(), x.strides(), x.storage_offset()), inputs(x), saved(),
                [](const Saved&, const Tensor& g) { return Grads{g}; });
}

/// What the closures of the fused ops capture.
struct FusedSettings : AttentionSettings {
  AttentionOptions options(const Tensor& mask, const Tensor& key_mask, const Tensor& alibi,
                           Generator& generator) const {
    generator.set_state(seed, offset);
    return {.mask = mask,
            .key_mask = key_mask,
            .causal = causal,
            .dropout = dropout,
            .scale = scale,
            .generator = &generator,
            .alibi = alibi};
  }
};

/// What the kernels are given. A single query a head is a waste of a tile: the queries of heads that share keys then
/// lie in one tile, [N, H, 1, D] seen as [N, Hkv, H / Hkv, D], where nothing tells the heads apart.
struct Heads {
  int64_t key_heads = 0;  // 0: as they are

  Heads(const Tensor& q, const Tensor& k, const Tensor& whole_mask, const Tensor& alibi) {
    const bool alike = !alibi.defined() && (!whole_mask.defined() || whole_mask.strides()[1] == 0);
    if (alike && q.size(2) == 1 && k.size(1) < q.size(1)) key_heads = k.size(1);
  }
  Tensor operator()(const Tensor& x) const {
    if (key_heads == 0 || !x.defined()) return x;
    const int64_t group = x.size(1) / key_heads;
    const Strides& s = x.strides();
    return make_view(x, {x.size(0), key_heads, group, x.size(3)}, {s[0], group * s[1], s[1], s[3]}, x.storage_offset());
  }
  AttentionSettings operator()(AttentionSettings settings) const {
    if (key_heads != 0) settings.causal = false;  // the one query sees all
    return settings;
  }
};

/// Inputs of a composed computation that is differentiated apart from the graph around it: gradients with respect to
/// them can be taken, and are recorded where the mode says so.
Tensor apart(const Tensor& x, bool create_graph) {
  return create_graph && x.requires_grad() ? alias(x) : x.detach().set_requires_grad();
}

/// The gradient of a float mask, by the composed path.
Tensor mask_grad(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& key_mask,
                 const Tensor& alibi, const Tensor& g, const FusedSettings& settings) {
  const bool create_graph = grad_enabled();
  GradMode record_composed(true);
  Tensor x = apart(mask, create_graph);
  const auto input = [&](const Tensor& of) { return create_graph ? of : of.detach(); };
  Generator generator;
  AttentionOptions options = settings.options(wide(x), key_mask, alibi, generator);
  Tensor y = detail::composed_attention(wide(input(q)), wide(input(k)), wide(input(v)), options).first;
  return grad(y, {x}, {.grad_outputs = {wide(g)}, .create_graph = create_graph})[0];
}

/// The gradients of q, k, v, g and a float mask in what attention_grad computes: those of the composed path's
/// gradients.
Grads second_grads(const Saved& s, std::span<const Tensor> h, const FusedSettings& settings) {
  const bool create_graph = grad_enabled();
  GradMode record_composed(true);
  Tensors x{apart(s[0], create_graph), apart(s[1], create_graph), apart(s[2], create_graph), apart(s[3], create_graph)};
  Tensor mask = s[4];
  if (s.needs(4)) x.push_back(mask = apart(mask, create_graph));
  Generator generator;
  const AttentionOptions options = settings.options(wide(mask), s[5], s[6], generator);
  Tensor y = detail::composed_attention(wide(x[0]), wide(x[1]), wide(x[2]), options).first;
  Tensors first = grad(y, {x[0], x[1], x[2]}, {.grad_outputs = {wide(x[3])}, .create_graph = true});
  Tensors used, weights;
  for (size_t i = 0; i < 3; ++i)
    if (h[i].defined() && first[i].requires_grad()) {
      used.push_back(first[i]);
      weights.push_back(h[i]);
    }
  Grads grads(5);
  if (used.empty()) return grads;
  Tensors second = grad(used, x, {.grad_outputs = weights, .create_graph = create_graph, .allow_unused = true});
  for (size_t i = 0; i < x.size(); ++i)
    if (s.needs(i)) grads[i] = second[i];
  return grads;
}

/// Memory for the gradient of x: x's own where nobody else can see it.
Tensor heads_for_gradient(const Tensor& x) {
  if (reusable(x) && (x.strides()[3] == 1 || x.size(3) == 1) && !repeats_elements(x)) return x.detach();
  return empty_heads(x, x.size(3));
}

/// The gradients of q, k and v; recorded, and then all three. Written over q, k and v where nobody else holds them: no
/// caller reads them after this.
Grads attention_grad(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& key_mask,
                     const Tensor& alibi, Tensor y, const Tensor& statistics, const Tensor& g,
                     const FusedSettings& settings, std::array<bool, 3> wanted) {
  if (grad_enabled()) wanted = {true, true, true};
  Tensor dq, dk, dv;
  if (wanted[0]) dq = heads_for_gradient(q);
  if (wanted[1]) dk = heads_for_gradient(k);
  if (wanted[2]) dv = heads_for_gradient(v);
  Tensor whole = whole_mask(mask, q, k);
  const Heads heads(q, k, whole, alibi);
  y = heads(y);
  const Tensor dy = heads(g);
  if (reusable(y) && y.numel() * element_size(y.dtype()) >= least_recomputed_bytes && dy.strides()[3] == 1) {
    const Tensor delta = empty({y.size(0), y.size(1), y.size(2)}, {wide(y.dtype()), y.device()});
    kernels(q).attention_delta(delta, dy, y);
    y = delta;  // nobody needs the output any more
  }
  kernels(q).attention_grad(heads(dq), dk, dv, dy, y, statistics, heads(q), k, v, heads(whole), key_mask, alibi,
                            heads(settings));
  if (grad_enabled())
    record_outputs("attention_grad", std::array{&dq, &dk, &dv}, inputs(q, k, v, g, mask),
                   saved(q, k, v, g, mask, key_mask, alibi),
                   [settings](const Saved& s, std::span<const Tensor> h) { return second_grads(s, h, settings); });
  return Grads{dq, dk, dv, Tensor()};
}

Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), keys = k.size(2);
  FusedSettings settings{{.scale = scale_of(options, q.size(3)),
                          .causal = options.causal,
                          .dropout = options.dropout,
                          .seed = 0,
                          .offset = 0}};
  if (options.dropout > 0) {
    Generator& generator = options.generator != nullptr ? *options.generator : default_generator();
    settings.seed = generator.seed();
    settings.offset = generator.reserve(batch * heads * queries * keys);
  }
  const Tensor &mask = options.mask, &key_mask = options.key_mask;
  Tensor alibi = options.alibi.defined() ? to(options.alibi, DType::f64).contiguous() : Tensor();
  Tensor y = empty_heads(q, v.size(3));
  Tensor statistics = empty({batch, heads, 2, queries}, {wide(q.dtype()), q.device()});
  Tensor whole = whole_mask(mask, q, k);
  const Heads folded(q, k, whole, alibi);
  kernels(q).attention(folded(y), statistics, folded(q), k, v, folded(whole), key_mask, alibi, folded(settings));
  return record(name, y, inputs(q, k, v, mask), saved(q, k, v, mask, key_mask, alibi, y, statistics),
                [settings](const Saved& s, const Tensor& g) {
                  Tensor for_mask;
                  if (s.needs(3)) for_mask = mask_grad(s[0], s[1], s[2], s[3], s[4], s[5], g, settings);
                  if (!s.needs(0) && !s.needs(1) && !s.needs(2)) return Grads{Tensor(), Tensor(), Tensor(), for_mask};
                  Tensor y = s.take(6).detach();
                  Grads grads = attention_grad(s.take(0), s.take(1), s.take(2), s[3], s[4], s[5], std::move(y), s[7], g,
                                               settings, {s.needs(0), s.needs(1), s.needs(2)});
                  if (for_mask.defined()) grads[3] = for_mask;
                  return grads;
                });
}

void check_arguments(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
                     Tensor& q, Tensor& k, Tensor& v) {
  check_sizes(query, key, value);
  q = four_dimensional(query), k = four_dimensional(key), v = four_dimensional(value);
  check_options(q, k, options);
  if (options.mask.defined() && is_floating(options.mask.dtype())) warn_of_zeros_and_ones(options.mask);
}

/// A mask that is added to the scores, or nothing.
Tensor added_mask(const AttentionOptions& options) {
  return options.mask.defined() && is_floating(options.mask.dtype()) ? options.mask : Tensor();
}

AttentionOptions narrowed(AttentionOptions options) {
  if (const Tensor mask = added_mask(options); mask.defined()) options.mask = narrow(mask);
  return options;
}

AttentionOptions widened(AttentionOptions options) {
  if (const Tensor mask = added_mask(options); mask.defined()) options.mask = wide(mask);
  return options;
}

/// Whether the fused kernels take q, k and v as they are: 16 bits on GPUs alone, up to a width of heads.
bool takes(const Tensor& q, const Tensor& v) {
  return element_size(q.dtype()) > 2 || std::max(q.size(3), v.size(3)) <= kernels(q).widest_narrow_attention;
}

/// Attention in the dtype that is given, and its weights where wanted.
Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
              Tensor* weights) {
  const autocast::Pause pause;
  Tensor q, k, v;
  check_arguments(query, key, value, options, q, k, v);
  // The output is that without weights, to the bit. The weights are composed, with a gradient of their own.
  Tensor output = takes(q, v) ? fused_attention(q, k, v, options)
                              : to(fused_attention(wide(q), wide(k), wide(v), widened(options)), q.dtype());
  if (weights != nullptr) {
    *weights = composed_weights(wide(q), for_heads(wide(k), q.size(1)), nullptr, widened(options));
    *weights = as_given(to(*weights, q.dtype()), query.dim());
  }
  return as_given(output, query.dim());
}

}  // namespace

std::pair<Tensor, Tensor> detail::composed_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                     const AttentionOptions& options) {
  const int64_t heads = query.size(1);
  Tensor v = for_heads(value, heads), weights = composed_weights(query, for_heads(key, heads), &v, options);
  Generator& generator = options.generator != nullptr ? *options.generator : default_generator();
  return {matmul(dropout(weights, options.dropout, generator), v), weights};  // [N, H, L, Dv]
}

void detail::allow_float_mask_warning() { float_mask_warning_given = false; }

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options) {
  if (autocast::narrows(name, query, key, value, added_mask(options))) [[unlikely]]
    return scaled_dot_product_attention(narrow(query), narrow(key), narrow(value), narrowed(options));
  return attend(query, key, value, options, nullptr);
}

std::pair<Tensor, Tensor> scaled_dot_product_attention_with_weights(const Tensor& query, const Tensor& key,
                                                                    const Tensor& value,
                                                                    const AttentionOptions& options) {
  if (autocast::narrows(name, query, key, value, added_mask(options))) [[unlikely]]
    return scaled_dot_product_attention_with_weights(narrow(query), narrow(key), narrow(value), narrowed(options));
  Tensor weights;
  Tensor output = attend(query, key, value, options, &weights);
  return {output, weights};
}

}  // namespace regard
