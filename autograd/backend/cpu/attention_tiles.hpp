// Attention's tiles, for the instruction set of this processor. For attention.cpp.
#pragma once

#include <cstdint>

#include <regard/autograd/backend/cpu/attention_problem.hpp>

namespace regard::cpu_backend {

/// How many queries a tile has at most.
template <class T>
int64_t attention_tile_queries();

/// The output and statistics of tasks [begin, end): tile t of head (n, h) is task (n * H + h) * tiles + t.
void attention_forward(const AttentionProblem<float>& problem, int64_t begin, int64_t end);
void attention_forward(const AttentionProblem<double>& problem, int64_t begin, int64_t end);

/// delta [N, H, L] = the sums of dy y over rows [begin, end), row (n * H + h) * L + l.
void attention_row_delta(float* delta, const AttentionProblem<float>& problem, int64_t begin, int64_t end);
void attention_row_delta(double* delta, const AttentionProblem<double>& problem, int64_t begin, int64_t end);

/// The gradients from queries [first, last), at least one, of one head: writes these rows of dq, and adds to dk and
/// dv of the head of keys that it uses. `fresh`: writes dk and dv, where the last of the queries may attend to all keys
/// and nothing but causal order blocks any.
void attention_backward(const AttentionProblem<float>& problem, int64_t n, int64_t h, int64_t first, int64_t last,
                        bool fresh);
void attention_backward(const AttentionProblem<double>& problem, int64_t n, int64_t h, int64_t first, int64_t last,
                        bool fresh);

}  // namespace regard::cpu_backend
