// Tokenizers: text to the numbers that a model reads, and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace regard::data {

/// Turns text into ids, 0 to vocabulary_size() - 1, and back. Reading functions may be called by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  virtual int64_t vocabulary_size() const = 0;
  /// The bytes that an id stands for: a part of a character, perhaps. IndexError for a number that is no id.
  virtual std::string token(int64_t id) const = 0;
  /// The text of the ids: their tokens one after the other. A model may say ids that do not end with a whole character:
  /// replace_invalid_utf8() makes of it what can be shown, and StreamingDecoder does so id by id.
  virtual std::string decode(const std::vector<int64_t>& ids) const;

  /// All there is to it, as JSON text with a "type"; for the metadata of a checkpoint.
  virtual std::string to_json() const = 0;
  /// The tokenizer that to_json() was called of: bytes, characters or byte pairs. A ValueError says what is wrong with
  /// other text, or a type that is not known here.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json);

 protected:
  /// IndexError unless 0 <= id < vocabulary_size().
  void check_id(const char* op, int64_t id) const;
};

/// One id a byte, 256 of them: for any text in any language, at the price of long sequences.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override;
  int64_t vocabulary_size() const override { return 256; }
  std::string token(int64_t id) const override;
  std::string to_json() const override;
};

/// One id a character (a Unicode code point), numbered in the order of their code points. Text to encode must be UTF-8.
class CharacterTokenizer : public Tokenizer {
 public:
  struct Options {
    /// Whether characters outside of the vocabulary become an id of their own, the last one, which reads U+FFFD;
    /// otherwise they are a ValueError.
    bool unknown = false;
  };
  /// The vocabulary of all characters of a text. ValueError for one that is empty or not UTF-8.
  explicit CharacterTokenizer(std::string_view text) : CharacterTokenizer(text, Options()) {}
  CharacterTokenizer(std::string_view text, const Options& options);
  /// The same of characters given, in any order.
  CharacterTokenizer(std::u32string characters, const Options& options);

  /// A ValueError names a character that is not in the vocabulary, with its place, and broken UTF-8.
  std::vector<int64_t> encode(std::string_view text) const override;
  int64_t vocabulary_size() const override { return static_cast<int64_t>(characters_.size()) + (unknown_ ? 1 : 0); }
  std::string token(int64_t id) const override;
  std::string to_json() const override;

  const std::u32string& characters() const { return characters_; }

 private:
  std::u32string characters_;
  bool unknown_ = false;
  std::unordered_map<char32_t, int64_t> ids_;
};

/// Shows ids as they come: add() gives the text that is complete, and keeps the first bytes of a character until its
/// others are there. The pieces together, with finish(), are replace_invalid_utf8() of the whole.
class StreamingDecoder {
 public:
  /// The tokenizer must outlive it.
  explicit StreamingDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string add(int64_t id);
  /// What is left; then it begins anew.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace regard::data
