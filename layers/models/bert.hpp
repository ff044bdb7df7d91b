// Bert: a transformer encoder of text, and its Hugging Face style folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <regard/layers/embedding.hpp>
#include <regard/layers/transformer.hpp>

namespace regard::layers {

/// The defaults are BERT-base's. Keys of config.json in brackets.
struct BertOptions {
  int64_t vocabulary = 30522;                ///< ids there are [vocab_size]
  int64_t positions = 512;                   ///< tokens that are read at most [max_position_embeddings]
  int64_t token_types = 2;                   ///< [type_vocab_size]
  int64_t width = 768;                       ///< [hidden_size]
  int64_t heads = 12;                        ///< [num_attention_heads]
  int64_t layers = 12;                       ///< [num_hidden_layers]
  int64_t hidden = 3072;                     ///< width inside the feed-forward networks [intermediate_size]
  Activation activation = Activation::gelu;  ///< [hidden_act]
  double dropout = 0.1;                      ///< of embeddings and of each branch's result [hidden_dropout_prob]
  double attention_dropout = 0.1;            ///< of attention weights [attention_probs_dropout_prob]
  double eps = 1e-12;                        ///< of the layer norms [layer_norm_eps]
  int64_t padding = 0;                       ///< the id whose vector is not trained [pad_token_id]; -1: none
  bool pooler = true;                        ///< whether there is one
};

/// BERT's encoder: token, position and type vectors added and normalised, then post-norm transformer layers.
/// Parameters tokens, positions, types, norm, blocks, pooler; first weights N(0, 0.02), biases 0. Devlin, Chang, Lee,
/// Toutanova, "BERT: pre-training of deep bidirectional transformers for language understanding", 2019.
struct Bert : Layer {
  BertOptions options;
  Embedding tokens, positions, types;
  LayerNorm norm;
  Dropout drop;
  std::vector<TransformerEncoderLayer> blocks;
  std::optional<Linear> pooler;

  explicit Bert(const BertOptions& options = {});

  /// ids [N, T] (i64), mask [N, T] (boolean or integer, non-zero: a token; undefined: all are), types [N, T] (i64;
  /// undefined: all 0) -> what the last layer says of each token, [N, T, width]. T above `options.positions` is a
  /// ShapeError.
  Tensor operator()(const Tensor& ids, const Tensor& mask = {}, const Tensor& types = {}) const;
  /// tanh(pooler(x[:, 0])) of such an output: [N, width]. A ValueError where there is no pooler.
  Tensor pool(const Tensor& x) const;
  void members(Members& m) override;
  std::string describe() const override;
};

/// A model read from a folder, and what the weights held beside it.
struct LoadedBert {
  Bert model;
  std::vector<std::string> unused;  ///< tensors of heads and the like (`cls.predictions.bias`), left out
};

/// Reads config.json and model.safetensors of a Hugging Face style folder. Names with and without the prefix `bert.`,
/// and the old `LayerNorm.gamma` and `beta`; a pooler where the weights have one; f16, bf16, f32 and f64. The model is
/// f32 and in training mode. A FileError names the file and the key, and for a tensor both shapes: what config.json
/// wants and what there is.
LoadedBert load_bert(const std::filesystem::path& folder);

/// Writes config.json and model.safetensors as load_bert() and transformers' BertModel.from_pretrained() read them. The
/// folder must be there. Each file is written whole or not at all.
void save_bert(const std::filesystem::path& folder, const Bert& model);

/// The options that config.json gives.
BertOptions read_bert_config(const std::filesystem::path& path);

/// The parameters under Hugging Face's names, `encoder.layer.0.attention.self.query.weight`, sharing their memory.
StateDict bert_state_to_hugging_face(const Bert& model);

}  // namespace regard::layers
