// Attention forward: FlashAttention's running softmax. Dao et al., "FlashAttention", 2022; Milakov, Gimelshein, "Online
// normalizer calculation for softmax", 2018.
#include <regard/autograd/backend/cpu/attention_tiles.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/attention_forward.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/attention_masks-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

template <class T>
struct ForwardMemory {
  T *q, *scores, *output;        // [D, columns], [keys, columns], [Dv, columns]
  T *largest, *total, *rescale;  // [columns]
  T *keys, *values;              // copies of rows
  MaskMemory<T> masks;
  HWY_INLINE ForwardMemory(const AttentionProblem<T>& p, AttentionParts& parts, int64_t columns, int64_t keys_a_tile)
      : q(parts.take<T>(p.width * columns)),
        scores(parts.take<T>(keys_a_tile * columns)),
        output(parts.take<T>(p.value_width * columns)),
        largest(parts.take<T>(columns)),
        total(parts.take<T>(columns)),
        rescale(parts.take<T>(columns)),
        keys(parts.take<T>(must_copy(p, p.k) ? keys_a_tile * p.width : 0)),
        values(parts.take<T>(must_copy(p, p.v) ? keys_a_tile * p.value_width : 0)),
        masks(p, parts, columns) {}
};

// Scores to exponentials, the columns' largest scores and totals moved on; true where an earlier output must be
// rescaled.
template <class T>
HWY_INLINE bool exponentials(const AttentionProblem<T>& p, const TilePlace& tile, const TileMask<T>& mask,
                             const ForwardMemory<T>& memory) {
  const Tag<T> d;
  const int64_t columns = tile.columns;
  const auto minus_infinity = hn::Set(d, -std::numeric_limits<T>::infinity());
  const bool masked = mask.added != nullptr || mask.allowed != nullptr;
  bool same = true;
  for (int64_t column = 0; column < columns; column += lanes_of<T>()) {
    const int64_t keys = keys_of_column<T>(tile, column);
    T* scores = memory.scores + column;
    auto largest = hn::Load(d, memory.largest + column), second = largest;
    const auto former = largest;
    if (masked) {
      for (int64_t k = 0; k < keys; ++k) {
        T* at = scores + k * columns;
        const auto score = masked_score<T>(hn::Load(d, at), mask, columns, k, column);
        hn::Store(score, d, at);
        largest = hn::Max(largest, score);
      }
    } else {
      int64_t k = 0;
      for (; k + 2 <= keys; k += 2) {
        largest = hn::Max(largest, hn::Load(d, scores + k * columns));
        second = hn::Max(second, hn::Load(d, scores + (k + 1) * columns));
      }
      if (k < keys) largest = hn::Max(largest, hn::Load(d, scores + k * columns));
      largest = hn::Max(largest, second);
    }
    // Nothing allowed so far: exp(-inf - 0) = 0, not exp(-inf + inf).
    const auto shift = hn::IfThenZeroElse(hn::Eq(largest, minus_infinity), largest);
    const auto rescale = exp_of_difference<T>(hn::Sub(former, shift));
    same = same && hn::AllTrue(d, hn::Eq(former, largest));
    auto sum = hn::Zero(d);
    if (mask.kept == nullptr) {
      for (int64_t k = 0; k < keys; ++k) {
        T* at = scores + k * columns;
        const auto power = exp_of_difference<T>(hn::Sub(hn::Load(d, at), shift));
        sum = hn::Add(sum, power);
        hn::Store(power, d, at);
      }
    } else {
      const auto keep_scale = hn::Set(d, p.keep_scale);
      for (int64_t k = 0; k < keys; ++k) {
        T* at = scores + k * columns;
        const auto power = exp_of_difference<T>(hn::Sub(hn::Load(d, at), shift));
        sum = hn::Add(sum, power);
        const auto kept = lanes_of_bit<T>(mask.kept + column, columns, k);
        hn::Store(hn::IfThenElseZero(kept, hn::Mul(power, keep_scale)), d, at);
      }
    }
    const auto total = hn::MulAdd(hn::Load(d, memory.total + column), rescale, sum);
    hn::Store(largest, d, memory.largest + column);
    hn::Store(total, d, memory.total + column);
    hn::Store(rescale, d, memory.rescale + column);
  }
  return !same;
}

template <class T>
HWY_INLINE void forward_tile(const AttentionProblem<T>& p, int64_t n, int64_t h, int64_t first_query, int64_t queries,
                             const ForwardMemory<T>& memory) {
  const Tag<T> d;
  const int64_t lanes = lanes_of<T>();
  const int64_t columns = whole_vectors<T>(queries);
  read_columns(memory.q, columns, p.q, p.q.at(n, h) + first_query * p.q.row, queries, p.width, p.scale);
  for (int64_t i = 0; i < columns; i += lanes) {
    hn::Store(hn::Set(d, -std::numeric_limits<T>::infinity()), d, memory.largest + i);
    hn::Store(hn::Zero(d), d, memory.total + i);
  }
  bool started = false;
  const int64_t end = p.visible_keys(first_query + queries - 1);
  for (int64_t key = 0; key < end; key += most_tile_keys) {
    const TilePlace tile(p, n, h, first_query, queries, columns, key,
                         end - key < most_tile_keys ? end - key : most_tile_keys);
    TileMask<T> mask;
    if (!read_mask(p, tile, memory.masks, mask)) continue;
    const TileRows<T> keys = tile_rows(p, tile, p.k, p.width, memory.keys);
    each_step<T>(tile, [&](int64_t k, int64_t count, int64_t column) HWY_ATTR {
      multiply<false>(static_cast<int>((columns - column) / lanes), count, p.width,
                      Product<T>{keys.data + k * keys.stride, keys.stride, memory.q + column, columns,
                                 memory.scores + k * columns + column, columns, false, lanes});
    });
    const bool rescale = exponentials(p, tile, mask, memory);
    if (started && rescale) {
      for (int64_t j = 0; j < p.value_width; ++j)
        for (int64_t i = 0; i < columns; i += lanes) {
          T* at = memory.output + j * columns + i;
          hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, memory.rescale + i)), d, at);
        }
    }
    const TileRows<T> values = tile_rows(p, tile, p.v, p.value_width, memory.values);
    if (!started && keys_of_column<T>(tile, 0) == 0) {  // the first queries see none of these keys
      std::memset(memory.output, 0, static_cast<size_t>(p.value_width * columns) * sizeof(T));
      started = true;
    }
    each_step<T>(tile, [&](int64_t k, int64_t count, int64_t column) HWY_ATTR {
      multiply<true>(static_cast<int>((columns - column) / lanes), p.value_width, count,
                     Product<T>{values.data + k * values.stride, values.stride, memory.scores + k * columns + column,
                                columns, memory.output + column, columns, started || k > 0, lanes});
    });
    started = true;
  }

  T* statistics = p.statistics + ((n * p.heads + h) * 2) * p.queries + first_query;
  for (int64_t i = 0; i < columns; i += lanes) {
    const auto total = hn::Load(d, memory.total + i), largest = hn::Load(d, memory.largest + i);
    const auto empty = hn::Eq(total, hn::Zero(d));
    const auto inverse = hn::IfThenZeroElse(empty, hn::Div(hn::Set(d, T(1)), total));
    hn::Store(inverse, d, memory.total + i);
    store(hn::IfThenZeroElse(empty, largest), d, statistics + i, queries - i);
    store(inverse, d, statistics + p.queries + i, queries - i);
  }
  T* y = p.y.at(n, h) + first_query * p.y.row;
  if (!started) {
    for (int64_t i = 0; i < queries; ++i)
      std::memset(y + i * p.y.row, 0, static_cast<size_t>(p.value_width) * sizeof(T));
    return;
  }
  transpose_rows<false>(y, p.y.row, memory.output, columns, queries, p.value_width,
                        [&](int64_t i) HWY_ATTR { return hn::Set(d, memory.total[i]); });
}

template <class T>
void forward(const AttentionProblem<T>& p, int64_t begin, int64_t end) {
  const int64_t size = most_tile_queries<T>(), tiles = (p.queries + size - 1) / size;
  const int64_t columns = p.queries < size ? whole_vectors<T>(p.queries) : size;
  const int64_t keys = p.keys < most_tile_keys ? p.keys : most_tile_keys;
  AttentionParts count(nullptr);
  ForwardMemory<T>(p, count, columns, keys);
  AttentionMemory block(count.used());
  AttentionParts parts(block.data());
  const ForwardMemory<T> memory(p, parts, columns, keys);
  for (int64_t task = begin; task < end; ++task) {
    // Later tiles of a causal head take longer: they go first.
    const int64_t head = task / tiles, first = (tiles - 1 - task % tiles) * size;
    forward_tile(p, head / p.heads, head % p.heads, first, p.queries - first < size ? p.queries - first : size, memory);
  }
}

int64_t tile_queries_f32() { return most_tile_queries<float>(); }
int64_t tile_queries_f64() { return most_tile_queries<double>(); }
void forward_f32(const AttentionProblem<float>& p, int64_t begin, int64_t end) { forward(p, begin, end); }
void forward_f64(const AttentionProblem<double>& p, int64_t begin, int64_t end) { forward(p, begin, end); }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(tile_queries_f32);
HWY_EXPORT(tile_queries_f64);
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);

template <>
int64_t attention_tile_queries<float>() {
  return HWY_DYNAMIC_DISPATCH(tile_queries_f32)();
}
template <>
int64_t attention_tile_queries<double>() {
  return HWY_DYNAMIC_DISPATCH(tile_queries_f64)();
}
void attention_forward(const AttentionProblem<float>& problem, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(problem, begin, end);
}
void attention_forward(const AttentionProblem<double>& problem, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward_f64)(problem, begin, end);
}

}  // namespace regard::cpu_backend
#endif
