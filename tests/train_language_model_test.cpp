// train_language_model and generate as a user meets them: their command lines, the files they leave, and a run that
// goes on where it was broken off.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regard/layers/models/gpt2_layout.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace train_language_model_test {

namespace fs = std::filesystem;
using Catch::Contains;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// A folder with a text in it.
struct Workplace : test::ProgramFolder {
  Workplace() {
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += "Zeile " + std::to_string(i * 7 % 10) + ": schöne größe, drei € und … übermut.\n";
    put(path / "text.txt", text);
  }

  Ran run(const std::string& program, const std::string& arguments, const std::string& before = "") const {
    return run_program(program, arguments, "", before);
  }
  Ran train(const std::string& arguments, const std::string& before = "") const {
    return run("train_language_model", arguments, before);
  }
  void must_train(const std::string& arguments) const {
    const Ran ran = train(arguments);
    INFO(arguments << "\n" << ran.err);
    REQUIRE(ran.status == 0);
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    return metrics_without("tokens_per_second", name);
  }
};

const std::string tiny = " --context 12 --width 8 --heads 2 --layers 1 --batch 3 --sample-length 8 ";
const std::string tiny_text = "--text text.txt" + tiny;

bool layers_equal(const regard::layers::Layer& a, const regard::layers::Layer& b) {
  const regard::StateDict one = a.state_dict(), other = b.state_dict();
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && equal(x.second, y.second); });
}

void check_one_line(const Ran& ran, const std::string& program, const std::string& message) {
  INFO(ran.out << ran.err);
  CHECK(ran.status == 2);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.rfind(program + ": ", 0) == 0);
  CHECK_THAT(ran.err, Contains(message));
}

}  // namespace

TEST_CASE("train_language_model and generate explain every option") {
  Workplace workplace;
  for (const std::string& program : {std::string("train_language_model"), std::string("generate")}) {
    const Ran ran = workplace.run(program, "--help");
    CHECK(ran.status == 0);
    CHECK(ran.err.empty());
    for (const std::string& line : lines_of(ran.out)) CHECK(line.size() <= 80);
    int options = 0;
    static const std::regex option("\n  --[a-z0-9-]+( [^ \n]+)?(  +|\n +)[^\n ][^\n]{9}");
    for (auto at = std::sregex_iterator(ran.out.begin(), ran.out.end(), option); at != std::sregex_iterator(); ++at)
      ++options;
    CHECK(options == (program == "generate" ? 14 : 37));
  }
  CHECK_FALSE(fs::exists(workplace.path / "runs"));
}

TEST_CASE("train_language_model refuses bad options and bad text with one line and status 2") {
  Workplace workplace;
  put(workplace.path / "empty.txt", "");
  put(workplace.path / "binary.txt", std::string("a line\nand \0 zero\n", 18));
  put(workplace.path / "latin1.txt", "a line\nsch\xF6n\n");
  put(workplace.path / "short.txt", "short");
  struct Mistake {
    std::string arguments, message;
  };
  const std::vector<Mistake> mistakes = {
      {"", "--text"},
      {"--text", "--text"},
      {"--text missing.txt", "missing.txt"},
      {"--text .", "."},
      {"--text empty.txt", "empty.txt"},
      {"--text text.txt empty.txt", "empty.txt"},
      {"--text binary.txt", "binary.txt:2"},
      {"--text binary.txt --tokens bytes", "binary.txt:2"},
      {"--text latin1.txt", "latin1.txt:2"},
      {"--text short.txt", "too short"},
      {"--text text.txt --context 100000", "too short"},
      {"--text text.txt --validation 0.9 --context 400", "too short"},
      {"--text text.txt --tokens words", "--tokens"},
      {"--text text.txt --vocabulary 300", "--vocabulary"},
      {"--text text.txt --tokens bpe --vocabulary 100", "--vocabulary"},
      {"--text text.txt --width 64 --heads 3", "--heads: 3 does not divide the width, 64"},
      {"--text text.txt --key-value-heads 3", "--key-value-heads"},
      {"--text text.txt --positions sines", "--positions"},
      {"--text text.txt --width 12 --heads 4 --positions rotary", "--positions"},
      {"--text text.txt --steps 0", "--steps"},
      {"--text text.txt --warmup 2000", "--warmup"},
      {"--text text.txt --min-lr 1", "--min-lr"},
      {"--text text.txt --dropout 1", "--dropout"},
      {"--text text.txt --validation 0", "--validation"},
      {"--text text.txt --gpt2 --positions alibi", "--gpt2"},
      {"--text text.txt --from nowhere", "nowhere"},
      {"--text text.txt --from . --width 8", "--width: has no meaning with --from"},
      {"--text text.txt --name a/b", "--name"},
      {"--resume runs/none", "runs/none"},
      {"--resume .", "config.json"},
      {"--resume . --lr 1", "--lr: has no meaning with --resume"},
      {"--resume . --text text.txt", "--text: has no meaning with --resume"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const Ran ran = workplace.train(mistake.arguments);
    check_one_line(ran, "train_language_model", mistake.message);
    CHECK(ran.out.empty());
    CHECK_FALSE(fs::exists(workplace.path / "runs"));
  }
}

TEST_CASE("train_language_model leaves all that generate needs, for every kind of tokens") {
  Workplace workplace;
  for (const std::string& tokens :
       {std::string("bytes"), std::string("characters"), std::string("bpe --vocabulary 300")}) {
    INFO(tokens);
    const std::string name = tokens.substr(0, 3);
    const Ran ran =
        workplace.train(tiny_text + "--tokens " + tokens + " --steps 7 --eval-every 3 --sample-every 6 --name " + name);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK(ran.err.empty());
    CHECK_THAT(ran.out, Contains("step 7/7") && Contains("it writes:") && Contains("BLIS"));
    CHECK(std::regex_match(
        lines_of(ran.out).back(),
        std::regex("best checkpoint, step [0-9]+: validation loss [0-9.]+, [0-9.]+ bits per character, "
                   "over [0-9]+ tokens")));
    const auto metrics = workplace.metrics(name);
    REQUIRE(metrics.size() == 7);
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      CHECK(metrics[i].at("step") == i + 1);
      for (const char* key : {"loss", "lr", "grad_norm"}) CHECK(metrics[i].at(key).is_number());
      const bool evaluated = i + 1 == 3 || i + 1 == 6 || i + 1 == 7, sampled = i + 1 >= 6;
      CHECK(metrics[i].contains("validation_loss") == evaluated);
      CHECK(metrics[i].contains("bits_per_character") == evaluated);
      CHECK(metrics[i].contains("sample") == sampled);
    }
    const fs::path folder = workplace.path / "runs" / name;
    const auto config = workplace.config(name);
    CHECK(config.at("text") == nlohmann::json({"text.txt"}));
    CHECK(config.at("steps") == 7);
    CHECK(config.at("model").at("context") == 12);
    CHECK(config.at("parameters").is_number());
    CHECK(config.at("version").is_string());
    CHECK_THAT(read_raw(folder / "loss.svg"), Contains("validation") && Contains("</svg>"));
    CHECK(fs::exists(folder / "checkpoints" / "step-7" / "model.safetensors"));

    const Ran written = workplace.run("generate", "--checkpoint runs/" + name + " --length 40 --prompt Zeile");
    INFO(written.err);
    REQUIRE(written.status == 0);
    CHECK(written.err.empty());
    CHECK(written.out.rfind("Zeile", 0) == 0);
    CHECK_NOTHROW(examples::from_utf8(written.out));  // whole characters, though tokens may part them
    const auto same = [&](const std::string& more) {
      return workplace.run("generate", "--checkpoint runs/" + name + " --length 40 --prompt Zeile" + more).out;
    };
    CHECK(same(" --no-cache --threads 2") == written.out);
    CHECK(same(" --seed 2") != written.out);
    CHECK(same(" --temperature 0 --seed 3") == same(" --temperature 0"));
    CHECK(workplace.run("generate", "--length 5 --checkpoint runs/" + name + "/checkpoints/step-7").status == 0);
    CHECK_THAT(workplace.run("generate", "--length 5 --timing --latest --checkpoint runs/" + name).err,
               Contains("5 tokens in"));
    const Ran ids = workplace.run("generate", "--length 3 --ids '1 2' --checkpoint runs/" + name);
    CHECK(std::regex_match(ids.out, std::regex("1 2( [0-9]+){3}\n")));
  }
}

TEST_CASE("train_language_model learns, and generate writes what was learned") {
  Workplace workplace;
  workplace.must_train(
      "--text text.txt --context 48 --width 32 --heads 2 --layers 2 --batch 8 --steps 200 --lr 5e-3 --min-lr 5e-4 "
      "--warmup 20 --decay-steps 200 --eval-every 50 --sample-every 0 --name run");
  const auto metrics = workplace.metrics("run");
  CHECK(metrics.front().at("loss").get<double>() > 3);  // about the logarithm of 35 characters
  // All but the number in each line is certain: a tenth of a bit for each of its 44 characters.
  CHECK(metrics.back().at("bits_per_character").get<double>() < 0.2);
  const Ran ran = workplace.run("generate", "--checkpoint runs/run --length 130 --temperature 0.5 --prompt Zeile");
  CHECK(
      std::regex_search(ran.out, std::regex("Zeile [0-9]: schöne größe, drei € und … übermut.\nZeile [0-9]: schöne")));
}

TEST_CASE("train_language_model resumes to the last bit") {
  Workplace workplace;
  const std::string options =
      tiny_text + "--dropout 0.2 --grad-accumulation 2 --eval-every 4 --sample-every 5 --keep 9 --warmup 3 --seed 9 ";
  workplace.must_train(options + "--steps 14 --name whole --threads 2");
  workplace.must_train(options + "--steps 6 --name parts");
  workplace.must_train("--resume runs/parts/ --steps 14");
  const auto whole = workplace.metrics("whole"), parts = workplace.metrics("parts");
  REQUIRE(whole.size() == 14);
  REQUIRE(parts.size() == 14);
  const auto losses_equal = [](const auto& a, const auto& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO("step " << i + 1);
      CHECK(a[i].at("step") == i + 1);
      for (const char* key : {"step", "loss", "lr", "grad_norm"}) CHECK(a[i].at(key) == b[i].at(key));
      for (const char* key : {"validation_loss", "bits_per_character", "sample"})
        if (a[i].contains(key) && b[i].contains(key)) CHECK(a[i].at(key) == b[i].at(key));
    }
  };
  losses_equal(whole, parts);
  CHECK(whole[7].contains("validation_loss"));
  CHECK(parts[7].contains("validation_loss"));
  const auto weights = [&](const std::string& name) {
    return regard::load_safetensors(workplace.path / "runs" / name / "checkpoints/step-14/model.safetensors");
  };
  const auto one = weights("whole"), other = weights("parts");
  REQUIRE(one.size() == other.size());
  for (const auto& [key, tensor] : one) {
    INFO(key);
    CHECK(equal(tensor, other.at(key)));
  }
  CHECK(workplace.config("parts").at("steps") == 14);

  // Killed in the middle: the newest checkpoint is older than the metrics, whose last line is cut off.
  fs::copy(workplace.path / "runs/whole", workplace.path / "runs/killed", fs::copy_options::recursive);
  for (const char* gone : {"step-12", "step-14"}) fs::remove_all(workplace.path / "runs/killed/checkpoints" / gone);
  const std::string written = read_raw(workplace.path / "runs/killed/metrics.jsonl");
  put(workplace.path / "runs/killed/metrics.jsonl", written.substr(0, written.size() - 20));
  const Ran ran = workplace.train("--resume runs/killed");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains("going on behind step 8"));
  CHECK(workplace.metrics("killed") == whole);

  // Killed before the first validation.
  for (const auto& entry : fs::directory_iterator(workplace.path / "runs/killed/checkpoints"))
    if (entry.path().filename() != "step-0") fs::remove_all(entry.path());
  workplace.must_train("--resume runs/killed --threads 1");
  CHECK(workplace.metrics("killed") == whole);

  check_one_line(workplace.train("--resume runs/killed"), "train_language_model", "has taken 14 steps already");
  CHECK(workplace.metrics("killed") == whole);

  // Killed behind the last checkpoint.
  fs::remove(workplace.path / "runs/killed/results.json");
  fs::remove(workplace.path / "runs/killed/loss.svg");
  workplace.must_train("--resume runs/killed");
  CHECK(fs::exists(workplace.path / "runs/killed/loss.svg"));
  CHECK(workplace.metrics("killed") == whole);
}

TEST_CASE("train_language_model saves when it is told to stop, and goes on from there") {
  Workplace workplace;
  const Ran ran = workplace.train(tiny_text + "--steps 100000000 --sample-every 0 --eval-every 1000000 --name run",
                                  "(until [ -s runs/run/metrics.jsonl ]; do sleep 0.02; done; kill -TERM $$) &");
  INFO(ran.err);
  CHECK(ran.status == 128 + 15);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK_THAT(ran.err, Contains("stopped by SIGTERM behind step") && Contains("--resume runs/run"));
  const auto stopped = workplace.metrics("run");
  REQUIRE_FALSE(stopped.empty());
  const std::string more = std::to_string(stopped.size() + 2);
  workplace.must_train("--resume runs/run --steps " + more);
  workplace.must_train(tiny_text + "--sample-every 0 --eval-every 1000000 --name whole --steps " + more);
  CHECK(workplace.metrics("run") == workplace.metrics("whole"));
}

TEST_CASE("train_language_model: variants of the model train, resume and write") {
  Workplace workplace;
  const std::string variants[] = {"--precision bf16", "--positions rotary --key-value-heads 1",
                                  "--positions alibi --untied", "--recompute --dropout 0.1"};
  for (const std::string& variant : variants) {
    INFO(variant);
    workplace.must_train(tiny_text + variant + " --steps 3 --name v");
    workplace.must_train("--resume runs/v --steps 4");
    CHECK(workplace.metrics("v").size() == 4);
    CHECK(workplace.run("generate", "--checkpoint runs/v --length 30").status == 0);
  }
  // Recomputation changes no bit.
  workplace.must_train(tiny_text + "--dropout 0.1 --steps 4 --name kept");
  const auto kept = workplace.metrics("kept"), recomputed = workplace.metrics("v");
  for (std::size_t i = 0; i < 4; ++i) CHECK(kept[i].at("grad_norm") == recomputed[i].at("grad_norm"));
}

TEST_CASE("train_language_model writes GPT-2 folders and starts from them") {
  Workplace workplace;
  workplace.must_train(tiny_text + "--tokens bpe --vocabulary 280 --steps 3 --gpt2 --name first");
  const fs::path folder = workplace.path / "runs/first/gpt2";
  const regard::layers::GPT model = regard::layers::load_gpt2(folder);
  CHECK(model.options.context == 12);
  for (const char* file : {"vocab.json", "merges.txt"}) CHECK(fs::exists(folder / file));
  const auto written = [&](const std::string& checkpoint) {
    return workplace.run("generate", "--length 12 --prompt Zeile --checkpoint " + checkpoint).out;
  };
  CHECK(written("runs/first/gpt2") == written("runs/first"));

  workplace.must_train(
      "--text text.txt --from runs/first/gpt2 --steps 2 --batch 2 --sample-every 0 --threads 1 --name second");
  CHECK(workplace.config("second").at("model").at("width") == 8);
  CHECK(workplace.config("second").at("context") == 12);
  workplace.must_train("--resume runs/second --steps 3");
  CHECK(workplace.metrics("second").size() == 3);
  // It starts where the other ended, not anew.
  CHECK(workplace.metrics("second")[0].at("loss").get<double>() <
        workplace.metrics("first")[0].at("loss").get<double>());
  // A run that is over can be written so, too.
  fs::remove_all(folder);
  workplace.must_train("--resume runs/first --gpt2");
  CHECK(layers_equal(model, regard::layers::load_gpt2(folder)));
  check_one_line(workplace.train("--text text.txt --from runs/first/gpt2 --context 13"), "train_language_model",
                 "13 is more than the 12 positions");
  // Enough bytes, but not enough of the model's own tokens: said before anything is made.
  put(workplace.path / "few.txt", "Zeile Zeile Zeile Zeile\n");
  check_one_line(workplace.train("--text few.txt --from runs/first/gpt2 --name few"), "train_language_model",
                 "too short");
  CHECK_FALSE(fs::exists(workplace.path / "runs/few"));
}

TEST_CASE("generate refuses what it cannot follow with one line and status 2") {
  Workplace workplace;
  workplace.must_train(tiny_text + "--steps 2 --name run");
  fs::create_directories(workplace.path / "nothing");
  fs::create_directories(workplace.path / "bare");
  const fs::path reference = fs::path(REGARD_TEST_DATA_DIR) / "gpt2/tied";
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy(reference / file, workplace.path / "bare" / file);
  fs::create_directories(workplace.path / "other");
  put(workplace.path / "other/config.json", R"({"task":"dates"})");
  struct Mistake {
    std::string arguments, message;
  };
  const std::vector<Mistake> mistakes = {
      {"", "--checkpoint"},
      {"--checkpoint nowhere", "nowhere"},
      {"--checkpoint text.txt", "text.txt"},
      {"--checkpoint nothing", "nothing"},
      {"--checkpoint bare", "--ids"},
      {"--checkpoint bare --ids 13", "13 is no token"},
      {"--checkpoint bare --ids x", "'x' is no number"},
      {"--checkpoint runs/run --prompt Ж", "--prompt: 'Ж' is no character of the text"},
      {"--checkpoint other", "'other' is not a run of train_language_model"},
      {"--checkpoint runs/run --ids 1 --prompt a", "--ids"},
      {"--checkpoint runs/run --temperature -1", "--temperature"},
      {"--checkpoint runs/run --top-p 0", "--top-p"},
      {"--checkpoint runs/run --top-k -1", "--top-k"},
      {"--checkpoint runs/run --length -1", "--length"},
      {"--checkpoint runs/run --length x", "--length"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.arguments);
    const Ran ran = workplace.run("generate", mistake.arguments);
    check_one_line(ran, "generate", mistake.message);
    CHECK(ran.out.empty());
  }
  CHECK(workplace.run("generate", "--checkpoint bare --ids 1 --length 4").status == 0);

  // A configuration and weights that do not belong together: file, key and both shapes.
  const fs::path run = workplace.path / "runs/run";
  auto config = nlohmann::json::parse(read_raw(run / "config.json"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = config;
    changed["model"][key] = value;
    put(run / "config.json", changed.dump());
    return workplace.run("generate", "--checkpoint runs/run");
  };
  const Ran wider = with("width", 10);
  check_one_line(wider, "generate", "model.safetensors");
  CHECK_THAT(wider.err, Contains("attention.key.weight is [8, 8]") && Contains("[10, 10]"));
  check_one_line(with("vocabulary", 9), "generate", "tokens.weight");
  check_one_line(workplace.train("--resume runs/run --steps 3"), "train_language_model",
                 "model.vocabulary 9 is smaller than that of tokenizer.json");
  check_one_line(with("context", 5), "generate", "positions.weight");
  check_one_line(with("heads", 3), "generate", "config.json");
  check_one_line(with("positions", "sines"), "generate", "config.json: model.positions is 'sines'");
  check_one_line(with("layers", "two"), "generate", "layers");
  put(run / "config.json", config.dump());
  const fs::path weights = run / "checkpoints/step-2/model.safetensors";
  const std::string whole = read_raw(weights);
  put(weights, whole.substr(0, whole.size() / 2));
  const Ran broken = workplace.run("generate", "--checkpoint runs/run/checkpoints/step-2");
  check_one_line(broken, "generate", "model.safetensors");
  put(weights, whole);
  put(run / "tokenizer.json", "{");
  check_one_line(workplace.run("generate", "--checkpoint runs/run"), "generate", "tokenizer.json");
  check_one_line(workplace.train("--resume runs/run --steps 3"), "train_language_model", "tokenizer.json");
  CHECK(workplace.metrics("run").size() == 2);  // nothing is lost
}

TEST_CASE("train_language_model says so where it cannot write, and keeps what there was") {
  Workplace workplace;
  workplace.must_train(tiny_text + "--steps 2 --name run");
  const std::string before = read_raw(workplace.path / "runs/run/metrics.jsonl");
  // No file may be longer than 1 KiB, as on a full disk: the checkpoint cannot be written.
  const Ran full = workplace.train("--resume runs/run --steps 4", "trap '' XFSZ; ulimit -f 1;");
  INFO(full.err);
  CHECK(full.status == 2);
  CHECK(lines_of(full.err).size() == 1);
  CHECK(read_raw(workplace.path / "runs/run/metrics.jsonl").rfind(before.substr(0, before.find('\n')), 0) == 0);
  workplace.must_train("--resume runs/run --steps 4");
  CHECK(workplace.metrics("run").size() == 4);

  fs::remove_all(workplace.path / "runs");
  put(workplace.path / "runs", "a file where the folder should be");
  check_one_line(workplace.train(tiny_text + "--steps 2"), "train_language_model", "runs");
}

TEST_CASE("train_language_model says that a training diverged, and keeps the last good checkpoint") {
  Workplace workplace;
  const Ran ran =
      workplace.train(tiny_text + "--lr 1e38 --warmup 0 --steps 9 --eval-every 1 --sample-every 0 --name wild");
  INFO(ran.err);
  CHECK(ran.status == 1);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK_THAT(ran.err, Contains("diverged"));
  CHECK(fs::exists(workplace.path / "runs/wild/checkpoints/step-0/model.safetensors"));
  CHECK(fs::exists(workplace.path / "runs/wild/loss.svg"));
}

TEST_CASE("train_language_model --profile writes a trace and shows a table, also of a run that goes on") {
  Workplace workplace;
  workplace.must_train(tiny_text + "--steps 4 --name run");
  const Ran ran = workplace.train("--resume runs/run --steps 20 --profile trace.json");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains("profile of 5 steps, after 10:") && Contains("scaled_dot_product_attention backward"));
  const nlohmann::json trace = nlohmann::json::parse(read_raw(workplace.path / "trace.json"));
  CHECK(trace.at("traceEvents").size() > 100);
  check_one_line(workplace.train(tiny_text + "--profile nowhere/t.json"), "train_language_model", "nowhere");
}

}  // namespace train_language_model_test
