// Trains a small transformer on sequences: to copy, reverse, sort or add, or on pairs of the user's own.
//
// What happens here: options, data, model, training, test, results. The model is in common/sequence_model.*, the
// training loop in common/sequence_training.*, what a run shows and draws in common/sequence_report.*.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <regard/autograd/random.hpp>
#include <regard/autograd/safetensors.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/autograd/version.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/sequence_model.hpp>
#include <regard/examples/common/sequence_options.hpp>
#include <regard/examples/common/sequence_report.hpp>
#include <regard/examples/common/sequence_tasks.hpp>
#include <regard/examples/common/sequence_training.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/data/text_file.hpp>
#include <string>
#include <utility>
#include <vector>

using namespace examples;

namespace {

std::unique_ptr<SequenceTask> make_task(const SequenceOptions& options) {
  const auto seed = static_cast<uint64_t>(options.seed);
  if (options.pairs)
    return make_pairs_task(
        {.file = *options.pairs, .max_length = options.length, .held_out_share = options.held_out, .seed = seed});
  return make_generated_task({.task = options.task,
                              .length = options.length,
                              .min_length = options.min_length,
                              .symbols = options.symbols,
                              .held_out_share = options.held_out,
                              .seed = seed});
}

std::string in_words(const SequenceOptions& options) {
  if (options.pairs) return "pairs of " + *options.pairs;
  if (options.task == "add") return "add, numbers of up to " + std::to_string(options.length) + " digits";
  std::string length = std::to_string(options.length);
  if (options.min_length != 0) length = std::to_string(options.min_length) + " to " + length;
  return options.task + ", length " + length + ", " + std::to_string(options.symbols) + " different symbols";
}

// What a checkpoint must share with the data of the training that goes on from it.
std::string data_text(const SequenceOptions& options) {
  nlohmann::ordered_json data = {{"task", options.task}};
  if (options.pairs) data["fingerprint"] = regard::data::file_fingerprint(*options.pairs);
  return data.dump();
}

// Where a run that is gone on with stands, checked before anything is changed.
void check_resumable(const SequenceOptions& options, const regard::optim::Checkpoints& checkpoints,
                     const std::string& data) {
  const regard::optim::CheckpointInfo latest = latest_to_resume(checkpoints);
  check_more_steps(options.steps, latest.step, *options.resume);
  std::string there;
  regard::optim::inspect_checkpoint(latest.path, &there);
  if (there != data)
    throw UsageError("resume", "the data has changed since the run began" +
                                   (options.pairs ? ": " + *options.pairs + " is not the file that it was" : "") +
                                   "; start another run");
}

void introduce(const SequenceOptions& options, const SequenceModel& model, const RunFolder& folder, int64_t step) {
  std::cout << "task      " << in_words(options) << "\n"
            << "model     " << options.layers << " layers, width " << options.width << ", " << options.heads
            << " heads, " << grouped(model.parameter_count()) << " parameters\n"
            << "training  " << options.steps << " steps of " << options.batch << " sequences, learning rate "
            << nlohmann::json(options.lr).dump() << ", seed " << options.seed << "\n";
  introduce_results(std::cout, folder, step, model.device());
  std::cout << std::endl;
}

int run(int argc, char** argv) {
  const std::optional<SequenceOptions> given = read_sequence_options(argc, argv);
  if (!given) return 0;
  const SequenceOptions& options = *given;
  const regard::Device device = device_named(options.device);
  regard::set_num_threads(static_cast<int>(options.threads));
  use_precision(options.precision);
  regard::manual_seed(static_cast<uint64_t>(options.seed));

  if (options.resume && options.pairs) check_data_is_there(*options.pairs, *options.resume);
  const std::unique_ptr<SequenceTask> task = make_task(options);
  const Vocabulary& vocabulary = task->vocabulary();
  // The first of the held-out examples; drawing all of them can wait.
  const std::vector<Example> watched = task->held_out(std::min<int64_t>(options.examples, 128));

  SequenceModel model({.vocabulary = vocabulary.size(),
                       .longest_input = task->longest_input(),
                       .longest_output = task->longest_output(),
                       .width = options.width,
                       .heads = options.heads,
                       .layers = options.layers,
                       .dropout = options.dropout});
  model.to(device);  // made on the CPU, so that a seed means the same weights everywhere
  SequenceTraining training(model, *task, options);

  const RunFolder folder =
      options.resume ? RunFolder{*options.resume} : make_run_folder("runs", options.name, options.task);
  const RunLock lock(folder.path);
  regard::optim::Checkpoints checkpoints(folder.file("checkpoints"), {.keep_last = 2});
  const std::string data = data_text(options);
  TrainingCourse course;
  if (options.resume) {
    check_resumable(options, checkpoints, data);
    training.resume(checkpoints);
    course = course_of(read_metrics(folder.file("metrics.jsonl"), training.step()));
  }
  MetricsWriter metrics(folder.file("metrics.jsonl"), training.step());
  nlohmann::ordered_json config = to_json(options);
  config["parameters"] = model.parameter_count();
  config["version"] = regard::version;
  write_json(folder.file("config.json"), config);
  introduce(options, model, folder, training.step());

  std::optional<StopSignals> stop(std::in_place);
  training.run(course, watched, metrics, {&checkpoints, options.checkpoint_every, data}, &*stop);
  draw_loss(folder.file("loss.svg"), in_words(options), course);
  if (course.diverged) return report_divergence("train_sequence", *course.diverged, folder.path);
  if (training.step() < options.steps) return report_stop("train_sequence", *stop, training.step(), folder.path);
  stop.reset();  // what follows need not be finished
  regard::save_safetensors(folder.file("checkpoint.safetensors"), model.state_dict(), {{"config", config.dump()}});
  draw_attention(folder.file("attention.svg"), model, vocabulary, watched.front());

  const std::vector<Example> held_out = task->held_out(options.examples);
  const SequenceTest test = test_sequences(model, held_out);
  std::cout << "\nheld-out examples, " << test.right << " of " << test.examples.size() << " right:\n";
  show_examples(std::cout, test, vocabulary);
  write_results(folder.path, training.step(),
                {{"exact_match", test.exact_match()}, {"right", test.right}, {"examples", std::ssize(test.examples)}});
  std::cout << "\nresults in " << folder.path.string() << "\n";
  char last[64];
  std::snprintf(last, sizeof last, "held-out exact match: %.2f%%", 100 * test.exact_match());
  std::cout << last << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main("train_sequence", argc, argv, run); }
