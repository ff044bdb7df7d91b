// export_onnx as a user meets it: trained runs become files that compute what the models do.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/layers/models/sentence_encoder.hpp>

#include "onnx_reader.hpp"
#include "program_folder.hpp"

namespace export_onnx_test {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

struct Workplace : test::ProgramFolder {
  void must_run(const std::string& program, const std::string& arguments) const {
    const test::Ran ran = run_program(program, arguments);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
  }
  /// The file computes what the sample beside it says.
  void check_file(const std::string& name) const {
    INFO(name);
    std::map<std::string, regard::Tensor> inputs, expected;
    for (const auto& [key, tensor] : regard::load_safetensors(path / (name + ".safetensors"))) {
      if (key.starts_with("input.")) inputs[key.substr(6)] = tensor;
      if (key.starts_with("output.")) expected[key.substr(7)] = tensor;
    }
    REQUIRE_FALSE(expected.empty());
    const auto outputs = onnx_reader::run(onnx_reader::read(test::read_raw(path / (name + ".onnx"))), inputs);
    for (const auto& [key, want] : expected) CHECK(allclose(outputs.at(key), want, 1e-5, 1e-5));
  }
};

}  // namespace

TEST_CASE("export_onnx: what the example programs train becomes files that compute the same") {
  const Workplace workplace;
  workplace.must_run("train_digits", "--width 8 --heads 2 --layers 1 --steps 2 --batch 8 --name digits");
  workplace.must_run("export_onnx", "--checkpoint runs/digits --output digits.onnx --sample");
  workplace.check_file("digits");

  workplace.file("text.txt", "Hear, and attend, and listen; for this befell and behappened and became and was.\n");
  workplace.must_run("train_language_model",
                     "--text text.txt --width 8 --heads 2 --layers 1 --context 8 --batch 2 --steps 2 --name words");
  workplace.must_run("export_onnx", "--checkpoint runs/words --output words.onnx --sample");
  workplace.check_file("words");

  workplace.file("pairs.txt", "one\teins\ntwo\tzwei\nthree\tdrei\nfour\tvier\n");
  workplace.must_run("train_translation",
                     "--pairs pairs.txt --width 8 --heads 2 --layers 1 --batch 2 --steps 2 --name numbers");
  const test::Ran ran =
      workplace.run_program("export_onnx", "--checkpoint runs/numbers --output numbers.onnx --sample");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains("numbers-encoder.onnx: inputs source_ids source_mask, outputs memory") &&
                          Contains("numbers-decoder.onnx"));
  workplace.check_file("numbers-encoder");
  workplace.check_file("numbers-decoder");
}

TEST_CASE("export_onnx: a folder of a sentence encoder") {
  const Workplace workplace;
  regard::manual_seed(2);
  const std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"};
  regard::layers::BertOptions options;
  options.vocabulary = static_cast<int64_t>(pieces.size());
  options.positions = 8;
  options.width = 8;
  options.heads = 2;
  options.layers = 1;
  options.hidden = 12;
  regard::layers::SentenceEncoder(regard::layers::Bert(options), regard::data::WordPieceTokenizer(pieces))
      .save(workplace.path / "encoder");
  workplace.must_run("export_onnx", "--checkpoint encoder --output encoder.onnx --sample");
  workplace.check_file("encoder");
}

TEST_CASE("export_onnx: mistakes are one line and status 2, and nothing is written") {
  const Workplace workplace;
  fs::create_directories(workplace.path / "empty");
  fs::create_directories(workplace.path / "odd");
  workplace.file("odd/config.json", "{\"program\": \"train_digits\", \"width\": 8}");
  fs::create_directories(workplace.path / "broken");
  workplace.file("broken/config.json", "{\"program\": ");
  const std::pair<const char*, const char*> mistakes[] = {
      {"", "--checkpoint"},
      {"--checkpoint empty", "--output"},
      {"--checkpoint missing --output a.onnx", "missing is no folder"},
      {"--checkpoint empty --output a.onnx", "empty"},
      {"--checkpoint odd --output a.onnx", "odd/config.json: no configuration of train_digits"},
      {"--checkpoint broken --output a.onnx", "broken/config.json"},
      {"--checkpoint odd --output a.safetensors --sample", "--output"},
  };
  for (const auto& [arguments, message] : mistakes) {
    INFO(arguments);
    const test::Ran ran = workplace.run_program("export_onnx", arguments);
    INFO(ran.err);
    CHECK(ran.status == 2);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
    CHECK_THAT(ran.err, Contains(message));
    CHECK_FALSE(fs::exists(workplace.path / "a.onnx"));
  }
  workplace.must_run("train_digits", "--width 8 --heads 2 --layers 1 --steps 1 --batch 8 --name digits");
  const test::Ran ran = workplace.run_program("export_onnx", "--checkpoint runs/digits --output nowhere/a.onnx");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("nowhere/a.onnx"));
}

}  // namespace export_onnx_test
