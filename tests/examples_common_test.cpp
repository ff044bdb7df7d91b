#include <fcntl.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/random.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/examples/common/utf8.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "test_folder.hpp"

namespace examples_common_test {

using namespace examples;
namespace fs = std::filesystem;

namespace {

using test::read_raw;

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

struct Settings {
  int64_t steps = 2000;
  double dropout = 0.25;
  std::string task = "reverse";
  std::string name;
  std::optional<int64_t> length;
  bool quiet = false;
};

Options declared(Settings& settings) {
  Options options("train_sequence", "Trains a small transformer on a sequence task.");
  options.choice("task", settings.task, {"copy", "reverse", "sort"}, "what to learn");
  options.section("Training");
  options.integer("steps", settings.steps, "optimizer steps", {.at_least = 0});
  options.real("dropout", settings.dropout, "share of activations dropped", {.at_least = 0.0, .below = 1.0});
  options.integer("length", settings.length, "symbols in a sequence", "12, for add 3", {.at_least = 1, .at_most = 99});
  options.text("name", settings.name, "name of the run's folder", "NAME");
  options.flag("quiet", settings.quiet, "say nothing");
  return options;
}

bool parse(Settings& settings, std::vector<const char*> arguments, std::string* out = nullptr) {
  arguments.insert(arguments.begin(), "train_sequence");
  Options options = declared(settings);
  std::ostringstream stream;
  const bool run = options.parse(static_cast<int>(arguments.size()), arguments.data(), stream);
  if (out != nullptr) *out = stream.str();
  return run;
}

// What run_main writes to standard error, and its status.
std::pair<int, std::string> run_with(const std::function<int(int, char**)>& body) {
  const test::Folder folder;
  const fs::path path = folder.path / "stderr";
  std::fflush(stderr);
  const int saved = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
  const int status = run_main("train_sequence", 0, nullptr, body);
  std::fflush(stderr);
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  return {status, read_raw(path)};
}

}  // namespace

TEST_CASE("examples: options are read", "[examples][options]") {
  Settings settings;
  CHECK(parse(settings, {}));
  CHECK(settings.steps == 2000);
  CHECK_FALSE(settings.length.has_value());
  CHECK(parse(settings,
              {"--steps", "0", "--dropout=1e-3", "--task", "sort", "--name=--odd", "--length", "7", "--quiet"}));
  CHECK(settings.steps == 0);
  CHECK(settings.dropout == 1e-3);
  CHECK(settings.task == "sort");
  CHECK(settings.name == "--odd");
  CHECK(settings.length == 7);
  CHECK(settings.quiet);
}

TEST_CASE("examples: an option with several values takes those up to the next option", "[examples][options]") {
  std::vector<std::string> files;
  int64_t steps = 1;
  const auto parsed = [&](std::vector<const char*> arguments, std::string* out = nullptr) {
    Options options("program", "Does something.");
    options.texts("text", files, "what to read", "none", "FILE");
    options.integer("steps", steps, "how often");
    arguments.insert(arguments.begin(), "program");
    std::ostringstream stream;
    const bool run = options.parse(static_cast<int>(arguments.size()), arguments.data(), stream);
    if (out != nullptr) *out = stream.str();
    return run;
  };
  CHECK(parsed({"--text", "a", "b c", "d", "--steps", "3"}));
  CHECK(files == std::vector<std::string>{"a", "b c", "d"});
  CHECK(steps == 3);
  CHECK(parsed({"--steps", "4", "--text", "e"}));
  CHECK(files == std::vector<std::string>{"e"});
  CHECK(parsed({"--text=f"}));
  CHECK(files == std::vector<std::string>{"f"});
  CHECK(parsed({}));
  CHECK(files == std::vector<std::string>{"f"});
  std::string help;
  CHECK_FALSE(parsed({"--text", "a", "-h"}, &help));
  CHECK_THAT(help, Catch::Contains("--text FILE...") && Catch::Contains("default: none"));
  CHECK_THAT(message_of([&] { parsed({"--text"}); }), Catch::Contains("--text: needs a value"));
  CHECK_THAT(message_of([&] { parsed({"--text", "--steps", "3"}); }), Catch::Contains("--text: needs a value"));
  CHECK_THAT(message_of([&] { parsed({"--text", "a", ""}); }), Catch::Contains("--text: needs a value"));
  CHECK_THAT(message_of([&] { parsed({"--text", "a", "--text", "b"}); }), Catch::Contains("more than once"));
  CHECK_THAT(message_of([&] { parsed({"--text", "a", "b", "--stpes", "3"}); }), Catch::Contains("--steps"));
  CHECK(files == std::vector<std::string>{"f"});
}

TEST_CASE("examples: bad options say what is wrong and change nothing", "[examples][options]") {
  struct Mistake {
    std::vector<const char*> arguments;
    std::string message;
  };
  const std::vector<Mistake> mistakes{
      {{"--stesp", "3"}, "--stesp: unknown option (did you mean --steps?)"},
      {{"--step", "3"}, "--step: unknown option (did you mean --steps?)"},
      {{"--xyzzy"}, "--xyzzy: unknown option"},
      {{"--hepl"}, "--hepl: unknown option (did you mean --help?)"},
      {{"-steps", "3"}, "-steps: unknown option (did you mean --steps?)"},
      {{"--steps", "abc"}, "--steps: 'abc' is not an integer"},
      {{"--steps", "1.5"}, "--steps: '1.5' is not an integer"},
      {{"--steps", "12x"}, "--steps: '12x' is not an integer"},
      {{"--steps", "99999999999999999999"},
       "--steps: '99999999999999999999' is too large or too small to be represented"},
      {{"--steps", "-1"}, "--steps: -1 is out of range; it must be at least 0"},
      {{"--dropout", "1"}, "--dropout: 1 is out of range; it must be at least 0 and below 1"},
      {{"--dropout", "nan"}, "--dropout: 'nan' is not a number"},
      {{"--dropout", "0,5"}, "--dropout: '0,5' is not a number"},
      {{"--length", "100"}, "--length: 100 is out of range; it must be at least 1 and at most 99"},
      {{"--steps"}, "--steps: needs a value"},
      {{"--steps="}, "--steps: needs a value"},
      {{"--name", ""}, "--name: needs a value"},
      {{"--steps", "--name", "x"}, "--steps: needs a value"},
      {{"--quiet=1"}, "--quiet: takes no value"},
      {{"--steps", "1", "--steps", "2"}, "--steps: given more than once"},
      {{"--steps", "1", "stray"}, "'stray': unexpected argument; values follow their option, as in --name value"},
      {{"--task", "revrese"}, "--task: 'revrese' is not copy, reverse or sort (did you mean reverse?)"},
  };
  for (const Mistake& mistake : mistakes) {
    Settings settings;
    std::vector<const char*> arguments{"--name", "kept"};
    if (std::string(mistake.arguments[0]).starts_with("--name")) arguments.clear();
    arguments.insert(arguments.end(), mistake.arguments.begin(), mistake.arguments.end());
    CHECK(message_of([&] { parse(settings, arguments); }) == mistake.message);
    CHECK(settings.name.empty());
    CHECK(settings.steps == 2000);
  }
}

TEST_CASE("examples: help explains every option with its default", "[examples][options]") {
  Settings settings;
  std::string text;
  CHECK_FALSE(parse(settings, {"--steps", "5", "--help"}, &text));
  CHECK(settings.steps == 2000);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() < 80);
  std::istringstream words(text);  // wherever the lines are broken
  text.clear();
  for (std::string word; words >> word;) text += word + " ";
  for (const char* part :
       {"train_sequence: Trains a small", "Usage: train_sequence [options]", "Training:", "--steps N",
        "optimizer steps (at least 0; default: 2000)", "(at least 0 and below 1; default: 0.25)",
        "(copy, reverse or sort; default: reverse)", "default: 12, for add 3", "--quiet", "--help"})
    CHECK_THAT(text, Catch::Contains(part));
  CHECK_FALSE(parse(settings, {"-h"}, &text));
}

TEST_CASE("examples: run_main turns exceptions into one line and status 2", "[examples][options]") {
  CHECK(run_with([](int, char**) { return 0; }) == std::pair<int, std::string>{0, ""});
  CHECK(run_with([](int, char**) { return 1; }).first == 1);
  CHECK(run_with([](int, char**) -> int { throw UsageError("heads", "3 does not divide the width, 64"); }) ==
        std::pair<int, std::string>{2, "train_sequence: --heads: 3 does not divide the width, 64; see --help\n"});
  CHECK(run_with([](int, char**) -> int { throw std::runtime_error("two\nlines"); }) ==
        std::pair<int, std::string>{2, "train_sequence: two lines\n"});
  CHECK(run_with([](int, char**) -> int { throw 7; }).first == 2);
}

TEST_CASE("examples: run folders never lose an earlier run", "[examples][run_folder]") {
  const test::Folder folder;
  const fs::path runs = folder.path / "deep" / "runs";
  CHECK(make_run_folder(runs, std::nullopt, "reverse").path == runs / "reverse-1");
  CHECK(make_run_folder(runs, std::nullopt, "reverse").path == runs / "reverse-2");
  CHECK(make_run_folder(runs, "mine", "reverse").path == runs / "mine");
  CHECK_FALSE(make_run_folder(runs, "mine", "reverse").moved_earlier.has_value());  // it was empty
  put(runs / "mine" / "a", "1");
  CHECK(make_run_folder(runs, "mine", "reverse").moved_earlier == runs / "mine.1");
  put(runs / "mine" / "a", "2");
  CHECK(make_run_folder(runs, "mine", "reverse").moved_earlier == runs / "mine.2");
  CHECK(read_raw(runs / "mine.1" / "a") == "1");
  CHECK(read_raw(runs / "mine.2" / "a") == "2");
  CHECK(fs::is_empty(runs / "mine"));

  put(runs / "file", "x");
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                                  std::string("a\nb"), std::string(300, 'a'), std::string("file")})
    CHECK_THROWS_AS(make_run_folder(runs, name, "reverse"), UsageError);
  CHECK_THROWS_AS(make_run_folder(runs / "file", "a", "reverse"), std::runtime_error);
  CHECK_THROWS_AS(make_run_folder(runs / "file" / "below", "a", "reverse"), std::runtime_error);
}

TEST_CASE("examples: files are written whole or not at all", "[examples][run_folder]") {
  const test::Folder folder;
  write_file_atomically(folder.path / "a", "old");
  write_file_atomically(folder.path / "a", std::string(100000, 'x'));
  CHECK(read_raw(folder.path / "a") == std::string(100000, 'x'));
  fs::create_directories(folder.path / "taken" / "inside");
  CHECK_THAT(message_of([&] { write_file_atomically(folder.path / "taken", "x"); }),
             Catch::StartsWith((folder.path / "taken").string() + ": cannot write: "));
  CHECK_THAT(message_of([&] { write_file_atomically(folder.path / "none" / "a", "x"); }),
             Catch::EndsWith("No such file or directory"));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) ==
        2);  // no temporary file is left
}

TEST_CASE("examples: metrics keep order, and name numbers that are not finite", "[examples][run_folder]") {
  const test::Folder folder;
  const fs::path path = folder.path / "metrics.jsonl";
  const double infinity = std::numeric_limits<double>::infinity();
  MetricsWriter metrics(path);
  metrics.write({{"step", 1}, {"loss", 0.5}, {"a", std::nan("")}});
  CHECK(read_raw(path) == "{\"step\":1,\"loss\":0.5,\"a\":\"nan\"}\n");  // there before the writer is closed
  metrics.write({{"z", infinity}, {"b", {{"c", {-infinity, 1.0}}}}});
  CHECK_THAT(read_raw(path), Catch::EndsWith("\n{\"z\":\"inf\",\"b\":{\"c\":[\"-inf\",1.0]}}\n"));
  CHECK_THROWS_AS(metrics.write(3), std::invalid_argument);
  CHECK_THROWS_AS(MetricsWriter(folder.path / "none" / "m"), std::runtime_error);
  write_json(folder.path / "config.json", {{"task", "sort"}, {"lr", std::nan("")}});
  CHECK(read_raw(folder.path / "config.json") == "{\n  \"task\": \"sort\",\n  \"lr\": \"nan\"\n}\n");
}

TEST_CASE("examples: metrics go on where a checkpoint was, without gap or repetition", "[examples][run_folder]") {
  const test::Folder folder;
  const fs::path path = folder.path / "metrics.jsonl";
  {
    MetricsWriter metrics(path);
    for (int step = 1; step <= 5; ++step) metrics.write({{"step", step}, {"loss", 0.1 * step}, {"b", 1}, {"a", "nan"}});
    metrics.flush();
  }
  const std::string whole = read_raw(path);
  put(path, whole + "{\"step\":6,\"lo");  // killed while it wrote
  CHECK(read_metrics(path).size() == 5);
  {
    MetricsWriter metrics(path, 3);
    CHECK(read_raw(path) == whole.substr(0, whole.find("{\"step\":4")));
    for (int step = 4; step <= 5; ++step) metrics.write({{"step", step}, {"loss", 0.1 * step}, {"b", 1}, {"a", "nan"}});
  }
  CHECK(read_raw(path) == whole);  // to the byte
  { const MetricsWriter metrics(path, 9); }
  CHECK(read_raw(path) == whole);
  { const MetricsWriter metrics(path, 0); }
  CHECK(read_raw(path).empty());
  CHECK(read_metrics(path).empty());

  MetricsWriter begun(folder.path / "new.jsonl", 7);  // none was there
  begun.write({{"step", 8}});
  CHECK(read_raw(folder.path / "new.jsonl") == "{\"step\":8}\n");
  put(path, "{\"step\":1}\nsomething\n{\"step\":2}\n");
  CHECK_THAT(message_of([&] { MetricsWriter metrics(path, 5); }), Catch::Contains("metrics.jsonl:2: not a line"));
  CHECK_THAT(read_raw(path), Catch::Contains("something"));  // and is left as it was
}

TEST_CASE("examples: progress", "[examples][progress]") {
  std::ostringstream out;
  double now = 0;
  int columns = 100;
  ProgressOutput output{.stream = &out, .terminal = true, .unicode = false};
  output.columns = [&] { return columns; };
  output.seconds = [&] { return now; };
  const ProgressValues values{.loss = 0.12345, .accuracy = 0.985, .tokens_per_second = 123456};

  SECTION("a bar that log lines do not tear") {
    {
      Progress progress(200, output);
      now = 10;
      progress.update(50, values);
      CHECK(out.str().starts_with("\r###"));
      CHECK_THAT(out.str(), Catch::Contains("50/200  loss 0.1235  accuracy 98.5%  123k tokens/s  0:30 left\x1b[K"));
      out.str("");
      now = 10.05;
      progress.update(51, values);
      CHECK(out.str().empty());  // too soon to be drawn again
      progress.log("hello");
      CHECK(out.str().starts_with("\r\x1b[Khello\n\r####"));
      out.str("");
      now = 40;
      progress.update(200, values);
      CHECK_THAT(out.str(), Catch::Contains("200/200") && Catch::Contains("0:40 in all"));
    }
    CHECK(out.str().ends_with("\x1b[K\n"));
  }
  SECTION("never wider than the terminal") {
    Progress progress(200, output);
    for (columns = 1; columns < 130; ++columns) {
      out.str("");
      now += 1;
      progress.update(columns, values);
      const std::string drawn = out.str();
      CHECK(drawn.size() <= static_cast<std::size_t>(std::max(columns - 1, 1)) + 1 + 3);
    }
  }
  SECTION("plain lines") {
    output.terminal = false;
    Progress progress(1000, output);
    for (int64_t step = 1; step <= 1000; ++step) {
      now += 0.01;
      progress.update(step, {.loss = std::nan("")});
    }
    progress.finish();
    const std::string text = out.str();
    CHECK(std::count(text.begin(), text.end(), '\n') == 21);
    CHECK(text.starts_with("step 1/1000  loss nan  0:10 left\n"));
    CHECK(text.ends_with("step 1000/1000  loss nan  0:10 in all\n"));
    CHECK(text.find_first_of("\r\x1b") == std::string::npos);
  }
  SECTION("steps of an earlier run took none of the time") {
    Progress progress(200, output, 100);
    now = 10;
    progress.update(150);
    CHECK_THAT(out.str(), Catch::Contains("150/200  0:10 left"));
  }
  SECTION("slow steps are shown every ten seconds") {
    output.terminal = false;
    Progress progress(1000, output);
    for (int64_t step = 1; step <= 10; ++step) {
      now += 6;
      progress.update(step);
    }
    const std::string text = out.str();
    CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  }
  CHECK(duration_text(42) == "0:42");
  CHECK(duration_text(3723) == "1:02:03");
  CHECK(duration_text(183600) == "2 days 03:00");
  CHECK(duration_text(std::nan("")) == "?");
  CHECK(rate_text(87) == "87");
  CHECK(rate_text(1234) == "1.2k");
  CHECK(rate_text(999600) == "1.0M");
}

TEST_CASE("examples: UTF-8 is read strictly", "[examples][utf8]") {
  const std::string good = "aé字😀";
  CHECK(from_utf8(good).size() == 4);
  CHECK(to_utf8(from_utf8(good)) == good);
  for (const char* bad : {"\x80", "\xC0\x80", "\xC3", "\xED\xA0\x80", "\xE0\x80\x80", "\xF4\x90\x80\x80",
                          "\xF8\x88\x80\x80", "\xF0\x9F\x98", "\xC3(", "\xFF"}) {
    const std::string text = std::string("ab") + bad;
    CHECK(message_of([&] { from_utf8(text); }) == "invalid UTF-8 at byte 3");
    CHECK(from_utf8_lossy(text).size() >= 3);
  }
  CHECK(in_quotes("a\tb\xff") == "'a\\x09b\\xff'");
}

TEST_CASE("examples: random numbers are the same everywhere", "[examples][tasks]") {
  CHECK(mix_bits(0) == 0xE220A8397B1DCDAFu);  // splitmix64's first number from state 0
  Random random(1, 2, 3), again(1, 2, 3), other(1, 2, 4);
  CHECK(random.next() == again.next());
  CHECK(random.next() != other.next());
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) ++seen[static_cast<std::size_t>(random.below(7))];
  for (int n : seen) CHECK(n == Approx(1000).margin(150));
}

TEST_CASE("examples: vocabulary", "[examples][tasks]") {
  const Vocabulary vocabulary({"ba", "字a"});
  CHECK(vocabulary.size() == 6);
  CHECK(vocabulary.encode("ab字") == std::vector<int64_t>{3, 4, 5});
  CHECK(vocabulary.decode({Vocabulary::start, 4, 5, Vocabulary::padding, Vocabulary::end, 3}) == "b字");
  CHECK(vocabulary.label(5) == "字");
  CHECK(vocabulary.label(Vocabulary::end) == "<end>");
  CHECK_THROWS_WITH(vocabulary.encode("ax"), "Vocabulary: the character 'x' is not among the task's");
  CHECK_THROWS_AS(vocabulary.label(6), std::out_of_range);
  CHECK_THROWS_AS(vocabulary.decode({-1}), std::out_of_range);
}

TEST_CASE("examples: generated tasks", "[examples][tasks]") {
  for (const std::string& name : {std::string("copy"), std::string("reverse"), std::string("sort"), std::string("add")})
    for (const int64_t length : {1, 2, 3, 12}) {
      CAPTURE(name, length);
      const auto task = make_generated_task({.task = name, .length = length, .seed = 5});
      std::set<std::string> tested;
      const auto held_out = task->held_out(200);
      for (const Example& example : held_out) {
        CHECK(task->is_held_out(example.input));
        tested.insert(example.input);
      }
      CHECK(!held_out.empty());
      CHECK(tested.size() == held_out.size());
      if (length == 12) CHECK(held_out.size() == 200);
      for (int64_t step = 0; step < 20; ++step) {
        for (const Example& example : task->training_batch(step, 32)) {
          REQUIRE_FALSE(task->is_held_out(example.input));
          REQUIRE(tested.count(example.input) == 0);
          REQUIRE(static_cast<int64_t>(example.input_tokens.size()) <= task->longest_input());
          REQUIRE(static_cast<int64_t>(example.output_tokens.size()) <= task->longest_output());
          REQUIRE(task->vocabulary().decode(example.output_tokens) == example.output);
          std::string expected = example.input;
          if (name == "reverse") std::reverse(expected.begin(), expected.end());
          if (name == "sort") std::sort(expected.begin(), expected.end());
          if (name == "add") {
            const std::size_t plus = expected.find('+');
            const auto a = std::stoll(expected.substr(0, plus)), b = std::stoll(expected.substr(plus + 1));
            REQUIRE(task->is_held_out(std::to_string(b) + "+" + std::to_string(a) + "=") == false);
            expected = std::to_string(a + b);
          }
          REQUIRE(example.output == expected);
        }
      }
    }
}

TEST_CASE("examples: batches follow from seed and step alone", "[examples][tasks]") {
  const auto inputs = [](const std::vector<Example>& examples) {
    std::vector<std::string> list;
    for (const Example& example : examples) list.push_back(example.input);
    return list;
  };
  const auto task = make_generated_task({.seed = 1}), same = make_generated_task({.seed = 1}),
             other = make_generated_task({.seed = 2});
  const auto seventh = inputs(task->training_batch(7, 4));
  CHECK(inputs(task->training_batch(8, 4)) != seventh);
  CHECK(inputs(same->training_batch(7, 4)) == seventh);
  CHECK(inputs(other->training_batch(7, 4)) != seventh);
  CHECK(inputs(task->held_out(50)) == inputs(same->held_out(50)));
  // Pinned: the same on every machine and standard library.
  CHECK(inputs(task->training_batch(0, 2)) == std::vector<std::string>{"229182907959", "840755833949"});
}

TEST_CASE("examples: small tasks have both sides, or say that they cannot", "[examples][tasks]") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto task = make_generated_task({.task = "copy", .length = 1, .symbols = 2, .seed = seed});
    CHECK(task->held_out(100).size() == 1);
    CHECK(task->training_batch(0, 8).size() == 8);
  }
  // A sixteenth of the 1110 sequences of length 1 to 3, of all of them.
  CHECK(make_generated_task({.length = 3, .min_length = 1})->held_out(1000).size() == 69);
  CHECK(make_generated_task({.length = 5, .held_out_share = 0.5})->held_out(100000).size() == 50000);
  const auto problem = [](const GeneratedTaskOptions& options) {
    return message_of([&] { make_generated_task(options); });
  };
  CHECK_THAT(problem({.symbols = 1}), Catch::Contains("only 1 input"));
  CHECK_THAT(problem({.task = "swap"}), Catch::Contains("'swap' is none of copy, reverse, sort and add"));
  CHECK_THAT(problem({.length = 0}), Catch::Contains("length is 0"));
  CHECK_THAT(problem({.length = 3, .min_length = 4}), Catch::Contains("min_length is 4"));
  CHECK_THAT(problem({.symbols = 63}), Catch::Contains("symbols is 63"));
  CHECK_THAT(problem({.held_out_share = 0}), Catch::Contains("held_out_share"));
  CHECK_THAT(problem({.held_out_share = std::nan("")}), Catch::Contains("held_out_share"));
  CHECK_THAT(problem({.task = "add", .length = 16}), Catch::Contains("digits"));
}

TEST_CASE("examples: pairs from a file", "[examples][tasks]") {
  const test::Folder folder;
  const fs::path file = folder.path / "pairs.tsv";
  std::string text = "\xEF\xBB\xBF";
  for (int i = 0; i < 100; ++i) text += "wörd" + std::to_string(i) + "\t" + std::to_string(i) + "字\r\n";
  text += "wörd7\tother\nwörd8\t8字";  // one input with two answers, one line twice, no newline at the end
  put(file, text);
  const auto task = make_pairs_task({.file = file, .held_out_share = 0.2, .seed = 3});
  std::set<std::string> tested, trained;
  for (const Example& example : task->held_out(1000)) tested.insert(example.input);
  CHECK(tested.size() == 20);
  std::multiset<std::string> first_round;
  const int64_t lines = static_cast<int64_t>(102 - task->held_out(1000).size()) -
                        (task->is_held_out("wörd8") ? 1 : 0);  // the double line counts once where it is held out
  for (const Example& example : task->training_batch(0, lines)) {
    trained.insert(example.input);
    first_round.insert(example.input + "\t" + example.output);
    CHECK(tested.count(example.input) == 0);
  }
  CHECK(trained.size() == 80);
  std::multiset<std::string> second_round;
  std::vector<std::string> order[2];
  for (int64_t step = 0; step < lines; ++step) order[0].push_back(task->training_batch(step, 1)[0].input);
  for (int64_t step = lines; step < 2 * lines; ++step) {
    const auto example = task->training_batch(step, 1)[0];
    second_round.insert(example.input + "\t" + example.output);
    order[1].push_back(example.input);
  }
  CHECK(first_round == second_round);
  CHECK(order[0] != order[1]);
  CHECK(task->vocabulary().decode(task->vocabulary().encode("wörd字")) == "wörd字");
  CHECK(task->longest_input() == 6);

  const auto problem = [&](const std::string& lines_of_file) {
    put(file, lines_of_file);
    const std::string message = message_of([&] { make_pairs_task({.file = file, .max_length = 5}); });
    return message.starts_with(file.string()) ? message.substr(file.string().size()) : "unnamed: " + message;
  };
  CHECK(problem("a\tb\nab\n") == ":2: no tab; a line is an input, a tab and an output");
  CHECK(problem("a\tb\n\nc\td\n") == ":2: no tab; a line is an input, a tab and an output");
  CHECK(problem("a\tb\tc\n") == ":1: more than one tab; a line is an input, a tab and an output");
  CHECK(problem("a\tb\nc\td\n\tb\n") == ":3: the input is empty");
  CHECK(problem("a\t\r\n") == ":1: the output is empty");
  CHECK(problem("a\tb\nc\tdd\xff\n") == ":2: invalid UTF-8 at byte 5 of the line");
  CHECK(problem("a\t字字字字字字\n") == ":1: the output has 6 characters; at most 5 are allowed");
  CHECK(problem("") == ": the file is empty");
  CHECK_THAT(problem("a\tb\na\tc\n"), Catch::StartsWith(": only one input"));
  fs::remove(file);
  CHECK_THAT(message_of([&] { make_pairs_task({.file = file}); }),
             Catch::EndsWith("cannot read: No such file or directory"));
  CHECK_THAT(message_of([&] { make_pairs_task({.file = folder.path}); }),
             Catch::EndsWith("cannot read: it is a folder"));
}

TEST_CASE("examples: rows of a batch", "[examples][tasks]") {
  const std::vector<Example> examples{{"", "", {5, 6, 7}, {8}}, {"", "", {9}, {5, 6}}};
  const SequenceBatch padded = pad_batch(examples);
  const int64_t none = SequenceBatch::ignored;
  CHECK(padded.rows == 2);
  CHECK(padded.input_length == 3);
  CHECK(padded.output_length == 3);
  CHECK(padded.input == std::vector<int64_t>{5, 6, 7, 9, 0, 0});
  CHECK(padded.answer == std::vector<int64_t>{1, 8, 0, 1, 5, 6});
  CHECK(padded.targets == std::vector<int64_t>{8, 2, none, 5, 6, 2});
  CHECK(padded.tokens == 5);
  CHECK(pad_batch(examples, 4, 5).answer.size() == 10);
  CHECK_THROWS_AS(pad_batch(examples, 2), std::invalid_argument);
  CHECK_THROWS_AS(pad_batch(examples, 0, 2), std::invalid_argument);

  const SequenceBatch joined = join_batch(examples);
  CHECK(joined.output_length == 5);
  CHECK(joined.answer == std::vector<int64_t>{5, 6, 7, 1, 8, 9, 1, 5, 6, 0});
  CHECK(joined.targets == std::vector<int64_t>{none, none, none, 8, 2, none, 5, 6, 2, none});
  CHECK(joined.tokens == 5);
}

}  // namespace examples_common_test
