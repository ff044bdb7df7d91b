// Byte-pair encoding: words built from bytes by merging the pairs that are most frequent, as GPT-2 does it.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <utility>

#include <regard/optim/data/tokenizer.hpp>

namespace regard::data {

struct BytePairOptions {
  int64_t vocabulary = 1024;          ///< ids in all, with the 256 bytes and the specials
  int64_t min_frequency = 2;          ///< pairs that are rarer are not merged: the vocabulary stays smaller then
  std::vector<std::string> specials;  ///< ids beyond the text's, such as "<|endoftext|>"
};

/// Text is split into words, numbers and punctuation as GPT-2 splits it (a word has the space before it), and within
/// each the bytes are merged, pair by pair, in the order in which training found the pairs. Sennrich, Haddow, Birch,
/// "Neural machine translation of rare words with subword units", 2016; Radford et al., "Language models are
/// unsupervised multitask learners", 2019. Any bytes can be encoded; decode(encode(text)) is the text.
///
/// Ids are numbered as GPT-2's: the bytes, the merges in their order, the specials.
class BytePairTokenizer : public Tokenizer {
 public:
  using Options = BytePairOptions;

  /// Merges the pairs that are most frequent in `text`; of equally frequent ones that with the smaller ids, so that
  /// the same text always gives the same vocabulary. ValueError for an empty text, a vocabulary that does not hold
  /// the bytes and the specials, a special that is empty or there twice.
  static BytePairTokenizer train(std::string_view text, const Options& options = {});
  /// The same with the size alone.
  static BytePairTokenizer train(std::string_view text, int64_t vocabulary) {
    Options options;
    options.vocabulary = vocabulary;
    return train(text, options);
  }

  /// GPT-2's files, as Hugging Face's libraries write them: ids by token, and the merges. Tokens that are neither a
  /// byte nor a merge are specials. A FileError names file, line and fault.
  static BytePairTokenizer read_gpt2(const std::filesystem::path& vocab_json, const std::filesystem::path& merges_txt);
  /// Writes both files, each atomically.
  void write_gpt2(const std::filesystem::path& vocab_json, const std::filesystem::path& merges_txt) const;

  /// Text alone: what looks like a special is encoded as any other text.
  std::vector<int64_t> encode(std::string_view text) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string token(int64_t id) const override;
  std::string to_json() const override;

  /// The id of a special. ValueError where there is none of that name.
  int64_t special(std::string_view name) const;
  bool has_special(std::string_view name) const;
  const std::vector<std::pair<int64_t, int64_t>>& merges() const { return merges_; }

 private:
  friend class BytePairTrainer;
  friend class Tokenizer;
  struct Parts {  // what makes one, however it was found
    std::vector<std::string> tokens;
    std::vector<std::pair<int64_t, int64_t>> merges;
    std::vector<int64_t> specials;
  };
  struct Merge {
    int64_t rank;
    int64_t id;
  };
  explicit BytePairTokenizer(Parts parts);
  /// From tokens by id and merges, as they are written in GPT-2's files. `refuse` throws; its number is the merge's, or
  /// -1 where the fault is in the tokens.
  using Refuse = std::function<void(int64_t merge, const std::string& what)>;
  static Parts parse(const std::vector<std::string>& tokens, const std::vector<std::string>& merges,
                     const Refuse& refuse);
  static std::unique_ptr<Tokenizer> from_text(const std::string& json);
  std::vector<std::string> written_tokens() const;
  std::vector<std::string> written_merges() const;
  void encode_word(std::string_view word, std::vector<int64_t>& ids) const;

  std::vector<std::string> tokens_;                  // by id: bytes, or a special's name
  std::vector<std::pair<int64_t, int64_t>> merges_;  // by rank
  std::vector<int64_t> specials_;
  std::array<int64_t, 256> byte_ids_{};
  std::unordered_map<uint64_t, Merge> ranks_;  // by left << 32 | right
};

/// Trains on text that comes in pieces: cut it at the ends of lines, since neither words nor runs of white space are
/// joined across pieces.
class BytePairTrainer {
 public:
  void add(std::string_view text);
  BytePairTokenizer train(const BytePairOptions& options = {}) const;

 private:
  std::unordered_map<std::string, int64_t> counts_;  // of words
};

/// Calls `use` with each part that GPT-2's pattern splits `text` into:
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Broken bytes count as punctuation.
void split_words(std::string_view text, const std::function<void(std::string_view)>& use);

}  // namespace regard::data
