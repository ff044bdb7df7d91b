// Tokenizers: what is encoded is decoded, whatever the text; byte pairs against Hugging Face's tokenizers.
#include <catch2/catch.hpp>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include <regard/optim/data/byte_pairs.hpp>
#include <regard/optim/data/tokenizer.hpp>
#include <regard/optim/data/unicode.hpp>

#include "reference/reference.hpp"
#include "test_folder.hpp"

namespace tokenizer_test {

using namespace regard;
using namespace regard::data;
using Catch::Contains;
using test::error_of;

namespace {

const std::string odd_texts[] = {"",
                                 " ",
                                 "\n\n",
                                 "plain words, 123 numbers",
                                 "één œuvre für Ängström",
                                 "今日は 世界",
                                 "👩‍👩‍👧🇩🇪",
                                 std::string("zero \0 byte", 11),
                                 "\xF4\x8F\xBF\xBF\xEE\x80\x80",
                                 "don't  stop\t\r\n we'll've"};

std::string random_bytes(std::mt19937& random, int length) {
  // Mostly pieces of characters, so that characters come about and are cut off.
  const std::string pieces = "ab '\n\xC3\xA9\xE4\xBB\x8A\xF0\x9F\x99\x82\xFF\x80\xED\xA0\xC0 1";
  std::string text;
  for (int i = 0; i < length; ++i) text += pieces[random() % pieces.size()];
  return text;
}

BytePairTokenizer small_byte_pairs() {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "one two three, twenty-two: zwei œuvres 今日は 12 123\n";
  BytePairOptions options;
  options.vocabulary = 320;
  options.specials = {"<|endoftext|>", "世 界"};
  return BytePairTokenizer::train(text, options);
}

}  // namespace

TEST_CASE("UTF-8: broken characters are found and replaced as Python does it") {
  struct {
    std::string text, replaced;
  } const cases[] = {{"a\xC3\xA9", "aé"},
                     {"\xFF", "\uFFFD"},
                     {"\xC0\x80", "\uFFFD\uFFFD"},            // overlong
                     {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // a surrogate
                     {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                     {"\xE4\xBB", "\uFFFD"},  // cut off: one for what is there
                     {"\xF0\x9F\x99x", "\uFFFDx"},
                     {"\xE0\x9F\xBF", "\uFFFD\uFFFD\uFFFD"},
                     {"\x80", "\uFFFD"}};
  for (const auto& one : cases) {
    INFO(one.replaced);
    CHECK(replace_invalid_utf8(one.text) == one.replaced);
    CHECK((find_invalid_utf8(one.text) == one.text.size()) == (one.text == one.replaced));
  }
  CHECK(find_invalid_utf8("ab\xC3") == 2);
  CHECK(unfinished_character("a\xF0\x9F\x99") == 3);
  CHECK(unfinished_character("a\xE4\xBB") == 2);
  CHECK(unfinished_character("a\xC3") == 1);
  CHECK(unfinished_character("aé") == 0);
  CHECK(unfinished_character("\xED\xA0") == 0);  // nothing can make a character of it
  CHECK(unfinished_character("\xBF\xBF") == 0);
  CHECK(unfinished_character("") == 0);
}

TEST_CASE("classes of characters") {
  for (char32_t letter : U"azAZªµéßŒЯ今한ʰǅ𝔸") {
    if (letter != 0) CHECK(is_letter(letter));
  }
  for (char32_t number : U"09²½Ⅷ٣৪〇㊀") {
    if (number != 0) CHECK(is_number(number));
  }
  for (char32_t other : U"-_.$€\u0301\u200d🙂\u180e")
    CHECK_FALSE((is_letter(other) || is_number(other) || is_white_space(other)));
  for (char32_t space : {U' ', U'\t', U'\n', U'\v', U'\f', U'\r', U'\x85', U'\xA0', U'\u3000', U'\u2028'})
    CHECK(is_white_space(space));
  CHECK_FALSE(is_white_space(U'\x1c'));
}

TEST_CASE("what a tokenizer encodes it decodes, for any bytes") {
  const ByteTokenizer bytes;
  const BytePairTokenizer pairs = small_byte_pairs();
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(&pairs)}) {
    for (const std::string& text : odd_texts) CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    for (int i = 0; i < 200; ++i) {
      const std::string text = random_bytes(random, 1 + static_cast<int>(random() % 40));
      const std::vector<int64_t> ids = tokenizer->encode(text);
      REQUIRE(tokenizer->decode(ids) == text);
      for (int64_t id : ids) REQUIRE((id >= 0 && id < tokenizer->vocabulary_size()));
    }
    CHECK_THAT(error_of<IndexError>([&] {
                 tokenizer->decode({0, tokenizer->vocabulary_size()});
               }),
               Contains("there is no id " + std::to_string(tokenizer->vocabulary_size())));
    CHECK_THROWS_AS(tokenizer->token(-1), IndexError);
  }
}

TEST_CASE("a streaming decoder gives whole characters only, and in all the whole text") {
  const ByteTokenizer bytes;
  const BytePairTokenizer pairs = small_byte_pairs();
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(&pairs)}) {
    StreamingDecoder decoder(*tokenizer);
    for (int i = 0; i < 200; ++i) {
      const std::string text = i < 10 ? odd_texts[i] : random_bytes(random, 1 + static_cast<int>(random() % 30));
      std::string shown;
      for (int64_t id : tokenizer->encode(text)) {
        const std::string piece = decoder.add(id);
        REQUIRE(find_invalid_utf8(piece) == piece.size());
        shown += piece;
      }
      shown += decoder.finish();
      REQUIRE(shown == replace_invalid_utf8(text));
    }
  }
}

TEST_CASE("characters: the vocabulary of a text, and what is not in it") {
  const CharacterTokenizer tokenizer("héllo\n今");
  CHECK(tokenizer.vocabulary_size() == 6);
  CHECK(tokenizer.characters() == U"\nhloé今");  // by code point
  CHECK(tokenizer.encode("olé今\n") == std::vector<int64_t>{3, 2, 4, 5, 0});
  CHECK(tokenizer.decode({1, 4, 2, 2, 3}) == "héllo");
  CHECK_THAT(error_of<ValueError>([&] { tokenizer.encode("hé z"); }), Contains("' ' at byte 3") && Contains("unknown"));
  CHECK_THAT(error_of<ValueError>([&] { tokenizer.encode("h\xFF"); }), Contains("not UTF-8") && Contains("byte 1"));
  CHECK_THAT(error_of<ValueError>([] { CharacterTokenizer tokenizer(""); }), Contains("empty"));
  CHECK_THAT(error_of<ValueError>([] { CharacterTokenizer tokenizer("ab\xC3"); }), Contains("byte 2"));
  CHECK_THAT(error_of<ValueError>([] { CharacterTokenizer tokenizer(std::u32string(U"aba"), {}); }), Contains("twice"));

  const CharacterTokenizer lenient("ab", {.unknown = true});
  CHECK(lenient.vocabulary_size() == 3);
  CHECK(lenient.encode("a?b") == std::vector<int64_t>{0, 2, 1});
  CHECK(lenient.decode({0, 2, 1}) == "a\uFFFDb");
}

TEST_CASE("a tokenizer comes back from its JSON") {
  const CharacterTokenizer characters("a \"quoted\"\n\\ text é今", {.unknown = true});
  const ByteTokenizer bytes;
  const BytePairTokenizer pairs = small_byte_pairs();
  const std::string text = "two \"quoted\" twenty é今日は";
  for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(&characters),
                                     static_cast<const Tokenizer*>(&pairs)}) {
    const std::unique_ptr<Tokenizer> back = Tokenizer::from_json(tokenizer->to_json());
    CHECK(back->vocabulary_size() == tokenizer->vocabulary_size());
    CHECK(back->encode(text) == tokenizer->encode(text));
    CHECK(back->to_json() == tokenizer->to_json());
    for (int64_t id = 0; id < back->vocabulary_size(); ++id) REQUIRE(back->token(id) == tokenizer->token(id));
  }
  const auto refused = [](const std::string& json) {
    return error_of<ValueError>([&] { Tokenizer::from_json(json); });
  };
  CHECK_THAT(refused("{"), Contains("no tokenizer's"));
  CHECK_THAT(refused("[]"), Contains("no tokenizer's"));
  CHECK_THAT(refused(R"({"type":"word_piece"})"), Contains("'word_piece'") && Contains("'byte_pairs'"));
  CHECK_THAT(refused(R"({"type":"characters","characters":"aa","unknown":false})"), Contains("twice"));
  CHECK_THAT(refused(R"({"type":"byte_pairs","merges":[]})"), Contains("vocabulary"));
  CHECK_THAT(refused(R"({"type":"byte_pairs","vocabulary":["a","b"],"merges":[]})"), Contains("no token for byte"));
  auto json = nlohmann::json::parse(pairs.to_json());
  json["merges"].push_back("Q Z");
  CHECK_THAT(refused(json.dump()), Contains("merge ") && Contains("'QZ'"));
}

TEST_CASE("byte pairs: training and encoding are those of Hugging Face's tokenizers") {
  const reference::Json cases = reference::load("byte_pairs");
  const auto text = cases.at(0).at("text").get<std::string>();
  REQUIRE(text.size() > 1000);
  for (const auto& one : cases) {
    BytePairOptions options;
    options.vocabulary = one.at("vocabulary").get<int64_t>();
    options.min_frequency = one.at("min_frequency").get<int64_t>();
    INFO("vocabulary " << options.vocabulary);
    const auto trained = BytePairTokenizer::train(text, options);
    const auto written = nlohmann::json::parse(trained.to_json());
    CHECK(written.at("vocabulary") == one.at("tokens"));
    CHECK(written.at("merges") == one.at("merges"));
    for (const auto& pair : one.at("encoded")) {
      INFO(pair.at(0));
      CHECK(trained.encode(pair.at(0).get<std::string>()) == pair.at(1).get<std::vector<int64_t>>());
    }
  }
}

TEST_CASE("byte pairs: training on pieces is training on the whole") {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "line " + std::to_string(i * i) + " of some text\n";
  BytePairTrainer trainer;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at) + 1;
    trainer.add(text.substr(at, end - at));
    at = end;
  }
  CHECK(trainer.train().to_json() == BytePairTokenizer::train(text).to_json());
}

TEST_CASE("byte pairs: specials are no text") {
  const BytePairTokenizer tokenizer = small_byte_pairs();
  const int64_t end = tokenizer.special("<|endoftext|>");
  CHECK(end == tokenizer.vocabulary_size() - 2);
  CHECK(tokenizer.special("世 界") == end + 1);
  CHECK(tokenizer.token(end + 1) == "世 界");
  CHECK_FALSE(tokenizer.has_special("<pad>"));
  CHECK_THAT(error_of<ValueError>([&] { tokenizer.special("<pad>"); }), Contains("'<pad>'") && Contains("endoftext"));
  for (int64_t id : tokenizer.encode("a<|endoftext|>b")) CHECK(id < end);
  CHECK(tokenizer.decode({end}) == "<|endoftext|>");

  BytePairOptions options;
  const auto refused = [&] { return error_of<ValueError>([&] { BytePairTokenizer::train("some text", options); }); };
  options.specials = {"<a>", "<a>"};
  CHECK_THAT(refused(), Contains("'<a>' is there twice"));
  options.specials = {""};
  CHECK_THAT(refused(), Contains("special 0"));
  options.specials = {"s"};
  CHECK_THAT(refused(), Contains("'s' is a token of the text"));
  options.specials = {"<a>"};
  options.vocabulary = 256;
  CHECK_THAT(refused(), Contains("vocabulary 256 must be at least 257"));
  options.vocabulary = 300;
  options.min_frequency = 0;
  CHECK_THAT(refused(), Contains("min_frequency"));
  CHECK_THAT(error_of<ValueError>([] { BytePairTokenizer::train(""); }), Contains("the text is empty"));
}

TEST_CASE("byte pairs: GPT-2's files are written and read") {
  test::Folder folder;
  const BytePairTokenizer tokenizer = small_byte_pairs();
  const auto vocabulary = folder.path / "vocab.json", merges = folder.path / "merges.txt";
  tokenizer.write_gpt2(vocabulary, merges);
  const auto back = BytePairTokenizer::read_gpt2(vocabulary, merges);
  CHECK(back.to_json() == tokenizer.to_json());
  CHECK(test::read_raw(merges).starts_with("#version"));

  const std::string good_vocabulary = test::read_raw(vocabulary), good_merges = test::read_raw(merges);
  const auto refused = [&](const std::string& v, const std::string& m) {
    folder.file("vocab.json", v);
    folder.file("merges.txt", m);
    return error_of<FileError>([&] { BytePairTokenizer::read_gpt2(vocabulary, merges); });
  };
  CHECK_THAT(refused("[1]", good_merges), Contains("vocab.json: it is no object"));
  CHECK_THAT(refused("{\"a\"", good_merges), Contains("vocab.json"));
  CHECK_THAT(refused(R"({"a":0,"b":2})", good_merges), Contains("the id of 'b' is 2"));
  CHECK_THAT(refused(R"({"a":0,"b":0})", good_merges), Contains("two tokens have the id 0"));
  CHECK_THAT(refused(R"({"a":0,"b":"x"})", good_merges), Contains("the id of 'b'"));
  CHECK_THAT(refused(R"({"a":0,"b":1})", good_merges), Contains("no token for byte 0x00"));
  CHECK_THAT(refused(good_vocabulary, "#version: 0.2\nno\n"), Contains("merges.txt:2: 'no' is no merge"));
  CHECK_THAT(refused(good_vocabulary, good_merges + "Q Q\n"),
             Contains("merges.txt:" + std::to_string(tokenizer.merges().size() + 2) + ": the merge 'Q Q' needs"));
  CHECK_THAT(refused(good_vocabulary, good_merges + good_merges.substr(good_merges.find('\n') + 1)),
             Contains("is there twice"));
  CHECK_THAT(refused(good_vocabulary, ""), Contains("merges.txt: the file is empty"));
  std::filesystem::remove(merges);
  CHECK_THAT(error_of<FileError>([&] { BytePairTokenizer::read_gpt2(vocabulary, merges); }), Contains("cannot open"));
}

TEST_CASE("byte pairs: long words and threads") {
  const BytePairTokenizer tokenizer = small_byte_pairs();
  std::string word;
  for (int i = 0; i < 100000; ++i) word += "two";
  CHECK(tokenizer.decode(tokenizer.encode(word)) == word);  // in a moment, not in a minute
  const auto alone = tokenizer.encode(odd_texts[3]);
  std::vector<std::thread> threads;
  std::vector<std::vector<int64_t>> results(4);
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer.encode(odd_texts[3]); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == alone);
}

}  // namespace tokenizer_test
