// train_sequence and mha_shapes as a user meets them: their command lines, and the files they leave.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/sequence_report.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace train_sequence_test {

namespace fs = std::filesystem;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

struct Workplace : test::ProgramFolder {
  Ran run(const std::string& arguments, const std::string& program = "train_sequence") const {
    return run_program(program, arguments);
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const { return metrics_without("", name); }
};

const std::string tiny = "--length 3 --width 8 --heads 2 --layers 2 --steps 6 --batch 4 --examples 5 ";

}  // namespace

TEST_CASE("train_sequence --help explains every option") {
  Workplace workplace;
  const Ran ran = workplace.run("--help");
  CHECK(ran.status == 0);
  CHECK(ran.err.empty());
  CHECK_FALSE(fs::exists(workplace.path / "runs"));
  for (const char* option : {"task",      "pairs", "length",      "min-length",       "symbols", "held-out",
                             "examples",  "width", "heads",       "layers",           "dropout", "steps",
                             "batch",     "lr",    "warmup",      "weight-decay",     "seed",    "threads",
                             "name",      "help",  "decay-steps", "checkpoint-every", "resume",  "profile",
                             "precision", "device"}) {
    INFO(option);
    // Its name, a placeholder perhaps, and behind at least two spaces or on the next line at least ten letters.
    CHECK(
        std::regex_search(ran.out, std::regex("\n  --" + std::string(option) + "( [^ \n]+)?(  +|\n +)[^\n ][^\n]{9}")));
  }
  for (const std::string& line : lines_of(ran.out)) CHECK(line.size() <= 80);
}

TEST_CASE("train_sequence refuses a bad option with one line and status 2") {
  Workplace workplace;
  std::ofstream(workplace.path / "no_tab.txt") << "left\tright\nnothing\n";
  std::ofstream(workplace.path / "pairs.txt") << "a\tb\nc\td\n";
  struct Mistake {
    const char* arguments;
    const char* message;
  };
  const Mistake mistakes[] = {
      {"--task divide", "--task"},
      {"--precision f16", "--precision: 'f16' is not f32, tf32 or bf16"},
      {"--length 0", "--length"},
      {"--length -3", "--length"},
      {"--length twelve", "twelve"},
      {"--task add --length 16", "--length"},
      {"--width 64 --heads 3", "--heads: 3 does not divide the width, 64"},
      {"--width 0", "--width"},
      {"--layers 0", "--layers"},
      {"--steps 0", "--steps"},
      {"--steps 1e3", "1e3"},
      {"--batch 0", "--batch"},
      {"--lr 0", "--lr"},
      {"--lr nan", "--lr"},
      {"--dropout 1", "--dropout"},
      {"--held-out 1", "--held-out"},
      {"--seed -1", "--seed"},
      {"--threads 0", "--threads"},
      {"--steps 10 --decay-steps 10 --warmup 10", "--warmup"},
      {"--steps 10 --decay-steps 9", "--steps"},
      {"--checkpoint-every -1", "--checkpoint-every"},
      {"--min-length 13", "--min-length"},
      {"--symbols 1 --length 3", "only 1 input"},
      {"--task add --symbols 3", "--symbols"},
      {"--pairs pairs.txt --task copy", "--task"},
      {"--pairs pairs.txt --symbols 3", "--symbols"},
      {"--pairs missing.txt", "missing.txt: cannot read"},
      {"--pairs .", "cannot read"},
      {"--pairs no_tab.txt", "no_tab.txt:2: no tab"},
      {"--name a/b", "--name"},
      {"--name ..", "--name"},
      {"--name ''", "--name"},
      {"--stpes 5", "--steps"},
      {"reverse", "reverse"},
      {"--task", "--task"},
      {"--steps 5 --steps 6", "--steps"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    // Small, so that a mistake that is let through shows at once. An option must not be there twice, though.
    const std::string given = mistake.arguments;
    std::string rest;
    for (const char* option : {"--steps 1", "--batch 2", "--examples 1"})
      if (given.find(std::string(option).substr(0, 6)) == std::string::npos) rest += std::string(" ") + option;
    const Ran ran = workplace.run(given == "--task" ? given : given + rest);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    INFO(ran.err);
    CHECK(lines_of(ran.err).size() == 1);
    CHECK(ran.err.rfind("train_sequence: ", 0) == 0);
    CHECK(ran.err.find(mistake.message) != std::string::npos);
    CHECK_FALSE(fs::exists(workplace.path / "runs"));
  }
}

TEST_CASE("train_sequence says so where it cannot write its results") {
  Workplace workplace;
  std::ofstream(workplace.path / "runs") << "a file where the folder should be";
  const Ran ran = workplace.run(tiny);
  CHECK(ran.status == 2);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.find("runs") != std::string::npos);
}

TEST_CASE("train_sequence leaves metrics, configuration, checkpoint and pictures") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--name first --seed 5 --threads 2");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(ran.err.empty());
  const std::vector<std::string> lines = lines_of(ran.out);
  REQUIRE_FALSE(lines.empty());
  CHECK(std::regex_match(lines.back(), std::regex("held-out exact match: [0-9]+\\.[0-9][0-9]%")));
  CHECK(ran.out.find("BLIS") != std::string::npos);
  CHECK(ran.out.find("step 6/6") != std::string::npos);

  const fs::path folder = workplace.path / "runs" / "first";
  const auto metrics = workplace.metrics("first");
  REQUIRE(metrics.size() == 6);  // a run this short logs every step
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    CHECK(metrics[i].at("step") == i + 1);
    for (const char* key : {"loss", "lr", "tokens_per_second", "accuracy"}) CHECK(metrics[i].at(key).is_number());
  }
  CHECK(metrics.back().at("held_out_loss").is_number());

  const auto config = nlohmann::json::parse(read_raw(folder / "config.json"));
  CHECK(config.at("task") == "reverse");
  CHECK(config.at("length") == 3);
  CHECK(config.at("width") == 8);
  CHECK(config.at("heads") == 2);
  CHECK(config.at("layers") == 2);
  CHECK(config.at("steps") == 6);
  CHECK(config.at("batch") == 4);
  CHECK(config.at("seed") == 5);
  CHECK(config.at("threads") == 2);
  CHECK(config.contains("lr"));
  std::smatch version;
  const std::string cmake = read_raw(fs::path(REGARD_SOURCE_DIR) / "CMakeLists.txt");
  REQUIRE(std::regex_search(cmake, version, std::regex("project\\(regard VERSION ([0-9.]+)")));
  CHECK(config.at("version") == version[1].str());

  // The checkpoint is one that a model of that configuration takes.
  const regard::SafetensorsFile checkpoint = regard::load_safetensors_file(folder / "checkpoint.safetensors");
  examples::SequenceModel model(
      {.vocabulary = 13, .longest_input = 3, .longest_output = 3, .width = 8, .heads = 2, .layers = 2});
  CHECK(model.load_state_dict(checkpoint.tensors).complete());
  CHECK(model.parameter_count() == config.at("parameters").get<int64_t>());
  CHECK(nlohmann::json::parse(checkpoint.metadata.at("config")).at("seed") == 5);

  for (const char* picture : {"loss.svg", "attention.svg"}) {
    const std::string svg = read_raw(folder / picture);
    CHECK(svg.find("<svg") != std::string::npos);
    CHECK(svg.find("</svg>") != std::string::npos);
  }
  CHECK(read_raw(folder / "attention.svg").find("layer 2, head 2") != std::string::npos);

  // The same name again: nothing is lost.
  const std::string before = read_raw(folder / "metrics.jsonl");
  CHECK(workplace.run(tiny + "--name first --seed 6").status == 0);
  CHECK(read_raw(workplace.path / "runs" / "first.1" / "metrics.jsonl") == before);
  CHECK(read_raw(folder / "metrics.jsonl") != before);
}

TEST_CASE("train_sequence learns pairs of any text") {
  Workplace workplace;
  {
    std::ofstream pairs(workplace.path / "pairs.txt");
    for (const char* word : {"één", "twee", "drie", "vier", "vijf", "zes", "zeven", "acht"})
      pairs << word << "\t"
            << "nr. " << word << "\r\n";
  }
  const Ran ran = workplace.run("--pairs pairs.txt --width 8 --heads 1 --layers 1 --steps 3 --batch 4 --held-out 0.25");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(ran.out.find("of 2 right") != std::string::npos);
  CHECK(nlohmann::json::parse(read_raw(workplace.path / "runs" / "pairs-1" / "config.json")).at("pairs") ==
        "pairs.txt");
}

TEST_CASE("train_sequence gives equal bits for one and two threads") {
  Workplace workplace;
  const std::string options = "--steps 12 --batch 32 --dropout 0.1 --examples 8 ";
  REQUIRE(workplace.run(options + "--threads 1 --name one").status == 0);
  REQUIRE(workplace.run(options + "--threads 2 --name two").status == 0);
  REQUIRE(workplace.run(options + "--threads 2 --seed 2 --name other").status == 0);
  const auto curve = [&](const char* name) {
    std::vector<nlohmann::json> steps = workplace.metrics(name);
    for (auto& step : steps) step.erase("tokens_per_second");
    return steps;
  };
  REQUIRE(curve("one").size() == 12);
  CHECK(curve("one") == curve("two"));  // numbers are written so that reading gives the same bits
  CHECK(curve("one") != curve("other"));
  const auto one = regard::load_safetensors(workplace.path / "runs/one/checkpoint.safetensors");
  const auto two = regard::load_safetensors(workplace.path / "runs/two/checkpoint.safetensors");
  REQUIRE(one.size() == two.size());
  for (const auto& [name, values] : one) {
    INFO(name);
    CHECK(equal(values, two.at(name)));
  }
}

TEST_CASE("train_sequence says that a training diverged") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--lr 1e38 --warmup 0 --name wild");
  CHECK(ran.status == 1);
  INFO(ran.err);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.find("diverged") != std::string::npos);
  CHECK(ran.out.find("exact match") == std::string::npos);
  const auto metrics = workplace.metrics("wild");
  REQUIRE(metrics.size() >= 2);
  const auto finite = [](const nlohmann::json& value) { return value.is_number(); };
  CHECK(finite(metrics.front().at("loss")));
  const nlohmann::json &loss = metrics.back().at("loss"), &norm = metrics.back().at("grad_norm");
  CHECK((!finite(loss) || !finite(norm)));
  CHECK(!loss.is_null());
  CHECK(!norm.is_null());
  CHECK(fs::exists(workplace.path / "runs/wild/config.json"));
  CHECK(fs::exists(workplace.path / "runs/wild/loss.svg"));
}

TEST_CASE("a training step of the sequence model changes every parameter") {
  regard::manual_seed(3);
  const auto task = examples::make_generated_task({.task = "reverse", .length = 4, .min_length = 2, .seed = 3});
  examples::SequenceModel model({.vocabulary = task->vocabulary().size(),
                                 .longest_input = task->longest_input(),
                                 .longest_output = task->longest_output(),
                                 .width = 16,
                                 .heads = 2,
                                 .layers = 2});
  regard::StateDict before;
  for (const auto& [name, value] : model.state_dict()) before[name] = value.clone();
  examples::SequenceOptions options;
  options.steps = 1;
  options.batch = 16;
  options.lr = 1e-2;
  options.weight_decay = 0;  // decay changes a parameter without a gradient, too
  Workplace workplace;
  examples::MetricsWriter metrics(workplace.path / "metrics.jsonl");
  std::ostringstream ignored;
  train_sequences(model, *task, options, task->held_out(4), metrics, {.stream = &ignored, .terminal = false});
  REQUIRE(before.size() == model.named_parameters().size());
  for (const auto& [name, value] : model.named_parameters()) {
    INFO(name);
    CHECK_FALSE(equal(value, before.at(name)));
  }
}

TEST_CASE("the sequence model learns, and answers with its own words only") {
  regard::manual_seed(4);
  const auto task =
      examples::make_generated_task({.task = "reverse", .length = 3, .min_length = 1, .symbols = 5, .seed = 4});
  examples::SequenceModel model({.vocabulary = task->vocabulary().size(),
                                 .longest_input = task->longest_input(),
                                 .longest_output = task->longest_output(),
                                 .width = 32,
                                 .heads = 2,
                                 .layers = 2});
  examples::SequenceOptions options;
  options.steps = 250;
  options.batch = 32;
  options.lr = 3e-3;
  options.warmup = 20;
  Workplace workplace;
  examples::MetricsWriter metrics(workplace.path / "metrics.jsonl");
  std::ostringstream ignored;
  const auto held_out = task->held_out(100);
  REQUIRE(held_out.size() >= 5);
  const auto course =
      train_sequences(model, *task, options, held_out, metrics, {.stream = &ignored, .terminal = false});
  CHECK(course.losses.back() < 0.05);
  // An example's expected output must play no part in its answer.
  auto questions = held_out;
  for (auto& question : questions) question.output_tokens.clear();
  const auto answers = answer(model, questions);
  CHECK(answers == answer(model, held_out, 1));
  int right = 0;
  for (std::size_t i = 0; i < held_out.size(); ++i) right += answers[i] == held_out[i].output_tokens;
  CHECK(right == static_cast<int>(held_out.size()));
  const auto test = examples::test_sequences(model, held_out);
  CHECK(test.exact_match() == 1.0);
}

TEST_CASE("mha_shapes prints the shapes that go in and come out") {
  Workplace workplace;
  const Ran ran = workplace.run("", "mha_shapes");
  CHECK(ran.status == 0);
  const auto lines = lines_of(ran.out);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "輸入形狀: [4, 10, 512]");
  CHECK(lines[1] == "輸出形狀: [4, 10, 512]");
  CHECK(lines[2] == "[2, 3, 6]");
}

TEST_CASE("train_sequence --profile writes a trace of a few steps, shows a table, and changes no number") {
  Workplace workplace;
  const Ran plain = workplace.run(tiny + "--name plain");
  const Ran profiled = workplace.run(tiny + "--name profiled --profile trace.json");
  REQUIRE(plain.status == 0);
  REQUIRE(profiled.status == 0);
  CHECK(plain.out.find("profile of") == std::string::npos);
  CHECK(profiled.out.find("profile of 5 steps, after 1:") != std::string::npos);  // of six in all
  CHECK(profiled.out.find("linear backward") != std::string::npos);
  CHECK(profiled.out.find("blocks.0.attention") != std::string::npos);
  const nlohmann::json trace = nlohmann::json::parse(read_raw(workplace.path / "trace.json"));
  int steps = 0, optimizer = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "step") ++steps;
    if (event.at("name") == "adam_step") ++optimizer;
  }
  CHECK(steps == 5);
  CHECK(optimizer > 0);
  CHECK(read_raw(workplace.path / "runs/plain/checkpoint.safetensors").size() ==
        read_raw(workplace.path / "runs/profiled/checkpoint.safetensors").size());
  const auto losses = [&](const std::string& name) {
    std::vector<double> list;
    for (const nlohmann::json& line : workplace.metrics(name)) list.push_back(line.at("loss"));
    return list;
  };
  CHECK(losses("plain") == losses("profiled"));
  CHECK_FALSE(workplace.config("profiled").contains("profile"));

  const Ran resumed = workplace.run("--resume runs/profiled --profile again.json");
  CHECK(resumed.status == 2);  // there is nothing left to do
  for (const auto& [file, message] : {std::pair{"missing/t.json", "--profile: there is no folder missing"},
                                      {".", "--profile: . is a folder; give a file"}}) {
    const Ran refused = workplace.run(tiny + "--name refused --profile " + file);
    CHECK(refused.status == 2);
    CHECK(refused.err.find(message) != std::string::npos);
    CHECK_FALSE(fs::exists(workplace.path / "runs/refused"));
  }
}

}  // namespace train_sequence_test
