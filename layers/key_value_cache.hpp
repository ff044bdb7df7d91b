// KeyValueCache: what attention keeps of tokens that were read, so that the next ones cost no recompute.
#pragma once

#include <utility>

#include <regard/autograd/tensor.hpp>

namespace regard::layers {

/// The projected keys and values of the tokens that one attention layer has read. A model that writes one token after
/// the other holds one for each of its layers: the keys and values of earlier tokens are computed once. A copy has
/// memory of its own. For inference: see MultiHeadAttention.
///
///     std::vector<KeyValueCache> caches(layer_count, KeyValueCache(512));
struct KeyValueCache {
  Tensor key, value;     ///< [N, key_value_heads, room, width of a head]; undefined before the first call
  int64_t length = 0;    ///< how many tokens were read: what lies beyond them in key and value means nothing
  int64_t capacity = 0;  ///< how many it may hold; 0: any number, the memory doubles when it is full

  KeyValueCache() = default;
  explicit KeyValueCache(int64_t capacity);
  KeyValueCache(const KeyValueCache& other);
  KeyValueCache(KeyValueCache&& other) noexcept;
  KeyValueCache& operator=(const KeyValueCache& other);
  KeyValueCache& operator=(KeyValueCache&& other) noexcept;
  ~KeyValueCache() = default;

  /// Row i becomes what row rows[i] was, i64 [N'] with N' >= 1: for beam search, whose hypotheses change places, or
  /// become more or fewer. An IndexError where there is no such row.
  void reorder(const Tensor& rows);
  /// Forgets all tokens from `length` on.
  void truncate(int64_t length);
  /// Forgets everything, the batch's size too.
  void clear();

  /// Writes keys and values [N, key_value_heads, L, width of a head] after those of earlier tokens, in place. Returns
  /// all, [N, key_value_heads, length + L, width of a head], which is `length` and L tokens: `length` moves on when
  /// the caller sets it, so that a call that fails later has read nothing.
  std::pair<Tensor, Tensor> write(const Tensor& keys, const Tensor& values);
};

}  // namespace regard::layers
