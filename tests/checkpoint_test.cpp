// Checkpoints: all of a training comes back to the bit, or an error says what is wrong and nothing has changed.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/random.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/activation.hpp>
#include <regard/layers/dropout.hpp>
#include <regard/layers/linear.hpp>
#include <regard/layers/sequential.hpp>
#include <regard/optim/adam.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/checkpoint_files.hpp>
#include <regard/optim/schedule.hpp>
#include <regard/optim/sgd.hpp>

#include "test_folder.hpp"

namespace checkpoint_test {

using namespace regard;
using namespace regard::optim;
using Catch::Contains;
using test::error_of;
using test::Folder;
namespace fs = std::filesystem;

namespace {

// A small training with all that a checkpoint holds.
struct Training {
  layers::Sequential model;
  AdamW optimizer;
  WarmupCosine schedule;
  Generator dropout{11}, noise{12};
  StateDict average;
  TrainingState state;

  explicit Training(int64_t hidden = 5)
      : model(layers::Linear(3, hidden), layers::Tanh(), layers::Linear(hidden, 2)),
        optimizer(model.parameters(), {.lr = 0.05}),
        schedule(optimizer, {.warmup_steps = 3, .total_steps = 50}),
        state{model, &optimizer, &schedule, &dropout} {
    state.generators["noise"] = &noise;
    state.extra["average"] = snapshot(model.state_dict());
  }
  static StateDict snapshot(const StateDict& tensors) {
    StateDict copy;
    for (const auto& [name, tensor] : tensors) copy[name] = tensor.clone();
    return copy;
  }

  double step() {
    Tensor x = randn({4, 3}, {}, noise);
    Tensor mask = bernoulli(full({4, 3}, 0.5), dropout);
    Tensor loss = mse_loss(model(x * mask), x.slice(1, 0, 2));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    schedule.step();
    ++state.step;
    NoGrad no_grad;
    for (auto& [name, tensor] : state.extra["average"]) tensor = tensor * 0.9 + model.state_dict().at(name) * 0.1;
    return loss.item<double>();
  }
  std::vector<double> run(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) losses.push_back(step());
    return losses;
  }
};

bool same(const StateDict& a, const StateDict& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& one) {
           const auto other = b.find(one.first);
           return other != b.end() && one.second.shape() == other->second.shape() && equal(one.second, other->second);
         });
}

// Everything that loading may change, to tell that nothing has.
struct Snapshot {
  StateDict model, optimizer, average;
  int64_t schedule, step;
  uint64_t dropout, noise;
  std::string data;
  explicit Snapshot(const Training& t)
      : model(Training::snapshot(t.model.state_dict())),
        optimizer(t.optimizer.state_dict()),
        average(Training::snapshot(t.state.extra.at("average"))),
        schedule(t.schedule.current_step()),
        step(t.state.step),
        dropout(t.dropout.offset()),
        noise(t.noise.offset()),
        data(t.state.data) {}
  bool operator==(const Snapshot& o) const {
    return same(model, o.model) && same(optimizer, o.optimizer) && same(average, o.average) && schedule == o.schedule &&
           step == o.step && dropout == o.dropout && noise == o.noise && data == o.data;
  }
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
using Names = std::vector<std::string>;

struct SilentWarnings {
  static inline std::vector<std::string> seen;
  WarningHandler former = set_warning_handler([](const std::string& text) { seen.push_back(text); });
  SilentWarnings() { seen.clear(); }
  ~SilentWarnings() { set_warning_handler(former); }
};

template <class F>
int status_of_child(const F& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(f());
    } catch (...) {
      ::_exit(99);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("a training that goes on from a checkpoint computes the same bits") {
  Folder folder;
  manual_seed(5);
  Training whole;
  const std::vector<double> first = whole.run(7);
  Checkpoints checkpoints(folder.path / "runs/a/checkpoints");
  whole.state.data = R"({"order":{"epoch":2,"batch":5},"name":"é"})";
  const fs::path path = checkpoints.save(whole.state, 0.5);
  CHECK(path.filename() == "step-7");
  CHECK(names_in(path) == Names{"average.safetensors", "model.safetensors", "optimizer.safetensors", "state.json"});
  const std::vector<double> rest = whole.run(6);

  manual_seed(6);
  Training resumed;  // other weights
  resumed.run(2);    // and in another state
  const CheckpointInfo info = checkpoints.load_latest(resumed.state);
  CHECK(info.path == path);
  CHECK(info.step == 7);
  CHECK(info.metric == 0.5);
  CHECK(resumed.state.step == 7);
  CHECK(nlohmann::json::parse(resumed.state.data) == nlohmann::json::parse(whole.state.data));
  CHECK(resumed.optimizer.lr() == resumed.schedule.lr_at(7, 0.05));
  CHECK(resumed.run(6) == rest);
  CHECK(Snapshot(resumed) == Snapshot(whole));

  std::string data;
  CHECK(inspect_checkpoint(path, &data).step == 7);
  CHECK(nlohmann::json::parse(data).at("order").at("batch") == 5);
}

TEST_CASE("a checkpoint of the model alone, and the default generator") {
  Folder folder;
  layers::Linear model(2, 3);
  manual_seed(3);
  rand({5});
  TrainingState state{model};
  state.step = 4;
  save_checkpoint(folder.path / "only", state);
  CHECK(names_in(folder.path / "only") == Names{"model.safetensors", "state.json"});
  const Tensor next = rand({4});
  layers::Linear other(2, 3);
  TrainingState loaded{other};
  load_checkpoint(folder.path / "only", loaded);
  CHECK(equal(other.weight.tensor(), model.weight.tensor()));
  CHECK(equal(rand({4}), next));
  CHECK(loaded.step == 4);

  SGD optimizer(other.parameters(), {.lr = 0.1});
  loaded.optimizer = &optimizer;
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "only", loaded); }),
             Contains("no optimizer.safetensors"));
  loaded.optimizer = nullptr;
  Constant schedule(optimizer);
  loaded.schedule = &schedule;
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "only", loaded); }), Contains("no schedule"));
  loaded.schedule = nullptr;
  Generator own;
  loaded.generators["own"] = &own;
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "only", loaded); }), Contains("'own'"));
  loaded.generators.clear();
  loaded.extra["average"];
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "only", loaded); }),
             Contains("no average.safetensors"));
}

TEST_CASE("the newest checkpoints are kept, and the best") {
  Folder folder;
  Training training;
  const auto save_all = [&](Checkpoints& checkpoints, const std::vector<std::optional<double>>& metrics) {
    for (const auto& metric : metrics) {
      training.state.step += 10;
      checkpoints.save(training.state, metric);
    }
  };
  Checkpoints last_two(folder.path / "a", {.keep_last = 2});
  save_all(last_two, {3.0, 1.0, 2.0, {}, 4.0});
  CHECK(names_in(folder.path / "a") == Names{"step-20", "step-40", "step-50"});
  REQUIRE(last_two.best());
  CHECK(last_two.best()->step == 20);
  CHECK(last_two.latest()->step == 50);
  save_all(last_two, {1.0, std::numeric_limits<double>::quiet_NaN(), 5.0});  // an equal one is no better
  CHECK(names_in(folder.path / "a") == Names{"step-20", "step-70", "step-80"});

  training.state.step = 0;
  Checkpoints highest(folder.path / "b", {.keep_last = 1, .lower_is_better = false});
  save_all(highest, {3.0, 9.0, 2.0, 4.0});
  CHECK(names_in(folder.path / "b") == Names{"step-20", "step-40"});

  training.state.step = 0;
  Checkpoints no_best(folder.path / "c", {.keep_last = 1, .keep_best = false});
  save_all(no_best, {1.0, 2.0});
  CHECK(names_in(folder.path / "c") == Names{"step-20"});
  CHECK_FALSE(Checkpoints(folder.path / "none").latest());
  CHECK_THROWS_AS(Checkpoints(folder.path, {.keep_last = 0}), ValueError);

  // Steps are numbers, not words.
  training.state.step = 0;
  Checkpoints many(folder.path / "d", {.keep_last = 2});
  for (int64_t step : {8, 9, 10, 11}) {
    training.state.step = step;
    many.save(training.state);
  }
  CHECK(names_in(folder.path / "d") == Names{"step-10", "step-11"});
}

TEST_CASE("saving a step again replaces it, and only then") {
  Folder folder;
  Training training;
  Checkpoints checkpoints(folder.path);
  training.run(1);
  checkpoints.save(training.state);
  training.state.data = R"({"turn": 2})";
  CHECK(checkpoints.save(training.state).filename() == "step-1.2");
  training.state.data = R"({"turn": 3})";
  CHECK(checkpoints.save(training.state).filename() == "step-1.3");
  CHECK(names_in(folder.path) == Names{"step-1.3"});
  training.state.data = "{}";
  checkpoints.load_latest(training.state);
  CHECK(training.state.data == R"({"turn":3})");
}

TEST_CASE("a process that dies while it saves leaves the checkpoint before") {
  Folder folder;
  manual_seed(1);
  Training training;
  training.run(3);
  Checkpoints checkpoints(folder.path / "c", {.keep_last = 1});
  checkpoints.save(training.state, 1.0);
  const Snapshot third(training);
  training.run(1);
  const Snapshot fourth(training);

  static std::string dies_after;
  const char* stages[] = {"folder made",     "model written",   "optimizer written", "average written",
                          "state written",   "folder flushed",  "renamed",           "done",
                          "old one renamed", "old ones removed"};
  for (const std::string stage : stages) {
    INFO("died after: " << stage);
    const fs::path copy = folder.path / "copy";
    fs::copy(folder.path / "c", copy, fs::copy_options::recursive);
    dies_after = stage;
    const int status = status_of_child([&] {
      optim::detail::set_checkpoint_stage_observer([](const char* now) {
        if (now == dies_after) ::_exit(42);
      });
      Checkpoints(copy, {.keep_last = 1, .keep_best = false}).save(training.state, 2.0);
      return 0;
    });
    REQUIRE(status == 42);

    // Whatever was on the way: what is found is whole, the third or the fourth step.
    const bool renamed = stage == "renamed" || stage == "done" || stage.starts_with("old");
    Training after;
    Checkpoints found(copy, {.keep_last = 1});
    found.load_latest(after.state);
    CHECK(Snapshot(after) == (renamed ? fourth : third));
    // The next save tidies up what was left.
    after.state.step = 9;
    found.save(after.state);
    const Names expected = renamed && !stage.starts_with("old") ? Names{"step-3", "step-9"}
                           : renamed                            ? Names{"step-4", "step-9"}
                                                                : Names{"step-3", "step-9"};
    CHECK(names_in(copy) == expected);
    fs::remove_all(copy);
  }
}

TEST_CASE("folders above a checkpoint that were made for it are flushed, too") {
  Folder folder;
  manual_seed(1);
  Training training;
  training.run(1);
  static int flushed;
  optim::detail::set_checkpoint_stage_observer([](const char* stage) {
    if (std::string(stage) == "folders above flushed") ++flushed;
  });
  flushed = 0;
  Checkpoints checkpoints(folder.path / "runs/a/checkpoints");
  checkpoints.save(training.state);
  CHECK(flushed == 1);
  training.run(1);
  checkpoints.save(training.state);
  CHECK(flushed == 1);  // they are there
  save_checkpoint(folder.path / "other/one", training.state);
  CHECK(flushed == 2);
  optim::detail::set_checkpoint_stage_observer(nullptr);
  CHECK(names_in(folder.path / "runs/a/checkpoints") == Names{"step-1", "step-2"});
  CHECK(names_in(folder.path / "other") == Names{"one"});

  const fs::path file = folder.file("file", "no folder");
  CHECK_THAT(error_of<FileError>([&] { save_checkpoint(file / "a/b", training.state); }),
             Contains("cannot create a folder for it"));
}

TEST_CASE("a disk without room is an error, and the checkpoint before survives") {
  Folder folder;
  Training training(200);
  training.run(2);
  Checkpoints checkpoints(folder.path / "c");
  checkpoints.save(training.state);
  const Snapshot second(training);
  training.run(1);
  const auto largest = fs::file_size(folder.path / "c/step-2/optimizer.safetensors");
  for (uint64_t room : {uint64_t{0}, uint64_t{100}, uint64_t{largest} / 2, uint64_t{largest} - 1}) {
    INFO(room);
    const int status = status_of_child([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{room, room};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        checkpoints.save(training.state);
      } catch (const FileError& error) {
        const std::string text = error.what();
        return text.find(".safetensors: cannot write") != std::string::npos ? 3 : 4;
      }
      return 5;
    });
    CHECK(status == 3);
    CHECK(names_in(folder.path / "c") == Names{"step-2"});
  }
  Training after(200);
  checkpoints.load_latest(after.state);
  CHECK(Snapshot(after) == second);

  const fs::path file = folder.file("file", "no folder");
  CHECK_THAT(error_of<FileError>([&] { Checkpoints(file).save(training.state); }), Contains("file: cannot create"));
}

TEST_CASE("damaged checkpoints are told with file and fault, and change nothing") {
  Folder folder;
  manual_seed(2);
  Training training;
  training.run(2);
  const fs::path good = folder.path / "good", bad = folder.path / "bad";
  save_checkpoint(good, training.state, 0.25);
  const nlohmann::json state = nlohmann::json::parse(test::read_raw(good / "state.json"));

  Training target;
  target.run(1);
  const Snapshot before(target);
  // Copies the good one, spoils it, and returns what loading says.
  const auto message = [&](const std::function<void()>& spoil) {
    fs::remove_all(bad);
    fs::copy(good, bad);
    spoil();
    const std::string text = error_of<FileError>([&] { load_checkpoint(bad, target.state); });
    CHECK(Snapshot(target) == before);
    CHECK_THAT(text, Contains(bad.string()));
    return text;
  };
  const auto write = [&](const char* name, const std::string& bytes) {
    folder.file("bad/" + std::string(name), bytes);
  };
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    return message([&] {
      nlohmann::json changed = state;
      change(changed);
      write("state.json", changed.dump());
    });
  };

  for (const char* name : {"model.safetensors", "optimizer.safetensors", "average.safetensors"}) {
    INFO(name);
    const auto size = fs::file_size(good / name);
    const std::string file = std::string("bad/") + name;
    CHECK_THAT(message([&] { fs::resize_file(bad / name, size - 1); }),
               Contains(file + ": it has " + std::to_string(size - 1) + " bytes; " + std::to_string(size)));
    CHECK_THAT(message([&] { fs::resize_file(bad / name, 0); }), Contains(file + ": it has 0 bytes"));
    CHECK_THAT(message([&] { fs::remove(bad / name); }), Contains(file + ": it is missing"));
    CHECK_THAT(message([&] { write(name, std::string(size, 'x')); }), Contains(file));
    // A header that lies.
    CHECK_THAT(message([&] {
                 std::string bytes = test::read_raw(good / name);
                 bytes[bytes.find("data_offsets") + 15] = '7';
                 write(name, bytes);
               }),
               Contains(file));
  }
  CHECK_THAT(message([&] { fs::remove(bad / "state.json"); }), Contains("no state.json"));
  CHECK_THAT(message([&] { write("state.json", ""); }), Contains("state.json: it is damaged"));
  const std::string text = test::read_raw(good / "state.json");
  for (size_t length = 1; length + 2 < text.size(); length += 7)
    CHECK_THAT(message([&] { write("state.json", text.substr(0, length)); }), Contains("state.json: it is damaged"));
  CHECK_THAT(message([&] { write("state.json", "[]"); }), Contains("it is not of a checkpoint"));
  CHECK_THAT(message([&] { write("state.json", "{\"step\": 3}"); }), Contains("it is not of a checkpoint"));
  CHECK_THAT(with([](auto& json) { json["format_version"] = 7; }), Contains("version 7"));
  CHECK_THAT(with([](auto& json) { json["step"] = -1; }), Contains("step -1"));
  CHECK_THAT(with([](auto& json) { json["step"] = "x"; }), Contains("damaged"));
  CHECK_THAT(with([](auto& json) { json.erase("data"); }), Contains("damaged"));
  CHECK_THAT(with([](auto& json) { json["files"].erase("model.safetensors"); }), Contains("no model.safetensors"));
  CHECK_THAT(with([](auto& json) { json["files"]["../x"] = 1; }), Contains("no file's name"));
  CHECK_THAT(with([](auto& json) { json["files"].erase("optimizer.safetensors"); }), Contains("no optimizer"));
  CHECK_THAT(with([](auto& json) { json["files"].erase("average.safetensors"); }), Contains("no average.safetensors"));
  CHECK_THAT(with([](auto& json) { json["optimizer"] = "SGD"; }),
             Contains("its optimizer is SGD, this training's is AdamW"));
  CHECK_THAT(with([](auto& json) { json["optimizer"] = 7; }), Contains("does not say which optimizer"));
  CHECK_THAT(with([](auto& json) { json.erase("optimizer"); }), Contains("does not say which optimizer"));
  CHECK_THAT(with([](auto& json) { json["format"] = 7; }), Contains("it is not of a checkpoint"));
  CHECK_THAT(with([](auto& json) { json["schedule"]["step"] = -2; }), Contains("schedule's step -2"));
  CHECK_THAT(with([](auto& json) { json["generator"].erase("seed"); }), Contains("damaged"));
  CHECK_THAT(with([](auto& json) { json["generators"]["noise"]["offset"] = "x"; }), Contains("damaged"));
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "none", target.state); }),
             Contains("no such folder"));
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(good / "state.json", target.state); }),
             Contains("it is no folder"));

  load_checkpoint(good, target.state);  // it was good all the while
  CHECK(target.state.step == 2);
}

TEST_CASE("a model or optimizer of other sizes is refused with names and shapes") {
  Folder folder;
  Training training;
  training.run(1);
  save_checkpoint(folder.path / "c", training.state);
  Training wide(6);
  wide.run(1);
  const Snapshot before(wide);
  const std::string text = error_of<FileError>([&] { load_checkpoint(folder.path / "c", wide.state); });
  CHECK_THAT(
      text,
      Contains("model.safetensors: it does not fit the model: of another shape: 0.bias is [5], the model's [6]") &&
          Contains("0.weight is [5, 3], the model's [6, 3]"));
  CHECK(Snapshot(wide) == before);

  layers::Sequential deeper(layers::Linear(3, 5), layers::Linear(5, 5), layers::Linear(5, 2));
  TrainingState state{deeper};
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "c", state); }),
             Contains("1.bias") && Contains("missing: "));
  layers::Linear single(3, 5);
  TrainingState other{single};
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "c", other); }),
             Contains("missing: bias, weight; unexpected: 0.bias, 0.weight, 2.bias, 2.weight"));

  // The model fits, the optimizer has fewer parameters.
  Training part;
  AdamW fewer({part.model.parameters()[0]}, {.lr = 0.05});
  part.state.optimizer = &fewer;
  const Snapshot untouched(part);
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "c", part.state); }),
             Contains("optimizer.safetensors: it does not fit the optimizer") && Contains("unexpected"));
  CHECK(Snapshot(part) == untouched);
  // An average of other shapes.
  Training average;
  average.state.extra["average"]["0.bias"] = zeros({9});
  CHECK_THAT(error_of<FileError>([&] { load_checkpoint(folder.path / "c", average.state); }),
             Contains("average.safetensors: it does not fit 'average': of another shape: 0.bias is [5]"));
}

TEST_CASE("what cannot be saved is refused before anything is written") {
  Folder folder;
  Training training;
  const auto refused = [&] {
    const std::string text = error_of<ValueError>([&] { save_checkpoint(folder.path / "c", training.state); });
    CHECK(folder.entries() == 0);
    return text;
  };
  training.state.data = "{";
  CHECK_THAT(refused(), Contains("no JSON"));
  training.state.data = "{}";
  training.state.step = -1;
  CHECK_THAT(refused(), Contains("step -1"));
  training.state.step = 0;
  for (const char* name : {"model", "optimizer", "", "a/b", ".hidden"}) {
    training.state.extra[name];
    CHECK_THAT(refused(), Contains("cannot be the name"));
    training.state.extra.erase(name);
  }
  training.state.generators["none"] = nullptr;
  CHECK_THAT(refused(), Contains("'none'"));
  training.state.generators.erase("none");
  save_checkpoint(folder.path / "c", training.state);
  CHECK_THAT(error_of<FileError>([&] { save_checkpoint(folder.path / "c", training.state); }), Contains("already"));
  training.state.extra["average"]["x"] = Tensor();  // found in the middle of writing
  CHECK_THROWS_AS(save_checkpoint(folder.path / "d", training.state), ValueError);
  CHECK(names_in(folder.path) == Names{"c"});
}

TEST_CASE("the newest checkpoint is the newest that is whole") {
  Folder folder;
  Training training;
  Checkpoints checkpoints(folder.path);
  CHECK_THAT(error_of<FileError>([&] { checkpoints.load_latest(training.state); }), Contains("no checkpoint in it"));
  for (int64_t step : {1, 2, 3}) {
    training.state.step = step;
    checkpoints.save(training.state);
  }
  fs::create_directories(folder.path / "step-4");  // another program's
  fs::create_directories(folder.path / "step-x");  // no checkpoint's name
  fs::create_directories(folder.path / ".step-9-1-0.partial");
  fs::resize_file(folder.path / "step-3/model.safetensors", 10);
  const SilentWarnings warnings;
  checkpoints.load_latest(training.state);
  CHECK(training.state.step == 2);
  REQUIRE(SilentWarnings::seen.size() == 2);
  CHECK_THAT(SilentWarnings::seen[0], Contains("step-3/model.safetensors: it has 10 bytes") && Contains("passed over"));
  CHECK_THAT(SilentWarnings::seen[1], Contains("step-4: there is no state.json"));
  for (const char* name : {"step-1", "step-2"}) fs::remove(folder.path / name / "state.json");
  CHECK_THAT(error_of<FileError>([&] { checkpoints.load_latest(training.state); }), Contains("step-4"));
  CHECK(training.state.step == 2);
}

}  // namespace checkpoint_test
