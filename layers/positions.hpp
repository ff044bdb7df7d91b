// Positional encodings: what tells a transformer the order of its tokens.
#pragma once

#include <regard/autograd/ops.hpp>
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
/// 2i + 1. Nothing to train; Buffer table [max_length, width], which to(DType::f64) gives in full f64 accuracy (a table
/// loaded from an f32 checkpoint keeps its own values). Vaswani et al., 2017, section 3.5.
struct SinusoidalPositionalEncoding : Layer {
  Buffer table;

  SinusoidalPositionalEncoding(int64_t max_length, int64_t width);
  Tensor operator()(const Tensor& x, int64_t offset = 0) const;
  void members(Members& m) override { m("table", table); }
  std::string describe() const override;
};

/// x [..., T, D] -> each row turned by the angles of its position: rotary_positions() as a layer. Nothing to train. For
/// queries and keys of attention, [N, H, T, D]: MultiHeadAttention does it itself with {.rotary = true}.
struct RotaryPositionalEncoding : Layer {
  RotaryOptions options;

  explicit RotaryPositionalEncoding(const RotaryOptions& options = {});
  Tensor operator()(const Tensor& x, int64_t offset = 0) const;
  void members(Members&) override {}
  std::string describe() const override;
};

/// The slopes of attention with linear biases, f64 [heads]: 2^(-8 / heads), its square, its cube and so on. Where heads
/// is no power of two, those of the power below, then every other one of the power above. Press, Smith, Lewis, "Train
/// short, test long", 2022. For AttentionOptions.alibi; MultiHeadAttention takes {.alibi = true}.
Tensor alibi_slopes(int64_t heads);

}  // namespace regard::layers
