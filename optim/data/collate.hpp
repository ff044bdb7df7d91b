// Sequences of different lengths as one tensor, with a mask that tells which elements are real.
#pragma once

#include <cstdint>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard::data {

struct Padded {
  Tensor ids;   ///< [N, T], i64
  Tensor mask;  ///< [N, T], bool: true where ids holds the sequence; attention's key_mask
};

struct PadOptions {
  bool left = false;        ///< fill before the sequence instead of behind it, as a batch to be continued needs
  int64_t length = 0;       ///< T; 0: the longest sequence's
  int64_t multiple_of = 1;  ///< a T that is not given is rounded up to a multiple of this
};

/// Fills each sequence with `padding` to the same length. ShapeError naming a sequence longer than a length that is
/// given; ValueError where there are no sequences. An empty sequence is a row of padding.
Padded pad(const std::vector<std::vector<int64_t>>& sequences, int64_t padding, const PadOptions& options = {});

}  // namespace regard::data
