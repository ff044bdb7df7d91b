// embed_sentences and finetune_classifier as a user meets them.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/labelled_lines.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/text_classifier.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "program_folder.hpp"

namespace finetune_classifier_test {

namespace fs = std::filesystem;
using test::lines_of;
using test::Ran;
using test::read_raw;

namespace {

const std::string tiny = std::string(REGARD_TEST_DATA_DIR) + "/bert";

struct Workplace : test::ProgramFolder {
  /// `input` is a file of this folder for standard input.
  Ran run(const std::string& program, const std::string& arguments, const std::string& input = "") const {
    return run_program(program, arguments, input.empty() ? "" : read_raw(path / input));
  }
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    return metrics_without("texts_per_second", name);
  }
};

// Two classes that a word or two tell apart.
std::string labelled_lines() {
  const std::vector<std::string> who = {"man", "woman", "girl", "boy"}, how = {"the ", "a ", "this ", "one "};
  std::string text;
  for (const std::string& h : how)
    for (const std::string& w : who) {
      text += "music\t" + h + w + " is playing the guitar\nmusic\t" + h + w + " plays a drum\n";
      text += "animal\t" + h + w + " is riding a horse\nanimal\t" + h + w + " and the dog\n";
    }
  return text;
}

void check_refused(const Ran& ran, const std::string& program, const std::string& message) {
  INFO(ran.err);
  CHECK(ran.status == 2);
  CHECK(ran.out.empty());
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.rfind(program + ": ", 0) == 0);
  CHECK(ran.err.find(message) != std::string::npos);
}

const std::string small = "--data data.tsv --width 8 --heads 2 --layers 1 --batch 8 --vocabulary 120 --longest 16 ";

}  // namespace

TEST_CASE("embed_sentences writes vectors, the nearest sentences, and a picture") {
  Workplace workplace;
  workplace.file("sentences", "The man is playing the guitar.\n\nA woman is riding a horse\nthe guitar\n");
  const Ran json = workplace.run("embed_sentences", "--threads 1 --model " + tiny, "sentences");
  INFO(json.err);
  REQUIRE(json.status == 0);
  const auto lines = lines_of(json.out);
  REQUIRE(lines.size() == 3);
  const auto encoder = regard::layers::SentenceEncoder::from_folder(tiny);
  const regard::Tensor wanted =
      encoder.encode({"The man is playing the guitar.", "A woman is riding a horse", "the guitar"});
  for (int64_t i = 0; i < 3; ++i) {
    const auto value = nlohmann::json::parse(lines[static_cast<std::size_t>(i)]);
    CHECK(value.at("embedding").get<std::vector<float>>() == wanted[i].to_vector<float>());  // to the bit
  }
  const Ran tsv = workplace.run("embed_sentences", "--format tsv --file sentences --model " + tiny);
  REQUIRE(lines_of(tsv.out).size() == 3);
  CHECK(std::count(tsv.out.begin(), tsv.out.end(), '\t') == 3 * 16);
  CHECK(std::strtof(tsv.out.c_str(), nullptr) == wanted[0].to_vector<float>()[0]);

  const Ran similar =
      workplace.run("embed_sentences", "--similar --top 1 --picture p.svg --model " + tiny + " -- one two 'one two'");
  REQUIRE(similar.status == 0);
  CHECK(lines_of(similar.out).size() == 6);
  CHECK(lines_of(similar.out)[4] == "one two");
  CHECK(read_raw(workplace.path / "p.svg").find("</svg>") != std::string::npos);
  const Ran query = workplace.run("embed_sentences", "--query 'the guitar' --top 2 --file sentences --model " + tiny);
  REQUIRE(lines_of(query.out).size() == 2);
  CHECK(lines_of(query.out)[0] == " 1.0000  the guitar");

  workplace.file("long",
                 "man woman girl boy horse guitar playing plays riding eating food bread piece carrying baby two men "
                 "pushed cart through the wood monkey drum\n");
  const Ran cut = workplace.run("embed_sentences", "--file long --model " + tiny);
  CHECK(cut.status == 0);
  CHECK(cut.err.find("1 of 1 sentences are longer than 24 tokens and were cut") != std::string::npos);
}

TEST_CASE("embed_sentences refuses what it cannot read with one line and status 2") {
  Workplace workplace;
  workplace.file("empty", "\n \n");
  workplace.file("binary", std::string("a\xFF\xFE\n", 4));
  const std::string model = "--model " + tiny;
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::string, std::string>>{{"-- a", "--model"},
                                                        {"--model nowhere -- a", "nowhere"},
                                                        {"--model log -- a", "config.json"},
                                                        {model, "no sentence"},
                                                        {model + " --", "--"},
                                                        {model + " --file empty", "empty"},
                                                        {model + " --file missing", "missing"},
                                                        {model + " --similar --query x -- a", "--query"},
                                                        {model + " --top 3 -- a", "--top"},
                                                        {model + " --similar --format tsv -- a", "--format"},
                                                        {model + " --file empty -- a", "--file"}})
    check_refused(workplace.run("embed_sentences", arguments), "embed_sentences", message);
  check_refused(workplace.run("embed_sentences", model, "binary"), "embed_sentences", "standard input:1");
  check_refused(workplace.run("embed_sentences", model + " --file binary"), "embed_sentences", "binary");
}

TEST_CASE("both programs explain every option") {
  Workplace workplace;
  for (const char* program : {"embed_sentences", "finetune_classifier"}) {
    const Ran ran = workplace.run(program, "--help");
    CHECK(ran.status == 0);
    CHECK(ran.err.empty());
    CHECK(lines_of(ran.out).size() > 20);
    for (const std::string& line : lines_of(ran.out)) CHECK(line.size() <= 80);
  }
}

TEST_CASE("finetune_classifier learns from nothing, leaves its results, and classifies lines") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  const Ran ran = workplace.run("finetune_classifier",
                                small + "--steps 60 --decay-steps 100 --lr 0.01 --eval-every 20 --threads 1 --name a");
  INFO(ran.err << ran.out);
  REQUIRE(ran.status == 0);
  CHECK(ran.err.empty());
  CHECK(lines_of(ran.out).back() == "validation accuracy: 100.00%");
  const fs::path folder = workplace.path / "runs/a";
  const auto metrics = workplace.metrics("a");
  REQUIRE(metrics.size() == 60);
  CHECK(metrics[19].at("validation_loss").is_number());
  CHECK(metrics.back().at("loss") < metrics.front().at("loss"));
  const auto config = nlohmann::json::parse(read_raw(folder / "config.json"));
  CHECK(config.at("classes") == nlohmann::json{"animal", "music"});
  CHECK(config.at("steps") == 60);
  for (const char* picture : {"loss.svg", "confusion.svg"})
    CHECK(read_raw(folder / picture).find("</svg>") != std::string::npos);

  workplace.file("new", "a girl plays the guitar\nthe boy is riding this horse\n");
  const Ran used = workplace.run("finetune_classifier", "--checkpoint runs/a --classify new");
  INFO(used.err);
  REQUIRE(used.status == 0);
  REQUIRE(lines_of(used.out).size() == 2);
  CHECK(std::regex_match(lines_of(used.out)[0], std::regex("music\t[01]\\.[0-9]{4}\ta girl plays the guitar")));
  CHECK(std::regex_match(lines_of(used.out)[1], std::regex("animal\t[01]\\.[0-9]{4}\tthe boy is riding this horse")));
  CHECK(workplace.run("finetune_classifier", "--checkpoint runs/a/model --classify -", "new").out == used.out);
  // The encoder is one that embed_sentences reads.
  CHECK(lines_of(workplace.run("embed_sentences", "--model runs/a/model -- 'a girl'").out).size() == 1);
}

TEST_CASE("finetune_classifier goes on after a stop as if there had been none, to the bit") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  const std::string options = small + "--decay-steps 40 --warmup 3 --eval-every 7 --dropout 0.2 ";
  REQUIRE(workplace.run("finetune_classifier", options + "--steps 24 --threads 1 --name whole").status == 0);
  REQUIRE(workplace.run("finetune_classifier", options + "--steps 10 --threads 2 --name parts").status == 0);
  const Ran resumed = workplace.run("finetune_classifier", "--resume runs/parts --steps 24 --threads 2");
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  const auto losses = [&](const char* name) {
    auto steps = workplace.metrics(name);
    for (auto& step : steps) {  // a run that ended at step 10 was validated there
      step.erase("validation_loss");
      step.erase("validation_accuracy");
    }
    return steps;
  };
  REQUIRE(losses("whole").size() == 24);
  CHECK(losses("whole") == losses("parts"));
  CHECK(workplace.metrics("whole").back() == workplace.metrics("parts").back());
  check_refused(workplace.run("finetune_classifier", "--resume runs/parts"), "finetune_classifier", "24 steps already");
  check_refused(workplace.run("finetune_classifier", "--resume runs/parts --steps 30 --rank 2"), "finetune_classifier",
                "--rank: has no meaning with --resume");
  // Ended behind the last checkpoint, before the model was written.
  const auto parts = workplace.path / "runs/parts";
  std::filesystem::remove_all(parts / "model");
  std::filesystem::remove(parts / "results.json");
  REQUIRE(workplace.run("finetune_classifier", "--resume runs/parts").status == 0);
  CHECK(std::filesystem::exists(parts / "model/model.safetensors"));
  CHECK(losses("whole") == losses("parts"));
  // A position that is none: the file is named.
  auto state = nlohmann::json::parse(std::ifstream(parts / "checkpoints/step-24/state.json"));
  state["data"] = nullptr;
  std::ofstream(parts / "checkpoints/step-24/state.json") << state;
  const Ran no_position = workplace.run("finetune_classifier", "--resume runs/parts --steps 30");
  CHECK(no_position.status == 2);
  CHECK_THAT(no_position.err, Catch::Contains("step-24/state.json: BatchOrder.restore"));
  workplace.file("data.tsv", labelled_lines() + "music\tanother one\n");
  check_refused(workplace.run("finetune_classifier", "--resume runs/parts --steps 30"), "finetune_classifier",
                "data.tsv is not what it was");
}

TEST_CASE("finetune_classifier does not go on with another model or other texts to validate with") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  workplace.file("valid.tsv", "music\ta man plays a drum\nanimal\ta boy is riding a horse\n");
  fs::copy(tiny, workplace.path / "bert", fs::copy_options::recursive);
  REQUIRE(workplace
              .run("finetune_classifier",
                   "--data data.tsv --validation-data valid.tsv --model bert --train head --steps 2 --decay-steps 60 "
                   "--warmup 1 --threads 1 --name run")
              .status == 0);
  const auto written = workplace.metrics("run");
  const auto refused = [&](const std::string& message) {
    check_refused(workplace.run("finetune_classifier", "--resume runs/run --steps 4"), "finetune_classifier", message);
    CHECK(workplace.metrics("run") == written);
  };
  workplace.file("valid.tsv", "music\ta man plays a drum\nmusic\ta boy is playing the guitar\n");
  refused("valid.tsv is not what it was");
  workplace.file("valid.tsv", "music\ta man plays a drum\nanimal\ta boy is riding a horse\n");

  const fs::path weights = workplace.path / "bert/model.safetensors";
  regard::StateDict other;
  for (const auto& [name, tensor] : regard::load_safetensors(weights)) other[name] = tensor.clone();
  for (auto& [name, tensor] : other) tensor = tensor * 2.0;
  regard::save_safetensors(weights, other);
  refused("model.safetensors is not what it was");
  fs::copy_file(tiny + "/model.safetensors", weights, fs::copy_options::overwrite_existing);
  CHECK(workplace.run("finetune_classifier", "--resume runs/run --steps 4").status == 0);
}

TEST_CASE("finetune_classifier trains a head, small matrices or all of a model that exists") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  const auto before = regard::load_safetensors(tiny + "/model.safetensors");
  const auto changed = [&](const std::string& run, const char* name) {
    const auto after = regard::load_safetensors(workplace.path / "runs" / run / "model" / "model.safetensors");
    return !equal(after.at(name), before.at(name));
  };
  const std::string query = "encoder.layer.1.attention.self.query.weight", words = "embeddings.word_embeddings.weight";
  for (const auto& [train, query_changes, words_change] :
       {std::tuple{"head", false, false}, {"lora", true, false}, {"all", true, true}}) {
    INFO(train);
    const Ran ran = workplace.run("finetune_classifier",
                                  "--data data.tsv --steps 30 --decay-steps 60 --lr 0.01 --batch 16 --model " + tiny +
                                      " --name " + train + " --train " + train);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK(changed(train, query.c_str()) == query_changes);
    CHECK(changed(train, words.c_str()) == words_change);
    const auto steps = workplace.metrics(train);
    CHECK(steps.back().at("loss").get<double>() < steps.front().at("loss").get<double>());
    // What was saved guesses as the run did at its best.
    const auto model = examples::TextClassifier::load(workplace.path / "runs" / train / "model");
    CHECK(model.labels == std::vector<std::string>{"animal", "music"});
    CHECK(model.encoder.options.longest == 24);
  }
}

TEST_CASE("finetune_classifier refuses bad data and options with one line and status 2") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  workplace.file("no_tab", "a\tb\nnothing here\n");
  workplace.file("no_label", "a\tb\n\tc\n");
  workplace.file("no_text", "a\tb\n\nc\t \n");
  workplace.file("one_class", "a\tb\na\tc\n");
  workplace.file("empty", "");
  workplace.file("binary", std::string("a\tb\0c\n", 6));
  workplace.file("unknown", "music\ta drum\nmusik\tb\n");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "--data"},
           {"--data missing", "missing"},
           {"--data no_tab", "no_tab:2: no tab"},
           {"--data no_label", "no_label:2: the label"},
           {"--data no_text", "no_text:3: the text"},
           {"--data one_class", "one_class: every line has the label 'a'"},
           {"--data empty", "empty"},
           {"--data binary", "binary"},
           {"--data data.tsv --validation-data unknown", "unknown:2: the label 'musik'"},
           {"--data data.tsv --model nowhere", "nowhere"},
           {"--data data.tsv --model " + tiny + " --longest 33", "--longest"},
           {"--data data.tsv --model " + tiny + " --width 8", "--width"},
           {"--data data.tsv --train head", "--train"},
           {"--data data.tsv --train some", "--train"},
           {"--data data.tsv --rank 4", "--rank"},
           {"--data data.tsv --heads 3", "--heads"},
           {"--data data.tsv --warmup 1000", "--warmup"},
           {"--data data.tsv --vocabulary 5", "--vocabulary"},
           {"--resume nowhere", "nowhere"},
           {"--resume log", "config.json"},
           {"--resume log --lr 1", "--lr"},
           {"--classify data.tsv", "--checkpoint"},
           {"--classify data.tsv --checkpoint nowhere", "nowhere"},
           {"--classify data.tsv --checkpoint " + tiny, "head.safetensors"},
           {"--classify empty --checkpoint x --steps 3", "--steps"}}) {
    INFO(arguments);
    check_refused(workplace.run("finetune_classifier", arguments), "finetune_classifier", message);
  }
  CHECK_FALSE(fs::exists(workplace.path / "runs"));
}

TEST_CASE("finetune_classifier says that a training diverged") {
  Workplace workplace;
  workplace.file("data.tsv", labelled_lines());
  const Ran ran = workplace.run("finetune_classifier", small + "--steps 20 --lr 1e38 --warmup 0 --name wild");
  CHECK(ran.status == 1);
  CHECK(lines_of(ran.err).size() == 1);
  CHECK(ran.err.find("diverged") != std::string::npos);
}

TEST_CASE("labelled lines are split by class, and equal texts stay together") {
  std::vector<examples::LabelledLine> lines;
  for (int64_t i = 0; i < 100; ++i) lines.push_back({"text " + std::to_string(i), i % 4 == 0 ? 1 : 0});
  lines.push_back({"the only one of its class", 2});
  for (int64_t label : {0, 1}) lines.push_back({"in two classes", label});
  auto stay = lines;
  const auto go = examples::split_off(stay, 0.2, 7);
  CHECK(stay.size() + go.size() == lines.size());
  CHECK(go.size() >= 19);
  CHECK(go.size() <= 22);
  std::set<std::string> there;
  int64_t ones = 0;
  for (const auto& line : stay) there.insert(line.text);
  for (const auto& line : go) {
    CHECK_FALSE(there.contains(line.text));
    CHECK(line.label != 2);
    ones += line.label == 1;
  }
  CHECK(ones >= 5);
  auto again = lines, other = lines;
  const auto same = examples::split_off(again, 0.2, 7), different = examples::split_off(other, 0.2, 8);
  const auto texts = [](const std::vector<examples::LabelledLine>& some) {
    std::vector<std::string> result;
    for (const auto& line : some) result.push_back(line.text);
    return result;
  };
  CHECK(texts(same) == texts(go));
  CHECK(texts(different) != texts(go));
}

}  // namespace finetune_classifier_test
