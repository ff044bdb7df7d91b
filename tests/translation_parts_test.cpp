// What train_translation is made of: symbols, written dates, tasks in files, tests of translations.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/symbols.hpp>
#include <regard/examples/common/translation_report.hpp>
#include <regard/examples/common/translation_tasks.hpp>
#include <regard/examples/common/translation_training.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/examples/common/written_dates.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "test_folder.hpp"

namespace translation_parts_test {

using namespace examples;  // NOLINT(google-build-using-namespace)

namespace {

using test::Folder;

}  // namespace

TEST_CASE("options: arguments beside the options") {
  std::vector<std::string> texts;
  int64_t beam = 4;
  Options options("translate", "Translates.");
  options.integer("beam", beam, "hypotheses");
  options.arguments("TEXT", texts, "what to translate");
  const char* given[] = {"translate", "one two", "--beam", "2", "three", ""};
  REQUIRE(options.parse(6, given));
  CHECK(texts == std::vector<std::string>{"one two", "three", ""});
  CHECK(beam == 2);
  const char* unknown[] = {"translate", "-x"};
  CHECK_THROWS_WITH(options.parse(2, unknown), Catch::Contains("-x: unknown option"));
  CHECK(texts.size() == 3);
  CHECK(options.help().find("Usage: translate [options] [TEXT...]\n\n  TEXT") != std::string::npos);
}

TEST_CASE("symbols: characters and words, both ways") {
  CHECK(symbols_of("né 1", SymbolUnit::characters) == std::vector<std::string>{"n", "é", " ", "1"});
  CHECK(symbols_of("  AH  B\tC ", SymbolUnit::words) == std::vector<std::string>{"AH", "B", "C"});
  CHECK(symbols_of("", SymbolUnit::words).empty());
  const SymbolVocabulary letters(SymbolUnit::characters, {"bca", "é"});
  CHECK(letters.size() == 7);
  CHECK(letters.encode("abé") == std::vector<int64_t>{3, 4, 6});
  CHECK(letters.encode("AB") == std::vector<int64_t>{3, 4});  // small forms, as no capitals are there
  CHECK(letters.decode({3, 4, 6, 2, 3}) == "abé");
  CHECK_THROWS_WITH(letters.encode("abx"), Catch::Contains("'x'"));
  CHECK_THROWS_AS(letters.encode("\xff"), Utf8Error);
  const SymbolVocabulary words(SymbolUnit::words, {"B AH", "AH T"});
  CHECK(words.decode(words.encode(" B  AH T")) == "B AH T");
  CHECK(words.label(0) == "<pad>");
  CHECK_THROWS_AS(words.label(6), std::out_of_range);
  CHECK_THROWS_AS(words.label(-1), std::out_of_range);
  for (const SymbolVocabulary* vocabulary : {&letters, &words}) {
    const SymbolVocabulary again = SymbolVocabulary::from_json(vocabulary->to_json());
    CHECK(again.size() == vocabulary->size());
    CHECK(again.unit() == vocabulary->unit());
    for (int64_t token = 0; token < again.size(); ++token) CHECK(again.label(token) == vocabulary->label(token));
  }
  CHECK_THROWS(SymbolVocabulary::from_json({{"unit", "lines"}, {"symbols", {"a"}}}));
  CHECK_THROWS(SymbolVocabulary::from_json({{"unit", "words"}, {"symbols", {"a", "a"}}}));
  CHECK_THROWS(SymbolVocabulary::from_json({{"unit", "words"}}));
}

TEST_CASE("dates: the calendar and the forms") {
  CHECK(iso_date(date_of(0)) == "1900-01-01");
  CHECK(iso_date(date_of(days_written - 1)) == "2099-12-31");
  CHECK(iso_date(date_of(59)) == "1900-03-01");  // 1900 was no leap year
  CHECK(iso_date(date_of(36524 + 59)) == "2000-02-29");
  CHECK(date_forms() > 80);

  std::set<char32_t> known;
  for (const std::string& text : date_characters())
    for (char32_t c : from_utf8(text)) known.insert(c);
  // What is written of the third of March 1998, a Tuesday, and whatever is written has its day and year in it.
  const Date date{1998, 3, 3};
  std::set<std::string> written;
  Random random(5);
  for (int i = 0; i < 20000; ++i) written.insert(written_date(date, random));
  for (const char* form : {"3 March 1998",
                           "3rd of March 1998",
                           "Mar 3, 98",
                           "03/03/1998",
                           "3.3.1998",
                           "Tuesday, March 3, 1998",
                           "TUE 3 MAR 1998",
                           "1998-03-03",
                           "19980303",
                           "3.III.1998",
                           "Dienstag, den 3. März 1998",
                           "DI., 3.3.1998",
                           "mardi 3 mars 1998",
                           "martes, 3 de marzo de 1998",
                           "martedì 3 marzo 1998",
                           "terça-feira, 3 de março de 1998",
                           "dinsdag 3 maart 1998",
                           "1998年3月3日",
                           "3 mar '98",
                           "the 3rd of march, 1998"}) {
    INFO(form);
    CHECK(written.contains(form));
  }
  for (const std::string& text : written) {
    INFO(text);
    const std::u32string characters = from_utf8(text);
    CHECK(static_cast<int64_t>(characters.size()) <= longest_written_date);
    CHECK(std::all_of(characters.begin(), characters.end(), [&](char32_t c) { return known.contains(c); }));
    CHECK(text.find("98") != std::string::npos);
    CHECK(text.find('3') != std::string::npos);
    CHECK(text.find('%') == std::string::npos);
  }
  // 1st, 2nd, 11th and so on; the French first of a month; no short years where they would be doubtful.
  std::map<int64_t, std::string> ordinals = {{1, "1st"},   {2, "2nd"},   {11, "11th"}, {12, "12th"}, {13, "13th"},
                                             {21, "21st"}, {22, "22nd"}, {23, "23rd"}, {30, "30th"}};
  for (const auto& [day, ordinal] : ordinals) {
    std::set<std::string> forms;
    for (int i = 0; i < 5000; ++i) forms.insert(written_date({1905, 7, day}, random));
    INFO(ordinal);
    CHECK(forms.contains(ordinal + " of July 1905"));
    if (day == 1) CHECK(forms.contains("le 1er juillet 1905"));
    for (const std::string& text : forms) CHECK(text.find("1905") != std::string::npos);
  }
}

TEST_CASE("dates: days held out are never trained on") {
  const auto task = make_dates_task({.held_out_share = 0.05, .seed = 3});
  std::set<std::string> held_out;
  const std::regex iso("[0-9]{4}-[0-9]{2}-[0-9]{2}");
  for (const TranslationQuestion& question : task->held_out(100000)) {
    REQUIRE(question.answers.size() == 1);
    CHECK(std::regex_match(question.answers[0], iso));
    held_out.insert(question.answers[0]);
  }
  CHECK(held_out.size() == 3652);  // a twentieth of 73049
  std::set<std::string> trained;
  for (int64_t step = 0; step < 100; ++step)
    for (const TranslationExample& example : task->training_batch(step, 64)) {
      CHECK_FALSE(held_out.contains(example.target));
      trained.insert(example.target);
      CHECK(task->source_vocabulary().decode(example.source_tokens) == example.source);
    }
  CHECK(trained.size() > 5000);
  // The same at every call, another with another seed.
  CHECK(task->training_batch(7, 5)[3].source == task->training_batch(7, 5)[3].source);
  const auto same = make_dates_task({.held_out_share = 0.05, .seed = 3});
  const auto other = make_dates_task({.held_out_share = 0.05, .seed = 4});
  CHECK(same->training_batch(7, 5)[4].source == task->training_batch(7, 5)[4].source);
  CHECK(other->training_batch(7, 5)[4].source != task->training_batch(7, 5)[4].source);
  CHECK(same->held_out(20)[19].source == task->held_out(30)[19].source);
}

TEST_CASE("dictionary: words, their pronunciations and comments are read") {
  const Folder folder;
  const auto file = folder.file("small.dict",
                                ";;; a comment\n"
                                "a AH0\n"
                                "a(2) EY1\r\n"
                                "read R EH1 D\n"
                                "read(2) R IY1 D # the present\n"
                                "reads R IY1 D Z\n"
                                "content K AA1 N T EH0 N T\n"
                                "content(2) K AH0 N T EH1 N T\n"
                                "contant K AA0 N T EH1 N T\n"
                                "contant(2) K AA1 N T EH0 N T\n"
                                "\n"
                                "(paren P ER0 EH1 N\n");
  std::map<std::string, std::set<std::string>> all;
  for (bool stress : {false, true}) {
    all.clear();
    const auto task = make_dictionary_task({.file = file, .stress = stress}, {.held_out_share = 0.34, .seed = 1});
    const auto held_out = task->held_out(100);
    CHECK(held_out.size() == 2);
    for (const auto& question : held_out)
      for (const auto& answer : question.answers) all[question.source].insert(answer);
    std::set<std::string> trained;
    int64_t pairs = 0;
    for (int64_t step = 0; step < 4; ++step)
      for (const auto& example : task->training_batch(step, 3)) {
        CHECK_FALSE(std::any_of(held_out.begin(), held_out.end(),
                                [&](const auto& question) { return question.source == example.source; }));
        all[example.source].insert(example.target);
        ++pairs;
      }
    CHECK(pairs > 0);
    CHECK(all.size() == 6);
    CHECK(all.at("read") ==
          (stress ? std::set<std::string>{"R EH1 D", "R IY1 D"} : std::set<std::string>{"R EH D", "R IY D"}));
    CHECK(all.at("content").size() == 2);
    CHECK(all.at("contant").size() == (stress ? 2 : 1));  // alike without the stress
    CHECK(all.at("a").contains(stress ? "EY1" : "EY"));
    CHECK(all.contains("(paren"));
  }
  const auto bad = folder.file("bad.dict", "a AH0\nb\n");
  CHECK_THROWS_WITH(make_dictionary_task({.file = bad}, {}), Catch::Contains("bad.dict:2: 'b' has no phonemes"));
  const auto one = folder.file("one.dict", "a AH0\na(2) EY1\n");
  CHECK_THROWS_WITH(make_dictionary_task({.file = one}, {}), Catch::Contains("only 1 different words"));
}

TEST_CASE("pairs: a round goes through every line once, in batches of like length") {
  const Folder folder;
  std::string text = "\xEF\xBB\xBF";
  for (int i = 0; i < 300; ++i)
    text += std::string(static_cast<std::size_t>(1 + i % 17), static_cast<char>('a' + i % 26)) + std::to_string(i) +
            "\tsay " + std::to_string(i) + " " + std::string(static_cast<std::size_t>(1 + i % 5), 'x') + "\n";
  const auto task = make_pairs_file_task({.file = folder.file("pairs.tsv", text), .target_unit = SymbolUnit::words},
                                         {.held_out_share = 0.1, .seed = 2});
  CHECK(task->held_out(1000).size() == 30);
  CHECK(task->longest_target() == 3);
  const int64_t batches = 17;  // of 16, from 270 lines
  std::vector<std::vector<std::string>> rounds(2);
  for (int64_t step = 0; step < 2 * batches; ++step)
    for (const auto& example : task->training_batch(step, 16))
      rounds[static_cast<std::size_t>(step / batches)].push_back(example.source);
  CHECK(rounds[0].size() == 270);
  CHECK(rounds[0] != rounds[1]);
  for (auto& round : rounds) std::sort(round.begin(), round.end());
  CHECK(rounds[0] == rounds[1]);
  CHECK(std::adjacent_find(rounds[0].begin(), rounds[0].end()) == rounds[0].end());
  int64_t padding = 0, symbols = 0;
  for (int64_t step = 0; step < batches; ++step) {
    const auto batch = task->training_batch(step, 16);
    std::size_t longest = 0;
    for (const auto& example : batch) longest = std::max(longest, example.source_tokens.size());
    for (const auto& example : batch) {
      symbols += static_cast<int64_t>(example.source_tokens.size());
      padding += static_cast<int64_t>(longest - example.source_tokens.size());
    }
  }
  CHECK(padding * 5 < symbols);

  const auto refused = [&](const char* content, const char* message) {
    const auto file = folder.file("bad.tsv", content);
    CHECK_THROWS_WITH(make_pairs_file_task({.file = file, .max_length = 3}, {}), Catch::Contains(message));
  };
  refused("a\tb\nc\n", "bad.tsv:2");
  refused("a\tb\n\tc\n", "bad.tsv:2: the source is empty");
  refused("a\tb\nabcd\tc\n", "bad.tsv:2: the source has 4 symbols");
  refused("a\tb\na\tc\n", "only 1 different sources");
  refused("a\tb\n\xff\tc\n", "bad.tsv:2");
}

TEST_CASE("translations are measured by the nearest right answer") {
  CHECK(edit_distance({}, {}) == 0);
  CHECK(edit_distance({1, 2, 3}, {}) == 3);
  CHECK(edit_distance({}, {1, 2}) == 2);
  CHECK(edit_distance({1, 2, 3, 4}, {1, 3, 4}) == 1);
  CHECK(edit_distance({1, 2, 3}, {1, 9, 3}) == 1);
  CHECK(edit_distance({11, 9, 20, 20, 5, 14}, {19, 9, 20, 20, 9, 14, 7}) == 3);  // kitten, sitting
}

TEST_CASE("translation batches: what is read, what is told, what is to be said") {
  const TranslationBatch batch = translation_batch({{"", "", {5, 6, 7}, {4}}, {"", "", {8}, {9, 3}}});
  CHECK(batch.source.ids.to_vector<int64_t>() == std::vector<int64_t>{5, 6, 7, 2, 8, 2, 0, 0});
  CHECK(batch.source.mask.to_vector<bool>() == std::vector<bool>{true, true, true, true, true, true, false, false});
  CHECK(batch.target.to_vector<int64_t>() == std::vector<int64_t>{1, 4, 0, 1, 9, 3});
  CHECK(batch.following.to_vector<int64_t>() == std::vector<int64_t>{4, 2, -100, 9, 3, 2});
  CHECK(batch.targets == 5);
  CHECK(batch.tokens == 11);
}

}  // namespace translation_parts_test
