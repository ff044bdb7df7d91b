// Embedding: a table of vectors, looked up by id.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// ids [...] (i64) -> [..., width]. Parameter weight [count, width], N(0, 1) at first. An id outside [0, count) is
/// an IndexError. `padding_idx` >= 0: that row starts at zero and gets no gradient.
struct Embedding : Layer {
  Parameter weight;
  int64_t padding_idx;

  Embedding(int64_t count, int64_t width, int64_t padding_idx = -1);
  Tensor operator()(const Tensor& ids) const;
  void members(Members& m) override { m("weight", weight); }
  std::string describe() const override;
};

}  // namespace regard::layers
