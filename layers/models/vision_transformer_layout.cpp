#include <regard/layers/models/vision_transformer_layout.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <regard/autograd/error.hpp>
#include <regard/autograd/ops.hpp>

namespace regard::layers {

namespace {

using Names = std::vector<std::pair<std::string_view, std::string_view>>;  // theirs, ours

// Names of layers, without `.weight` and `.bias`; those of a block follow `block` and its number.
struct Layout {
  std::string_view block;
  Names outside, inside;
};

constexpr std::string_view our_block = "blocks.";
constexpr std::string_view qkv = "attn.qkv";
constexpr std::array<std::string_view, 3> parts = {"attention.query", "attention.key", "attention.value"};

const Layout& layout_of(VisionTransformerLayout layout) {
  static const Layout timm = {"blocks.",
                              {{"patch_embed.proj", "patches"}, {"norm", "norm"}, {"head", "head"}},
                              {{"norm1", "norm1"},
                               {"attn.proj", "attention.output"},
                               {"norm2", "norm2"},
                               {"mlp.fc1", "feed_forward.up"},
                               {"mlp.fc2", "feed_forward.down"}}};
  static const Layout hugging_face = {
      "vit.encoder.layer.",
      {{"vit.embeddings.patch_embeddings.projection", "patches"}, {"vit.layernorm", "norm"}, {"classifier", "head"}},
      {{"layernorm_before", "norm1"},
       {"attention.attention.query", "attention.query"},
       {"attention.attention.key", "attention.key"},
       {"attention.attention.value", "attention.value"},
       {"attention.output.dense", "attention.output"},
       {"layernorm_after", "norm2"},
       {"intermediate.dense", "feed_forward.up"},
       {"output.dense", "feed_forward.down"}}};
  return layout == VisionTransformerLayout::timm ? timm : hugging_face;
}

// The two vectors that are no layers: the class token and the positions, theirs with leading dimensions of size 1.
std::pair<std::string_view, std::string_view> vectors_of(VisionTransformerLayout layout) {
  return layout == VisionTransformerLayout::timm
             ? std::pair<std::string_view, std::string_view>{"cls_token", "pos_embed"}
             : std::pair<std::string_view, std::string_view>{"vit.embeddings.cls_token",
                                                             "vit.embeddings.position_embeddings"};
}

std::optional<std::string_view> other_name(const Names& names, std::string_view name, bool to_ours) {
  for (const auto& [theirs, ours] : names)
    if ((to_ours ? theirs : ours) == name) return to_ours ? ours : theirs;
  return std::nullopt;
}

// "blocks.3.attn.qkv.weight" in its parts; a name outside of the blocks has no number.
struct Place {
  std::string number, layer, member;
};

Place take_apart(std::string_view name, std::string_view block) {
  Place place;
  if (name.starts_with(block)) {
    const size_t dot = name.find('.', block.size());
    const std::string_view number =
        dot == std::string_view::npos ? std::string_view() : name.substr(block.size(), dot - block.size());
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos) {
      place.number = number;
      name.remove_prefix(dot + 1);
    }
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return place;
  place.layer = name.substr(0, dot);
  place.member = name.substr(dot + 1);
  return place;
}

std::string joined(std::string_view block, const Place& place, std::string_view layer) {
  return (place.number.empty() ? "" : std::string(block) + place.number + ".") + std::string(layer) + "." +
         place.member;
}

}  // namespace

StateDict vision_transformer_from(VisionTransformerLayout layout, const StateDict& state) {
  const char* op = "vision_transformer_from";
  const Layout& names = layout_of(layout);
  const auto [class_token, positions] = vectors_of(layout);
  StateDict ours;
  for (const auto& [given_name, tensor] : state) {
    check_defined(op, given_name.c_str(), tensor);
    std::string name = given_name;
    // A ViTModel without its head has the same names without the model's own.
    if (layout == VisionTransformerLayout::hugging_face && !name.starts_with("vit.") &&
        !name.starts_with("classifier."))
      name = "vit." + name;
    if (name == class_token || name == positions) {
      const bool token = name == class_token;
      check<ShapeError>(tensor.dim() == 3 && tensor.size(0) == 1 && (!token || tensor.size(1) == 1), op, given_name,
                        " ", tensor.shape(), ": [1, ", token ? "1" : "positions", ", width] is expected");
      ours[token ? "class_token.weight" : "positions.weight"] = token ? tensor.flatten() : tensor.flatten(0, 1);
      continue;
    }
    const Place place = take_apart(name, names.block);
    if (layout == VisionTransformerLayout::timm && !place.number.empty() && place.layer == qkv) {
      check<ShapeError>(tensor.dim() >= 1 && tensor.size(0) % 3 == 0, op, given_name, " ", tensor.shape(),
                        ": its first dimension holds query, key and value, and must be a multiple of 3");
      const Tensors split = tensor.chunk(3);
      for (size_t i = 0; i < parts.size(); ++i) ours[joined(our_block, place, parts[i])] = split[i];
      continue;
    }
    const auto layer = other_name(place.number.empty() ? names.outside : names.inside, place.layer, true);
    ours[layer ? joined(our_block, place, *layer) : given_name] = tensor;
  }
  return ours;
}

StateDict vision_transformer_to(VisionTransformerLayout layout, const StateDict& state) {
  const char* op = "vision_transformer_to";
  const Layout& names = layout_of(layout);
  const auto [class_token, positions] = vectors_of(layout);
  StateDict theirs;
  for (const auto& [name, tensor] : state) {
    check_defined(op, name.c_str(), tensor);
    if (name == "class_token.weight" || name == "positions.weight") {
      const bool token = name == "class_token.weight";
      theirs[std::string(token ? class_token : positions)] =
          token ? tensor.view({1, 1, tensor.numel()}) : tensor.unsqueeze(0);
      continue;
    }
    const Place place = take_apart(name, our_block);
    if (layout == VisionTransformerLayout::timm && place.layer == parts[0]) {
      Tensors joint;
      for (std::string_view part : parts) {
        const auto found = state.find(joined(our_block, place, part));
        check<ValueError>(found != state.end(), op, joined(our_block, place, part), " is missing beside ", name);
        joint.push_back(found->second.detach());
      }
      theirs[joined(names.block, place, qkv)] = cat(joint);
      continue;
    }
    if (layout == VisionTransformerLayout::timm && (place.layer == parts[1] || place.layer == parts[2])) continue;
    const auto layer = other_name(place.number.empty() ? names.outside : names.inside, place.layer, false);
    theirs[layer ? joined(names.block, place, *layer) : name] = tensor;
  }
  return theirs;
}

}  // namespace regard::layers
