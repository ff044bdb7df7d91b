// Gradients of scores, as both of the backward kernels on 16-bit types compute them.
#pragma once

#include <regard/autograd/backend/cuda/tensor_tile.hpp>

namespace regard::cuda_backend {

/// What the gradient of a score needs of its row: its largest score, log2 of the inverse sum of exponentials, the sum
/// of dy y. The first two are kept apart: in their sum a score of -1e9, as masks have it, would leave nothing of the
/// other.
struct TensorRow {
  float shift, log2_inverse, delta;
};
/// A row without weights, or beyond the last: weights of 0.
template <class E>
__device__ TensorRow read_tensor_row(const AttentionProblem<E>& p, int64_t head, int query) {
  if (query >= p.queries) return {0, -infinity<float>(), 0};
  const float* statistics = p.statistics + 2 * head * p.queries + query;
  return {statistics[0], log2f(statistics[p.queries]), p.delta[head * p.queries + query]};
}

/// The score, rounded as it was for `shift` (see tensor_scaled()), to the (dropped) weight, and the gradient of that
/// weight to that of the score.
template <class Tile>
__device__ void tensor_score_gradient(const typename Tile::Problem& p, const TensorRow& row, bool allowed, bool kept,
                                      float& score, float& gradient) {
  const float weight = allowed ? quick_exp2((score - row.shift) * log2_of_e<float> + row.log2_inverse) : 0;
  score = weight;
  if (Tile::drops(p)) {
    score = kept ? weight * p.keep_scale : 0;
    gradient = kept ? gradient * p.keep_scale : 0;
  }
  // Selected, not multiplied: a value that is blocked may be anything.
  gradient = weight == 0 ? 0 : weight * (gradient - row.delta);
}

}  // namespace regard::cuda_backend
