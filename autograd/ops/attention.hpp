// Behind scaled_dot_product_attention: what tests and other implementations compare with. Programs use ops.hpp.
#pragma once

#include <utility>

#include <regard/autograd/ops.hpp>

namespace regard::detail {

/// Attention composed of recorded ops: the reference for every faster way. query [N, H, L, D], key [N, Hkv, S, D] and
/// value [N, Hkv, S, Dv] are checked, and so are the options. The output [N, H, L, Dv], and the weights [N, H, L, S]
/// before dropout.
std::pair<Tensor, Tensor> composed_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const AttentionOptions& options);

/// The warning about a float mask that holds only 0 and 1 is given once a process: the next such mask gives it again.
void allow_float_mask_warning();

}  // namespace regard::detail
