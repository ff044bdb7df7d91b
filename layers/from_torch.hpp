// State dicts of PyTorch's attention and transformer modules, read and written under their names.
#pragma once

#include <regard/autograd/state_dict.hpp>
#include <regard/layers/layer.hpp>

namespace regard::layers {

/// A state dict of a PyTorch model under the names of `model`, for `model.load_state_dict(from_torch(model, state))`.
/// Wherever `model` has a MultiHeadAttention, a TransformerEncoderLayer or a TransformerDecoderLayer, what `state` has
/// under its path is read as that of torch.nn.MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer:
///
/// | PyTorch | here |
/// |---|---|
/// | in_proj_weight, in_proj_bias | query, key and value, its three parts |
/// | q_proj_weight, k_proj_weight, v_proj_weight | query.weight, key.weight, value.weight |
/// | out_proj | output |
/// | self_attn, multihead_attn | attention, cross_attention |
/// | linear1, linear2 | feed_forward.up, feed_forward.down |
///
/// All other names stay as they are, so that one already named as here is left alone. So torch.nn.TransformerEncoder
/// fits a layer with members `layers`, a vector of TransformerEncoderLayer, and `norm`, and torch.nn.Transformer one
/// with two such members, `encoder` and `decoder`; for models that are built another way rename() comes first. A
/// ValueError or ShapeError names what does not fit: a packed weight of another size, bias_k or bias_v, two tensors of
/// one name. The tensors share memory with those of `state`. Of the layers' options: PyTorch's activation is relu and
/// its norms come last (norm_first = false) unless told otherwise.
StateDict from_torch(const Layer& model, const StateDict& state);

/// The way back: a state dict under the names of `model`, its own unless given, under those of the same model in
/// PyTorch, with packed projections. A ValueError for attention with fewer heads of keys and values, which PyTorch's
/// module has not, and where a part of a packed projection is missing.
StateDict to_torch(const Layer& model, const StateDict& state);
StateDict to_torch(const Layer& model);

}  // namespace regard::layers
