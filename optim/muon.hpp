// Muon, alone for matrices, and with AdamW for the rest of a model.
#pragma once

#include <array>
#include <optional>

#include <regard/optim/adam.hpp>
#include <regard/optim/groups.hpp>

namespace regard::optim {

/// By which factor the step of a matrix [rows, columns] (out, in) grows with its shape.
enum class MuonScale : uint8_t {
  original,           ///< sqrt(max(1, rows / columns)). Jordan et al.
  match_rms_adamw,    ///< 0.2 sqrt(max(rows, columns)): AdamW's lr and weight_decay will do. Liu et al., 2025
  spectral_unclamped  ///< sqrt(rows / columns). Bernstein, 2025
};

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;  ///< the parameter shrinks by lr * weight_decay * p
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};  ///< of the Newton-Schulz iteration
  double eps = 1e-7;                                               ///< the least norm that is divided by
  int64_t iterations = 5;
  MuonScale scale = MuonScale::original;
};

/// Muon: the momentum, brought close to the nearest orthogonal matrix by a few Newton-Schulz iterations, is the step.
/// For weight matrices of hidden layers; a parameter that has not two dimensions is a ShapeError: leave the rest
/// (biases, norms), and embeddings and output heads, to AdamW, as MuonWithAdamW does. Jordan et al., "Muon: an
/// optimizer for hidden layers in neural networks", 2024. As torch.optim.Muon, but that the iterations are computed in
/// the parameter's dtype where PyTorch takes bf16.
class Muon : public Optimizer {
 public:
  explicit Muon(const Tensors& parameters, const MuonOptions& options = {});
  template <LearningRate T>
  Muon(const Tensors& parameters, T lr) : Muon(parameters, MuonOptions{.lr = static_cast<double>(lr)}) {}
  explicit Muon(const std::vector<ParameterGroup<MuonOptions>>& groups);

 protected:
  void update(size_t group, std::span<const Update> list) override;

 private:
  std::vector<MuonOptions> options_;
};

struct MuonWithAdamWOptions {
  MuonOptions muon = {};
  AdamWOptions adamw = {};
  /// Patterns of further parameters for AdamW: a model's output head, as `{"head"}`. One that matches nothing is a
  /// ValueError: a GPT has no `head` unless it is untied.
  std::vector<std::string> adamw_names = {};
};

/// One optimizer for a whole model: Muon for its matrices, AdamW for the rest. It is stepped, scheduled and saved as
/// any other: the groups given to Muon come first, then AdamW's, each with its own learning rate.
class MuonWithAdamW : public Optimizer {
 public:
  MuonWithAdamW(const std::vector<ParameterGroup<MuonOptions>>& muon,
                const std::vector<ParameterGroup<AdamWOptions>>& adamw);
  /// Muon for the model's matrices but embeddings and those that `adamw_names` names; AdamW for these, with its weight
  /// decay for matrices that are no embedding and without for the rest. A group without parameters is left out.
  explicit MuonWithAdamW(const layers::Layer& model, const MuonWithAdamWOptions& options = {});

 protected:
  void update(size_t group, std::span<const Update> list) override;
  std::optional<Shape> slot_shape(size_t group, const Tensor& parameter, size_t slot) const override;

 private:
  struct Parts {
    std::vector<ParameterGroup<MuonOptions>> muon;
    std::vector<ParameterGroup<AdamWOptions>> adamw;
  };
  static Parts parts_of(const layers::Layer& model, const MuonWithAdamWOptions& options);
  explicit MuonWithAdamW(const Parts& parts) : MuonWithAdamW(parts.muon, parts.adamw) {}

  std::vector<MuonOptions> muon_;
  std::vector<AdamWOptions> adamw_;
};

}  // namespace regard::optim
