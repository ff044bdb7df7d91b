#include <algorithm>
#include <cmath>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/examples/common/language_text.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/optim/data/byte_pairs.hpp>
#include <regard/optim/data/text_file.hpp>

namespace examples {
namespace {

namespace data = regard::data;
using regard::Tensor;

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Where to part `piece` near byte `at`: behind a line end not far before it, else between two characters.
std::size_t parting(std::string_view piece, std::size_t at) {
  const std::size_t line_end = at == 0 ? std::string_view::npos : piece.rfind('\n', at - 1);
  const std::size_t far = std::clamp<std::size_t>(at / 10, 80, 1024);
  if (line_end != std::string_view::npos && at - line_end <= far) return line_end + 1;
  while (at > 0 && at < piece.size() && continues_character(piece[at])) --at;
  return at;
}

int64_t characters_in(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char byte) { return !continues_character(byte); });
}

uint64_t fingerprint(const data::Tokenizer& tokenizer) {  // FNV-1a
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char byte : tokenizer.to_json()) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return hash;
}

data::TokenFile open(const std::filesystem::path& path, const data::Tokenizer& tokenizer) {
  data::TokenFile file(path);
  regard::check<regard::FileError>(
      file.vocabulary() == tokenizer.vocabulary_size() && file.fingerprint() == fingerprint(tokenizer), "tokens",
      path.string(), ": these are not the tokens of the run's tokenizer.json (a vocabulary of ", file.vocabulary(),
      " here, of ", tokenizer.vocabulary_size(), " there)");
  return file;
}

}  // namespace

void each_piece(const std::vector<std::string>& files, double validation,
                const std::function<void(std::string_view piece, bool validation)>& use) {
  uint64_t total = 0;
  for (const std::string& file : files) total += data::TextReader(file).size();
  const auto boundary = static_cast<uint64_t>(static_cast<double>(total) * (1 - validation));
  uint64_t before = 0;
  bool validating = false;
  for (const std::string& file : files) {
    data::TextReader reader(file);
    for (std::string piece; reader.next(piece);) {
      std::string_view rest = piece;
      if (!validating && before + piece.size() >= boundary) {
        const std::size_t cut = parting(piece, static_cast<std::size_t>(boundary - before));
        if (cut > 0) use(rest.substr(0, cut), false);
        rest.remove_prefix(cut);
        validating = true;
      }
      before += piece.size();
      if (!rest.empty()) use(rest, validating);
    }
  }
}

namespace {

// The beginnings of both parts, long enough to tell whether there are enough tokens.
class Heads {
 public:
  explicit Heads(int64_t context) : context_(context) {}
  void add(std::string_view piece, bool validating) {
    std::string& head = heads_[validating ? 1 : 0];
    if (head.size() < static_cast<std::size_t>(context_ + 1) * 16) head += piece;
  }
  bool has_training() const { return !heads_[0].empty(); }
  void check(const data::Tokenizer& tokenizer) const {
    for (int part : {0, 1}) {
      const auto tokens = std::ssize(tokenizer.encode(heads_[part]));
      const int64_t needed = part == 0 ? context_ + 1 : 2;
      if (tokens < needed)
        throw UsageError("text", "too short: " + std::to_string(tokens) + " tokens " +
                                     (part == 0 ? "to train on, where a context of " + std::to_string(context_) +
                                                      " needs " + std::to_string(needed)
                                                : "for validation, which needs 2 (see --validation)"));
    }
  }

 private:
  int64_t context_;
  std::string heads_[2];
};

}  // namespace

void check_text(const std::vector<std::string>& files, double validation, const data::Tokenizer& tokenizer,
                int64_t context) {
  Heads heads(context);
  each_piece(files, validation, [&](std::string_view piece, bool validating) { heads.add(piece, validating); });
  heads.check(tokenizer);
}

std::unique_ptr<data::Tokenizer> make_tokenizer(const std::vector<std::string>& files, double validation,
                                                const std::string& kind, int64_t vocabulary, int64_t context) {
  std::vector<bool> seen(kind == "characters" ? 0x110000 : 0);  // by code point
  data::BytePairTrainer pairs;
  Heads heads(context);
  each_piece(files, validation, [&](std::string_view piece, bool validating) {
    heads.add(piece, validating);
    if (kind == "characters")
      for (const char32_t character : from_utf8(piece)) seen[character] = true;
    if (kind == "bpe" && !validating) pairs.add(piece);
  });
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (kind == "characters") {
    std::u32string characters;
    for (char32_t character = 0; character < seen.size(); ++character)
      if (seen[character]) characters += character;
    tokenizer = std::make_unique<data::CharacterTokenizer>(characters, data::CharacterTokenizer::Options{});
  } else if (kind == "bpe" && heads.has_training()) {
    data::BytePairOptions options;
    options.vocabulary = vocabulary;
    tokenizer = std::make_unique<data::BytePairTokenizer>(pairs.train(options));
  } else {
    tokenizer = std::make_unique<data::ByteTokenizer>();
  }
  heads.check(*tokenizer);
  return tokenizer;
}

LanguageText write_tokens(const std::vector<std::string>& files, double validation, const data::Tokenizer& tokenizer,
                          const std::filesystem::path& folder) {
  const std::filesystem::path paths[2] = {folder / "training.tokens", folder / "validation.tokens"};
  data::TokenFileWriter writers[2] = {{paths[0], tokenizer.vocabulary_size(), fingerprint(tokenizer)},
                                      {paths[1], tokenizer.vocabulary_size(), fingerprint(tokenizer)}};
  each_piece(files, validation, [&](std::string_view piece, bool validating) {
    writers[validating ? 1 : 0].write(tokenizer.encode(piece));
  });
  for (auto& writer : writers) writer.commit();
  return open_tokens(tokenizer, folder);
}

LanguageText open_tokens(const data::Tokenizer& tokenizer, const std::filesystem::path& folder) {
  return {open(folder / "training.tokens", tokenizer), open(folder / "validation.tokens", tokenizer)};
}

int64_t TrainingRows::count() const { return std::max<int64_t>((tokens - context) / context, 1); }

std::vector<int64_t> TrainingRows::begins(const std::vector<int64_t>& rows, int64_t epoch) const {
  constexpr uint64_t use = 0x726f7773;                  // a number of its own among the uses of the seed
  const int64_t room = tokens - 1 - count() * context;  // a row's last target is the token behind it
  const int64_t first =
      Random(seed, use, static_cast<uint64_t>(epoch)).below(std::clamp<int64_t>(room, 0, context - 1) + 1);
  std::vector<int64_t> places;
  places.reserve(rows.size());
  for (int64_t row : rows) places.push_back(first + row * context);
  return places;
}

LanguageScore score(const regard::layers::GPT& model, const data::TokenFile& text, const data::Tokenizer& tokenizer,
                    int64_t context, int64_t most) {
  regard::NoGrad no_grad;
  std::vector<int64_t> characters_of(static_cast<std::size_t>(tokenizer.vocabulary_size()));
  for (std::size_t id = 0; id < characters_of.size(); ++id)
    characters_of[id] = characters_in(tokenizer.token(static_cast<int64_t>(id)));

  // Rows of context + 1 tokens, each beginning with the last token of the one before: every token but the first is
  // foretold once. The last row may be short, and goes alone.
  const int64_t targets = text.size() - 1, rows = (targets + context - 1) / context;
  const int64_t chosen = std::clamp<int64_t>(most / context, 1, rows);
  const int64_t batch = std::max<int64_t>(1, 4096 / context);
  double loss = 0;
  int64_t tokens = 0, characters = 0;
  std::vector<int64_t> begins;
  const auto look = [&](int64_t length) {
    const Tensor all = text.windows(begins, length + 1);  // [B, T + 1]
    const Tensor ids = all.slice(1, 0, length).contiguous(), following = all.slice(1, 1).contiguous();
    const regard::Device device = model.tokens.weight.device();
    const Tensor scores = model(ids.to(device));  // [B, T, vocabulary]
    loss += cross_entropy(scores.view({-1, scores.size(2)}), following.view({-1}).to(device),
                          {.reduction = regard::Reduction::sum})
                .item<double>();
    for (int64_t id : following.to_vector<int64_t>()) characters += characters_of[static_cast<std::size_t>(id)];
    tokens += following.numel();
    begins.clear();
  };
  for (int64_t i = 0; i < chosen; ++i) {
    const int64_t begin = i * rows / chosen * context;
    const int64_t length = std::min(context, targets - begin);
    if (length < context && !begins.empty()) look(context);
    begins.push_back(begin);
    if (length < context || std::ssize(begins) == batch || i + 1 == chosen) look(length);
  }
  return {loss / static_cast<double>(tokens),
          loss / std::log(2.0) / static_cast<double>(std::max<int64_t>(characters, 1)), tokens};
}

}  // namespace examples
