#include <regard/optim/data/byte_pairs.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>

#include <regard/autograd/error.hpp>
#include <regard/autograd/file.hpp>
#include <regard/optim/data/byte_alphabet.hpp>
#include <regard/optim/data/text_file.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

uint64_t key(int64_t left, int64_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right); }

}  // namespace

BytePairTokenizer::BytePairTokenizer(Parts parts)
    : tokens_(std::move(parts.tokens)), merges_(std::move(parts.merges)), specials_(std::move(parts.specials)) {
  std::unordered_map<std::string_view, int64_t> ids;
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (!std::binary_search(specials_.begin(), specials_.end(), static_cast<int64_t>(id)))
      ids.emplace(tokens_[id], static_cast<int64_t>(id));
  for (size_t byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = ids.at(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));
  ranks_.reserve(merges_.size());
  for (size_t rank = 0; rank < merges_.size(); ++rank) {
    const auto [left, right] = merges_[rank];
    const int64_t id = ids.at(tokens_[static_cast<size_t>(left)] + tokens_[static_cast<size_t>(right)]);
    ranks_.emplace(key(left, right), Merge{static_cast<int64_t>(rank), id});
  }
}

BytePairTokenizer BytePairTokenizer::train(std::string_view text, const Options& options) {
  BytePairTrainer trainer;
  trainer.add(text);
  return trainer.train(options);
}

// ---- Encoding

// The merge of the lowest rank first, and of equal ones the leftmost, until none is left. With a heap and links, since
// a word may be as long as the text.
void BytePairTokenizer::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  struct Symbol {
    int64_t id;
    int64_t previous, next;  // -1: none
    bool there;
  };
  struct Candidate {
    int64_t rank, at, id;
    bool operator<(const Candidate& other) const {  // the heap's largest is the first to do
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (int64_t i = 0; i < count; ++i)
    symbols.push_back(
        {byte_ids_[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1, i + 1 < count ? i + 1 : -1, true});
  std::priority_queue<Candidate> candidates;
  const auto symbol = [&](int64_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto consider = [&](int64_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const auto found = ranks_.find(key(symbol(at).id, symbol(symbol(at).next).id));
    if (found != ranks_.end()) candidates.push({found->second.rank, at, found->second.id});
  };
  for (int64_t i = 0; i + 1 < count; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbol(best.at);
    if (!left.there || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const auto found = ranks_.find(key(left.id, right.id));
    if (found == ranks_.end() || found->second.rank != best.rank) continue;  // one of the two has changed since
    left.id = best.id;
    left.next = right.next;
    right.there = false;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (int64_t at = 0; at >= 0 && at < count; at = symbol(at).next) ids.push_back(symbol(at).id);
}

std::vector<int64_t> BytePairTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  struct Part {
    size_t begin, count;
  };
  std::unordered_map<std::string_view, Part> done;  // where in `ids` a word's stand
  split_words(text, [&](std::string_view word) {
    const auto [found, is_new] = done.try_emplace(word, Part{ids.size(), 0});
    if (is_new) {
      encode_word(word, ids);
      found->second.count = ids.size() - found->second.begin;
      return;
    }
    const Part part = found->second;
    for (size_t i = 0; i < part.count; ++i) ids.push_back(ids[part.begin + i]);
  });
  return ids;
}

std::string BytePairTokenizer::token(int64_t id) const {
  check_id("BytePairTokenizer", id);
  return tokens_[static_cast<size_t>(id)];
}

bool BytePairTokenizer::has_special(std::string_view name) const {
  return std::any_of(specials_.begin(), specials_.end(),
                     [&](int64_t id) { return tokens_[static_cast<size_t>(id)] == name; });
}

int64_t BytePairTokenizer::special(std::string_view name) const {
  std::string there;
  for (int64_t id : specials_) {
    const std::string& token = tokens_[static_cast<size_t>(id)];
    if (token == name) return id;
    there += (there.empty() ? "" : ", ") + in_quotes(token);
  }
  fail<ValueError>("BytePairTokenizer", "there is no special ", in_quotes(name), "; ",
                   there.empty() ? "there are none" : "there are " + there);
}

// ---- As text

std::vector<std::string> BytePairTokenizer::written_tokens() const {
  std::vector<std::string> written;
  for (const std::string& token : tokens_) written.push_back(to_byte_alphabet(token));
  for (int64_t id : specials_) written[static_cast<size_t>(id)] = tokens_[static_cast<size_t>(id)];
  return written;
}

std::vector<std::string> BytePairTokenizer::written_merges() const {
  std::vector<std::string> written;
  for (const auto& [left, right] : merges_)
    written.push_back(to_byte_alphabet(tokens_[static_cast<size_t>(left)]) + " " +
                      to_byte_alphabet(tokens_[static_cast<size_t>(right)]));
  return written;
}

BytePairTokenizer::Parts BytePairTokenizer::parse(const std::vector<std::string>& tokens,
                                                  const std::vector<std::string>& merges, const Refuse& refuse) {
  std::unordered_map<std::string, int64_t> ids;
  std::vector<bool> is_plain(tokens.size());  // a byte or the result of a merge
  for (size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].empty() || !ids.emplace(tokens[id], static_cast<int64_t>(id)).second)
      refuse(-1, tokens[id].empty() ? "id " + std::to_string(id) + " is the empty text"
                                    : "the token " + in_quotes(tokens[id]) + " is there twice");
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(to_byte_alphabet(std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
    if (found == ids.end()) {
      char text[8];
      std::snprintf(text, sizeof text, "0x%02x", static_cast<unsigned>(byte));
      refuse(-1, "there is no token for byte " + std::string(text) + ": this is no byte-level vocabulary");
      continue;
    }
    is_plain[static_cast<size_t>(found->second)] = true;
  }
  Parts parts;
  std::map<std::pair<int64_t, int64_t>, size_t> seen;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    const size_t space = merges[i].find(' ');
    if (space == std::string::npos || merges[i].find(' ', space + 1) != std::string::npos)
      refuse(number, in_quotes(merges[i]) + " is no merge: two tokens with a space between them");
    const std::string left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    const auto id_of = [&](const std::string& token) -> int64_t {
      const auto found = ids.find(token);
      if (found == ids.end())
        refuse(number, "the merge " + in_quotes(merges[i]) + " needs the token " + in_quotes(token) +
                           ", which is not in the vocabulary");
      return found->second;
    };
    const std::pair<int64_t, int64_t> pair{id_of(left), id_of(right)};
    is_plain[static_cast<size_t>(id_of(left + right))] = true;
    if (!seen.emplace(pair, i).second) refuse(number, "the merge " + in_quotes(merges[i]) + " is there twice");
    parts.merges.push_back(pair);
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!is_plain[id]) {
      parts.specials.push_back(static_cast<int64_t>(id));
      parts.tokens.push_back(tokens[id]);
      continue;
    }
    std::optional<std::string> bytes = from_byte_alphabet(tokens[id]);
    if (!bytes) refuse(-1, "the token " + in_quotes(tokens[id]) + " holds a character that stands for no byte");
    parts.tokens.push_back(std::move(*bytes));
  }
  for (size_t i = 0; i < parts.merges.size(); ++i)
    for (int64_t id : {parts.merges[i].first, parts.merges[i].second})
      if (!is_plain[static_cast<size_t>(id)])
        refuse(static_cast<int64_t>(i), "the merge " + in_quotes(merges[i]) + " is of " +
                                            in_quotes(tokens[static_cast<size_t>(id)]) +
                                            ", which is neither a byte nor a merge's result");
  return parts;
}

std::string BytePairTokenizer::to_json() const {
  nlohmann::ordered_json json;
  json["type"] = "byte_pairs";
  json["vocabulary"] = written_tokens();
  json["merges"] = written_merges();
  return json.dump();
}

std::unique_ptr<Tokenizer> BytePairTokenizer::from_text(const std::string& text) {
  std::vector<std::string> tokens, merges;
  try {
    const auto json = nlohmann::json::parse(text);
    tokens = json.at("vocabulary").get<std::vector<std::string>>();
    merges = json.at("merges").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception& error) {
    fail<ValueError>("Tokenizer.from_json", "the text is no tokenizer of byte pairs: ", error.what());
  }
  Parts parts = parse(tokens, merges, [](int64_t merge, const std::string& what) {
    fail<ValueError>("Tokenizer.from_json", merge >= 0 ? "merge " + std::to_string(merge) + ": " : "", what);
  });
  return std::unique_ptr<Tokenizer>(new BytePairTokenizer(std::move(parts)));
}

// ---- GPT-2's files

BytePairTokenizer BytePairTokenizer::read_gpt2(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt) {
  const auto refuse_vocabulary = [&](const std::string& what) {
    fail<FileError>("read_gpt2", vocab_json.string(), ": ", what);
  };
  std::vector<std::string> tokens;
  try {
    const auto json = nlohmann::json::parse(read_text(vocab_json));
    if (!json.is_object()) refuse_vocabulary("it is no object of ids by token");
    tokens.resize(json.size());
    std::vector<bool> taken(json.size());
    for (const auto& [token, id] : json.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= json.size())
        refuse_vocabulary("the id of " + in_quotes(token) + " is " + id.dump().substr(0, 40) + "; the " +
                          std::to_string(json.size()) + " tokens should have the ids from 0 on");
      const size_t at = id.get<size_t>();
      if (taken[at]) refuse_vocabulary("two tokens have the id " + std::to_string(at));
      taken[at] = true;
      tokens[at] = token;
    }
  } catch (const nlohmann::json::exception& error) {
    refuse_vocabulary(error.what());
  }
  std::vector<std::string> merges;
  std::vector<int64_t> line_numbers;
  LineReader lines(merges_txt);
  for (std::string line; lines.next(line);) {
    if (line.empty() || (lines.number() == 1 && line.starts_with("#version"))) continue;
    merges.push_back(line);
    line_numbers.push_back(lines.number());
  }
  return BytePairTokenizer(parse(tokens, merges, [&](int64_t merge, const std::string& what) {
    if (merge < 0) refuse_vocabulary(what);
    fail<FileError>("read_gpt2", merges_txt.string(), ":", line_numbers[static_cast<size_t>(merge)], ": ", what);
  }));
}

void BytePairTokenizer::write_gpt2(const std::filesystem::path& vocab_json,
                                   const std::filesystem::path& merges_txt) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const std::vector<std::string> tokens = written_tokens();
  for (size_t id = 0; id < tokens.size(); ++id) json[tokens[id]] = id;
  std::string lines = "#version: 0.2\n";
  for (const std::string& merge : written_merges()) lines += merge + "\n";
  write_file_atomically(vocab_json, json.dump());
  write_file_atomically(merges_txt, lines);
}

}  // namespace regard::data
