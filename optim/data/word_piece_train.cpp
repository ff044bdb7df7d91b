#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/word_piece.hpp>

namespace regard::data {

namespace {

using Pair = uint64_t;  // two pieces that stand side by side
Pair pair_of(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

struct Word {
  std::vector<uint32_t> pieces;
  int64_t count;
};

// The most frequent first; of equals the pair of the older pieces.
struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const TrainWordPieceOptions& options, std::vector<std::string> vocabulary)
      : options_(options), vocabulary_(std::move(vocabulary)) {
    for (const std::string& piece : vocabulary_) ids_.emplace(piece, static_cast<uint32_t>(ids_.size()));
  }

  std::vector<std::string> run(const std::map<std::string, int64_t>& counts) {
    add_characters(counts);
    for (const auto& [text, count] : counts) add_word(text, count);
    std::priority_queue<Candidate> queue;
    for (const auto& [pair, count] : pairs_) queue.push({count, pair});
    while (!queue.empty() && static_cast<int64_t>(vocabulary_.size()) < options_.vocabulary) {
      const Candidate best = queue.top();
      queue.pop();
      const int64_t now = pairs_[best.pair];
      if (now != best.count) {  // it changed since it was queued
        if (now > 0) queue.push({now, best.pair});
        continue;
      }
      if (best.count < options_.minimum_count) break;
      for (Pair changed : join(best.pair)) queue.push({pairs_[changed], changed});
    }
    return vocabulary_;
  }

 private:
  uint32_t id_of(const std::string& piece) {
    const auto [found, added] = ids_.emplace(piece, static_cast<uint32_t>(vocabulary_.size()));
    if (added) vocabulary_.push_back(piece);
    return found->second;
  }

  std::vector<std::string> characters(const std::string& text) const {
    std::vector<std::string> result;
    for (char byte : text) {
      if ((byte & 0xC0) != 0x80) result.push_back(result.empty() ? "" : options_.text.prefix);
      result.back() += byte;
    }
    return result;
  }

  // The most frequent ones where there is not room for all, in the order of their bytes.
  void add_characters(const std::map<std::string, int64_t>& counts) {
    std::map<std::string, int64_t> found;
    for (const auto& [text, count] : counts)
      for (const std::string& piece : characters(text)) found[piece] += count;
    std::vector<std::pair<std::string, int64_t>> chosen(found.begin(), found.end());
    const auto room =
        static_cast<size_t>(std::max<int64_t>(0, options_.vocabulary - static_cast<int64_t>(vocabulary_.size())));
    if (chosen.size() > room) {
      std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
      chosen.resize(room);
      std::sort(chosen.begin(), chosen.end());
    }
    for (const auto& [piece, count] : chosen) id_of(piece);
  }

  void add_word(const std::string& text, int64_t count) {
    Word word{{}, count};
    for (const std::string& piece : characters(text)) {
      const auto found = ids_.find(piece);
      if (found == ids_.end()) return;  // a character without a piece: the word stays unknown
      word.pieces.push_back(found->second);
    }
    for (size_t i = 0; i + 1 < word.pieces.size(); ++i)
      count_pair(pair_of(word.pieces[i], word.pieces[i + 1]), count, words_.size());
    words_.push_back(std::move(word));
  }

  void count_pair(Pair pair, int64_t count, size_t word) {
    pairs_[pair] += count;
    if (count > 0) places_[pair].insert(word);
  }

  // Joins the pair in every word; returns the pairs that became more frequent.
  std::vector<Pair> join(Pair pair) {
    const auto left = static_cast<uint32_t>(pair >> 32), right = static_cast<uint32_t>(pair);
    const uint32_t joined = id_of(vocabulary_[left] + vocabulary_[right].substr(options_.text.prefix.size()));
    std::vector<size_t> words(places_[pair].begin(), places_[pair].end());
    std::sort(words.begin(), words.end());
    places_.erase(pair);
    std::unordered_set<Pair> more;
    for (size_t index : words) {
      Word& word = words_[index];
      std::vector<uint32_t>& pieces = word.pieces;
      for (size_t i = 0; i + 1 < pieces.size(); ++i) {
        if (pieces[i] != left || pieces[i + 1] != right) continue;
        if (i > 0) {
          count_pair(pair_of(pieces[i - 1], left), -word.count, index);
          count_pair(pair_of(pieces[i - 1], joined), word.count, index);
          more.insert(pair_of(pieces[i - 1], joined));
        }
        if (i + 2 < pieces.size()) {
          count_pair(pair_of(right, pieces[i + 2]), -word.count, index);
          count_pair(pair_of(joined, pieces[i + 2]), word.count, index);
          more.insert(pair_of(joined, pieces[i + 2]));
        }
        pieces[i] = joined;
        pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    pairs_[pair] = 0;
    return {more.begin(), more.end()};
  }

  const TrainWordPieceOptions& options_;
  std::vector<std::string> vocabulary_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t> pairs_;
  std::unordered_map<Pair, std::unordered_set<size_t>> places_;
};

}  // namespace

WordPieceTokenizer train_word_piece(const std::vector<std::string>& texts, const TrainWordPieceOptions& options) {
  const WordPieceOptions& text = options.text;
  std::vector<std::string> special = {text.pad, text.unknown, text.classify, text.separate, text.mask};
  check<ValueError>(options.vocabulary > static_cast<int64_t>(special.size()), "train_word_piece", "a vocabulary of ",
                    options.vocabulary, " has no room beside the ", special.size(), " special tokens");
  std::map<std::string, int64_t> counts;
  for (const std::string& one : texts)
    for (std::string& word : basic_words(one, text.words))
      if (count_code_points(word) <= text.longest_word) ++counts[std::move(word)];
  check<ValueError>(!counts.empty(), "train_word_piece", "the ", texts.size(), " texts hold no word");
  return WordPieceTokenizer(Trainer(options, std::move(special)).run(counts), text);
}

}  // namespace regard::data
