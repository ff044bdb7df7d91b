// Learns to tell classes of texts apart from labelled lines, with a BERT-type encoder that exists or a small one made
// from the data; and classifies lines with what was learned.
//
// What happens here: options, data, model, training, results. The model is in common/text_classifier.*, the training
// loop in common/classifier_training.*, what a run shows and draws in common/classifier_report.*.
#include <cstdio>
#include <iostream>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/examples/common/classifier_options.hpp>
#include <regard/examples/common/classifier_report.hpp>
#include <regard/examples/common/classifier_training.hpp>
#include <regard/examples/common/labelled_lines.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/text_classifier.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/text_file.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace examples;
using regard::layers::SentenceEncoder;

namespace {

// A small encoder, and pieces of words that the training texts are made of.
SentenceEncoder new_encoder(const ClassifierOptions& options, const std::vector<LabelledLine>& training) {
  std::vector<std::string> texts;
  for (const LabelledLine& line : training) texts.push_back(line.text);
  regard::data::TrainWordPieceOptions pieces;
  pieces.vocabulary = options.vocabulary;
  pieces.text.words.lower_case = pieces.text.words.strip_accents = !options.cased;
  auto tokenizer = regard::data::train_word_piece(texts, pieces);
  regard::layers::BertOptions bert;
  bert.vocabulary = tokenizer.vocabulary_size();
  bert.positions = options.longest;
  bert.width = options.width;
  bert.heads = options.heads;
  bert.layers = options.layers;
  bert.hidden = 4 * options.width;
  bert.dropout = bert.attention_dropout = options.dropout;
  bert.pooler = false;
  return SentenceEncoder(regard::layers::Bert(bert), std::move(tokenizer), {.longest = options.longest});
}

SentenceEncoder encoder_of(const ClassifierOptions& options, const std::vector<LabelledLine>& training) {
  if (options.from_nothing()) return new_encoder(options, training);
  SentenceEncoder encoder = SentenceEncoder::from_folder(options.model);
  if (options.longest > encoder.bert.options.positions)
    throw UsageError("longest", std::to_string(options.longest) + " is more than the " +
                                    std::to_string(encoder.bert.options.positions) + " positions of " + options.model);
  if (options.longest > 0) encoder.options.longest = options.longest;
  return encoder;
}

int classify(const ClassifierOptions& options, regard::Device device) {
  std::filesystem::path folder = options.checkpoint;
  if (std::filesystem::is_directory(folder / "model")) folder /= "model";
  TextClassifier model = TextClassifier::load(folder);
  model.to(device);
  const std::vector<std::string> lines = read_lines(*options.classify);
  if (lines.empty()) throw UsageError("classify", *options.classify + " holds no line");
  std::vector<LabelledLine> unlabelled;
  for (const std::string& line : lines) unlabelled.push_back({line, 0});
  const EncodedTexts encoded = encode_texts(model, unlabelled);
  if (encoded.truncated > 0)
    std::cerr << "finetune_classifier: " << encoded.truncated << " of " << lines.size() << " texts are longer than "
              << model.encoder.options.longest << " tokens and were cut\n";
  const Judgement judgement = judge(model, encoded.texts);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Guess& guess = judgement.guesses[i];
    char probability[32];
    std::snprintf(probability, sizeof probability, "\t%.4f\t", guess.probability);
    std::cout << model.labels[static_cast<std::size_t>(guess.label)] << probability << lines[i] << "\n";
  }
  return 0;
}

// A file that a run begins with: remembered when it begins, and found the same when it goes on.
void check_same(const ClassifierOptions& options, const std::string& file, const std::filesystem::path& path,
                std::string& fingerprint) {
  const std::string now = regard::data::file_fingerprint(path);
  if (options.resume && fingerprint != now)
    throw UsageError("resume", file + " is not what it was when the run in " + options.resume->string() + " began");
  fingerprint = now;
}

// Where a run that is gone on with stands, checked before anything is changed.
void check_resumable(const ClassifierOptions& options) {
  const auto latest = regard::optim::Checkpoints(*options.resume / "checkpoints").latest();
  if (!latest)
    throw UsageError("resume", options.resume->string() + " has no checkpoint that is whole; start another run");
  check_more_steps(options.steps, latest->step, *options.resume);
}

int run(int argc, char** argv) {
  const std::optional<ClassifierOptions> given = read_classifier_options(argc, argv);
  if (!given) return 0;
  ClassifierOptions options = *given;
  const regard::Device device = device_named(options.device);
  regard::set_num_threads(static_cast<int>(options.threads));
  use_precision(options.precision);
  regard::manual_seed(static_cast<uint64_t>(options.seed));
  if (options.classify) return classify(options, device);

  if (options.resume) check_data_is_there(options.data, *options.resume);
  LabelledLines data = read_labelled_lines(options.data);
  check_same(options, options.data, options.data, options.data_fingerprint);
  if (!options.validation_data.empty())
    check_same(options, options.validation_data, options.validation_data, options.validation_fingerprint);
  std::vector<LabelledLine> validation =
      options.validation_data.empty() ? split_off(data.lines, options.validation, static_cast<uint64_t>(options.seed))
                                      : read_labelled_lines(options.validation_data, data.labels).lines;
  if (validation.empty())
    throw UsageError(options.data +
                     ": no line is left to validate with: each class has one line only, without its repetitions");

  TextClassifier model(encoder_of(options, data.lines), data.labels, options.dropout);
  model.to(device);  // made on the CPU, so that a seed means the same weights everywhere
  if (!options.from_nothing()) {
    const std::filesystem::path weights = std::filesystem::path(options.model) / "model.safetensors";
    check_same(options, weights.string(), weights, options.model_fingerprint);
  }
  const EncodedTexts training_texts = encode_texts(model, data.lines),
                     validation_texts = encode_texts(model, validation);

  nlohmann::ordered_json config = to_json(options);
  config["classes"] = data.labels;
  config["parameters"] = model.parameter_count();
  config["version"] = regard::version;
  RunFolder folder;
  if (options.resume) {
    folder.path = *options.resume;
    check_resumable(options);
  } else {
    folder = make_run_folder("runs", options.name, "classifier");
  }
  const RunLock lock(folder.path);
  write_json(folder.file("config.json"), config);

  std::cout << "data      " << data.lines.size() << " texts to learn from, " << validation.size()
            << " to validate with, " << data.labels.size() << " classes\n";
  if (data.repeated > 0) std::cout << "          (" << data.repeated << " lines that were there before left out)\n";
  if (const int64_t cut = training_texts.truncated + validation_texts.truncated; cut > 0)
    std::cout << "          (" << cut << " texts are longer than " << model.encoder.options.longest
              << " tokens and were cut)\n";
  const auto& bert = model.encoder.bert.options;
  std::cout << "model     " << (options.from_nothing() ? "new" : options.model) << ": " << bert.layers
            << " layers, width " << bert.width << ", " << bert.heads << " heads, " << bert.vocabulary << " pieces, "
            << model.parameter_count() << " parameters, of which " << options.train
            << (options.train == "head" ? " learns\n" : " learn\n") << "training  " << options.steps << " steps of "
            << options.batch << " texts, learning rate " << nlohmann::json(options.lr).dump() << ", seed "
            << options.seed << "\n";
  introduce_results(std::cout, folder, 0, device);
  std::cout << std::endl;

  std::optional<StopSignals> stop(std::in_place);
  const ClassifierCourse course =
      train_classifier(model, training_texts, validation_texts, options, folder.path, &*stop);
  draw_course(folder.file("loss.svg"), "Classes of " + options.data, course);
  if (course.diverged) return report_divergence("finetune_classifier", *course.diverged, folder.path);
  if (course.step < options.steps) return report_stop("finetune_classifier", *stop, course.step, folder.path);
  stop.reset();  // what follows need not be finished
  model.save(folder.file("model"), config.dump());
  draw_confusion(folder.file("confusion.svg"), model.labels, validation, course.best);

  std::cout << "\nvalidation texts, as the model of step " << course.best_step << " guesses them:\n";
  show_classes(std::cout, model.labels, validation, course.best);
  show_mistakes(std::cout, model.labels, validation, course.best);
  std::cout << "\nresults in " << folder.path.string() << "; to use it: finetune_classifier --checkpoint "
            << folder.path.string() << " --classify FILE\n";
  const double share = accuracy(course.best, validation_texts.labels);
  write_results(
      folder.path, course.step,
      {{"best_step", course.best_step}, {"validation_loss", course.best.loss}, {"validation_accuracy", share}});
  std::printf("validation loss: %.4f\nvalidation accuracy: %.2f%%\n", course.best.loss, 100 * share);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("finetune_classifier", argc, argv, run); }
