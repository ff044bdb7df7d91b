// LoraAdapter: what LoRA adds to a Linear.
#pragma once

#include <regard/layers/dropout.hpp>
#include <regard/layers/layer.hpp>

namespace regard::layers {

/// x [..., in] -> [..., out]: alpha / rank b a x, of a(drop(x)). Parameters a [rank, in], uniform as Linear's own
/// weight (kaiming with slope sqrt(5)), and b [out, rank], zero at first, so that a new adapter changes nothing; Buffer
/// alpha, a number, saved along. Usually made by add_lora() in lora.hpp. Hu et al., "LoRA: low-rank adaptation of large
/// language models", 2021.
struct LoraAdapter : Layer {
  Parameter a, b;
  Buffer alpha;
  Dropout drop;

  LoraAdapter(int64_t in, int64_t out, int64_t rank, double alpha, double dropout = 0);
  Tensor operator()(const Tensor& x) const;
  int64_t rank() const { return a.size(0); }
  double scale() const { return alpha.item<double>() / static_cast<double>(rank()); }
  /// What it adds to the weight: scale() b a, [out, in], without a graph.
  Tensor weight_change() const;
  void members(Members& m) override;
  std::string describe() const override;
};

}  // namespace regard::layers
