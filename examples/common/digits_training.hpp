#pragma once

#include <optional>
#include <regard/examples/common/digits.hpp>
#include <regard/examples/common/digits_options.hpp>
#include <regard/examples/common/progress.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/layers/models/vision_transformer.hpp>
#include <string>
#include <vector>

namespace examples {

/// What a model read in pictures.
struct PictureTest {
  std::vector<int64_t> answers = {};
  std::vector<double> certainty = {};  // the probability it gave its answer
  double loss = 0;                     // cross entropy, in nats
  int64_t right = 0;

  double accuracy() const { return static_cast<double>(right) / static_cast<double>(answers.size()); }
};
/// The model should be in evaluation mode; `batch` pictures are read at a time.
PictureTest test_pictures(const regard::layers::VisionTransformer& model, const LabelledPictures& pictures,
                          int64_t batch = 256);

/// The course of a training, as its metrics and its picture show it.
struct PictureCourse {
  std::vector<double> steps, losses;                   // of logged steps, on their training batches
  std::vector<double> test_steps, test_losses;         // about twenty times on the way
  std::optional<std::string> diverged = std::nullopt;  // why it ended early, if it did
};

/// Trains `model` as `options` say and leaves it in evaluation mode. A logged step writes a line to `metrics`: step,
/// loss, lr, pictures_per_second, accuracy, grad_norm, and now and then test_loss and test_accuracy, which are there to
/// be seen: nothing is chosen by them. A loss or gradient that is not finite ends the training, after it was logged,
/// with the parameters as they were before that step.
PictureCourse train_pictures(regard::layers::VisionTransformer& model, const PictureSplit& pictures,
                             const DigitsOptions& options, MetricsWriter& metrics, const ProgressOutput& output = {});

}  // namespace examples
