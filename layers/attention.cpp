#include <regard/layers/attention.hpp>

#include <regard/autograd/ops.hpp>
#include <regard/layers/init.hpp>

namespace regard::layers {

namespace {

int64_t checked_width(int64_t embed_dim, int64_t num_heads) {
  check<ValueError>(embed_dim > 0 && num_heads > 0, "MultiHeadAttention", "embed_dim ", embed_dim, " and num_heads ",
                    num_heads, " must be positive");
  check<ValueError>(embed_dim % num_heads == 0, "MultiHeadAttention", "embed_dim ", embed_dim,
                    " is not divisible by num_heads ", num_heads, ": each head takes embed_dim / num_heads");
  return embed_dim;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(int64_t embed_dim, int64_t heads, const MultiHeadAttentionOptions& options)
    : query(checked_width(embed_dim, heads), embed_dim, options.bias),
      key(options.key_width ? options.key_width : embed_dim, embed_dim, options.bias),
      value(options.value_width ? options.value_width : embed_dim, embed_dim, options.bias),
      output(embed_dim, embed_dim, options.bias),
      num_heads(heads),
      dropout(options.dropout) {
  check<ValueError>(dropout >= 0 && dropout <= 1, "MultiHeadAttention", "dropout ", dropout, " is outside [0, 1]");
  for (Linear* projection : {&query, &key, &value}) init::xavier_uniform_(projection->weight);
  if (options.bias)
    for (Linear* projection : {&query, &key, &value, &output}) init::zeros_(projection->bias);
}

std::pair<Tensor, Tensor> MultiHeadAttention::attend(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                                     const AttentionMasks& masks, bool with_weights) const {
  LayerScope scope(*this);
  const char* op = "attention";
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

  const int64_t width = query.weight.size(0), head_width = width / num_heads;
  auto split_heads = [&](const Tensor& projected) {  // [N, L, E] -> [N, H, L, D], without a copy
    Tensor x = batched ? projected : projected.unsqueeze(0);
    return x.view({x.size(0), x.size(1), num_heads, head_width}).transpose(1, 2);
  };
  Tensor q = split_heads(query(q_in)), k = split_heads(key(k_in)), v = split_heads(value(v_in));

  AttentionOptions options;
  options.mask = masks.mask;
  options.key_mask = masks.key_mask;
  options.causal = masks.causal;
  options.dropout = is_training() ? dropout : 0;
  Tensor context, weights;
  if (with_weights)
    std::tie(context, weights) = scaled_dot_product_attention_with_weights(q, k, v, options);
  else
    context = scaled_dot_product_attention(q, k, v, options);

  Tensor merged = context.transpose(1, 2).reshape({context.size(0), context.size(2), width});  // [N, L, E]
  if (!batched) merged = merged.squeeze(0);
  return {output(merged), weights.defined() && !batched ? weights.squeeze(0) : weights};
}

Tensor MultiHeadAttention::operator()(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const AttentionMasks& masks) const {
  return attend(q, k, v, masks, false).first;
}

std::pair<Tensor, Tensor> MultiHeadAttention::forward_with_weights(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                   const AttentionMasks& masks) const {
  return attend(q, k, v, masks, true);
}

void MultiHeadAttention::members(Members& m) {
  m("query", query);
  m("key", key);
  m("value", value);
  m("output", output);
}

std::string MultiHeadAttention::describe() const {
  return "MultiHeadAttention(" + std::to_string(query.weight.size(0)) + ", " + std::to_string(num_heads) + " heads)";
}

}  // namespace regard::layers
