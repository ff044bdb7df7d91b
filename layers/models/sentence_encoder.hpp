// SentenceEncoder: sentences to vectors, with a BERT encoder, its tokenizer, and pooling.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <regard/layers/models/bert.hpp>
#include <regard/optim/data/word_piece.hpp>

namespace regard::layers {

/// How the vectors of a sentence's tokens become one: their mean, the first ([CLS]), or the largest of each number.
enum class Pooling : uint8_t { mean, first, max };
const char* to_string(Pooling pooling);

/// x [N, T, width] and mask [N, T] (boolean or integer, non-zero: a token) -> [N, width]. What stands where there is no
/// token counts for nothing; a row without any gives zeros for mean, -1e9 for max, as the reference does.
Tensor pool_tokens(const Tensor& x, const Tensor& mask, Pooling pooling);

/// Each row of x [..., width] divided by its Euclidean norm, or by 1e-12 where that is more.
Tensor normalise_rows(const Tensor& x);

struct SentenceEncoderOptions {
  Pooling pooling = Pooling::mean;
  bool normalise = true;     ///< vectors of length 1, so that a product of two is their cosine
  bool lower_first = false;  ///< texts are lower-cased before the tokenizer sees them
  int64_t longest = 512;     ///< tokens of a sentence with [CLS] and [SEP]; what is longer is cut
};

/// Sentences as vectors: Reimers and Gurevych, "Sentence-BERT", 2019.
struct SentenceEncoder : Layer {
  Bert bert;
  data::WordPieceTokenizer tokenizer;
  SentenceEncoderOptions options;

  SentenceEncoder(Bert model, data::WordPieceTokenizer tokenizer, const SentenceEncoderOptions& options = {});

  /// Reads a folder as load_bert() and WordPieceTokenizer::from_folder() do, and sentence-transformers' files where
  /// they are there: modules.json (whether vectors are normalised), 1_Pooling/config.json (mean, cls or max) and
  /// sentence_bert_config.json (max_seq_length). Without them: the mean, normalised. The result is in evaluation mode.
  static SentenceEncoder from_folder(const std::filesystem::path& folder);
  /// Writes all of these files; the folder is made where it is missing.
  void save(const std::filesystem::path& folder) const;

  /// Of a batch of the tokenizer's: ids, mask and types, each [N, T] -> [N, width].
  Tensor operator()(const Tensor& ids, const Tensor& mask, const Tensor& types = {}) const;
  /// The same of texts, as one batch, for training.
  Tensor operator()(const std::vector<std::string>& texts) const;
  /// The vectors of any number of texts, [texts, width], in batches of texts of like length and without a graph. The
  /// mode is as it is set: eval() first. `truncated`, where given, becomes how many texts were too long.
  Tensor encode(const std::vector<std::string>& texts, int64_t batch = 32, int64_t* truncated = nullptr) const;

  data::WordPieceEncoding tokens(const std::string& text) const;
  int64_t width() const { return bert.options.width; }
  void members(Members& m) override { m("bert", bert); }
};

}  // namespace regard::layers
