// Patterns over the names of parameters and layers: `*.bias`, `blocks.*.attention`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace regard::layers {

/// Whether a pattern fits a dotted name, or its end from a dot on. `*` stands for any characters (dots too), `?` for
/// one. `bias` fits `bias` and `blocks.0.norm.bias`, but not `unbias`; `blocks.?.norm*.weight` fits
/// `model.blocks.0.norm1.weight`.
bool name_matches(std::string_view pattern, std::string_view name);

/// `a, b, c`: for error messages; of a long list the first `most`, then how many more.
std::string list_names(const std::vector<std::string>& names, size_t most = 12);

}  // namespace regard::layers
