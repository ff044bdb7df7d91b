// train_translation and translate as a user meets them: their command lines, and the files they leave.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace train_translation_test {

namespace fs = std::filesystem;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

struct Workplace : test::ProgramFolder {
  Ran run(const std::string& arguments, const std::string& program = "train_translation",
          const std::string& input = "") const {
    return run_program(program, arguments, input);
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    return metrics_without("tokens_per_second", name);
  }
};

const std::string tiny = "--width 8 --heads 2 --layers 1 --batch 4 --examples 4 --beam 2 --threads 1 ";
const std::string dictionary = "a AH0\na(2) EY1\nab AE1 B\nabe EY1 B\nbad B AE1 D\nbed B EH1 D\ndab D AE1 B\n";

}  // namespace

TEST_CASE("train_translation and translate explain every option") {
  Workplace workplace;
  const auto explained = [&](const char* program, std::initializer_list<const char*> options) {
    const Ran ran = workplace.run("--help", program);
    CHECK(ran.status == 0);
    CHECK(ran.err.empty());
    for (const char* option : options) {
      INFO(program << " " << option);
      CHECK(std::regex_search(ran.out,
                              std::regex("\n  --" + std::string(option) + "( [^ \n]+)?(  +|\n +)[^\n ][^\n]{9}")));
    }
    for (const std::string& line : lines_of(ran.out)) CHECK(line.size() <= 80);
    return ran.out;
  };
  explained("train_translation", {"task",           "pairs",
                                  "dictionary",     "source-symbols",
                                  "target-symbols", "length",
                                  "stress",         "held-out",
                                  "examples",       "beam",
                                  "length-penalty", "width",
                                  "heads",          "layers",
                                  "dropout",        "steps",
                                  "batch",          "lr",
                                  "warmup",         "decay-steps",
                                  "weight-decay",   "label-smoothing",
                                  "seed",           "threads",
                                  "precision",      "device",
                                  "name",           "checkpoint-every",
                                  "resume"});
  const std::string help = explained("translate", {"checkpoint", "beam", "n-best", "length-penalty", "threads"});
  CHECK(help.find("Usage: translate [options] [TEXT...]") != std::string::npos);
  CHECK_FALSE(fs::exists(workplace.path / "runs"));
}

TEST_CASE("train_translation refuses a bad option with one line and status 2") {
  Workplace workplace;
  std::ofstream(workplace.path / "no_tab.tsv") << "left\tright\nnothing\n";
  std::ofstream(workplace.path / "pairs.tsv") << "a\tb\nc\td\n";
  std::ofstream(workplace.path / "empty.tsv") << "";
  std::ofstream(workplace.path / "binary.dict") << std::string("a AH\n\0\0", 7);
  std::ofstream(workplace.path / "small.dict") << dictionary;
  struct Mistake {
    const char* arguments;
    const char* message;
  };
  const Mistake mistakes[] = {
      {"--task times", "--task"},
      {"--width 64 --heads 3", "--heads: 3 does not divide the width, 64"},
      {"--layers 0", "--layers"},
      {"--batch 0", "--batch"},
      {"--lr nan", "--lr"},
      {"--dropout 1", "--dropout"},
      {"--label-smoothing -1", "--label-smoothing"},
      {"--held-out 1", "--held-out"},
      {"--beam 0", "--beam"},
      {"--decay-steps 10 --warmup 10", "--warmup"},
      {"--decay-steps 10 --steps 11", "--steps"},
      {"--pairs pairs.tsv --dictionary small.dict", "--dictionary"},
      {"--pairs pairs.tsv --task dates", "--task"},
      {"--pairs pairs.tsv --stress keep", "--stress"},
      {"--dictionary small.dict --length 5", "--length"},
      {"--source-symbols words", "--source-symbols"},
      {"--pairs missing.tsv", "missing.tsv"},
      {"--pairs .", "regular file"},
      {"--pairs no_tab.tsv", "no_tab.tsv:2"},
      {"--pairs empty.tsv", "empty.tsv"},
      {"--dictionary binary.dict", "binary.dict"},
      {"--pairs pairs.tsv --length 0", "--length"},
      {"--name a/b", "--name"},
      {"--resume runs/none", "runs/none"},
      {"--stpes 5", "--steps"},
      {"dates", "dates"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const std::string given = mistake.arguments;
    const Ran ran = workplace.run(given.find("--steps") == std::string::npos ? given + " --steps 1" : given);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    INFO(ran.err);
    CHECK(lines_of(ran.err).size() == 1);
    CHECK(ran.err.rfind("train_translation: ", 0) == 0);
    CHECK(ran.err.find(mistake.message) != std::string::npos);
    CHECK_FALSE(fs::exists(workplace.path / "runs"));
  }
}

TEST_CASE("train_translation leaves metrics, configuration, checkpoint and pictures, and translate uses them") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--steps 6 --name first --seed 5");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(ran.err.empty());
  const std::vector<std::string> lines = lines_of(ran.out);
  REQUIRE(lines.size() > 2);
  const std::string result = ": exact match [0-9]+\\.[0-9][0-9]%, symbol error rate [0-9]+\\.[0-9][0-9]%";
  CHECK(std::regex_match(lines[lines.size() - 2], std::regex("held-out greedy search" + result)));
  CHECK(std::regex_match(lines.back(), std::regex("held-out beam search \\(2\\)" + result)));

  const fs::path folder = workplace.path / "runs" / "first";
  const auto metrics = workplace.metrics("first");
  REQUIRE(metrics.size() == 6);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    CHECK(metrics[i].at("step") == i + 1);
    for (const char* key : {"loss", "cross_entropy", "lr", "accuracy", "grad_norm"})
      CHECK(metrics[i].at(key).is_number());
  }
  CHECK(metrics.back().at("held_out_cross_entropy").is_number());
  const auto config = workplace.config("first");
  CHECK(config.at("task") == "dates");
  CHECK(config.at("width") == 8);
  CHECK(config.at("seed") == 5);
  CHECK(config.at("source_vocabulary").at("symbols").size() > 60);
  const auto results = nlohmann::json::parse(read_raw(folder / "results.json"));
  CHECK(results.at("greedy").at("questions") == 4);
  CHECK(results.at("beam").at("symbol_error_rate").is_number());
  for (const char* picture : {"loss.svg", "attention.svg"})
    CHECK(read_raw(folder / picture).find("</svg>") != std::string::npos);
  CHECK(read_raw(folder / "attention.svg").find("layer 1, head 2") != std::string::npos);

  const Ran texts = workplace.run("--checkpoint runs/first --threads 1 '3rd of March 1998' 03/03/1998", "translate");
  INFO(texts.err);
  REQUIRE(texts.status == 0);
  CHECK(lines_of(texts.out).size() == 2);
  const Ran typed =
      workplace.run("--checkpoint runs/first --threads 1", "translate", "3rd of March 1998\r\n03/03/1998\n");
  CHECK(typed.status == 0);
  CHECK(typed.out == texts.out);
  const Ran best = workplace.run("--checkpoint runs/first --beam 3 --n-best 2 --threads 1 03/03/1998", "translate");
  REQUIRE(lines_of(best.out).size() == 2);
  CHECK(std::regex_search(best.out, std::regex("^-?[0-9]+\\.[0-9]{4}\t")));

  struct Mistake {
    const char* arguments;
    const char* message;
  };
  const Mistake mistakes[] = {
      {"abc", "--checkpoint: must be given"},
      {"--checkpoint runs/second abc", "runs/second"},
      {"--checkpoint runs/first 1998 '\xE2\x82\xAC'", "text 2: the character '\xE2\x82\xAC' is not in"},
      {"--checkpoint runs/first --beam 2 --n-best 3 1998", "--n-best"},
      {"--checkpoint runs/first 1234567890123456789012345678901234567890123456789", "the model reads at most 48"},
      {"--checkpoint runs/broken 1998", "model.safetensors"},
      {"--checkpoint runs/other 1998", "config.json"},
      {"--checkpoint runs/empty 1998", "no checkpoint"},
  };
  fs::copy(folder, workplace.path / "runs/broken", fs::copy_options::recursive);
  auto wider = config;
  wider["width"] = 16;
  std::ofstream(workplace.path / "runs/broken/config.json") << wider;
  fs::create_directories(workplace.path / "runs/other");
  std::ofstream(workplace.path / "runs/other/config.json") << "{\"task\": \"reverse\"}";
  fs::create_directories(workplace.path / "runs/empty");
  fs::copy(folder / "config.json", workplace.path / "runs/empty/config.json");
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const Ran bad = workplace.run(mistake.arguments, "translate");
    CHECK(bad.status == 2);
    CHECK(bad.out.empty());
    INFO(bad.err);
    CHECK(lines_of(bad.err).size() == 1);
    CHECK(bad.err.find(mistake.message) != std::string::npos);
  }
}

TEST_CASE("train_translation learns words of a dictionary and pairs of any symbols") {
  Workplace workplace;
  std::ofstream(workplace.path / "small.dict") << dictionary;
  const Ran words = workplace.run(tiny + "--dictionary small.dict --stress keep --steps 3 --name words");
  INFO(words.err);
  REQUIRE(words.status == 0);
  CHECK(std::regex_match(lines_of(words.out).back(),
                         std::regex("held-out beam search \\(2\\): phoneme error rate [0-9.]+%, word error rate "
                                    "[0-9.]+%")));
  CHECK(workplace.config("words").at("target_vocabulary").at("unit") == "words");
  CHECK(workplace.run("--checkpoint runs/words BAD", "translate").status == 0);
  std::ofstream(workplace.path / "small.dict", std::ios::app) << "cab K AE1 B\n";
  const Ran changed = workplace.run("--resume runs/words --steps 4");
  CHECK(changed.status == 2);
  CHECK(changed.err.find("small.dict is not what it was") != std::string::npos);

  std::ofstream(workplace.path / "pairs.tsv") << "one two\tuno dos\ntwo\tdos\none\tuno\ntwo one\tdos uno\n";
  const Ran pairs = workplace.run(
      tiny + "--pairs pairs.tsv --source-symbols words --target-symbols words --steps 3 --held-out 0.25 --name pairs");
  INFO(pairs.err);
  REQUIRE(pairs.status == 0);
  CHECK(workplace.config("pairs").at("source_vocabulary").at("symbols").size() == 2);
}

TEST_CASE("train_translation goes on after an interruption with the same bits") {
  Workplace workplace;
  const std::string options = tiny + "--dropout 0.1 --checkpoint-every 4 --seed 2 ";
  REQUIRE(workplace.run(options + "--steps 10 --name whole").status == 0);
  REQUIRE(workplace.run(options + "--steps 5 --name parts").status == 0);
  const Ran resumed = workplace.run("--resume runs/parts --steps 10 --threads 2");
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  auto whole = workplace.metrics("whole"), parts = workplace.metrics("parts");
  REQUIRE(whole.size() == 10);
  REQUIRE(parts.size() == 10);
  for (auto* steps : {&whole, &parts})  // measured at the end of each run, and at a twentieth of its way
    for (auto& step : *steps)
      for (const char* key : {"held_out_cross_entropy", "held_out_accuracy"}) step.erase(key);
  CHECK(whole == parts);
  CHECK(lines_of(resumed.out).back() == lines_of(workplace.run("--resume runs/whole").out).back());
  const auto one = regard::load_safetensors(workplace.path / "runs/whole/checkpoints/step-10/model.safetensors");
  const auto two = regard::load_safetensors(workplace.path / "runs/parts/checkpoints/step-10/model.safetensors");
  REQUIRE(one.size() == two.size());
  for (const auto& [name, values] : one) CHECK(equal(values, two.at(name)));
  CHECK(workplace.config("parts").at("steps") == 10);

  struct Mistake {
    const char* arguments;
    const char* message;
  };
  const Mistake mistakes[] = {
      {"--resume runs/parts --width 16", "--width: 16 conflicts with 8"},
      {"--resume runs/parts --steps 5", "--steps: runs/parts has taken 10 steps already"},
      {"--resume runs/parts --steps 2001", "--steps: 2001 goes beyond --decay-steps, 2000"},
      {"--resume runs/parts --name other", "--name"},
      {"--resume runs/other", "runs/other/config.json is no configuration of train_translation"},
      {"--resume runs/none", "checkpoints: there is no checkpoint"},
  };
  fs::create_directories(workplace.path / "runs/other");
  std::ofstream(workplace.path / "runs/other/config.json") << "{\"task\": \"reverse\"}";
  fs::create_directories(workplace.path / "runs/none");
  fs::copy(workplace.path / "runs/parts/config.json", workplace.path / "runs/none/config.json");
  const std::string before = read_raw(workplace.path / "runs/parts/metrics.jsonl");
  for (const Mistake& mistake : mistakes) {
    const Ran bad = workplace.run(mistake.arguments);
    INFO(mistake.arguments << ": " << bad.err);
    CHECK(bad.status == 2);
    CHECK(bad.out.empty());
    CHECK(lines_of(bad.err).size() == 1);
    CHECK(bad.err.find(mistake.message) != std::string::npos);
  }
  CHECK(read_raw(workplace.path / "runs/parts/metrics.jsonl") == before);
  CHECK(workplace.run("--resume runs/parts --width 8 --examples 3 --beam 1").status == 0);  // the test alone, again
}

TEST_CASE("train_translation saves when it is told to stop, and goes on from there") {
  Workplace workplace;
  const std::string script = "cd '" + workplace.path.string() + "' && { '" + REGARD_EXAMPLES_DIR +
                             "/train_translation' " + tiny +
                             "--steps 1000000 --checkpoint-every 0 --name stopped >out 2>err & } ; "
                             "until [ -s runs/stopped/metrics.jsonl ]; do sleep 0.05; done; kill -TERM $!; wait $!";
  const int status = std::system(script.c_str());
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 143);
  const std::string said = read_raw(workplace.path / "err");
  INFO(said);
  CHECK(lines_of(said).size() == 1);
  CHECK(said.find("stopped by SIGTERM") != std::string::npos);
  CHECK(said.find("go on with --resume runs/stopped") != std::string::npos);
  REQUIRE_FALSE(workplace.metrics("stopped").empty());
  std::smatch behind;
  REQUIRE(std::regex_search(said, behind, std::regex("behind step ([0-9]+)")));
  const Ran resumed = workplace.run("--resume runs/stopped --steps " + std::to_string(std::stoi(behind[1]) + 1));
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK(resumed.out.find("going on behind step " + behind[1].str()) != std::string::npos);
}

TEST_CASE("train_translation says that a training diverged") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--steps 6 --lr 1e38 --warmup 0 --name wild");
  CHECK(ran.status == 1);
  INFO(ran.err);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.find("diverged") != std::string::npos);
  CHECK(fs::exists(workplace.path / "runs/wild/loss.svg"));
}

}  // namespace train_translation_test
