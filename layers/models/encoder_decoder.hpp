// EncoderDecoder: a transformer that reads one sequence and says another.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <regard/layers/embedding.hpp>
#include <regard/layers/models/beam_search.hpp>
#include <regard/layers/positions.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::layers {

struct EncoderDecoderOptions {
  int64_t source_vocabulary = 0;
  int64_t target_vocabulary = 0;
  int64_t max_source = 256;  ///< tokens of a source, at most
  int64_t max_target = 256;  ///< tokens that the decoder reads, at most, the start token with them
  int64_t width = 128;
  int64_t heads = 4;
  int64_t encoder_layers = 3;
  int64_t decoder_layers = 3;
  int64_t hidden = 0;  ///< width inside the feed-forward networks; 0: four times the width
  double dropout = 0;  ///< of the embeddings with their positions, and in every layer (TransformerLayerOptions)
  Activation activation = Activation::gelu;
  bool norm_first = true;          ///< pre-norm, with a norm behind each stack; false: post-norm, without
  bool learned_positions = false;  ///< trained vectors; false: sines and cosines
  bool share_embeddings = false;   ///< one table for source and target, whose vocabularies must be one
  bool tie_output = true;          ///< logits by the target's embedding table, without a bias; false: a Linear
};

/// What a decoder has read so far, of some rows at once: see EncoderDecoder::start().
struct DecodingState {
  Tensor memory;                     ///< [R, S, width], what the encoder made of the source
  Tensor source_mask;                ///< [R, S] or undefined
  std::vector<int64_t> sources;      ///< the source of each row
  std::vector<DecoderCache> caches;  ///< one a decoder layer
  int64_t length = 0;                ///< target tokens read

  int64_t rows() const { return static_cast<int64_t>(sources.size()); }
  /// Row r becomes what row rows[r] was; rows may be left out and repeated.
  void reorder(const std::vector<int64_t>& rows);
};

/// A sequence-to-sequence transformer: an encoder over the source, and a decoder, causal, with attention over what the
/// encoder made of it. Vaswani et al., "Attention is all you need", 2017, with the norms in front by default (Xiong et
/// al., 2020). Token vectors are drawn from N(0, 1 / width) and multiplied by sqrt(width), so that one table can serve
/// as input and as output (Press and Wolf, 2017).
///
/// Ids are i64: source [N, S], target [N, T], padded behind. `source_mask` [N, S] is true where there is a token;
/// undefined, all are. Padding behind the targets needs no mask, as the decoder is causal. Longer sequences than
/// the positions are a ShapeError, ids outside of a vocabulary an IndexError.
///
///     Tensor logits = model(source, target, mask);   // [N, T, target_vocabulary]: of the token that comes next
///     Tensor loss = cross_entropy(logits.view({-1, model.options.target_vocabulary}), following);
///
///     model.eval();
///     auto best = beam_search(model.search_step(source, mask), source.size(0), {.start = 1, .end = 2});
struct EncoderDecoder : Layer {
  EncoderDecoderOptions options;  ///< as it was made
  Embedding source_tokens;
  std::optional<Embedding> target_tokens;  ///< none where it is shared
  std::optional<SinusoidalPositionalEncoding> positions;
  std::optional<LearnedPositionalEncoding> source_positions, target_positions;
  Dropout drop;
  std::vector<TransformerEncoderLayer> encoder;
  std::optional<LayerNorm> encoder_norm;
  std::vector<TransformerDecoderLayer> decoder;
  std::optional<LayerNorm> decoder_norm;
  std::optional<Linear> head;  ///< none where it is tied

  explicit EncoderDecoder(const EncoderDecoderOptions& options);

  /// The logits of the token after each target token, [N, T, target_vocabulary], when the right ones so far are told.
  Tensor operator()(const Tensor& source, const Tensor& target, const Tensor& source_mask = {}) const;
  /// The same logits, and each decoder layer's weights over the source, [N, heads, T, S].
  std::pair<Tensor, Tensors> forward_with_weights(const Tensor& source, const Tensor& target,
                                                  const Tensor& source_mask = {}) const;

  /// The two halves: memory [N, S, width], then logits.
  Tensor encode(const Tensor& source, const Tensor& source_mask = {}) const;
  Tensor decode(const Tensor& target, const Tensor& memory, const Tensor& source_mask = {}) const;

  /// Decoding token by token, with keys and values kept, so that a token costs the same however many came before;
  /// without gradients, in evaluation mode. step() reads the next tokens of every row, [R, L], and gives the logits
  /// after each, [R, L, target_vocabulary]: what decode() gives for all that was read.
  DecodingState start(const Tensor& source, const Tensor& source_mask = {}) const;
  Tensor step(const Tensor& tokens, DecodingState& state) const;
  /// The same as a function for beam_search() and greedy_search(), one use each. The model must outlive it.
  SearchStep search_step(const Tensor& source, const Tensor& source_mask = {}) const;

  void members(Members& m) override;
  std::string describe() const override;

 private:
  const Embedding& target_table() const { return target_tokens ? *target_tokens : source_tokens; }
  Tensor embed_source(const Tensor& ids) const;
  Tensor embed_target(const Tensor& ids, int64_t offset) const;
  Tensor finish(const Tensor& decoded) const;
};

}  // namespace regard::layers
