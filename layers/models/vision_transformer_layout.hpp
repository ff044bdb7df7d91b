// The names that other libraries give a vision transformer's weights, to and from Regard's.
#pragma once

#include <regard/autograd/state_dict.hpp>

namespace regard::layers {

/// Whose names. Both libraries store a `VisionTransformer` with a class token; timm's eps is 1e-6 (the default here),
/// Hugging Face's 1e-12 unless its config.json says otherwise (`layer_norm_eps`).
enum class VisionTransformerLayout : uint8_t {
  timm,         ///< `blocks.0.attn.qkv.weight`, query, key and value in one; without a pooled norm (`fc_norm`)
  hugging_face  ///< ViTForImageClassification, or ViTModel: `vit.encoder.layer.0.attention.attention.query.weight`
};

/// A state dict with Regard's names, for load_state_dict(); names that are not known stay, so that it reports them. The
/// tensors share the memory of those given. A ShapeError where one cannot be what its name says.
///
///     VisionTransformer model({.channels = 3, .image_height = 224, .image_width = 224, .patch = 16, .classes = 1000,
///                              .width = 192, .heads = 3, .layers = 12});  // timm's vit_tiny_patch16_224
///     model.load_state_dict(vision_transformer_from(VisionTransformerLayout::timm, load_safetensors(path)));
StateDict vision_transformer_from(VisionTransformerLayout layout, const StateDict& state);
/// The reverse: a VisionTransformer's state_dict() with the names of `layout`.
StateDict vision_transformer_to(VisionTransformerLayout layout, const StateDict& state);

}  // namespace regard::layers
