// Training of byte-pair encodings: counts of words, and a heap of pairs whose counts are mended as words change.
#include <algorithm>
#include <queue>

#include <regard/autograd/error.hpp>
#include <regard/optim/data/byte_alphabet.hpp>
#include <regard/optim/data/byte_pairs.hpp>
#include <regard/optim/data/unicode.hpp>

namespace regard::data {

namespace {

using Id = uint32_t;

uint64_t key(Id left, Id right) { return uint64_t{left} << 32 | right; }
Id left_of(uint64_t pair) { return static_cast<Id>(pair >> 32); }
Id right_of(uint64_t pair) { return static_cast<Id>(pair); }

struct Word {
  std::vector<Id> symbols;
  int64_t count;
};

struct Candidate {
  int64_t count;
  uint64_t pair;
  bool operator<(const Candidate& other) const {  // the heap's largest: more frequent, or else with smaller ids
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> words;  // where it was seen; some of them may have lost it since
};

// Joins left and right in a word, and calls changed(pair, +1 or -1) for what becomes of its neighbours.
template <class Changed>
void merge_in(std::vector<Id>& symbols, Id left, Id right, Id joined, const Changed& changed) {
  size_t to = 0;
  for (size_t from = 0; from < symbols.size();) {
    if (from + 1 >= symbols.size() || symbols[from] != left || symbols[from + 1] != right) {
      symbols[to++] = symbols[from++];
      continue;
    }
    if (to > 0) {
      changed(key(symbols[to - 1], left), -1);
      changed(key(symbols[to - 1], joined), +1);
    }
    if (from + 2 < symbols.size()) {
      changed(key(right, symbols[from + 2]), -1);
      changed(key(joined, symbols[from + 2]), +1);
    }
    symbols[to++] = joined;
    from += 2;
  }
  symbols.resize(to);
}

void check_options(const BytePairOptions& options) {
  check<ValueError>(options.min_frequency >= 1, "BytePairTokenizer.train", "min_frequency ", options.min_frequency,
                    " must be at least 1");
  const auto needed = static_cast<int64_t>(256 + options.specials.size());
  check<ValueError>(options.vocabulary >= needed && options.vocabulary <= INT32_MAX, "BytePairTokenizer.train",
                    "vocabulary ", options.vocabulary, " must be at least ", needed, ", for the 256 bytes and ",
                    options.specials.size(), " specials");
  for (size_t i = 0; i < options.specials.size(); ++i) {
    const std::string& special = options.specials[i];
    check<ValueError>(!special.empty() && find_invalid_utf8(special) == special.size(), "BytePairTokenizer.train",
                      "special ", i, ", ", in_quotes(special), ", must be some text in UTF-8");
    check<ValueError>(std::find(options.specials.begin(), options.specials.begin() + static_cast<std::ptrdiff_t>(i),
                                special) == options.specials.begin() + static_cast<std::ptrdiff_t>(i),
                      "BytePairTokenizer.train", "the special ", in_quotes(special), " is there twice");
  }
}

}  // namespace

void BytePairTrainer::add(std::string_view text) {
  std::unordered_map<std::string_view, int64_t> counts;
  split_words(text, [&](std::string_view word) { ++counts[word]; });
  for (const auto& [word, count] : counts) counts_[std::string(word)] += count;
}

BytePairTokenizer BytePairTrainer::train(const BytePairOptions& options) const {
  check_options(options);
  check<ValueError>(!counts_.empty(), "BytePairTokenizer.train", "the text is empty");

  BytePairTokenizer::Parts parts;
  std::unordered_map<std::string, Id> ids;
  std::array<Id, 256> byte_ids{};
  for (unsigned char byte : bytes_in_alphabet_order()) {
    byte_ids[byte] = static_cast<Id>(parts.tokens.size());
    parts.tokens.emplace_back(1, static_cast<char>(byte));
    ids.emplace(parts.tokens.back(), byte_ids[byte]);
  }

  std::vector<Word> words;
  words.reserve(counts_.size());
  std::unordered_map<uint64_t, Pair> pairs;
  for (const auto& [text, count] : counts_) {
    Word word{{}, count};
    for (char c : text) word.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
    const auto number = static_cast<uint32_t>(words.size());
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      Pair& pair = pairs[key(word.symbols[i], word.symbols[i + 1])];
      pair.count += count;
      if (pair.words.empty() || pair.words.back() != number) pair.words.push_back(number);
    }
    words.push_back(std::move(word));
  }
  std::priority_queue<Candidate> candidates;
  for (const auto& [pair, found] : pairs) candidates.push({found.count, pair});

  const auto wanted = static_cast<size_t>(options.vocabulary) - options.specials.size();
  std::vector<uint64_t> grown;
  while (parts.tokens.size() < wanted && !candidates.empty()) {
    Candidate best = candidates.top();
    candidates.pop();
    const int64_t count = pairs[best.pair].count;
    if (count != best.count) {  // it has lost some to other merges since
      if (count > 0) candidates.push({count, best.pair});
      continue;
    }
    if (count < options.min_frequency) break;

    const Id left = left_of(best.pair), right = right_of(best.pair);
    std::string joined_text = parts.tokens[left] + parts.tokens[right];
    // The same bytes may come about in two ways: they have one id.
    const auto [id, is_new] = ids.try_emplace(joined_text, static_cast<Id>(parts.tokens.size()));
    const Id joined = id->second;
    if (is_new) parts.tokens.push_back(std::move(joined_text));
    parts.merges.emplace_back(left, right);

    const std::vector<uint32_t> where = std::move(pairs[best.pair].words);
    grown.clear();
    for (uint32_t number : where) {
      Word& word = words[number];
      merge_in(word.symbols, left, right, joined, [&](uint64_t changed, int sign) {
        Pair& pair = pairs[changed];
        pair.count += sign * word.count;
        if (sign < 0) return;
        grown.push_back(changed);
        if (pair.words.empty() || pair.words.back() != number) pair.words.push_back(number);
      });
    }
    pairs.erase(best.pair);  // it is nowhere now, but for what overlaps itself
    std::sort(grown.begin(), grown.end());
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (uint64_t pair : grown)
      if (const auto found = pairs.find(pair); found != pairs.end() && found->second.count > 0)
        candidates.push({found->second.count, pair});
  }

  for (const std::string& special : options.specials) {
    check<ValueError>(!ids.contains(from_byte_alphabet(special).value_or("")), "BytePairTokenizer.train",
                      "the special ", in_quotes(special),
                      " is a token of the text as well: choose a name that is none");
    parts.specials.push_back(static_cast<int64_t>(parts.tokens.size()));
    parts.tokens.push_back(special);
  }
  return BytePairTokenizer(std::move(parts));
}

}  // namespace regard::data
