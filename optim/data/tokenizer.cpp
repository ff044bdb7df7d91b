#include <regard/optim/data/tokenizer.hpp>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/byte_pairs.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

// ---- The base

void Tokenizer::check_id(const char* op, int64_t id) const {
  check<IndexError>(id >= 0 && id < vocabulary_size(), op, "there is no id ", id, "; they are 0 to ",
                    vocabulary_size() - 1);
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  for (int64_t id : ids) text += token(id);
  return text;
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view text) {
  std::string type;
  try {
    const auto json = nlohmann::json::parse(text);
    type = json.at("type").get<std::string>();
    if (type == "bytes") return std::make_unique<ByteTokenizer>();
    if (type == "characters") {
      const auto written = json.at("characters").get<std::string>();
      std::u32string characters;
      for (size_t at = 0; at < written.size();) {
        char32_t c = 0;
        const size_t length = read_character(written, at, c);
        check<ValueError>(length > 0, "Tokenizer.from_json", "its characters are not in UTF-8");
        characters.push_back(c);
        at += length;
      }
      return std::make_unique<CharacterTokenizer>(
          std::move(characters), CharacterTokenizer::Options{.unknown = json.at("unknown").get<bool>()});
    }
  } catch (const nlohmann::json::exception& error) {
    fail<ValueError>("Tokenizer.from_json", "the text is no tokenizer's: ", error.what());
  }
  if (type == "byte_pairs") return BytePairTokenizer::from_text(std::string(text));
  fail<ValueError>("Tokenizer.from_json", "there is no tokenizer of type ", in_quotes(type),
                   "; there are 'bytes', 'characters' and 'byte_pairs'");
}

// ---- Bytes

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(), [](char c) { return int64_t{static_cast<unsigned char>(c)}; });
  return ids;
}

std::string ByteTokenizer::token(int64_t id) const {
  check_id("ByteTokenizer", id);
  return {static_cast<char>(static_cast<unsigned char>(id))};
}

std::string ByteTokenizer::to_json() const { return R"({"type":"bytes"})"; }

// ---- Characters

namespace {

std::u32string characters_of(std::string_view text) {
  std::u32string seen;
  std::vector<bool> is_seen(0x110000);
  for (size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const size_t length = read_character(text, at, c);
    check<ValueError>(length > 0, "CharacterTokenizer", "the text is not UTF-8: no character begins at byte ", at);
    if (!is_seen[c]) {
      is_seen[c] = true;
      seen.push_back(c);
    }
    at += length;
  }
  return seen;
}

}  // namespace

CharacterTokenizer::CharacterTokenizer(std::string_view text, const Options& options)
    : CharacterTokenizer(characters_of(text), options) {}

CharacterTokenizer::CharacterTokenizer(std::u32string characters, const Options& options)
    : characters_(std::move(characters)), unknown_(options.unknown) {
  check<ValueError>(!characters_.empty(), "CharacterTokenizer", "there are no characters: the text is empty");
  std::sort(characters_.begin(), characters_.end());
  for (size_t i = 0; i < characters_.size(); ++i) {
    const char32_t c = characters_[i];
    check<ValueError>(c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF), "CharacterTokenizer", "there is no character ",
                      static_cast<uint32_t>(c));
    check<ValueError>(ids_.emplace(c, static_cast<int64_t>(i)).second, "CharacterTokenizer", "the character ",
                      in_quotes(to_utf8(c)), " is there twice");
  }
}

std::vector<int64_t> CharacterTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    char32_t c = 0;
    const size_t length = read_character(text, at, c);
    check<ValueError>(length > 0, "CharacterTokenizer", "the text is not UTF-8: no character begins at byte ", at);
    const auto found = ids_.find(c);
    check<ValueError>(found != ids_.end() || unknown_, "CharacterTokenizer", "the character ", in_quotes(to_utf8(c)),
                      " at byte ", at, " is not among the vocabulary's ", characters_.size(),
                      ": make the vocabulary of a text that has it, or with {.unknown = true}");
    ids.push_back(found != ids_.end() ? found->second : static_cast<int64_t>(characters_.size()));
    at += length;
  }
  return ids;
}

std::string CharacterTokenizer::token(int64_t id) const {
  check_id("CharacterTokenizer", id);
  return to_utf8(id == static_cast<int64_t>(characters_.size()) ? char32_t{0xFFFD}
                                                                : characters_[static_cast<size_t>(id)]);
}

std::string CharacterTokenizer::to_json() const {
  std::string written;
  for (char32_t c : characters_) written += to_utf8(c);
  nlohmann::ordered_json json;
  json["type"] = "characters";
  json["characters"] = written;
  json["unknown"] = unknown_;
  return json.dump();
}

// ---- Text as it comes

std::string StreamingDecoder::add(int64_t id) {
  pending_ += tokenizer_.token(id);
  const size_t unfinished = unfinished_character(pending_);
  std::string ready = pending_.substr(0, pending_.size() - unfinished);
  pending_.erase(0, ready.size());
  return replace_invalid_utf8(ready);
}

std::string StreamingDecoder::finish() {
  std::string rest = replace_invalid_utf8(pending_);
  pending_.clear();
  return rest;
}

}  // namespace regard::data
