#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <regard/layers/models/gpt.hpp>
#include <regard/optim/data/batches.hpp>
#include <regard/optim/data/token_file.hpp>
#include <regard/optim/data/tokenizer.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// Reads text files one after the other, a piece of at most about a megabyte at a time, and says of each piece whether
/// it belongs to validation: the last `validation` of all bytes does, from the beginning of a line on where there is
/// one near.
void each_piece(const std::vector<std::string>& files, double validation,
                const std::function<void(std::string_view piece, bool validation)>& use);

/// The tokenizer that `kind` (bytes, characters or bpe) names, made for these files, which are read to the end and so
/// checked, too. Byte pairs are found in the part for training alone; characters are those of both parts. Throws
/// UsageError where the text is too short for a sequence of `context` tokens.
std::unique_ptr<regard::data::Tokenizer> make_tokenizer(const std::vector<std::string>& files, double validation,
                                                        const std::string& kind, int64_t vocabulary, int64_t context);

/// The same checks for a tokenizer that is there already.
void check_text(const std::vector<std::string>& files, double validation, const regard::data::Tokenizer& tokenizer,
                int64_t context);

/// A text as tokens on disk, FOLDER/training.tokens and FOLDER/validation.tokens, which are mapped into memory: a text
/// may be larger than it.
struct LanguageText {
  regard::data::TokenFile training, validation;
};
LanguageText write_tokens(const std::vector<std::string>& files, double validation,
                          const regard::data::Tokenizer& tokenizer, const std::filesystem::path& folder);
/// Throws regard::FileError where there are none, or not those of this tokenizer.
LanguageText open_tokens(const regard::data::Tokenizer& tokenizer, const std::filesystem::path& folder);

/// Where training reads: rows of `context` tokens that lie side by side and together are the whole text, but for a few
/// tokens at its ends. Each epoch begins at a place of its own, so that rows are cut elsewhere each time.
struct TrainingRows {
  int64_t tokens = 0, context = 0;
  uint64_t seed = 0;

  int64_t count() const;  ///< rows in an epoch, at least 1
  /// The place in the text of each of these rows.
  std::vector<int64_t> begins(const std::vector<int64_t>& rows, int64_t epoch) const;
};

/// How well a model foresees a text.
struct LanguageScore {
  double loss = 0;                // of a token, in nats
  double bits_per_character = 0;  // the same for all kinds of tokens, and so comparable
  int64_t tokens = 0;             // that were looked at
};
/// Of up to `most` tokens, in rows of `context` tokens spread evenly over the text. The model must be in evaluation
/// mode.
LanguageScore score(const regard::layers::GPT& model, const regard::data::TokenFile& text,
                    const regard::data::Tokenizer& tokenizer, int64_t context, int64_t most);

}  // namespace examples
