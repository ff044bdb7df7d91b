#include <regard/layers/transformer.hpp>

#include <utility>

namespace regard::layers {

namespace {

int64_t hidden_width(int64_t width, const TransformerLayerOptions& options) {
  return options.hidden ? options.hidden : 4 * width;
}
MultiHeadAttentionOptions cross_attention_options(const TransformerLayerOptions& options) {
  return {.dropout = options.dropout, .bias = options.bias, .key_value_heads = options.key_value_heads};
}
MultiHeadAttentionOptions attention_options(const TransformerLayerOptions& options) {
  MultiHeadAttentionOptions result = cross_attention_options(options);
  result.rotary = options.rotary;
  result.rotary_base = options.rotary_base;
  result.alibi = options.alibi;
  return result;
}
FeedForwardOptions feed_forward_options(const TransformerLayerOptions& options) {
  return {.activation = options.activation, .dropout = options.dropout, .bias = options.bias};
}
std::string described(const char* type, const MultiHeadAttention& attention, bool norm_first) {
  return std::string(type) + "(" + std::to_string(attention.query.weight.size(0)) + ", " +
         std::to_string(attention.num_heads) + " heads" + (norm_first ? ")" : ", post-norm)");
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(int64_t width, int64_t num_heads,
                                                 const TransformerLayerOptions& options)
    : norm1(width, options.eps, options.bias),
      attention(width, num_heads, attention_options(options)),
      norm2(width, options.eps, options.bias),
      feed_forward(width, hidden_width(width, options), feed_forward_options(options)),
      drop(options.dropout),
      norm_first(options.norm_first) {}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, const AttentionMasks& masks) const {
  LayerScope scope(*this);
  Tensor attended = attention(norm_first ? norm1(x) : x, masks);  // norm1's output is gone after this
  return finish(x, std::move(attended));
}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, KeyValueCache& cache, const AttentionMasks& masks) const {
  LayerScope scope(*this);
  Tensor attended = attention(norm_first ? norm1(x) : x, cache, masks);
  return finish(x, std::move(attended));
}

std::pair<Tensor, Tensor> TransformerEncoderLayer::forward_with_weights(const Tensor& x,
                                                                        const AttentionMasks& masks) const {
  LayerScope scope(*this);
  Tensor in = norm_first ? norm1(x) : x;
  auto [attended, weights] = attention.forward_with_weights(in, in, in, masks);
  return {finish(x, attended), weights};
}

Tensor TransformerEncoderLayer::finish(const Tensor& x, Tensor attended) const {
  if (norm_first) {
    Tensor y = x + drop(attended);
    attended = {};  // y has it: memory for what follows
    return add_branch(y, norm2(y));
  }
  Tensor y = norm1(x + drop(attended));
  return norm2(add_branch(y, y));
}

Tensor TransformerEncoderLayer::add_branch(const Tensor& y, const Tensor& in) const {
  return drop.active() ? y + drop(feed_forward(in)) : feed_forward.add_to(y, in);
}

void TransformerEncoderLayer::members(Members& m) {
  m("norm1", norm1);
  m("attention", attention);
  m("norm2", norm2);
  m("feed_forward", feed_forward);
  m("drop", drop);
}

std::string TransformerEncoderLayer::describe() const {
  return described("TransformerEncoderLayer", attention, norm_first);
}

TransformerDecoderLayer::TransformerDecoderLayer(int64_t width, int64_t num_heads,
                                                 const TransformerLayerOptions& options)
    : norm1(width, options.eps, options.bias),
      attention(width, num_heads, attention_options(options)),
      norm2(width, options.eps, options.bias),
      cross_attention(width, num_heads, cross_attention_options(options)),
      norm3(width, options.eps, options.bias),
      feed_forward(width, hidden_width(width, options), feed_forward_options(options)),
      drop(options.dropout),
      norm_first(options.norm_first) {}

void DecoderCache::reorder(const Tensor& rows) {
  cross.reorder(rows);  // both have the same rows: what the first refuses has changed neither
  self.reorder(rows);
}

void DecoderCache::clear() {
  self.clear();
  cross.clear();
}

template <class Self, class Cross>
Tensor TransformerDecoderLayer::run(const Tensor& x, const Self& attend, const Cross& cross) const {
  if (norm_first) {
    Tensor y = x + drop(attend(norm1(x)));
    y = y + drop(cross(norm2(y)));
    return add_branch(y, norm3(y));
  }
  Tensor y = norm1(x + drop(attend(x)));
  y = norm2(y + drop(cross(y)));
  return norm3(add_branch(y, y));
}

Tensor TransformerDecoderLayer::operator()(const Tensor& x, const Tensor& memory, const DecoderMasks& masks) const {
  LayerScope scope(*this);
  return run(
      x, [&](const Tensor& in) { return attention(in, masks.self); },
      [&](const Tensor& in) { return cross_attention(in, memory, memory, masks.cross); });
}

Tensor TransformerDecoderLayer::operator()(const Tensor& x, const Tensor& memory, DecoderCache& cache,
                                           const DecoderMasks& masks) const {
  LayerScope scope(*this);
  const int64_t read = cache.self.length;
  try {
    return run(
        x, [&](const Tensor& in) { return attention(in, cache.self, masks.self); },
        [&](const Tensor& in) { return cross_attention.attend_cached(in, cache.cross, memory, masks.cross); });
  } catch (...) {
    cache.self.length = read;  // the whole layer has read nothing
    throw;
  }
}

std::pair<Tensor, Tensor> TransformerDecoderLayer::forward_with_weights(const Tensor& x, const Tensor& memory,
                                                                        const DecoderMasks& masks) const {
  LayerScope scope(*this);
  Tensor weights;
  Tensor y = run(
      x, [&](const Tensor& in) { return attention(in, masks.self); },
      [&](const Tensor& in) {
        auto attended = cross_attention.forward_with_weights(in, memory, memory, masks.cross);
        weights = attended.second;
        return attended.first;
      });
  return {y, weights};
}

Tensor TransformerDecoderLayer::add_branch(const Tensor& y, const Tensor& in) const {
  return drop.active() ? y + drop(feed_forward(in)) : feed_forward.add_to(y, in);
}

void TransformerDecoderLayer::members(Members& m) {
  m("norm1", norm1);
  m("attention", attention);
  m("norm2", norm2);
  m("cross_attention", cross_attention);
  m("norm3", norm3);
  m("feed_forward", feed_forward);
  m("drop", drop);
}

std::string TransformerDecoderLayer::describe() const {
  return described("TransformerDecoderLayer", attention, norm_first);
}

}  // namespace regard::layers
