// BERT's WordPiece tokenizer: text to ids of a vocabulary, as Hugging Face's tokenizers library does it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <regard/autograd/tensor.hpp>
#include <regard/optim/data/basic_words.hpp>

namespace regard::data {

/// How text is cut into pieces, and what the special tokens are called. The defaults are those of the uncased English
/// BERT.
struct WordPieceOptions {
  BasicWordsOptions words = {};  ///< how text is prepared and split into words
  bool special_in_text = true;   ///< "[MASK]" in a text is the token of that name; false: it is text like any other
  int64_t longest_word = 100;    ///< code points; a longer word is unknown
  std::string prefix = "##";     ///< of pieces that continue a word
  std::string unknown = "[UNK]", classify = "[CLS]", separate = "[SEP]", pad = "[PAD]", mask = "[MASK]";
  std::vector<std::string> more_special = {};  ///< further pieces of the vocabulary that are no text
};

/// A text, or a pair of texts, as BERT reads it: [CLS] first [SEP] (second [SEP]).
struct WordPieceEncoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> types;  ///< 0 for the first text and what surrounds it, 1 for the second and its [SEP]
  bool truncated = false;      ///< tokens were left out
};

/// Encodings of different lengths as one batch, padded behind.
struct WordPieceBatch {
  Tensor ids;    ///< [N, T], i64
  Tensor mask;   ///< [N, T], boolean, true where a token stands
  Tensor types;  ///< [N, T], i64
};

/// WordPiece: text is cleaned, lower-cased and stripped of accents (see the options), split at white space and
/// punctuation, and each word cut from the front into the longest pieces that the vocabulary has; a word that cannot be
/// cut is unknown. Wu et al., "Google's neural machine translation system", 2016; Devlin et al., "BERT", 2019. Texts
/// are UTF-8; a text that is not is a ValueError naming the byte. Ids equal those of Hugging Face's tokenizers library
/// (`BertTokenizer` of transformers 5, `BertTokenizerFast` before), apart from characters that younger versions of
/// Unicode than its own have classified.
class WordPieceTokenizer {
 public:
  /// `vocabulary[i]` is the piece of id i. The special tokens must be among them (but [MASK], which may be missing);
  /// a piece that is there twice keeps its last id, as in the reference.
  explicit WordPieceTokenizer(std::vector<std::string> vocabulary, const WordPieceOptions& options = {});

  /// Reads a folder's vocab.txt (or else tokenizer.json's vocabulary) and what tokenizer.json, tokenizer_config.json
  /// and special_tokens_map.json, where they are there, say about lower case, accents, ideographs and the special
  /// tokens; the second wins over the first. A FileError names file and key.
  static WordPieceTokenizer from_folder(const std::filesystem::path& folder);
  /// Writes vocab.txt, tokenizer.json, tokenizer_config.json (with `longest`, the tokens that the model reads at most)
  /// and special_tokens_map.json, from which from_folder() and transformers make the same tokenizer.
  void save(const std::filesystem::path& folder, int64_t longest = 512) const;

  /// The pieces of a text, without [CLS] and [SEP].
  std::vector<int64_t> encode(std::string_view text) const;
  /// The pieces themselves.
  std::vector<std::string> pieces(std::string_view text) const;
  /// [CLS] text [SEP], cut behind to `longest` tokens with these two; 0: not cut.
  WordPieceEncoding encode_text(std::string_view text, int64_t longest = 0) const;
  /// [CLS] first [SEP] second [SEP]; of texts too long together the longer one is cut first, then both alike.
  WordPieceEncoding encode_pair(std::string_view first, std::string_view second, int64_t longest = 0) const;
  /// Pads with [PAD] to the longest of them, or further to `length`.
  WordPieceBatch batch(const std::vector<WordPieceEncoding>& encodings, int64_t length = 0) const;

  /// The text of pieces: words joined by spaces, none before punctuation and contractions. Special tokens are left out
  /// unless asked for. Case, accents and original spacing are gone. An id that is none is an IndexError.
  std::string decode(const std::vector<int64_t>& ids, bool with_special = false) const;

  int64_t vocabulary_size() const { return static_cast<int64_t>(vocabulary_.size()); }
  const std::string& piece(int64_t id) const;
  /// The id of a piece, or -1.
  int64_t id(std::string_view piece) const;
  int64_t unknown_id() const { return unknown_; }
  int64_t classify_id() const { return classify_; }
  int64_t separate_id() const { return separate_; }
  int64_t pad_id() const { return pad_; }
  int64_t mask_id() const { return mask_; }  ///< -1 without one
  const WordPieceOptions& options() const { return options_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  void encode_words(std::string_view text, std::vector<int64_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const;
  bool is_special(int64_t id) const;

  WordPieceOptions options_;
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> ids_;
  std::vector<std::pair<std::string, int64_t>> special_;
  int64_t unknown_ = -1, classify_ = -1, separate_ = -1, pad_ = -1, mask_ = -1;
};

struct TrainWordPieceOptions {
  int64_t vocabulary = 4000;  ///< pieces at most, the special tokens among them
  int64_t minimum_count = 2;  ///< of a word or pair of pieces; rarer ones are not joined
  WordPieceOptions text = {};
};

/// Learns a vocabulary from texts: every character that occurs (alone, and as a continuation), then the most frequent
/// pair of neighbouring pieces joined again and again, as byte-pair encoding does (and Hugging Face's
/// WordPieceTrainer), until there are enough. The same texts give the same vocabulary, in the same order.
WordPieceTokenizer train_word_piece(const std::vector<std::string>& texts, const TrainWordPieceOptions& options = {});

}  // namespace regard::data
