// Linear: an affine map of the last dimension.
#pragma once

#include <optional>

#include <regard/layers/layer.hpp>
#include <regard/layers/lora_adapter.hpp>

namespace regard::layers {

/// x [..., in] -> [..., out]: x weight^T + bias. Parameters weight [out, in] and bias [out], uniform in
/// +-1 / sqrt(in) at first, as PyTorch's.
struct Linear : Layer {
  Parameter weight;
  Parameter bias;                   ///< undefined without a bias
  std::optional<LoraAdapter> lora;  ///< adds its output where there is one: see add_lora() in lora.hpp

  Linear(int64_t in, int64_t out, bool with_bias = true);
  Linear(const Linear& other) = default;
  Linear(Linear&& other) noexcept;
  /// Writes the values, after checking that both have the same shapes, and a bias and an adapter both or neither: else
  /// a ShapeError or ValueError, and nothing is changed.
  Linear& operator=(const Linear& other);
  /// As copying; one that was moved from takes the other's memory.
  Linear& operator=(Linear&& other);  // NOLINT: may throw
  Tensor operator()(const Tensor& x) const;
  void members(Members& m) override;
  std::string describe() const override;

 private:
  void check_assignable(const Linear& other) const;
};

}  // namespace regard::layers
