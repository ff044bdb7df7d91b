// Positional encodings: what tells a transformer the order of its tokens.
#pragma once

#include <regard/layers/layer.hpp>

namespace regard::layers {

/// x [..., T, width] -> x + table[offset, offset + T): one trained vector a position, N(0, 0.02^2) at first.
/// Parameter weight [max_length, width]. A longer sequence is a ShapeError.
struct LearnedPositionalEncoding : Layer {
  Parameter weight;

  LearnedPositionalEncoding(int64_t max_length, int64_t width);
  Tensor operator()(const Tensor& x, int64_t offset = 0) const;
  void members(Members& m) override { m("weight", weight); }
  std::string describe() const override;
};

/// x [..., T, width] -> x + table[offset, offset + T), with sin(t / 10000^(2i / width)) at 2i and the cosine at
/// 2i + 1. Nothing to train; Buffer table [max_length, width]. Vaswani et al., 2017, section 3.5.
struct SinusoidalPositionalEncoding : Layer {
  Buffer table;

  SinusoidalPositionalEncoding(int64_t max_length, int64_t width);
  Tensor operator()(const Tensor& x, int64_t offset = 0) const;
  void members(Members& m) override { m("table", table); }
  std::string describe() const override;
};

}  // namespace regard::layers
