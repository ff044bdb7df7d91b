// A text as training and validation read it: pieces, tokens, rows, and bits per character.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <regard/examples/common/language_text.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/regard.hpp>
#include <set>

#include "test_folder.hpp"

namespace language_text_test {

using namespace examples;
namespace fs = std::filesystem;

namespace {

struct Texts : test::Folder {
  std::string put(const std::string& name, const std::string& text) const { return file(name, text).string(); }
};

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "línea número " + std::to_string(i) + " — 数字\n";
  return text;
}

struct Parts {
  std::string training, validation;
};
Parts parts_of(const std::vector<std::string>& files, double validation) {
  Parts parts;
  each_piece(files, validation, [&](std::string_view piece, bool validating) {
    (validating ? parts.validation : parts.training) += piece;
  });
  return parts;
}

}  // namespace

TEST_CASE("language text: pieces are the files, and validation is their end") {
  const Texts texts;
  const std::string a = lines(1000), b = lines(70000);  // the second in several pieces
  const std::vector<std::string> files = {texts.put("a", a), texts.put("b", b)};
  for (double share : {0.01, 0.1, 0.5, 0.9}) {
    const Parts parts = parts_of(files, share);
    CHECK(parts.training + parts.validation == a + b);
    const auto total = static_cast<double>(a.size() + b.size());
    CHECK(std::abs(static_cast<double>(parts.validation.size()) - share * total) < 2000);
    CHECK(parts.training.back() == '\n');
  }
  // A title and one endless line: parted between characters, near the place, not behind the title.
  std::string endless = "title\n";
  for (int i = 0; i < 4000; ++i) endless += "ü";
  const Parts parts = parts_of({texts.put("c", endless)}, 0.1);
  CHECK(parts.training + parts.validation == endless);
  CHECK(parts.validation.size() >= 799);
  CHECK(parts.validation.size() <= 803);
  CHECK_NOTHROW(from_utf8(parts.training));
  CHECK_NOTHROW(from_utf8(parts.validation));
}

TEST_CASE("language text: tokens on disk are the text, whatever the tokens") {
  const Texts texts;
  const std::vector<std::string> files = {texts.put("a", lines(300)), texts.put("b", "  ende ohne zeilenende")};
  for (const char* kind : {"bytes", "characters", "bpe"}) {
    INFO(kind);
    const auto tokenizer = make_tokenizer(files, 0.2, kind, 320, 16);
    const LanguageText text = write_tokens(files, 0.2, *tokenizer, texts.path);
    const Parts parts = parts_of(files, 0.2);
    CHECK(tokenizer->decode(text.training.read(0, text.training.size())) == parts.training);
    CHECK(tokenizer->decode(text.validation.read(0, text.validation.size())) == parts.validation);
    // Other tokens than those of the tokenizer are told apart.
    const auto other = make_tokenizer({files[1]}, 0.2, "characters", 0, 4);
    CHECK_THROWS_WITH(open_tokens(*other, texts.path),
                      Catch::Contains("training.tokens") && Catch::Contains("tokenizer.json"));
  }
  // A character that only the text for validation has is known, too.
  const auto tokenizer = make_tokenizer({texts.put("c", lines(50) + "Ж Ж Ж\n")}, 0.1, "characters", 0, 8);
  CHECK(tokenizer->encode("Ж").size() == 1);
  CHECK_THROWS_AS(make_tokenizer({texts.put("d", "short")}, 0.1, "bytes", 0, 64), UsageError);
}

TEST_CASE("language text: an epoch's rows lie side by side within the text, elsewhere in each epoch") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    TrainingRows rows;
    rows.context = static_cast<int64_t>(1 + random() % 20);
    rows.tokens = rows.context + 1 + static_cast<int64_t>(random() % 200);
    rows.seed = random();
    INFO("tokens " << rows.tokens << ", context " << rows.context);
    std::set<int64_t> firsts;
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<int64_t> all(static_cast<std::size_t>(rows.count()));
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
      const std::vector<int64_t> begins = rows.begins(all, epoch);
      CHECK(begins.front() >= 0);
      CHECK(begins.front() < rows.context);
      for (std::size_t i = 1; i < begins.size(); ++i) CHECK(begins[i] - begins[i - 1] == rows.context);
      CHECK(begins.back() + rows.context + 1 <= rows.tokens);
      if (rows.tokens >= 2 * rows.context) CHECK(begins.back() + 3 * rows.context > rows.tokens);  // little is left out
      firsts.insert(begins.front());
      CHECK(begins == rows.begins(all, epoch));
    }
    if (rows.context > 15 && rows.tokens > 100) CHECK(firsts.size() > 1);
  }
}

TEST_CASE("language text: bits per character are the same for all tokens of a model that knows nothing") {
  const Texts texts;
  const std::string all = lines(200);
  const std::vector<std::string> files = {texts.put("a", all)};
  const Parts parts = parts_of(files, 0.25);
  for (const char* kind : {"bytes", "characters", "bpe"}) {
    INFO(kind);
    const auto tokenizer = make_tokenizer(files, 0.25, kind, 300, 16);
    const LanguageText text = write_tokens(files, 0.25, *tokenizer, texts.path);
    regard::layers::GPT model(
        {.vocabulary = tokenizer->vocabulary_size(), .context = 16, .width = 8, .heads = 2, .layers = 1});
    for (const regard::Tensor& parameter : model.parameters()) {
      regard::NoGrad no_grad;
      parameter.zero_();
    }
    model.eval();
    const double nats = std::log(static_cast<double>(tokenizer->vocabulary_size()));
    const LanguageScore whole = score(model, text.validation, *tokenizer, 16, INT64_MAX / 2);
    const int64_t tokens = text.validation.size() - 1;
    CHECK(whole.tokens == tokens);  // every token but the first, once
    CHECK(whole.loss == Approx(nats).epsilon(1e-5));
    const std::string foretold = tokenizer->decode(text.validation.read(1, tokens));
    const auto characters = std::count_if(foretold.begin(), foretold.end(), [](char c) { return (c & 0xC0) != 0x80; });
    CHECK(whole.bits_per_character ==
          Approx(nats / std::log(2.0) * static_cast<double>(tokens) / static_cast<double>(characters)).epsilon(1e-5));
    const LanguageScore part = score(model, text.validation, *tokenizer, 16, 100);
    CHECK(part.tokens <= 100);
    CHECK(part.tokens >= 80);
    CHECK(part.loss == Approx(nats).epsilon(1e-5));
  }
}

}  // namespace language_text_test
