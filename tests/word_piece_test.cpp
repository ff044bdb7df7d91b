// WordPiece against Hugging Face's tokenizers, on odd texts, and what it does with bad input.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include <regard/autograd/ops.hpp>
#include <regard/optim/data/word_piece.hpp>

#include "reference/reference.hpp"
#include "test_folder.hpp"

namespace word_piece_test {

using namespace regard;
using namespace regard::data;
namespace fs = std::filesystem;

namespace {

const fs::path reference_folder = fs::path(REGARD_TEST_DATA_DIR) / "bert";

std::vector<std::string> vocabulary() {
  std::ifstream file(reference_folder / "vocab.txt");
  std::vector<std::string> pieces;
  for (std::string line; std::getline(file, line);) pieces.push_back(line);
  REQUIRE(pieces.size() > 100);
  return pieces;
}

reference::Json case_of(const std::string& name) {
  for (const auto& one : reference::load("word_piece"))
    if (one.at("name") == name) return one;
  FAIL("no case " << name);
  return {};
}

WordPieceTokenizer tokenizer_of(const reference::Json& options) {
  WordPieceOptions result;
  result.words.lower_case = options.value("do_lower_case", true);
  result.words.strip_accents = options.value("strip_accents", result.words.lower_case);
  result.words.split_chinese = options.value("tokenize_chinese_chars", true);
  return WordPieceTokenizer(vocabulary(), result);
}

using test::Folder;

std::string error_of(const fs::path& folder) {
  try {
    WordPieceTokenizer::from_folder(folder);
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("word pieces: ids and decoded text are those of Hugging Face's tokenizers") {
  size_t texts = 0, unknown = 0, total = 0;
  for (const char* name :
       {"uncased", "cased", "cased, accents stripped", "uncased, accents kept", "ideographs not split"}) {
    const reference::Json one = case_of(name);
    const WordPieceTokenizer tokenizer = tokenizer_of(one.at("options"));
    for (const auto& entry : one.at("texts")) {
      const auto text = entry.at("text").get<std::string>();
      INFO(name << ": " << entry.dump());
      const WordPieceEncoding encoding = tokenizer.encode_text(text);
      CHECK(encoding.ids == reference::integers(entry.at("ids")));
      CHECK(encoding.types == std::vector<int64_t>(encoding.ids.size(), 0));
      CHECK_FALSE(encoding.truncated);
      if (entry.contains("decoded")) CHECK(tokenizer.decode(encoding.ids) == entry.at("decoded").get<std::string>());
      ++texts;
      total += encoding.ids.size() - 2;
      unknown += static_cast<size_t>(std::count(encoding.ids.begin(), encoding.ids.end(), tokenizer.unknown_id()));
    }
  }
  CHECK(texts >= 5 * 190);
  CHECK(unknown * 2 < total);  // most pieces are told apart
}

TEST_CASE("word pieces: pairs and their truncation are those of Hugging Face's tokenizers") {
  const WordPieceTokenizer tokenizer = tokenizer_of(reference::Json::object());
  int cut = 0;
  const reference::Json cases = case_of("pairs");
  for (const auto& entry : cases.at("pairs")) {
    INFO(entry.dump());
    const WordPieceEncoding encoding =
        tokenizer.encode_pair(entry.at("first").get<std::string>(), entry.at("second").get<std::string>(),
                              entry.at("longest").get<int64_t>());
    CHECK(encoding.ids == reference::integers(entry.at("ids")));
    CHECK(encoding.types == reference::integers(entry.at("types")));
    cut += encoding.truncated;
  }
  CHECK(cut > 5);
  CHECK(cut < 40);
}

TEST_CASE("word pieces: a batch is padded and masked") {
  const WordPieceTokenizer tokenizer = tokenizer_of(reference::Json::object());
  const reference::Json one = case_of("batch");
  std::vector<WordPieceEncoding> encodings;
  for (const auto& text : one.at("texts"))
    encodings.push_back(tokenizer.encode_text(text.get<std::string>(), one.at("longest").get<int64_t>()));
  const WordPieceBatch batch = tokenizer.batch(encodings);
  std::vector<int64_t> ids, mask;
  for (const auto& row : one.at("ids"))
    for (int64_t id : reference::integers(row)) ids.push_back(id);
  for (const auto& row : one.at("mask"))
    for (int64_t bit : reference::integers(row)) mask.push_back(bit);
  CHECK(batch.ids.to_vector<int64_t>() == ids);
  CHECK(batch.mask.dtype() == DType::boolean);
  CHECK(batch.mask.to_vector<int64_t>() == mask);
  CHECK(batch.ids.shape() == batch.types.shape());
  CHECK(std::count(mask.begin(), mask.end(), 0) > 0);
  CHECK(tokenizer.batch(encodings, 9).ids.size(1) == 9);
  CHECK(tokenizer.batch({}).ids.shape() == Shape({0, 0}));
}

TEST_CASE("word pieces: names of special tokens in a text can be text") {
  WordPieceOptions options;
  options.special_in_text = false;
  const WordPieceTokenizer plain(vocabulary(), options), special(vocabulary());
  CHECK(special.pieces("[MASK]") == std::vector<std::string>{"[MASK]"});
  CHECK(plain.pieces("[MASK]") == std::vector<std::string>{"[", "mask", "]"});
}

TEST_CASE("word pieces: broken UTF-8 is refused with its byte") {
  const WordPieceTokenizer tokenizer(vocabulary());
  CHECK_THROWS_WITH(tokenizer.encode("ab\xC3("), Catch::Contains("byte 3"));
  CHECK_THROWS_AS(tokenizer.encode("\xED\xA0\x80"), ValueError);  // a surrogate
  CHECK_THROWS_AS(tokenizer.encode("\xC0\x80"), ValueError);      // an overlong form
  CHECK_THROWS_AS(tokenizer.encode("end\xE4\xBD"), ValueError);
}

TEST_CASE("word pieces: lengths and ids out of range") {
  const WordPieceTokenizer tokenizer(vocabulary());
  CHECK_THROWS_AS(tokenizer.encode_text("a", 1), ValueError);
  CHECK_THROWS_AS(tokenizer.encode_pair("a", "b", 2), ValueError);
  CHECK(tokenizer.encode_text("a man", 2).ids.size() == 2);
  CHECK(tokenizer.encode_text("a man", 3).truncated);
  CHECK_FALSE(tokenizer.encode_text("a man", 4).truncated);
  CHECK_THROWS_AS(tokenizer.decode({tokenizer.vocabulary_size()}), IndexError);
  CHECK_THROWS_AS(tokenizer.piece(-1), IndexError);
  CHECK_THROWS_WITH(WordPieceTokenizer({"[PAD]", "[UNK]", "[CLS]", "a"}), Catch::Contains("[SEP]"));
}

TEST_CASE("word pieces: a folder is written and read, with every option") {
  WordPieceOptions options;
  options.words = {.lower_case = true, .strip_accents = false, .split_chinese = false, .clean_text = false};
  options.longest_word = 7;
  options.special_in_text = false;
  options.more_special = {"[unused1]"};
  Folder folder;
  for (const WordPieceOptions& one : {WordPieceOptions(), options}) {
    const WordPieceTokenizer tokenizer(vocabulary(), one);
    tokenizer.save(folder.path, 77);
    const WordPieceTokenizer read = WordPieceTokenizer::from_folder(folder.path);
    CHECK(read.options().words.lower_case == one.words.lower_case);
    CHECK(read.options().words.strip_accents == one.words.strip_accents);
    CHECK(read.options().words.split_chinese == one.words.split_chinese);
    CHECK(read.options().words.clean_text == one.words.clean_text);
    CHECK(read.options().special_in_text == one.special_in_text);
    CHECK(read.options().longest_word == one.longest_word);
    CHECK(read.vocabulary_size() == tokenizer.vocabulary_size());
    const reference::Json uncased = case_of("uncased");
    for (const auto& entry : uncased.at("texts")) {
      const auto text = entry.at("text").get<std::string>();
      CHECK(read.encode(text) == tokenizer.encode(text));
    }
    // Without vocab.txt, tokenizer.json has the vocabulary.
    fs::remove(folder.path / "vocab.txt");
    CHECK(WordPieceTokenizer::from_folder(folder.path).encode("the riding monkey") ==
          tokenizer.encode("the riding monkey"));
  }
}

TEST_CASE("word pieces: what tokenizer_config.json says of case and accents") {
  const auto words = [](const std::string& config) {
    Folder folder;
    fs::copy(reference_folder / "vocab.txt", folder.path / "vocab.txt");
    folder.file("tokenizer_config.json", config);
    return WordPieceTokenizer::from_folder(folder.path).options().words;
  };
  CHECK(words("{}").lower_case);
  CHECK(words("{}").strip_accents);
  CHECK_FALSE(words(R"({"do_lower_case": false})").strip_accents);  // accents go with case where nothing is said
  CHECK(words(R"({"do_lower_case": false, "strip_accents": true})").strip_accents);
  CHECK_FALSE(words(R"({"do_lower_case": true, "strip_accents": false})").strip_accents);
  CHECK(words(R"({"do_lower_case": true, "strip_accents": null})").strip_accents);
}

TEST_CASE("word pieces: lines may end as on other systems, and the last one without an end") {
  Folder folder;
  folder.file("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\nman");
  CHECK(WordPieceTokenizer::from_folder(folder.path).id("man") == 4);
}

TEST_CASE("word pieces: files that cannot be a tokenizer's are refused by name") {
  Folder folder;
  CHECK_THAT(error_of(folder.path), Catch::Contains("vocab.txt"));
  folder.file("vocab.txt", "");
  CHECK_THAT(error_of(folder.path), Catch::Contains("vocab.txt") && Catch::Contains("empty"));
  folder.file("vocab.txt", "[PAD]\na\n");
  CHECK_THAT(error_of(folder.path), Catch::Contains("vocab.txt") && Catch::Contains("[UNK]"));
  folder.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n");
  folder.file("tokenizer_config.json", "{\"do_lower_case\": \"yes\"}");
  CHECK_THAT(error_of(folder.path), Catch::Contains("tokenizer_config.json") && Catch::Contains("do_lower_case"));
  folder.file("tokenizer_config.json", "{\"do_lower_case\": tru");
  CHECK_THAT(error_of(folder.path), Catch::Contains("tokenizer_config.json") && Catch::Contains("JSON"));
  folder.file("tokenizer_config.json", "[]");
  CHECK_THAT(error_of(folder.path), Catch::Contains("object"));
  folder.file("tokenizer_config.json", "{}");
  CHECK(error_of(folder.path) == "no error");
  folder.file("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}}})");
  CHECK_THAT(error_of(folder.path), Catch::Contains("tokenizer.json") && Catch::Contains("BPE"));
}

TEST_CASE("word pieces: a vocabulary learned from texts knows them, joins what is frequent, and is always the same") {
  const std::vector<std::string> texts = {"low lower lowest", "new newer newest wide wider widest", "low low new new",
                                          "Über über 北京"};
  const WordPieceTokenizer tokenizer = train_word_piece(texts, {.vocabulary = 60, .minimum_count = 2});
  CHECK(tokenizer.piece(0) == "[PAD]");
  CHECK(tokenizer.vocabulary_size() <= 60);
  for (const std::string& text : texts)
    for (int64_t id : tokenizer.encode(text)) CHECK(id != tokenizer.unknown_id());
  CHECK(tokenizer.pieces("low") == std::vector<std::string>{"low"});
  CHECK(tokenizer.pieces("lowest").size() == 2);
  CHECK(tokenizer.id("##est") >= 0);
  CHECK(tokenizer.decode(tokenizer.encode("newest low")) == "newest low");
  const WordPieceTokenizer again = train_word_piece(texts, {.vocabulary = 60, .minimum_count = 2});
  REQUIRE(again.vocabulary_size() == tokenizer.vocabulary_size());
  for (int64_t id = 0; id < tokenizer.vocabulary_size(); ++id) CHECK(again.piece(id) == tokenizer.piece(id));
  // Room for fewer than all characters: the frequent ones, and the rest is unknown.
  const WordPieceTokenizer small = train_word_piece(texts, {.vocabulary = 12});
  CHECK(small.vocabulary_size() == 12);
  CHECK_THROWS_AS(train_word_piece(texts, {.vocabulary = 5}), ValueError);
  CHECK_THROWS_AS(train_word_piece({" ", "\n"}), ValueError);
}

TEST_CASE("word pieces: words that repeat a piece are joined as often as it fits") {
  const WordPieceTokenizer tokenizer =
      train_word_piece({"aaaaa aaaaa aaaaaa", "abab ababab"}, {.vocabulary = 30, .minimum_count = 2});
  for (const char* word : {"aaaaa", "aaaaaa", "abab", "ababab", "aaaaaaaa"}) {
    std::string joined;
    for (const std::string& piece : tokenizer.pieces(word)) joined += piece.starts_with("##") ? piece.substr(2) : piece;
    CHECK(joined == word);
  }
  CHECK(tokenizer.pieces("aaaaa").size() == 1);
}

}  // namespace word_piece_test
