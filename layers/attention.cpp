#include <regard/layers/attention.hpp>

#include <algorithm>

#include <regard/autograd/ops/projection.hpp>
#include <regard/autograd/ops/rotary.hpp>
#include <regard/layers/init.hpp>
#include <regard/layers/positions.hpp>

namespace regard::layers {

namespace {

constexpr const char* op = "attention";

int64_t checked_width(int64_t embed_dim, int64_t num_heads) {
  check<ValueError>(embed_dim > 0 && num_heads > 0, "MultiHeadAttention", "embed_dim ", embed_dim, " and num_heads ",
                    num_heads, " must be positive");
  check<ValueError>(embed_dim % num_heads == 0, "MultiHeadAttention", "embed_dim ", embed_dim,
                    " is not divisible by num_heads ", num_heads, ": each head takes embed_dim / num_heads");
  return embed_dim;
}

/// The width of all heads of keys, or of values, together.
int64_t key_value_width(int64_t embed_dim, int64_t num_heads, const MultiHeadAttentionOptions& options) {
  const int64_t heads = options.key_value_heads ? options.key_value_heads : num_heads;
  check<ValueError>(heads > 0 && num_heads % heads == 0, "MultiHeadAttention", "key_value_heads ", heads,
                    " must divide num_heads ", num_heads, ": each is shared by as many query heads");
  return embed_dim / num_heads * heads;
}

/// x [N, L, width] or [L, width]; whether it has a batch.
bool has_batch(const char* argument, const Tensor& x) {
  check_defined(op, argument, x);
  check<ShapeError>(x.dim() == 2 || x.dim() == 3, op, argument, " ", x.shape(),
                    ": expected [batch, length, width] or [length, width]");
  return x.dim() == 3;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(int64_t embed_dim, int64_t heads, const MultiHeadAttentionOptions& options)
    : query(checked_width(embed_dim, heads), embed_dim, options.bias),
      key(options.key_width ? options.key_width : embed_dim, key_value_width(embed_dim, heads, options), options.bias),
      value(options.value_width ? options.value_width : embed_dim, key_value_width(embed_dim, heads, options),
            options.bias),
      output(embed_dim, embed_dim, options.bias),
      num_heads(heads),
      key_value_heads(options.key_value_heads ? options.key_value_heads : heads),
      dropout(options.dropout) {
  check<ValueError>(dropout >= 0 && dropout <= 1, "MultiHeadAttention", "dropout ", dropout, " is outside [0, 1]");
  if (options.rotary) {
    rotary = RotaryOptions{
        .base = options.rotary_base, .interleaved = options.rotary_interleaved, .width = options.rotary_width};
    regard::detail::check_rotary("MultiHeadAttention", embed_dim / heads, *rotary);
  }
  if (options.alibi) alibi = alibi_slopes(heads);
  for (Linear* projection : {&query, &key, &value}) init::xavier_uniform_(projection->weight);
  if (options.bias)
    for (Linear* projection : {&query, &key, &value, &output}) init::zeros_(projection->bias);
}

/// [N, L, heads * D] or [L, heads * D] -> [N, heads, L, D], without a copy.
Tensor MultiHeadAttention::split_heads(const Tensor& projected, int64_t heads) const {
  Tensor x = projected.dim() == 3 ? projected : projected.unsqueeze(0);
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

/// [N, H, L, D] -> [N, L, H * D], or [L, H * D].
Tensor MultiHeadAttention::merge_heads(const Tensor& context, bool batched) const {
  Tensor merged = regard::detail::merge_heads(context);
  return batched ? merged : merged.squeeze(0);
}

/// The heads of keys and values of `memory`, and of queries of `x`: in one op where they are projections of one tensor
/// and plain ones.
std::array<Tensor, 3> MultiHeadAttention::project(const Tensor& x, const Tensor& keys, const Tensor& values) const {
  using regard::detail::Projection;
  const int64_t head_width = query.weight.size(0) / num_heads;
  const auto of = [](const Linear& layer) { return Projection{layer.weight, layer.bias}; };
  const auto plain = [&](const Linear& layer, const Tensor& input) {
    return !layer.lora && regard::detail::can_project(input, of(layer), head_width);
  };
  const Tensor in = x.dim() == 3 ? x : x.unsqueeze(0);
  if (x.impl() == keys.impl() && x.impl() == values.impl() && plain(query, in) && plain(key, in) && plain(value, in))
    return regard::detail::project_heads<3>(in, {of(query), of(key), of(value)}, head_width);
  Tensor q = plain(query, in) ? regard::detail::project_heads<1>(in, {of(query)}, head_width)[0]
                              : split_heads(query(x), num_heads);
  if (keys.impl() == values.impl()) {
    const Tensor memory = keys.dim() == 3 ? keys : keys.unsqueeze(0);
    if (plain(key, memory) && plain(value, memory)) {
      auto [k, v] = regard::detail::project_heads<2>(memory, {of(key), of(value)}, head_width);
      return {std::move(q), std::move(k), std::move(v)};
    }
  }
  return {std::move(q), split_heads(key(keys), key_value_heads), split_heads(value(values), key_value_heads)};
}

AttentionOptions MultiHeadAttention::options(const Tensor& q, const AttentionMasks& masks) const {
  AttentionOptions options;
  options.mask = masks.mask;
  options.key_mask = masks.key_mask;
  options.causal = masks.causal;
  options.dropout = is_training() ? dropout : 0;
  if (alibi.defined()) options.alibi = alibi.to(q.device());
  return options;
}

std::pair<Tensor, Tensor> MultiHeadAttention::attend(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                                     const AttentionMasks& masks, bool with_weights) const {
  LayerScope scope(*this);
  check_defined(op, "query", q_in);
  check_defined(op, "key", k_in);
  check_defined(op, "value", v_in);
  const bool batched = q_in.dim() == 3;
  check<ShapeError>((batched || q_in.dim() == 2) && k_in.dim() == q_in.dim() && v_in.dim() == q_in.dim(), op, "query ",
                    q_in.shape(), ", key ", k_in.shape(), " and value ", v_in.shape(),
                    ": each must be [batch, length, width], or each [length, width]");
  check<ShapeError>(k_in.size(-2) == v_in.size(-2), op, "key ", k_in.shape(), " and value ", v_in.shape(),
                    " have different lengths");
  if (batched)
    check<ShapeError>(k_in.size(0) == q_in.size(0) && v_in.size(0) == q_in.size(0), op, "query ", q_in.shape(),
                      ", key ", k_in.shape(), " and value ", v_in.shape(), " have different batch sizes");

  auto [q, k, v] = project(q_in, k_in, v_in);
  if (rotary) {
    // Only differences of positions matter: the shorter of the two is moved to the end of the other.
    const int64_t queries = q.size(2), keys = k.size(2);
    q = rotary_positions(q, std::max<int64_t>(keys - queries, 0), *rotary);
    k = rotary_positions(k, std::max<int64_t>(queries - keys, 0), *rotary);
  }
  Tensor context, weights;
  if (with_weights)
    std::tie(context, weights) = scaled_dot_product_attention_with_weights(q, k, v, options(q, masks));
  else
    context = scaled_dot_product_attention(q, k, v, options(q, masks));
  return {output(merge_heads(context, batched)), weights.defined() && !batched ? weights.squeeze(0) : weights};
}

Tensor MultiHeadAttention::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionMasks& masks) const {
  return attend(q, k, v, masks, false).first;
}

std::pair<Tensor, Tensor> MultiHeadAttention::forward_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                   const AttentionMasks& masks) const {
  return attend(q, k, v, masks, true);
}

Tensor MultiHeadAttention::operator()(const Tensor& x, KeyValueCache& cache, const AttentionMasks& masks) const {
  LayerScope scope(*this);
  const bool batched = has_batch("x", x);
  auto [q, k, v] = project(x, x, x);
  if (rotary) {
    q = rotary_positions(q, cache.length, *rotary);
    k = rotary_positions(k, cache.length, *rotary);
  }
  auto [keys, values] = cache.write(k, v);  // [N, Hkv, S, D]
  AttentionOptions with = options(q, masks);
  with.causal = true;
  Tensor y = output(merge_heads(scaled_dot_product_attention(q, keys, values, with), batched));
  cache.length = keys.size(2);  // last: what failed was not read
  return y;
}

Tensor MultiHeadAttention::attend_cached(const Tensor& x, KeyValueCache& cache, const Tensor& memory,
                                         const AttentionMasks& masks) const {
  LayerScope scope(*this);
  const bool batched = has_batch("query", x);
  check<ValueError>(!rotary && !alibi.defined(), op,
                    "attend_cached: rotary and alibi positions are those of one sequence; a layer that attends to "
                    "another's memory has none");
  if (memory.defined())
    check<ShapeError>(memory.dim() == x.dim() && (!batched || memory.size(0) == x.size(0)), op, "query ", x.shape(),
                      " and memory ", memory.shape(),
                      ": expected [batch, length, width] of one batch size, or each [length, width]");
  KeyValueCache filled;
  if (!cache.key.defined()) {
    check<ValueError>(memory.defined(), op, "attend_cached: the cache is empty, and there is no memory to fill it");
    filled.capacity = cache.capacity;
    filled.length = filled.write(split_heads(key(memory), key_value_heads), split_heads(value(memory), key_value_heads))
                        .first.size(2);
  } else if (memory.defined()) {
    check<ShapeError>(memory.size(-2) == cache.length, op, "memory ", memory.shape(), " and a cache that holds ",
                      cache.length, " tokens of another: clear() it first");
  }
  const KeyValueCache& from = cache.key.defined() ? cache : filled;
  check<ShapeError>(from.key.size(0) == (batched ? x.size(0) : 1), op, "query ", x.shape(), " and a cache of batch ",
                    from.key.size(0), ": reorder() picks its rows, clear() starts anew");
  Tensor q = split_heads(query(x), num_heads);
  Tensor context = scaled_dot_product_attention(q, from.key.narrow(2, 0, from.length),
                                                from.value.narrow(2, 0, from.length), options(q, masks));
  Tensor y = output(merge_heads(context, batched));
  if (filled.key.defined()) cache = std::move(filled);
  return y;
}

void MultiHeadAttention::moved_to(Device device) {
  if (alibi.defined()) alibi = alibi.to(device);
}

void MultiHeadAttention::members(Members& m) {
  m("query", query);
  m("key", key);
  m("value", value);
  m("output", output);
}

std::string MultiHeadAttention::describe() const {
  std::string text =
      "MultiHeadAttention(" + std::to_string(query.weight.size(0)) + ", " + std::to_string(num_heads) + " heads";
  if (key_value_heads != num_heads) text += ", " + std::to_string(key_value_heads) + " of keys and values";
  if (rotary) text += ", rotary";
  if (alibi.defined()) text += ", alibi";
  return text + ")";
}

}  // namespace regard::layers
