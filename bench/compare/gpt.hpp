// The model of the training-step benchmarks: a GPT of pre-norm blocks with exact GELU, learned positions and causal
// attention.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/layers/embedding.hpp>
#include <regard/layers/init.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>

namespace bench {

struct GptSizes {
  int64_t batch, length, vocabulary, width, heads, depth;
  int64_t positions = 0;  ///< rows of the table of positions; 0: length
  bool tied = false;      ///< the head's weight is the embedding's
  bool bias = true;       ///< in linear layers (never in the head) and layer norms
};

struct Gpt : regard::layers::Layer {
  regard::layers::Embedding tokens;
  regard::layers::LearnedPositionalEncoding positions;
  std::vector<regard::layers::TransformerEncoderLayer> blocks;
  regard::layers::LayerNorm norm;
  std::optional<regard::layers::Linear> head;

  /// Weights as GPT-2's: N(0, 0.02), those that write into the residual stream divided by sqrt(2 depth).
  explicit Gpt(const GptSizes& s)
      : tokens(s.vocabulary, s.width),
        positions(s.positions ? s.positions : s.length, s.width),
        norm(s.width, 1e-5, s.bias) {
    for (int64_t i = 0; i < s.depth; ++i)
      blocks.emplace_back(s.width, s.heads, regard::layers::TransformerLayerOptions{.bias = s.bias});
    if (!s.tied) head.emplace(s.width, s.vocabulary, false);
    const double branch = 0.02 / std::sqrt(2.0 * static_cast<double>(s.depth));
    for (const auto& [name, parameter] : named_parameters()) {
      if (name.ends_with("bias"))
        regard::layers::init::zeros_(parameter);
      else if (parameter.dim() == 2)
        regard::layers::init::normal_(parameter, 0, writes_to_residual(name) ? branch : 0.02);
    }
  }

  regard::Tensor operator()(const regard::Tensor& ids) const {  // [B, T] -> [B, T, vocabulary]
    regard::Tensor x = positions(tokens(ids));                  // [B, T, E]
    for (const auto& block : blocks) x = block(x, {.mask = {}, .key_mask = {}, .causal = true});
    x = norm(x);
    return head ? (*head)(x) : linear(x, tokens.weight);
  }
  /// The mean cross-entropy of the next token. ids and targets: [B, T].
  regard::Tensor loss(const regard::Tensor& ids, const regard::Tensor& targets) const {
    const regard::Tensor logits = (*this)(ids);
    return cross_entropy(logits.view({-1, logits.size(-1)}), targets.view({-1}));
  }
  void members(regard::layers::Members& m) override {
    m("tokens", tokens);
    m("positions", positions);
    m("blocks", blocks);
    m("norm", norm);
    m("head", head);
  }

 private:
  static bool writes_to_residual(const std::string& name) {
    return name.ends_with("attention.output.weight") || name.ends_with("feed_forward.down.weight");
  }
};

}  // namespace bench
