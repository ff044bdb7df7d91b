// train_digits as a user meets it: its command line, the files it leaves, and what it reads of pictures.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/digits.hpp>
#include <regard/examples/common/digits_training.hpp>
#include <regard/examples/common/svg_pictures.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace train_digits_test {

namespace fs = std::filesystem;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

struct Workplace : test::ProgramFolder {
  Ran run(const std::string& arguments) const { return run_program("train_digits", arguments); }
  std::vector<nlohmann::json> metrics(const std::string& name) const { return metrics_without("", name); }
};

const std::string tiny = "--width 8 --heads 2 --layers 2 --steps 4 --batch 8 ";

std::string message_of(const fs::path& path) {
  try {
    examples::read_pictures(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the digits that come with the examples are all there, in their order") {
  const examples::LabelledPictures digits = examples::read_pictures(examples::digits_file());
  CHECK(digits.count() == 1797);
  CHECK(digits.side == 8);
  CHECK(digits.classes() == 10);
  std::map<int64_t, int> counts;
  for (int64_t label : digits.labels) ++counts[label];
  const std::vector<int> expected = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};  // as the source's page says
  for (int64_t label = 0; label < 10; ++label) CHECK(counts[label] == expected[static_cast<size_t>(label)]);
  double sum = 0;
  for (float shade : digits.shades) sum += shade;
  CHECK(sum * 16 == 561718.0);  // of the source's numbers
  // The first row of the first picture: 0, 0, 5, 13, 9, 1, 0, 0.
  const std::vector<float> row = {0, 0, 5, 13, 9, 1, 0, 0};
  for (size_t i = 0; i < row.size(); ++i) CHECK(digits.shades[i] == row[i] / 16);

  const examples::PictureSplit split = examples::split_pictures(digits, 0.2);
  CHECK(split.training.count() == 1438);
  REQUIRE(split.test.count() == 359);
  for (int64_t i = 0; i < 359; ++i) {
    CHECK(split.test.labels[static_cast<size_t>(i)] == digits.labels[static_cast<size_t>(5 * i + 4)]);
    CHECK(equal(examples::picture_batch(split.test, i, i + 1).images,
                examples::picture_batch(digits, 5 * i + 4, 5 * i + 5).images));
  }
  CHECK(split.training.labels[4] == digits.labels[5]);
  const examples::PictureSplit last = examples::split_pictures(digits, 0.2, examples::TestPictures::last);
  CHECK(last.training.count() == 1438);
  CHECK(last.test.labels.front() == digits.labels[1438]);
  CHECK(last.test.shades.back() == digits.shades.back());
}

TEST_CASE("a file of pictures that cannot be read right is refused with its line") {
  Workplace workplace;
  const auto message = [&](const std::string& text) { return message_of(workplace.file("pictures.txt", text)); };
  using Catch::Matchers::Contains;
  CHECK_THAT(message("0 0123\n1 GGGG\n"), Contains("no error"));
  CHECK_THAT(message("0 0123\r\n1 GGGG\r\n"), Contains("no error"));
  CHECK_THAT(message(""), Contains("pictures.txt: holds no picture"));
  CHECK_THAT(message("0 0123\nfive 0123\n"), Contains("pictures.txt:2: a line is a class"));
  CHECK_THAT(message("0 0123\n\n"), Contains("pictures.txt:2: a line is a class"));
  CHECK_THAT(message("0 01234\n"), Contains("pictures.txt:1: 5 shades do not make a square picture"));
  CHECK_THAT(message("0 \n"), Contains("pictures.txt:1: 0 shades"));
  CHECK_THAT(message("0 0123\n1 012\n"), Contains("pictures.txt:2: 3 shades, where the first picture has 4"));
  CHECK_THAT(message("0 0123\n1 01H3\n"), Contains("pictures.txt:2: byte 5 is no shade"));
  CHECK_THAT(message("0 0123\n1000 0123\n"), Contains("pictures.txt:2: class 1000"));
  CHECK_THAT(message(std::string("\x7f"
                                 "ELF\0\0\1",
                                 7)),
             Contains("pictures.txt:1: a line is a class"));
  CHECK_THAT(message_of(workplace.path / "missing.txt"), Contains("missing.txt: cannot read"));
  CHECK_THAT(message_of(workplace.path), Contains("cannot read"));
}

TEST_CASE("training pictures are distorted within bounds, the same ones at the same step") {
  const examples::LabelledPictures digits = examples::read_pictures(examples::digits_file());
  const std::vector<int64_t> numbers = {0, 5, 9};
  const auto plain = examples::distorted_batch(digits, numbers, {}, 1, 1);
  CHECK(plain.images.shape() == regard::Shape{3, 1, 8, 8});
  CHECK(plain.labels.to_vector<int64_t>() == std::vector<int64_t>{0, 5, 9});
  CHECK(allclose(plain.images[1], examples::picture_batch(digits, 5, 6).images[0], 0, 1e-6));
  const examples::Distortion much{.shift = 1, .turn = 10, .stretch = 0.1};
  const auto one = examples::distorted_batch(digits, numbers, much, 1, 1);
  CHECK(equal(one.images, examples::distorted_batch(digits, numbers, much, 1, 1).images));
  CHECK_FALSE(equal(one.images, examples::distorted_batch(digits, numbers, much, 1, 2).images));
  CHECK_FALSE(equal(one.images, examples::distorted_batch(digits, numbers, much, 2, 1).images));
  CHECK(one.images.min().item<float>() >= -1);
  CHECK(one.images.max().item<float>() <= 1 + 1e-6);
  // Ink is moved, not lost: a 0 that stands in the middle keeps most of it.
  CHECK((one.images[0] + 1).sum().item<float>() == Approx((plain.images[0] + 1).sum().item<float>()).epsilon(0.35));
}

TEST_CASE("train_digits --help explains every option") {
  Workplace workplace;
  const Ran ran = workplace.run("--help");
  CHECK(ran.status == 0);
  CHECK(ran.err.empty());
  CHECK_FALSE(fs::exists(workplace.path / "runs"));
  for (const char* option : {"data",    "held-out",    "test",         "shift",     "turn",
                             "stretch", "patch",       "width",        "heads",     "layers",
                             "dropout", "summary",     "steps",        "batch",     "lr",
                             "warmup",  "decay-steps", "weight-decay", "smoothing", "seed",
                             "threads", "precision",   "device",       "name",      "checkpoint-every",
                             "resume",  "help"}) {
    INFO(option);
    CHECK(
        std::regex_search(ran.out, std::regex("\n  --" + std::string(option) + "( [^ \n]+)?(  +|\n +)[^\n ][^\n]{9}")));
  }
  for (const std::string& line : lines_of(ran.out)) CHECK(line.size() <= 80);
}

TEST_CASE("train_digits refuses bad options and files with one line and status 2") {
  Workplace workplace;
  workplace.file("one.txt", "0 0123\n");
  workplace.file("bad.txt", "0 0123\n1 01x3\n");
  const std::pair<const char*, const char*> mistakes[] = {
      {"--patch 3", "--patch: 3 does not divide the pictures' side, 8"},
      {"--width 64 --heads 3", "--heads: 3 does not divide the width, 64"},
      {"--held-out 0", "--held-out"},
      {"--held-out 1", "--held-out"},
      {"--data one.txt --patch 1", "--held-out"},
      {"--data bad.txt --patch 1", "bad.txt:2: byte 5 is no shade"},
      {"--data missing.txt", "missing.txt: cannot read"},
      {"--data .", "cannot read"},
      {"--turn 181", "--turn"},
      {"--smoothing 1", "--smoothing"},
      {"--summary all", "--summary"},
      {"--decay-steps 10 --steps 5 --warmup 10", "--warmup"},
      {"--decay-steps 10 --steps 11", "--steps: 11 goes beyond --decay-steps"},
      {"--resume missing", "--resume"},
      {"--resume missing --name a", "--name"},
      {"--name a/b", "--name"},
      {"--stpes 5", "--steps"},
      {"digits", "digits"},
  };
  for (const auto& [arguments, message] : mistakes) {
    INFO(arguments);
    const std::string given = arguments;
    const Ran ran = workplace.run(given + (given.find("--steps") == std::string::npos ? " --steps 1" : ""));
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    INFO(ran.err);
    CHECK(lines_of(ran.err).size() == 1);
    CHECK(ran.err.rfind("train_digits: ", 0) == 0);
    CHECK(ran.err.find(message) != std::string::npos);
    CHECK_FALSE(fs::exists(workplace.path / "runs"));
  }
}

TEST_CASE("train_digits leaves metrics, configuration, checkpoint and pictures") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--name first --seed 5 --threads 2");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(ran.err.empty());
  const std::vector<std::string> lines = lines_of(ran.out);
  REQUIRE_FALSE(lines.empty());
  CHECK(std::regex_match(lines.back(), std::regex("test accuracy: [0-9]+\\.[0-9][0-9]% \\([0-9]+ of 359\\)")));
  CHECK(ran.out.find("step 4/4") != std::string::npos);

  const fs::path folder = workplace.path / "runs" / "first";
  const auto metrics = workplace.metrics("first");
  REQUIRE(metrics.size() == 4);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    CHECK(metrics[i].at("step") == i + 1);
    for (const char* key : {"loss", "lr", "pictures_per_second", "accuracy", "grad_norm"})
      CHECK(metrics[i].at(key).is_number());
  }
  CHECK(metrics.back().at("test_accuracy").is_number());

  const auto config = nlohmann::json::parse(read_raw(folder / "config.json"));
  CHECK(config.at("width") == 8);
  CHECK(config.at("side") == 8);
  CHECK(config.at("classes") == 10);
  CHECK(config.at("seed") == 5);

  // A model of that configuration takes the checkpoint, and reads the test's pictures as the run said.
  regard::layers::VisionTransformer model({.channels = 1,
                                           .image_height = 8,
                                           .image_width = 8,
                                           .patch = 2,
                                           .classes = 10,
                                           .width = 8,
                                           .heads = 2,
                                           .layers = 2,
                                           .summary = regard::layers::ImageSummary::mean});
  const regard::SafetensorsFile checkpoint = regard::load_safetensors_file(folder / "checkpoint.safetensors");
  CHECK(model.load_state_dict(checkpoint.tensors).complete());
  CHECK(model.parameter_count() == config.at("parameters").get<int64_t>());
  model.eval();
  const auto test = examples::test_pictures(
      model, examples::split_pictures(examples::read_pictures(examples::digits_file()), 0.2).test);
  CHECK(test.accuracy() == metrics.back().at("test_accuracy").get<double>());
  CHECK(lines.back().find("(" + std::to_string(test.right) + " of 359)") != std::string::npos);

  for (const char* picture : {"loss.svg", "confusion.svg", "attention.svg"}) {
    const std::string svg = read_raw(folder / picture);
    CHECK(svg.starts_with("<svg "));
    CHECK(svg.ends_with("</svg>\n"));
  }
  CHECK(read_raw(folder / "attention.svg").find("layer 2") != std::string::npos);

  // The same name again: nothing is lost.
  const std::string before = read_raw(folder / "metrics.jsonl");
  CHECK(workplace.run(tiny + "--name first --seed 6").status == 0);
  CHECK(read_raw(workplace.path / "runs" / "first.1" / "metrics.jsonl") == before);
}

TEST_CASE("train_digits gives equal bits for one and two threads") {
  Workplace workplace;
  const std::string options = "--width 8 --heads 2 --layers 1 --steps 6 --batch 32 --summary mean ";
  REQUIRE(workplace.run(options + "--threads 1 --name one").status == 0);
  REQUIRE(workplace.run(options + "--threads 2 --name two").status == 0);
  const auto one = regard::load_safetensors(workplace.path / "runs/one/checkpoint.safetensors");
  const auto two = regard::load_safetensors(workplace.path / "runs/two/checkpoint.safetensors");
  REQUIRE(one.size() == two.size());
  for (const auto& [name, values] : one) {
    INFO(name);
    CHECK(equal(values, two.at(name)));
  }
}

TEST_CASE("train_digits goes on with a run to the last bit, and refuses to where it would not") {
  Workplace workplace;
  const std::string options = "--width 8 --heads 2 --layers 1 --batch 16 --dropout 0.2 --summary class --threads 1 ";
  REQUIRE(workplace.run(options + "--steps 9 --name whole").status == 0);
  REQUIRE(workplace.run(options + "--steps 5 --checkpoint-every 2 --name parts").status == 0);
  const Ran ran = workplace.run("--resume runs/parts --steps 9 --threads 2");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(ran.out.find("going on behind step 5") != std::string::npos);
  const auto curve = [&](const char* name) {
    std::vector<nlohmann::json> steps = workplace.metrics(name);
    for (auto& step : steps)  // a run's last line tells of a test besides
      for (const char* key : {"pictures_per_second", "test_loss", "test_accuracy"}) step.erase(key);
    return steps;
  };
  REQUIRE(curve("whole").size() == 9);
  CHECK(curve("whole") == curve("parts"));
  const fs::path runs = workplace.path / "runs";
  CHECK(read_raw(runs / "whole/checkpoint.safetensors").size() > 1000);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    CHECK(read_raw(runs / "whole/checkpoints/step-9" / file) == read_raw(runs / "parts/checkpoints/step-9" / file));

  const auto refused = [&](const std::string& arguments) {
    const std::string before = read_raw(runs / "parts/metrics.jsonl");
    const Ran run = workplace.run(arguments);
    CHECK(run.status == 2);
    CHECK(lines_of(run.err).size() == 1);
    CHECK(read_raw(runs / "parts/metrics.jsonl") == before);
    return run.err;
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refused("--resume runs/parts --steps 9"), Contains("has taken 9 steps already"));
  // Ended behind the last checkpoint: the rest is made up for.
  for (const char* last : {"checkpoint.safetensors", "results.json"}) fs::remove(runs / "parts" / last);
  REQUIRE(workplace.run("--resume runs/parts").status == 0);
  CHECK(fs::exists(runs / "parts/checkpoint.safetensors"));
  CHECK(curve("whole") == curve("parts"));
  CHECK_THAT(refused("--resume runs/parts --steps 12 --width 16"), Contains("--width"));
  CHECK_THAT(refused("--resume runs --steps 12"), Contains("config.json"));
  workplace.file("own.txt", "0 0000\n1 GGGG\n0 0001\n1 GGG0\n0 0010\n");
  const std::string own = "--data own.txt --patch 1 --width 4 --heads 1 --layers 1 --name own ";
  REQUIRE(workplace.run(own + "--steps 1").status == 0);
  workplace.file("own.txt", "0 0000\n1 GGGG\n0 0001\n1 GGG0\n0 0011\n");
  CHECK_THAT(refused("--resume runs/own --steps 2"), Contains("the pictures have changed"));
}

TEST_CASE("train_digits says that a training diverged") {
  Workplace workplace;
  const Ran ran = workplace.run(tiny + "--lr 1e38 --warmup 0 --name wild");
  CHECK(ran.status == 1);
  INFO(ran.err);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.find("diverged") != std::string::npos);
  CHECK(ran.out.find("accuracy:") == std::string::npos);
  CHECK(fs::exists(workplace.path / "runs/wild/config.json"));
}

TEST_CASE("train_digits tells pictures of the user's own apart") {
  Workplace workplace;
  std::string text;  // class 0: ink on the left, class 1: on the right
  for (int i = 0; i < 40; ++i) text += i % 2 == 0 ? "0 GG00GG00GG00GG00\n" : "1 00GG00GG00GG00GG\n";
  workplace.file("halves.txt", text);
  const Ran ran = workplace.run(
      "--data halves.txt --width 16 --heads 2 --layers 1 --steps 60 --decay-steps 60 --batch 16 --shift 0.3 --lr 0.01");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(lines_of(ran.out).back() == "test accuracy: 100.00% (8 of 8)");
}

TEST_CASE("pictures and confusion matrices are drawn, and refused where numbers do not fit") {
  using examples::confusion_svg;
  using examples::pictures_svg;
  examples::Picture picture{.label = "a & b",
                            .rows = 2,
                            .columns = 4,
                            .shades = {0, 1, 0, 1, 0.5, 0, 1, 0},
                            .patch = 2,
                            .weights = {0.25, 0.75}};
  const std::string svg = pictures_svg({.title = "T", .pictures = {picture, picture}, .per_line = 1});
  CHECK(svg.find("a &amp; b") != std::string::npos);
  CHECK(svg.find("<title>0.750</title>") != std::string::npos);
  CHECK(svg.find("fill-opacity=\"0.8\"") != std::string::npos);
  CHECK(svg.ends_with("</svg>\n"));
  picture.weights.pop_back();
  CHECK_THROWS_AS(pictures_svg({.pictures = {picture}}), std::invalid_argument);
  picture.weights.clear();
  picture.shades.pop_back();
  CHECK_THROWS_AS(pictures_svg({.pictures = {picture}}), std::invalid_argument);

  const std::string matrix = confusion_svg({.title = "T", .labels = {"x", "y"}, .counts = {7, 0, 31, 5}});
  CHECK(matrix.find(">31</text>") != std::string::npos);
  CHECK(matrix.ends_with("</svg>\n"));
  CHECK_THROWS_AS(confusion_svg({.labels = {"x", "y"}, .counts = {1, 2, 3}}), std::invalid_argument);
  CHECK_THROWS_AS(confusion_svg({}), std::invalid_argument);
}

}  // namespace train_digits_test
