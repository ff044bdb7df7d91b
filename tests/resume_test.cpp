// Runs that go on: train_sequence --resume, told to stop, killed, with a full disk, or asked for something else.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regard/autograd/matmul_precision.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/optim/checkpoint.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "program_folder.hpp"

namespace resume_test {

namespace fs = std::filesystem;
using Catch::Contains;
using test::error_of;
using test::Ran;

namespace {

// A model that takes no time, and dropout, so that the random state matters.
const std::string tiny = " --length 3 --width 8 --heads 2 --layers 1 --batch 4 --examples 5 --dropout 0.2 --threads 1";

struct Workplace : test::ProgramFolder {
  Ran run(const std::string& arguments, const std::string& before = "") const {
    return run_program("train_sequence", arguments, "", before);
  }
  void must_run(const std::string& arguments) const {
    const Ran ran = run(arguments);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
  }
  // One line on standard error, status 2, and nothing in the run's folder has changed.
  std::string refused(const std::string& arguments, const std::string& before = "") const {
    const auto before_it = contents();
    const Ran ran = run(arguments, before);
    INFO(ran.err);
    CHECK(ran.status == 2);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
    CHECK(contents() == before_it);
    return ran.err;
  }
  std::vector<std::pair<std::string, std::string>> contents() const {
    std::vector<std::pair<std::string, std::string>> all;
    if (fs::exists(path / "runs"))
      for (const auto& entry : fs::recursive_directory_iterator(path / "runs"))
        all.emplace_back(entry.path().string(), entry.is_regular_file() ? test::read_raw(entry.path()) : "");
    std::sort(all.begin(), all.end());
    return all;
  }
  // What may not differ between runs with and without a break: every line, to the bit, but for the time it took, and
  // for the held-out loss, which a run's last line has besides.
  std::vector<std::string> losses(const std::string& name) const {
    std::vector<std::string> lines;
    for (auto line : examples::read_metrics(path / "runs" / name / "metrics.jsonl")) {
      for (const char* key : {"tokens_per_second", "held_out_loss", "held_out_accuracy"}) line.erase(key);
      lines.push_back(line.dump());
    }
    return lines;
  }
  int64_t last_step(const std::string& name) const {
    const auto lines = examples::read_metrics(path / "runs" / name / "metrics.jsonl");
    return lines.empty() ? 0 : lines.back().at("step").get<int64_t>();
  }
  void check_same(const std::string& a, const std::string& b) const {
    CHECK(losses(a) == losses(b));
    CHECK(test::read_raw(path / "runs" / a / "checkpoint.safetensors").size() > 1000);
    const auto newest = [&](const std::string& name) {
      const fs::path latest = path / "runs" / name / "checkpoints" / ("step-" + std::to_string(last_step(name)));
      return test::read_raw(latest / "model.safetensors") + test::read_raw(latest / "optimizer.safetensors");
    };
    CHECK(newest(a).size() > 1000);
    CHECK(newest(a) == newest(b));
  }

  // Starts a run in the background, waits for `lines` lines of metrics, and sends the signal.
  int interrupted(const std::string& arguments, const std::string& name, size_t lines, int signal) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const int log = ::open((path / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      ::dup2(log, STDERR_FILENO);
      ::dup2(log, STDOUT_FILENO);
      ::signal(SIGINT, SIG_DFL);
      const std::string command = "cd '" + path.string() + "' && exec '" + REGARD_EXAMPLES_DIR + "/train_sequence' " +
                                  arguments + " </dev/null";
      ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    const fs::path metrics = path / "runs" / name / "metrics.jsonl";
    bool there = false;
    for (int i = 0; i < 60000 && !there; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::string text = test::read_raw(metrics);
      there = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) >= lines;
    }
    CHECK(there);
    ::kill(child, signal);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

}  // namespace

TEST_CASE("a run that goes on writes the losses of one that was never ended") {
  const Workplace workplace;
  workplace.must_run("--steps 40 --name whole" + tiny);
  workplace.must_run("--steps 20 --name parts" + tiny);
  const Ran ran = workplace.run("--resume runs/parts --steps 40");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains("going on behind step 20") && Contains("held-out exact match"));
  REQUIRE(workplace.losses("whole").size() == 40);
  workplace.check_same("whole", "parts");
  CHECK(test::read_raw(workplace.path / "runs/whole/checkpoint.safetensors") ==
        test::read_raw(workplace.path / "runs/parts/checkpoint.safetensors"));
  CHECK(nlohmann::json::parse(test::read_raw(workplace.path / "runs/parts/config.json")).at("steps") == 40);

  // In many parts, with another number of threads; a slash at the end; options that agree.
  workplace.must_run("--steps 1 --name many" + tiny);
  workplace.must_run("--resume runs/many/ --steps 7 --threads 2 --checkpoint-every 3");
  workplace.must_run("--resume ./runs/many --steps 8 --width 8 --dropout 2e-1 --task reverse");
  workplace.must_run("--resume runs/many --steps 40");
  workplace.check_same("whole", "many");
}

TEST_CASE("a run whose products are in bf16 goes on so, to the last bit") {
  const Workplace workplace;
  const std::string options = " --length 3 --width 32 --heads 2 --layers 1 --batch 16 --examples 5 --threads 1";
  const auto begun = [&](const std::string& name, const std::string& steps, const std::string& precision) {
    const Ran ran = workplace.run("--steps " + steps + " --name " + name + precision + options);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return ran.out;
  };
  const bool available = regard::bf16_matmul_available();
  const std::string said = available ? "precision matrix products in bf16, all else in f32"
                                     : "precision f32: this processor has no fast products in bf16";
  CHECK_THAT(begun("whole", "12", " --precision bf16"), Contains(said));
  begun("parts", "6", " --precision bf16");
  const Ran ran = workplace.run("--resume runs/parts --steps 12");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains(said));
  workplace.check_same("whole", "parts");
  const auto config = [&](const std::string& name) { return workplace.path / "runs" / name / "config.json"; };
  CHECK(nlohmann::json::parse(test::read_raw(config("parts"))).at("precision") == "bf16");
  CHECK_THAT(workplace.refused("--resume runs/parts --steps 13 --precision f32"),
             Contains("--precision: f32 conflicts with bf16"));

  CHECK_THAT(begun("plain", "12", ""), !Contains("precision"));
  CHECK((workplace.losses("plain") != workplace.losses("whole")) == available);
  // A run from before there was a choice.
  begun("earlier", "6", "");
  auto without = nlohmann::ordered_json::parse(test::read_raw(config("earlier")));
  CHECK(without.erase("precision") == 1);
  std::ofstream(config("earlier")) << without.dump();
  workplace.must_run("--resume runs/earlier --steps 12");
  workplace.check_same("plain", "earlier");
}

TEST_CASE("a run whose last steps no checkpoint has takes them again") {
  const Workplace workplace;
  workplace.must_run("--steps 12 --name whole" + tiny);
  workplace.must_run("--steps 12 --name a --checkpoint-every 5" + tiny);
  // As if it had died behind step 12, with half a line written.
  const fs::path folder = workplace.path / "runs/a";
  fs::remove_all(folder / "checkpoints/step-12");
  std::ofstream(folder / "metrics.jsonl", std::ios::app) << std::string(20, '\0') << "\n{\"step\":13,\"lo";
  workplace.must_run("--resume runs/a");  // up to the steps that it was to take
  CHECK(workplace.losses("a").size() == 12);
  workplace.check_same("whole", "a");
}

TEST_CASE("a run that was killed behind its last checkpoint is finished, and what it left half-written is removed") {
  const Workplace workplace;
  workplace.must_run("--steps 4 --name a" + tiny);
  const fs::path folder = workplace.path / "runs/a";
  CHECK(nlohmann::json::parse(test::read_raw(folder / "results.json")).at("step") == 4);
  const std::string weights = test::read_raw(folder / "checkpoint.safetensors");
  const auto losses = workplace.losses("a");
  for (const char* last : {"checkpoint.safetensors", "attention.svg", "results.json"}) fs::remove(folder / last);
  for (const char* half : {".tmp-12-3", ".regard-12-3.tmp"}) std::ofstream(folder / half) << "half";
  fs::create_directories(folder / "checkpoints/.step-4-12-3.partial/inside");
  std::ofstream(folder / ".tmp-own") << "not the program's";

  workplace.must_run("--resume runs/a");
  CHECK(test::read_raw(folder / "checkpoint.safetensors") == weights);
  CHECK(workplace.losses("a") == losses);
  CHECK(fs::exists(folder / "attention.svg"));
  CHECK_FALSE(fs::exists(folder / ".tmp-12-3"));
  CHECK_FALSE(fs::exists(folder / ".regard-12-3.tmp"));
  CHECK_FALSE(fs::exists(folder / "checkpoints/.step-4-12-3.partial"));
  CHECK(fs::exists(folder / ".tmp-own"));
  CHECK_THAT(workplace.refused("--resume runs/a"), Contains("has taken 4 steps already"));
}

TEST_CASE("Ctrl-C and SIGTERM end a run behind a checkpoint") {
  const Workplace workplace;
  const std::string endless = "--steps 1000000 --decay-steps 1000000 --seed 3" + tiny;
  struct {
    int signal;
    const char* name;
  } const signals[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}};
  for (const auto& one : signals) {
    const std::string name = one.name;
    CHECK(workplace.interrupted(endless + " --name " + name, name, 5, one.signal) == 128 + one.signal);
    const std::string err = test::read_raw(workplace.path / "err");
    CHECK_THAT(err, Contains("train_sequence: stopped by " + name + " behind step ") &&
                        Contains("go on with --resume runs/" + name + "\n"));
    const int64_t step = std::stoll(err.substr(err.find("behind step ") + 12));
    CHECK(fs::exists(workplace.path / "runs" / name / "checkpoints" / ("step-" + std::to_string(step))));
    const std::string steps = std::to_string((step / 10 + 1) * 10);
    workplace.must_run("--resume runs/" + name + " --steps " + steps);
    workplace.must_run("--steps " + steps + " --decay-steps 1000000 --seed 3 --name whole" + tiny);
    workplace.check_same(name, "whole");
  }
}

TEST_CASE("a run that is killed between its last step and its results can be gone on with to have them") {
  const Workplace workplace;
  workplace.must_run("--steps 4 --decay-steps 4 --name whole" + tiny);
  workplace.must_run("--steps 2 --decay-steps 4 --name parts" + tiny);
  const fs::path weights = workplace.path / "runs/parts/checkpoint.safetensors";
  const fs::path results = workplace.path / "runs/parts/results.json";
  const std::string older = test::read_raw(weights), older_results = test::read_raw(results);
  workplace.must_run("--resume runs/parts --steps 4");
  const std::string written = test::read_raw(weights);
  CHECK(written == test::read_raw(workplace.path / "runs/whole/checkpoint.safetensors"));
  for (const bool none : {true, false}) {
    INFO(none);
    if (none) {
      fs::remove(weights);
      fs::remove(results);
    } else {  // of the first two steps
      workplace.file("runs/parts/checkpoint.safetensors", older);
      workplace.file("runs/parts/results.json", older_results);
    }
    const Ran ran = workplace.run("--resume runs/parts");
    INFO(ran.err);
    CHECK(ran.status == 0);
    CHECK_THAT(ran.out, Contains("held-out exact match"));
    CHECK(test::read_raw(weights) == written);
    workplace.check_same("whole", "parts");
  }
  CHECK(workplace.run("--resume runs/parts").status == 2);
}

TEST_CASE("a run that is killed goes on from its last checkpoint") {
  const Workplace workplace;
  CHECK(workplace.interrupted("--steps 1000000 --decay-steps 1000000 --checkpoint-every 2 --name a" + tiny, "a", 9,
                              SIGKILL) == -SIGKILL);
  // Lines come at each of the first hundred steps, and then at every tenth.
  const std::string steps = std::to_string((workplace.last_step("a") / 10 + 1) * 10);
  workplace.must_run("--resume runs/a --steps " + steps);
  workplace.must_run("--steps " + steps + " --decay-steps 1000000 --name whole" + tiny);
  workplace.check_same("whole", "a");
}

TEST_CASE("what conflicts with the run that goes on is refused, and the run is left as it is") {
  const Workplace workplace;
  workplace.file("pairs.tsv", "a\tb\nc\td\ne\tf\n");
  workplace.must_run("--steps 4 --name a" + tiny);
  workplace.must_run("--steps 2 --pairs pairs.tsv --name p --width 8 --heads 2 --layers 1 --batch 2 --lr 1e-3");
  const auto refused = [&](const std::string& arguments) { return workplace.refused(arguments); };
  CHECK_THAT(refused("--resume runs/a --steps 8 --width 16"),
             Contains("--width: 16 conflicts with 8") && Contains("runs/a"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --lr 1e-3"), Contains("--lr: 0.001 conflicts with 0.003"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --task sort"), Contains("--task: sort conflicts with reverse"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --pairs pairs.tsv"), Contains("--pairs: has no meaning with --resume"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --seed 2"), Contains("--seed: 2 conflicts with 1"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --decay-steps 700"), Contains("--decay-steps: 700 conflicts with 600"));
  CHECK_THAT(refused("--resume runs/a --steps 8 --name b"), Contains("--name: has no meaning with --resume"));
  CHECK_THAT(refused("--resume runs/a --steps 601"), Contains("--steps: 601 goes beyond --decay-steps, 600"));
  CHECK_THAT(refused("--resume runs/a --steps 4"), Contains("--steps: runs/a has taken 4 steps already"));
  CHECK_THAT(refused("--resume runs/a"), Contains("has taken 4 steps already"));
  CHECK_THAT(refused("--resume runs/none --steps 8"), Contains("--resume: 'runs/none' is no folder"));
  CHECK_THAT(refused("--resume runs --steps 8"), Contains("runs/config.json cannot be read"));
  CHECK_THAT(refused("--steps 20 --decay-steps 10"), Contains("--steps: 20 goes beyond --decay-steps, 10"));

  // The data must be what it was.
  workplace.must_run("--resume runs/p --steps 3 --pairs pairs.tsv");
  workplace.file("pairs.tsv", "a\tb\nc\td\ne\tx\n");
  CHECK_THAT(refused("--resume runs/p --steps 4"), Contains("the data has changed") && Contains("pairs.tsv"));
  workplace.file("pairs.tsv", "");
  CHECK_THAT(refused("--resume runs/p --steps 4"), Contains("pairs.tsv: the file is empty"));
  fs::remove(workplace.path / "pairs.tsv");
  CHECK_THAT(refused("--resume runs/p --steps 4"), Contains("pairs.tsv, from which the run in runs/p learned"));
}

TEST_CASE("damage to a run's folder is told, and nothing is lost") {
  const Workplace workplace;
  workplace.must_run("--steps 4 --checkpoint-every 2 --name a" + tiny);
  const fs::path folder = workplace.path / "runs/a";
  const auto with = [&](const std::string& name, const std::string& bytes) {
    const std::string good = test::read_raw(folder / name);
    std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << bytes;
    const std::string message = workplace.refused("--resume runs/a --steps 8");
    std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << good;
    return message;
  };
  const std::string config = test::read_raw(folder / "config.json");
  CHECK_THAT(with("config.json", "{\"task\""), Contains("runs/a/config.json: it is damaged"));
  CHECK_THAT(with("config.json", "{\"wdith\": 8}"), Contains("runs/a/config.json: --wdith: unknown option"));
  CHECK_THAT(with("config.json", "{\"heads\": 0}"), Contains("runs/a/config.json: --heads: 0 is out of range"));
  auto other = nlohmann::ordered_json::parse(config);
  other["width"] = 16;
  CHECK_THAT(with("config.json", other.dump()),
             Contains("model.safetensors: it does not fit the model") && Contains("[8"));
  CHECK_THAT(with("metrics.jsonl", "{\"step\":1}\nnonsense\n{\"step\":2}\n"), Contains("metrics.jsonl:2"));

  // The disk is full: the run ends with an error; what it had is there, and it goes on later.
  const Ran full = workplace.run("--resume runs/a --steps 8", "trap '' XFSZ; ulimit -f 2;");
  CHECK(full.status == 2);
  CHECK_THAT(full.err, Contains("cannot write"));
  CHECK(fs::exists(folder / "checkpoints/step-4/state.json"));
  workplace.must_run("--resume runs/a --steps 8");
  workplace.must_run("--steps 8 --name whole" + tiny);
  workplace.check_same("whole", "a");

  // Two programs at once would mix their lines.
  {
    const examples::RunLock held(folder);
    CHECK_THAT(workplace.refused("--resume runs/a --steps 9"), Contains("another program is writing to this run"));
    CHECK_THAT(workplace.refused("--steps 2 --name a" + tiny), Contains("another program is writing to this run"));
  }
  workplace.must_run("--resume runs/a --steps 9");
  fs::remove_all(folder / "checkpoints");
  CHECK_THAT(workplace.refused("--resume runs/a --steps 20"), Contains("there is no checkpoint in it"));
}

TEST_CASE("a run that goes on tells the time left from its own steps") {
  using namespace examples;  // NOLINT(google-build-using-namespace)
  const test::Folder folder;
  const auto task = make_generated_task({.task = "copy", .length = 2, .symbols = 4});
  const std::vector<Example> held_out = task->held_out(1);
  SequenceOptions options;
  options.batch = 2;
  options.decay_steps = 40;
  regard::optim::Checkpoints checkpoints(folder.path / "checkpoints");
  // Trains up to `steps` with a clock that ticks once a step; returns what was said of the first step.
  const auto first_line = [&](int64_t steps, bool resume) {
    options.steps = steps;
    SequenceModel model({.vocabulary = task->vocabulary().size(),
                         .longest_input = task->longest_input(),
                         .longest_output = task->longest_output(),
                         .width = 4,
                         .heads = 1,
                         .layers = 1});
    SequenceTraining training(model, *task, options);
    if (resume) training.resume(checkpoints);
    std::ostringstream said;
    double now = 0;
    MetricsWriter metrics(folder.path / "metrics.jsonl", training.step());
    TrainingCourse course;
    training.run(course, held_out, metrics, {.folder = &checkpoints}, nullptr,
                 {.stream = &said, .terminal = false, .seconds = [&] { return now++; }});
    return said.str().substr(0, said.str().find('\n'));
  };
  CHECK_THAT(first_line(20, false), Contains("step 1/20") && Contains("0:19 left"));
  CHECK_THAT(first_line(40, true), Contains("step 21/40") && Contains("0:19 left"));
}

TEST_CASE("a configuration becomes a command line again") {
  const auto config = nlohmann::ordered_json::parse(
      R"({"task":"sort","lr":0.003,"weight_decay":1e-05,"seed":9007199254740993,"quiet":true,"loud":false,"none":null,"version":"1"})");
  CHECK(examples::command_line("program", config, {"version"}) ==
        std::vector<std::string>{"program", "--task=sort", "--lr=0.003", "--weight-decay=1e-05",
                                 "--seed=9007199254740993", "--quiet"});
}

TEST_CASE("signals to stop are remembered, the second one ends") {
  {
    const examples::StopSignals stop;
    CHECK(stop.signal() == 0);
    ::raise(SIGTERM);
    CHECK(stop.signal() == SIGTERM);
    CHECK(stop.name() == "SIGTERM");
    CHECK(stop.exit_status() == 143);
    struct sigaction now {};
    ::sigaction(SIGTERM, nullptr, &now);
    CHECK(now.sa_handler == SIG_DFL);
  }
  const examples::StopSignals again;
  CHECK(again.signal() == 0);
}

}  // namespace resume_test
