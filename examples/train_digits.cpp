// Trains a small vision transformer to read handwritten digits, or to tell pictures of the user's own apart.
//
// What happens here: options, pictures, model, training, test, results. The pictures are read and distorted in
// common/digits.*, the training loop is in common/digits_training.*, what a run draws in common/digits_report.*.
#include <cstdio>
#include <iostream>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/examples/common/digits.hpp>
#include <regard/examples/common/digits_options.hpp>
#include <regard/examples/common/digits_report.hpp>
#include <regard/examples/common/digits_training.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/text_file.hpp>
#include <string>

using namespace examples;

namespace {

// Where a run that is gone on with stands, checked before anything is changed.
void check_resumable(const DigitsOptions& options, const regard::optim::Checkpoints& checkpoints,
                     const std::string& data) {
  const regard::optim::CheckpointInfo latest = latest_to_resume(checkpoints);
  check_more_steps(options.steps, latest.step, *options.resume);
  std::string there;
  regard::optim::inspect_checkpoint(latest.path, &there);
  if (there != data) throw UsageError("resume", "the pictures have changed since the run began; start another run");
}

int run(int argc, char** argv) {
  const std::optional<DigitsOptions> given = read_digits_options(argc, argv);
  if (!given) return 0;
  const DigitsOptions& options = *given;
  const regard::Device device = device_named(options.device);
  regard::set_num_threads(static_cast<int>(options.threads));
  use_precision(options.precision);
  regard::manual_seed(static_cast<uint64_t>(options.seed));

  const std::filesystem::path file = options.data ? std::filesystem::path(*options.data) : digits_file();
  if (options.resume) check_data_is_there(file, *options.resume);
  const LabelledPictures pictures = read_pictures(file);
  const PictureSplit split =
      split_pictures(pictures, options.held_out, options.test == "last" ? TestPictures::last : TestPictures::spread);
  regard::layers::VisionTransformer model(vision_options(options, pictures.side, pictures.classes()));
  model.to(device);  // made on the CPU, so that a seed means the same weights everywhere
  PictureTraining training(model, split, options);

  const RunFolder folder =
      options.resume ? RunFolder{*options.resume} : make_run_folder("runs", options.name, "digits");
  const RunLock lock(folder.path);
  regard::optim::Checkpoints checkpoints(folder.file("checkpoints"), {.keep_last = 2});
  const std::string data = nlohmann::json{{"fingerprint", regard::data::file_fingerprint(file)}}.dump();
  PictureCourse course;
  if (options.resume) {
    check_resumable(options, checkpoints, data);
    training.resume(checkpoints);
    course = picture_course_of(read_metrics(folder.file("metrics.jsonl"), training.step()));
  }
  MetricsWriter metrics(folder.file("metrics.jsonl"), training.step());
  nlohmann::ordered_json config = {{"program", "train_digits"}};
  config.update(to_json(options));
  config["side"] = pictures.side;
  config["classes"] = pictures.classes();
  config["parameters"] = model.parameter_count();
  config["version"] = regard::version;
  write_json(folder.file("config.json"), config);

  std::cout << "pictures  " << split.training.count() << " to train on, " << split.test.count() << " for the test; "
            << pictures.side << " x " << pictures.side << ", " << pictures.classes() << " classes\n"
            << "model     " << options.layers << " layers, width " << options.width << ", " << options.heads
            << " heads, patches of " << options.patch << " x " << options.patch << ", " << model.parameter_count()
            << " parameters\n"
            << "training  " << options.steps << " steps of " << options.batch << " pictures, learning rate "
            << nlohmann::json(options.lr).dump() << ", seed " << options.seed << "\n";
  introduce_results(std::cout, folder, training.step(), device);
  std::cout << std::endl;

  std::optional<StopSignals> stop(std::in_place);
  training.run(course, metrics, &checkpoints, data, &*stop);
  draw_picture_loss(folder.file("loss.svg"), "Reading " + file.filename().string(), course);
  if (course.diverged) return report_divergence("train_digits", *course.diverged, folder.path);
  if (training.step() < options.steps) return report_stop("train_digits", *stop, training.step(), folder.path);
  stop.reset();  // what follows need not be finished
  regard::save_safetensors(folder.file("checkpoint.safetensors"), model.state_dict(), {{"config", config.dump()}});
  const PictureTest test = test_pictures(model, split.test);
  draw_confusion(folder.file("confusion.svg"), split.test, test);
  draw_picture_attention(folder.file("attention.svg"), model, split.test, test);
  write_results(folder.path, training.step(),
                {{"test_accuracy", test.accuracy()}, {"right", test.right}, {"pictures", split.test.count()}});

  std::cout << "\nresults in " << folder.path.string() << "\n";
  char last[96];
  std::snprintf(last, sizeof last, "test accuracy: %.2f%% (%lld of %lld)", 100 * test.accuracy(),
                static_cast<long long>(test.right), static_cast<long long>(split.test.count()));
  std::cout << last << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("train_digits", argc, argv, run); }
