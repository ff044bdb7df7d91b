// A batch of matrices, listed by their offsets, as runs that lie evenly: each is one call of cuBLASLt.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>

namespace regard::cuda_backend {

/// For a, b and c, in this order: the first matrix's offset and the step to the next, in elements.
struct BatchRun {
  int64_t count = 1;
  std::array<int64_t, 3> start{};
  std::array<int64_t, 3> step{};
};
using BatchRuns = std::vector<BatchRun>;

/// Few runs that make up the batch: one where there is a single step; of a batch of two levels, as the heads of
/// sequences, as many as the level with fewer has entries. Steps are not negative; of c in a run they are not 0.
inline BatchRuns even_runs(const GemmBatch& batch) {
  using Offsets = std::array<int64_t, 3>;
  const auto at = [&](int64_t i) {
    return Offsets{batch.a ? batch.a[i] : 0, batch.b ? batch.b[i] : 0, batch.c ? batch.c[i] : 0};
  };
  const auto difference = [](const Offsets& from, const Offsets& to) {
    return Offsets{to[0] - from[0], to[1] - from[1], to[2] - from[2]};
  };
  const auto possible = [](const Offsets& step) { return step[0] >= 0 && step[1] >= 0 && step[2] > 0; };

  BatchRuns runs;
  for (int64_t i = 0; i < batch.count; i += runs.back().count) {
    BatchRun run{1, at(i), {}};
    if (i + 1 < batch.count && possible(difference(at(i), at(i + 1)))) {
      run.step = difference(at(i), at(i + 1));
      ++run.count;
      while (i + run.count < batch.count && difference(at(i + run.count - 1), at(i + run.count)) == run.step)
        ++run.count;
    }
    runs.push_back(run);
  }

  // Many short ones of one kind: the other level instead.
  const BatchRun first = runs.empty() ? BatchRun() : runs.front();
  const auto length = static_cast<int64_t>(runs.size());
  if (length <= first.count) return runs;
  const Offsets step = difference(first.start, runs[1].start);
  if (!possible(step)) return runs;
  for (size_t i = 1; i < runs.size(); ++i)
    if (runs[i].count != first.count || runs[i].step != first.step ||
        difference(runs[i - 1].start, runs[i].start) != step)
      return runs;
  BatchRuns turned;
  for (int64_t j = 0; j < first.count; ++j) {
    BatchRun run{length, first.start, step};
    for (size_t k = 0; k < 3; ++k) run.start[k] += j * first.step[k];
    turned.push_back(run);
  }
  return turned;
}

}  // namespace regard::cuda_backend
