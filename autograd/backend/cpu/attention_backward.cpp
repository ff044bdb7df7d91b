// Attention backward: the weights are computed again tile by tile, from the scores and each row's statistics. With
// P the weights, dP = dy v^T and delta = sum(dy y) of each row: dv = P^T dy, dS = P (dP - delta), dq = scale dS k,
// dk = scale dS^T q. Dropout stands between P and dv, and between dP and dS. Dao et al., "FlashAttention", 2022.
#include <regard/autograd/backend/cpu/attention_tiles.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/attention_backward.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/attention_masks-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

template <class T>
struct BackwardMemory {
  T *q, *q_rows;                 // [D, columns], [columns, D padded]
  T *dy, *dy_rows;               // [Dv, columns], [columns, Dv padded]
  T* dq;                         // [D, columns]
  T *weights, *dscores;          // [keys, columns]
  T *largest, *inverse, *delta;  // [columns]
  T *keys, *values;              // copies of rows
  MaskMemory<T> masks;
  HWY_INLINE BackwardMemory(const AttentionProblem<T>& p, AttentionParts& parts, int64_t columns, int64_t keys_a_tile)
      : q(parts.take<T>(p.width * columns)),
        q_rows(parts.take<T>(columns * whole_vectors<T>(p.width))),
        dy(parts.take<T>(p.value_width * columns)),
        dy_rows(parts.take<T>(columns * whole_vectors<T>(p.value_width))),
        dq(parts.take<T>(p.width * columns)),
        weights(parts.take<T>(keys_a_tile * columns)),
        dscores(parts.take<T>(keys_a_tile * columns)),
        largest(parts.take<T>(columns)),
        inverse(parts.take<T>(columns)),
        delta(parts.take<T>(columns)),
        keys(parts.take<T>(must_copy(p, p.k) ? keys_a_tile * p.width : 0)),
        values(parts.take<T>(must_copy(p, p.v) ? keys_a_tile * p.value_width : 0)),
        masks(p, parts, columns) {}
};

// memory.weights: scores to (dropped) weights. memory.dscores: gradients of the (dropped) weights to those of the
// scores.
template <class T>
HWY_INLINE void score_gradients(const AttentionProblem<T>& p, const TilePlace& tile, const TileMask<T>& mask,
                                const BackwardMemory<T>& memory) {
  const Tag<T> d;
  const int64_t columns = tile.columns;
  const bool masked = mask.added != nullptr || mask.allowed != nullptr;
  const auto zero = hn::Zero(d), keep_scale = hn::Set(d, p.keep_scale);
  for (int64_t column = 0; column < columns; column += lanes_of<T>()) {
    const auto largest = hn::Load(d, memory.largest + column), inverse = hn::Load(d, memory.inverse + column);
    const auto delta = hn::Load(d, memory.delta + column);
    const int64_t keys = keys_of_column<T>(tile, column);
    for (int64_t k = 0; k < keys; ++k) {
      T* weight_at = memory.weights + k * columns + column;
      T* dscore_at = memory.dscores + k * columns + column;
      auto score = hn::Load(d, weight_at);
      if (masked) score = masked_score<T>(score, mask, columns, k, column);
      const auto weight = hn::Mul(exp_of_difference<T>(hn::Sub(score, largest)), inverse);
      auto dweight = hn::Load(d, dscore_at), dropped = weight;
      if (mask.kept != nullptr) {
        const auto kept = lanes_of_bit<T>(mask.kept + column, columns, k);
        dweight = hn::IfThenElseZero(kept, hn::Mul(dweight, keep_scale));
        dropped = hn::IfThenElseZero(kept, hn::Mul(weight, keep_scale));
      }
      hn::Store(dropped, d, weight_at);
      // Selected, not multiplied: a value that is blocked may be anything.
      hn::Store(hn::IfThenZeroElse(hn::Eq(weight, zero), hn::Mul(weight, hn::Sub(dweight, delta))), d, dscore_at);
    }
  }
}

template <class T>
HWY_INLINE T delta_of_row(const T* y, const T* dy, int64_t width) {
  const Tag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t j = 0; j < width; j += lanes_of<T>())
    sum = hn::MulAdd(load(d, y + j, width - j), load(d, dy + j, width - j), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <class T>
void delta_of_rows(T* delta, const AttentionProblem<T>& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t head = row / p.queries, l = row % p.queries, n = head / p.heads, h = head % p.heads;
    delta[row] = delta_of_row(p.y.at(n, h) + l * p.y.row, p.dy.at(n, h) + l * p.dy.row, p.value_width);
  }
}

template <class T>
HWY_INLINE void read_statistics(const AttentionProblem<T>& p, int64_t n, int64_t h, int64_t first_query,
                                int64_t queries, const BackwardMemory<T>& memory, int64_t columns) {
  const Tag<T> d;
  const int64_t stride = whole_vectors<T>(p.value_width);
  const T* statistics = p.statistics + ((n * p.heads + h) * 2) * p.queries + first_query;
  for (int64_t i = 0; i < columns; i += lanes_of<T>()) {
    hn::Store(i < queries ? load(d, statistics + i, queries - i) : hn::Zero(d), d, memory.largest + i);
    hn::Store(i < queries ? load(d, statistics + p.queries + i, queries - i) : hn::Zero(d), d, memory.inverse + i);
  }
  if (p.delta != nullptr) {
    const T* delta = p.delta + (n * p.heads + h) * p.queries + first_query;
    for (int64_t i = 0; i < columns; ++i) memory.delta[i] = i < queries ? delta[i] : T(0);
    return;
  }
  for (int64_t i = 0; i < columns; ++i)
    memory.delta[i] = i < queries ? delta_of_row(p.y.at(n, h) + (first_query + i) * p.y.row,
                                                 memory.dy_rows + i * stride, p.value_width)
                                  : T(0);
}

template <class T>
HWY_INLINE void backward_tile(const AttentionProblem<T>& p, int64_t n, int64_t h, int64_t first_query, int64_t queries,
                              bool fresh, const BackwardMemory<T>& memory) {
  const Tag<T> d;
  const int64_t lanes = lanes_of<T>();
  const int64_t columns = whole_vectors<T>(queries), key_head = p.key_head(h);
  const bool wants_scores = p.dq || p.dk;
  const int64_t q_stride = whole_vectors<T>(p.width), dy_stride = whole_vectors<T>(p.value_width);
  const T* q = p.q.at(n, h) + first_query * p.q.row;
  const T* dy = p.dy.at(n, h) + first_query * p.dy.row;
  read_columns(memory.q, columns, p.q, q, queries, p.width, p.scale);
  if (p.dk) read_rows(memory.q_rows, q_stride, columns, p.q, q, queries, p.width, p.scale);
  if (wants_scores) read_columns(memory.dy, columns, p.dy, dy, queries, p.value_width, T(1));
  read_rows(memory.dy_rows, dy_stride, columns, p.dy, dy, queries, p.value_width, T(1));
  read_statistics(p, n, h, first_query, queries, memory, columns);

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
                                 memory.weights + k * columns + column, columns, false, lanes});
    });
    if (wants_scores) {
      const TileRows<T> values = tile_rows(p, tile, p.v, p.value_width, memory.values);
      each_step<T>(tile, [&](int64_t k, int64_t count, int64_t column) HWY_ATTR {
        multiply<false>(static_cast<int>((columns - column) / lanes), count, p.value_width,
                        Product<T>{values.data + k * values.stride, values.stride, memory.dy + column, columns,
                                   memory.dscores + k * columns + column, columns, false, lanes});
      });
    }
    score_gradients(p, tile, mask, memory);
    if (!started && keys_of_column<T>(tile, 0) == 0) {  // the first queries see none of these keys
      std::memset(memory.dq, 0, static_cast<size_t>(p.width * columns) * sizeof(T));
      started = true;
    }
    each_step<T>(tile, [&](int64_t k, int64_t count, int64_t column) HWY_ATTR {
      const int64_t at = k * columns + column;
      if (p.dv)
        add_product(count, p.value_width, columns - column, memory.weights + at, columns,
                    memory.dy_rows + column * dy_stride, dy_stride, p.dv.at(n, key_head) + (key + k) * p.dv.row,
                    p.dv.row, !fresh);
      if (p.dk)
        add_product(count, p.width, columns - column, memory.dscores + at, columns, memory.q_rows + column * q_stride,
                    q_stride, p.dk.at(n, key_head) + (key + k) * p.dk.row, p.dk.row, !fresh);
      if (p.dq)
        multiply<true>(static_cast<int>((columns - column) / lanes), p.width, count,
                       Product<T>{keys.data + k * keys.stride, keys.stride, memory.dscores + at, columns,
                                  memory.dq + column, columns, started || k > 0, lanes});
    });
    started = true;
  }
  if (!p.dq) return;
  T* dq = p.dq.at(n, h) + first_query * p.dq.row;
  if (!started) {
    for (int64_t i = 0; i < queries; ++i) std::memset(dq + i * p.dq.row, 0, static_cast<size_t>(p.width) * sizeof(T));
    return;
  }
  const auto scale = hn::Set(d, p.scale);
  transpose_rows<false>(dq, p.dq.row, memory.dq, columns, queries, p.width, [=](int64_t) HWY_ATTR { return scale; });
}

template <class T>
void backward(const AttentionProblem<T>& p, int64_t n, int64_t h, int64_t first, int64_t last, bool fresh) {
  const int64_t size = most_tile_queries<T>();
  const int64_t columns = last - first < size ? whole_vectors<T>(last - first) : size;
  const int64_t keys = p.keys < most_tile_keys ? p.keys : most_tile_keys;
  AttentionParts count(nullptr);
  BackwardMemory<T>(p, count, columns, keys);
  AttentionMemory block(count.used());
  AttentionParts parts(block.data());
  const BackwardMemory<T> memory(p, parts, columns, keys);
  // From the last tile down: where order is causal, the last one sees all keys, and can write dk and dv.
  for (int64_t i = first + (last - first - 1) / size * size; i >= first; i -= size) {
    const bool write = fresh && i + size >= last;
    backward_tile(p, n, h, i, last - i < size ? last - i : size, write, memory);
  }
}

void backward_f32(const AttentionProblem<float>& p, int64_t n, int64_t h, int64_t first, int64_t last, bool fresh) {
  backward(p, n, h, first, last, fresh);
}
void backward_f64(const AttentionProblem<double>& p, int64_t n, int64_t h, int64_t first, int64_t last, bool fresh) {
  backward(p, n, h, first, last, fresh);
}

void row_delta_f32(float* delta, const AttentionProblem<float>& p, int64_t begin, int64_t end) {
  delta_of_rows(delta, p, begin, end);
}
void row_delta_f64(double* delta, const AttentionProblem<double>& p, int64_t begin, int64_t end) {
  delta_of_rows(delta, p, begin, end);
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);
HWY_EXPORT(row_delta_f32);
HWY_EXPORT(row_delta_f64);

void attention_row_delta(float* delta, const AttentionProblem<float>& problem, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(row_delta_f32)(delta, problem, begin, end);
}
void attention_row_delta(double* delta, const AttentionProblem<double>& problem, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(row_delta_f64)(delta, problem, begin, end);
}

void attention_backward(const AttentionProblem<float>& problem, int64_t n, int64_t h, int64_t first, int64_t last,
                        bool fresh) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(problem, n, h, first, last, fresh);
}
void attention_backward(const AttentionProblem<double>& problem, int64_t n, int64_t h, int64_t first, int64_t last,
                        bool fresh) {
  HWY_DYNAMIC_DISPATCH(backward_f64)(problem, n, h, first, last, fresh);
}

}  // namespace regard::cpu_backend
#endif
