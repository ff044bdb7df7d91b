// The example programs with --device: what they compute on a GPU is what they compute on the CPU, runs go on on either,
// and a device that is not there is told in a line. The programs that have a GPU here are those of cuda_examples.cmake.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regard/autograd/cuda.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace cuda_examples_test {

namespace fs = std::filesystem;
using Catch::Contains;
using nlohmann::json;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

const char* const programs[] = {
    "train_sequence",      "train_language_model", "generate",          "embed_sentences", "translate",
    "finetune_classifier", "train_digits",         "train_translation", "export_onnx",     "mha_shapes"};

const std::string with_gpu = "../tests/cuda_examples/";  // seen from the programs' folder

struct Workplace : test::ProgramFolder {
  Ran run(const std::string& program, const std::string& arguments, const std::string& input = "") const {
    return run_program(with_gpu + program, arguments, input);
  }
  Ran must_run(const std::string& program, const std::string& arguments, const std::string& input = "") const {
    Ran ran = run(program, arguments, input);
    INFO(program << " " << arguments << "\n" << ran.err);
    REQUIRE(ran.status == 0);
    CHECK(ran.err.empty());
    return ran;
  }
  /// Trains on both, as runs/cpu and runs/gpu, and compares what they say of each step.
  void train_on_both(const std::string& program, const std::string& arguments) const {
    must_run(program, arguments + " --device cpu --name cpu");
    const Ran ran = must_run(program, arguments + " --device cuda --name gpu");
    CHECK_THAT(ran.out, Contains("computing on cuda:0\n"));
    CHECK(config("cpu").at("device") == "cpu");
    CHECK(config("gpu").at("device") == "cuda:0");
    compare_metrics("cpu", "gpu");
  }
  std::vector<json> metrics(const std::string& name) const {
    std::vector<json> steps = metrics_without("tokens_per_second", name);
    for (json& step : steps)
      for (const char* speed : {"pictures_per_second", "texts_per_second"}) step.erase(speed);
    return steps;
  }
  /// Losses, norms, learning rates: each near the other's. `but` is measured at a run's end, wherever it is.
  void compare_metrics(const std::string& one, const std::string& other, const std::set<std::string>& but = {}) const {
    std::vector<json> a = metrics(one), b = metrics(other);
    REQUIRE_FALSE(a.empty());
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO(one << " " << a[i].dump() << "\n" << other << " " << b[i].dump());
      for (const std::string& key : but) {
        a[i].erase(key);
        b[i].erase(key);
      }
      REQUIRE(a[i].size() == b[i].size());
      for (const auto& [key, value] : a[i].items()) {
        INFO(key);
        REQUIRE(b[i].contains(key));
        if (!value.is_number()) continue;
        CHECK(b[i].at(key).get<double>() == Approx(value.get<double>()).epsilon(2e-4).margin(1e-5));
      }
    }
  }
  json results(const std::string& name) const { return json::parse(read_raw(path / "runs" / name / "results.json")); }
  regard::StateDict weights(const std::string& run, int64_t step) const {
    return regard::load_safetensors(path / "runs" / run / "checkpoints" / ("step-" + std::to_string(step)) /
                                    "model.safetensors");
  }
  void compare_weights(const std::string& one, const std::string& other, int64_t step) const {
    const regard::StateDict a = weights(one, step), b = weights(other, step);
    REQUIRE(a.size() == b.size());
    for (const auto& [name, tensor] : a) {
      INFO(name);
      REQUIRE(b.contains(name));
      CHECK(b.at(name).device() == regard::cpu());
      // Softmax takes no notice of this one: its gradient is rounding alone, which Adam makes steps of.
      if (name.ends_with("key.bias")) continue;
      CHECK(allclose(b.at(name), tensor, 1e-3, 1e-4));
    }
  }
};

void check_refused(const Ran& ran, const std::string& program, const std::string& message) {
  INFO(program << ": " << ran.err);
  CHECK(ran.status == 2);
  CHECK(ran.out.empty());
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.rfind(program + ": --device: ", 0) == 0);
  CHECK_THAT(ran.err, Contains(message));
}

const std::string sequence =
    "--length 3 --width 8 --heads 2 --layers 1 --batch 4 --examples 4 --dropout 0.1 --decay-steps 20 --threads 1 ";
const std::string language =
    "--text text.txt --context 8 --width 8 --heads 2 --layers 1 --batch 2 --sample-every 0 --validation-tokens 16 "
    "--decay-steps 20 --warmup 2 --threads 1 ";
const std::string translation =
    "--pairs pairs.tsv --width 8 --heads 2 --layers 1 --batch 3 --examples 3 --beam 2 --held-out 0.2 --decay-steps 20 "
    "--threads 1 ";

std::string some_text() {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "line " + std::to_string(i * 7 % 10) + " says what line it is\n";
  return text;
}

const char* const some_pairs =
    "one\teins\ntwo\tzwei\nthree\tdrei\nfour\tvier\nfive\tfünf\nsix\tsechs\nseven\tsieben\neight\tacht\nnine\tneun\n";

}  // namespace

TEST_CASE("a device that is not there is one line and status 2, before anything is read or written") {
  const Workplace workplace;
  for (const std::string program : programs) {
    check_refused(workplace.run(program, "--device cuda:1"), program, "there is no device cuda:1: cuda:0");
    for (const char* name : {"tpu", "cuda:", "cuda:x", "gpu", "CUDA"})
      check_refused(workplace.run(program, std::string("--device ") + name), program,
                    "'" + std::string(name) + "' is none: write cpu, cuda or cuda:N");
    CHECK(workplace.run_program(program, "--help").out.find("--device NAME") != std::string::npos);
  }
  CHECK(workplace.entries() == 1);  // the logs

  if (regard::cuda_is_available()) return;  // the programs that follow then have it, too
  for (const std::string program : programs) {
    check_refused(workplace.run_program(program, "--device cuda"), program, "there is no device cuda:0: ");
    check_refused(workplace.run_program(program, "--device tpu"), program, "'tpu' is none");
  }
  CHECK(workplace.entries() == 1);
}

TEST_CASE("train_sequence learns on a GPU what it learns on the CPU, and goes on on either") {
  const Workplace workplace;
  const std::string options = sequence + "--checkpoint-every 3 ";
  workplace.train_on_both("train_sequence", options + "--steps 8");
  workplace.compare_weights("cpu", "gpu", 8);
  CHECK(workplace.results("cpu").at("examples") == workplace.results("gpu").at("examples"));
  for (const char* picture : {"loss.svg", "attention.svg"})
    CHECK_THAT(read_raw(workplace.path / "runs" / "gpu" / picture), Contains("</svg>"));

  // From one to the other, and where nothing is said, on the device on which it began.
  const std::set<std::string> at_end = {"held_out_loss", "held_out_accuracy"};
  workplace.must_run("train_sequence", options + "--steps 4 --device cuda --name down");
  workplace.must_run("train_sequence", "--resume runs/down --steps 8 --device cpu");
  CHECK(workplace.config("down").at("device") == "cpu");
  workplace.compare_metrics("cpu", "down", at_end);
  workplace.compare_weights("cpu", "down", 8);
  workplace.must_run("train_sequence", options + "--steps 4 --name up");
  workplace.must_run("train_sequence", "--resume runs/up --steps 6 --device cuda:0");
  workplace.must_run("train_sequence", "--resume runs/up --steps 8");
  CHECK(workplace.config("up").at("device") == "cuda:0");
  workplace.compare_metrics("cpu", "up", at_end);
  workplace.compare_weights("cpu", "up", 8);

  if (regard::cuda_is_available()) return;
  const Ran refused = workplace.run_program("train_sequence", "--resume runs/up --steps 9");
  CHECK(refused.status == 2);
  CHECK(lines_of(refused.err).size() == 1);
  CHECK_THAT(refused.err, Contains("config.json: --device: there is no device cuda:0"));
  CHECK(workplace.run_program("train_sequence", "--resume runs/up --steps 9 --device cpu").status == 0);
}

TEST_CASE("train_language_model and generate on a GPU give what they give on the CPU") {
  const Workplace workplace;
  workplace.file("text.txt", some_text());
  workplace.train_on_both("train_language_model", language +
                                                      "--dropout 0.1 --grad-accumulation 2 --steps 4 "
                                                      "--eval-every 2");
  workplace.compare_weights("cpu", "gpu", 4);
  CHECK(workplace.results("gpu").at("bits_per_character").get<double>() ==
        Approx(workplace.results("cpu").at("bits_per_character").get<double>()).epsilon(1e-4));

  const std::string write = "--length 12 --prompt 'line ' --checkpoint runs/";
  for (const char* more : {"", " --temperature 0", " --no-cache"}) {
    INFO(more);
    const std::string text = workplace.must_run("generate", write + "cpu --device cpu" + more).out;
    CHECK(workplace.must_run("generate", write + "cpu --device cuda" + more).out == text);
  }
  // What a GPU has trained is read without one.
  CHECK(workplace.run_program("generate", write + "gpu").status == 0);

  workplace.must_run("train_language_model", "--resume runs/gpu --steps 6 --device cpu");
  workplace.must_run("train_language_model", "--resume runs/cpu --steps 6 --device cuda");
  CHECK(workplace.config("gpu").at("device") == "cpu");
  CHECK(workplace.config("cpu").at("device") == "cuda:0");
  workplace.compare_metrics("cpu", "gpu");
  workplace.compare_weights("cpu", "gpu", 6);
}

TEST_CASE("every kind of positions, shared keys and values, and recomputed layers train and write on a GPU") {
  for (const char* more : {"--positions rotary --key-value-heads 1", "--positions alibi --recompute --untied"}) {
    INFO(more);
    const Workplace workplace;
    workplace.file("text.txt", some_text());
    workplace.train_on_both("train_language_model", language + "--steps 3 --eval-every 3 " + more);
    const std::string write = "--length 10 --prompt 'line ' --checkpoint runs/cpu ";  // beyond the context
    CHECK(workplace.must_run("generate", write + "--device cuda").out == workplace.must_run("generate", write).out);
  }
}

TEST_CASE("train_translation and translate on a GPU give what they give on the CPU") {
  const Workplace workplace;
  workplace.file("pairs.tsv", some_pairs);
  workplace.train_on_both("train_translation", translation + "--steps 4 --lr 5e-3");
  workplace.compare_weights("cpu", "gpu", 4);
  for (const char* search : {"greedy", "beam"})
    CHECK(workplace.results("gpu").at(search).at("errors") == workplace.results("cpu").at(search).at("errors"));
  CHECK_THAT(read_raw(workplace.path / "runs/gpu/attention.svg"), Contains("</svg>"));

  const std::string ask = "--checkpoint runs/cpu --beam 3 --n-best 2 one seven";
  const std::vector<std::string> here = lines_of(workplace.must_run("translate", ask).out),
                                 there = lines_of(workplace.must_run("translate", ask + " --device cuda").out);
  REQUIRE(here.size() == 4);
  REQUIRE(there.size() == 4);
  for (std::size_t i = 0; i < here.size(); ++i) {
    CHECK(std::stod(there[i]) == Approx(std::stod(here[i])).margin(2e-4));
    CHECK(there[i].substr(there[i].find('\t')) == here[i].substr(here[i].find('\t')));
  }
  CHECK(workplace.must_run("translate", "--checkpoint runs/gpu --device cuda --beam 1", "two\nsix\n").out ==
        workplace.must_run("translate", "--checkpoint runs/gpu --beam 1", "two\nsix\n").out);

  workplace.must_run("train_translation", "--resume runs/gpu --steps 6 --device cpu");
  workplace.must_run("train_translation", "--resume runs/cpu --steps 6 --device cuda");
  workplace.compare_metrics("cpu", "gpu");
}

TEST_CASE("train_digits, mha_shapes and export_onnx on a GPU give what they give on the CPU") {
  const Workplace workplace;
  std::string pictures;
  for (int i = 0; i < 20; ++i)
    pictures += std::to_string(i % 2) + (i % 2 == 0 ? " 0G000G000G000" : " 00000000GGGG0") + std::to_string(i % 10) +
                (i % 3 == 0 ? "01" : "10") + "\n";
  workplace.file("pictures.txt", pictures);
  workplace.train_on_both("train_digits",
                          "--data pictures.txt --width 8 --heads 2 --layers 1 --summary class --dropout 0.1 --steps 3 "
                          "--batch 4 --threads 1");
  workplace.compare_weights("cpu", "gpu", 3);
  for (const char* picture : {"confusion.svg", "attention.svg"})
    CHECK_THAT(read_raw(workplace.path / "runs" / "gpu" / picture), Contains("</svg>"));
  workplace.must_run("train_digits", "--resume runs/gpu --steps 5 --device cpu");

  CHECK(lines_of(workplace.must_run("mha_shapes", "--device cuda").out).size() == 3);

  const std::string write = "--checkpoint runs/cpu --sample --output ";
  workplace.must_run("export_onnx", write + "here.onnx");
  workplace.must_run("export_onnx", write + "there.onnx --device cuda");
  CHECK(read_raw(workplace.path / "here.onnx") == read_raw(workplace.path / "there.onnx"));
  const regard::StateDict here = regard::load_safetensors(workplace.path / "here.safetensors");
  regard::StateDict there = regard::load_safetensors(workplace.path / "there.safetensors");
  REQUIRE(here.size() == there.size());
  for (const auto& [name, tensor] : here) CHECK(allclose(there.at(name), tensor, 1e-4, 1e-5));
}

TEST_CASE("finetune_classifier and embed_sentences on a GPU give what they give on the CPU") {
  const Workplace workplace;
  std::string lines;
  for (const char* who : {"man", "woman", "girl", "boy"}) {
    lines += std::string("music\tthe ") + who + " is playing the guitar\nmusic\ta " + who + " plays\n";
    lines += std::string("animal\tthe ") + who + " is riding a horse\nanimal\ta " + who + " rides\n";
  }
  workplace.file("data.tsv", lines);
  const std::string model = "--model '" + std::string(REGARD_TEST_DATA_DIR) + "/bert' ";
  const std::string usual = "--data data.tsv --batch 4 --warmup 1 --steps 3 --eval-every 3 --threads 1 ";
  for (const std::string& more : {std::string("--width 8 --heads 2 --layers 1 --vocabulary 60 --longest 32"),
                                  model + "--train head", model + "--train lora --rank 2"}) {
    INFO(more);
    workplace.train_on_both("finetune_classifier", usual + more);
    const std::string use = "--checkpoint runs/cpu --classify -";
    const std::string input = "a man plays the guitar\nthe girl and a horse\n";
    const std::vector<std::string> here = lines_of(workplace.must_run("finetune_classifier", use, input).out);
    const std::vector<std::string> there =
        lines_of(workplace.must_run("finetune_classifier", use + " --device cuda", input).out);
    REQUIRE(here.size() == 2);
    REQUIRE(there.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto probability = [](const std::string& line) { return std::stod(line.substr(line.find('\t'))); };
      CHECK(there[i].substr(0, there[i].find('\t')) == here[i].substr(0, here[i].find('\t')));
      CHECK(probability(there[i]) == Approx(probability(here[i])).margin(2e-4));
    }
  }
  workplace.must_run("finetune_classifier", "--resume runs/gpu --steps 4 --device cpu");

  const std::string sentences = "The man is playing the guitar.\nA woman is riding a horse\nthe guitar\n";
  const auto vectors = [&](const char* device) {
    std::vector<double> numbers;
    for (const std::string& line :
         lines_of(workplace.must_run("embed_sentences", model + "--batch 2 --device " + device, sentences).out))
      for (double number : json::parse(line).at("embedding").get<std::vector<double>>()) numbers.push_back(number);
    return numbers;
  };
  const std::vector<double> here = vectors("cpu"), there = vectors("cuda");
  REQUIRE_FALSE(here.empty());
  REQUIRE(here.size() == there.size());
  for (std::size_t i = 0; i < here.size(); ++i) CHECK(there[i] == Approx(here[i]).margin(1e-5));
  for (const char* more : {"--similar", "--query 'a guitar'", "--picture cosines.svg"})
    CHECK(workplace.must_run("embed_sentences", model + more + " --device cuda", sentences).out ==
          workplace.must_run("embed_sentences", model + more, sentences).out);
}

}  // namespace cuda_examples_test
