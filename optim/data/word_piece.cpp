#include <regard/optim/data/word_piece.hpp>

#include <algorithm>

#include <regard/autograd/error.hpp>

namespace regard::data {

namespace {

constexpr const char* op = "word_piece";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(std::vector<std::string> vocabulary, const WordPieceOptions& options)
    : options_(options), vocabulary_(std::move(vocabulary)) {
  ids_.reserve(vocabulary_.size());
  for (size_t i = 0; i < vocabulary_.size(); ++i) ids_[vocabulary_[i]] = static_cast<int64_t>(i);
  const auto special = [&](const std::string& name, bool required) {
    const int64_t found = id(name);
    check<ValueError>(found >= 0 || !required, op, "the vocabulary of ", vocabulary_.size(),
                      " pieces has no special token '", name, "'");
    if (found >= 0) special_.emplace_back(name, found);
    return found;
  };
  unknown_ = special(options_.unknown, true);
  classify_ = special(options_.classify, true);
  separate_ = special(options_.separate, true);
  pad_ = special(options_.pad, true);
  mask_ = special(options_.mask, false);
  for (const std::string& name : options_.more_special)
    if (std::none_of(special_.begin(), special_.end(), [&](const auto& token) { return token.first == name; }))
      special(name, true);
  for (const auto& [name, number] : special_)
    check<ValueError>(!name.empty(), op, "a special token has no name (id ", number, ")");
}

int64_t WordPieceTokenizer::id(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

const std::string& WordPieceTokenizer::piece(int64_t id) const {
  check<IndexError>(id >= 0 && id < vocabulary_size(), op, "id ", id, " is outside the vocabulary of ",
                    vocabulary_size(), " pieces");
  return vocabulary_[static_cast<size_t>(id)];
}

bool WordPieceTokenizer::is_special(int64_t id) const {
  return std::any_of(special_.begin(), special_.end(), [&](const auto& token) { return token.second == id; });
}

// The longest piece from the front, then the longest that continues, and so on; all of it or [UNK].
void WordPieceTokenizer::encode_word(std::string_view word, std::vector<int64_t>& ids) const {
  if (count_code_points(word) > options_.longest_word) {
    ids.push_back(unknown_);
    return;
  }
  const size_t before = ids.size();
  std::string candidate;
  for (size_t start = 0; start < word.size();) {
    candidate = start == 0 ? std::string() : options_.prefix;
    const size_t offset = candidate.size();
    candidate += word.substr(start);
    size_t end = word.size();
    int64_t found = -1;
    while (end > start && (found = id(candidate)) < 0) {
      do --end;
      while (end > start && (word[end] & 0xC0) == 0x80);  // to where a character begins
      candidate.resize(offset + end - start);
    }
    if (found < 0) {
      ids.resize(before);
      ids.push_back(unknown_);
      return;
    }
    ids.push_back(found);
    start = end;
  }
}

void WordPieceTokenizer::encode_words(std::string_view text, std::vector<int64_t>& ids) const {
  for (const std::string& word : basic_words(text, options_.words)) encode_word(word, ids);
}

std::vector<int64_t> WordPieceTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  if (options_.special_in_text) {
    // Names of special tokens are found in the text as it is written, the longest at the first place.
    for (size_t at = 0;;) {
      const std::pair<std::string, int64_t>* next = nullptr;
      size_t place = std::string_view::npos;
      for (const auto& token : special_) {
        const size_t found = text.find(token.first, at);
        if (found < place || (found == place && next != nullptr && token.first.size() > next->first.size())) {
          place = found;
          next = &token;
        }
      }
      if (next == nullptr) {
        encode_words(text.substr(at), ids);
        return ids;
      }
      encode_words(text.substr(at, place - at), ids);
      ids.push_back(next->second);
      at = place + next->first.size();
    }
  }
  encode_words(text, ids);
  return ids;
}

std::vector<std::string> WordPieceTokenizer::pieces(std::string_view text) const {
  std::vector<std::string> result;
  for (int64_t id : encode(text)) result.push_back(piece(id));
  return result;
}

WordPieceEncoding WordPieceTokenizer::encode_text(std::string_view text, int64_t longest) const {
  check<ValueError>(longest == 0 || longest >= 2, op, "a length of ", longest, " has no room for ", options_.classify,
                    " and ", options_.separate);
  std::vector<int64_t> ids = encode(text);
  const size_t room = static_cast<size_t>(longest - 2);
  WordPieceEncoding result;
  result.truncated = longest > 0 && ids.size() > room;
  if (result.truncated) ids.resize(room);
  result.ids.reserve(ids.size() + 2);
  result.ids.push_back(classify_);
  result.ids.insert(result.ids.end(), ids.begin(), ids.end());
  result.ids.push_back(separate_);
  result.types.assign(result.ids.size(), 0);
  return result;
}

WordPieceEncoding WordPieceTokenizer::encode_pair(std::string_view first, std::string_view second,
                                                  int64_t longest) const {
  check<ValueError>(longest == 0 || longest >= 3, op, "a length of ", longest, " has no room for ", options_.classify,
                    " and two ", options_.separate);
  std::vector<int64_t> a = encode(first), b = encode(second);
  const size_t room = static_cast<size_t>(longest - 3);
  WordPieceEncoding result;
  result.truncated = longest > 0 && a.size() + b.size() > room;
  if (result.truncated) {
    // The longer one gives way until both are equal, then both: the shorter gets what is left of the middle.
    const bool swapped = a.size() > b.size();
    std::vector<int64_t>&shorter = swapped ? b : a, &longer = swapped ? a : b;
    const size_t shorter_size = std::min(shorter.size(), room / 2);
    shorter.resize(shorter_size);
    longer.resize(room - shorter_size);
  }
  result.ids.push_back(classify_);
  result.ids.insert(result.ids.end(), a.begin(), a.end());
  result.ids.push_back(separate_);
  result.types.assign(result.ids.size(), 0);
  result.ids.insert(result.ids.end(), b.begin(), b.end());
  result.ids.push_back(separate_);
  result.types.resize(result.ids.size(), 1);
  return result;
}

WordPieceBatch WordPieceTokenizer::batch(const std::vector<WordPieceEncoding>& encodings, int64_t length) const {
  size_t longest = static_cast<size_t>(std::max<int64_t>(length, 0));
  for (const WordPieceEncoding& encoding : encodings) {
    check<ShapeError>(encoding.ids.size() == encoding.types.size(), op, "an encoding has ", encoding.ids.size(),
                      " ids and ", encoding.types.size(), " types");
    longest = std::max(longest, encoding.ids.size());
  }
  std::vector<int64_t> ids(encodings.size() * longest, pad_), types(ids.size(), 0), mask(ids.size(), 0);
  for (size_t row = 0; row < encodings.size(); ++row) {
    const auto at = static_cast<std::ptrdiff_t>(row * longest);
    std::copy(encodings[row].ids.begin(), encodings[row].ids.end(), ids.begin() + at);
    std::copy(encodings[row].types.begin(), encodings[row].types.end(), types.begin() + at);
    std::fill_n(mask.begin() + at, encodings[row].ids.size(), 1);
  }
  const Shape shape{static_cast<int64_t>(encodings.size()), static_cast<int64_t>(longest)};  // [N, T]
  return {from_vector(ids, shape), from_vector(mask, shape).to(DType::boolean), from_vector(types, shape)};
}

std::string WordPieceTokenizer::decode(const std::vector<int64_t>& ids, bool with_special) const {
  std::string text;
  bool first = true;
  for (int64_t number : ids) {
    std::string word = piece(number);
    if (!with_special && is_special(number)) continue;
    if (!first) {
      if (word.starts_with(options_.prefix))
        word.erase(0, options_.prefix.size());
      else
        word.insert(0, " ");
    }
    first = false;
    for (const auto& [from, to] : {std::pair{" .", "."},
                                   {" ?", "?"},
                                   {" !", "!"},
                                   {" ,", ","},
                                   {" ' ", "'"},
                                   {" n't", "n't"},
                                   {" 'm", "'m"},
                                   {" 's", "'s"},
                                   {" 've", "'ve"},
                                   {" 're", "'re"}})
      replace_all(word, from, to);
    text += word;
  }
  return text;
}

}  // namespace regard::data
