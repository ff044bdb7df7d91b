// LoRA: small trained matrices beside the frozen weights of a model's Linear layers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <regard/layers/layer.hpp>

namespace regard::layers {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;                       ///< the adapters' output is scaled by alpha / rank
  double dropout = 0;                      ///< of the adapters' input, in training mode
  std::vector<std::string> names = {"*"};  ///< which Linear layers, by path: patterns as in names.hpp
};

/// Gives Linear layers of a model an adapter each, and freezes every other parameter. Returns all adapters' parameters,
/// for an optimizer:
///
///     Tensors adapters = add_lora(model, {.rank = 8, .alpha = 16, .names = {"query", "value"}});
///     AdamW optimizer(adapters, 1e-3);
///     ... train ...
///     save_safetensors("adapters.safetensors", lora_state_dict(model));
///     merge_lora(model);                 // a plain model again
///
/// The model computes what it did until the adapters are trained. A ValueError, and nothing is changed, where a pattern
/// names no Linear or a layer has an adapter already. Hu et al., 2021.
Tensors add_lora(Layer& model, const LoraOptions& options = {});

/// The adapters' parameters and their paths; none without adapters.
std::vector<std::pair<std::string, Tensor>> lora_parameters(const Layer& model);

/// Adds each adapter to the weight beside it and removes it: the same outputs to rounding, at the cost of a plain
/// Linear. Parameters stay frozen: set_requires_grad(true) trains them on. A ValueError where there is no adapter.
void merge_lora(Layer& model);
/// Removes the adapters: the model that add_lora() found. Parameters stay frozen.
void remove_lora(Layer& model);

/// The adapters' part of state_dict(): `PATH.lora.a`, `.b` and `.alpha`. Shares memory, as state_dict() does.
StateDict lora_state_dict(const Layer& model);
/// Loads such a state. A model without any adapter gets those that the state holds, of its ranks, and is frozen
/// otherwise; one that has adapters must have the same. A ValueError that lists names and shapes where it does not fit,
/// and nothing is changed.
void load_lora(Layer& model, const StateDict& state);

}  // namespace regard::layers
