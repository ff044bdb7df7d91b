// Rules that rename the tensors of a state dict: for files whose names, or layouts, are not a model's.
#pragma once

#include <string>
#include <vector>

#include <regard/autograd/state_dict.hpp>

namespace regard::layers {

/// What becomes of the names that `from` matches as a whole. In it `*` stands for one part of a name, at least one
/// character and no dot, and `**` for any text, also none. In `to` the first `*` or `**` is what the first one in
/// `from` stood for, and so on.
///
///     {.from = "transformer.h.*.mlp.c_fc.**", .to = "blocks.*.feed_forward.up.**"}
///     {.from = "**.c_attn.weight", .transpose = true}
///     {.from = "**.attn.bias", .drop = true}
struct RenameRule {
  std::string from = {};
  std::string to = {};     ///< the new name; empty: the name stays
  bool drop = false;       ///< leave the tensor out
  bool transpose = false;  ///< of a matrix: rows become columns
};

/// The state dict under new names: each name by the first rule that matches it; one that no rule matches stays. A
/// ValueError for a rule that cannot be followed and where two tensors get one name, a ShapeError where what should be
/// transposed is no matrix: they name the rule and the tensors. Tensors share memory with those of `state`.
StateDict rename(const StateDict& state, const std::vector<RenameRule>& rules);

}  // namespace regard::layers
