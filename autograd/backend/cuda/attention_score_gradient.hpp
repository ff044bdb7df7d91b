// Gradients of scores, as both of attention's backward kernels compute them.
#pragma once

#include <regard/autograd/backend/cuda/attention_tile.hpp>

namespace regard::cuda_backend {

/// What the gradient of a score needs of its row.
template <class T>
struct Row {
  T shift, inverse, delta;
};
template <class T>
__device__ Row<T> read_row(const AttentionProblem<T>& p, int64_t head, int query) {
  if (query >= p.queries) return {0, 0, 0};
  const T* statistics = p.statistics + 2 * head * p.queries + query;
  return {shift_of(statistics[0]), statistics[p.queries], p.delta[head * p.queries + query]};
}

/// The score to the (dropped) weight, and the gradient of that weight to the gradient of the score.
template <class Tile, class T>
__device__ void score_gradient(const AttentionProblem<T>& p, const Row<T>& row, bool allowed, bool kept, T& score,
                               T& gradient) {
  const T weight = allowed ? power_of(score, row.shift) * row.inverse : T(0);
  score = weight;
  if (Tile::drops(p)) {
    score = kept ? weight * p.keep_scale : T(0);
    gradient = kept ? gradient * p.keep_scale : T(0);
  }
  // Selected, not multiplied: a value that is blocked may be anything.
  gradient = weight == 0 ? T(0) : weight * (gradient - row.delta);
}

}  // namespace regard::cuda_backend
