// Checkpoints: all that a training needs to go on, in one folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <regard/autograd/random.hpp>
#include <regard/autograd/state_dict.hpp>
#include <regard/layers/layer.hpp>
#include <regard/optim/optimizer.hpp>
#include <regard/optim/schedule.hpp>

namespace regard::optim {

/// What a checkpoint holds. Saving reads all of it; loading writes all of it. Random numbers come from `generator` and
/// those in `generators`.
struct TrainingState {
  layers::Layer& model;
  Optimizer* optimizer = nullptr;  ///< none: the checkpoint has none either
  Schedule* schedule = nullptr;
  Generator* generator = &default_generator();
  int64_t step = 0;  ///< steps done
  /// Whatever else the program keeps, as JSON text: where it stands in its data, its options.
  std::string data = "{}";
  /// Further generators, by name.
  std::map<std::string, Generator*> generators = {};
  /// Further tensors, by name: an average of the weights, for example, {"average", ema.state_dict()}. Each is a file
  /// NAME.safetensors. When loading, those named here must be in the checkpoint; one with tensors must have the same
  /// names and shapes there. All that the checkpoint has are here afterwards.
  std::map<std::string, StateDict> extra = {};
};

/// Where a checkpoint is and what it says of itself.
struct CheckpointInfo {
  std::filesystem::path path;
  int64_t step = 0;
  std::optional<double> metric = std::nullopt;
};

/// Writes one checkpoint to the folder `path`, which must not exist: model.safetensors, optimizer.safetensors (where
/// there is an optimizer), NAME.safetensors for what is extra, and state.json. It is written under another name,
/// flushed to the disk with everything in it, and then renamed, so that `path` is there whole or not at all. A
/// FileError names path and reason; nothing is left behind then.
void save_checkpoint(const std::filesystem::path& path, const TrainingState& state,
                     std::optional<double> metric = std::nullopt);

/// Loads a checkpoint into `state`. All of it is read and checked first; a FileError names the file, and what is
/// missing, cut off, foreign or of another shape, and nothing is changed then. Tensors are cast to the dtype of the
/// model's.
CheckpointInfo load_checkpoint(const std::filesystem::path& path, TrainingState& state);

/// What a checkpoint says of itself; its `data` too, where a place for it is given. FileError unless its state.json can
/// be read and all its files are there in the length that it says.
CheckpointInfo inspect_checkpoint(const std::filesystem::path& path, std::string* data = nullptr);

struct CheckpointsOptions {
  int64_t keep_last = 3;        ///< so many of the newest are kept, at least 1
  bool keep_best = true;        ///< and the best one, by the metric given to save()
  bool lower_is_better = true;  ///< of the metric
};

/// The checkpoints of one training: FOLDER/step-100, FOLDER/step-200, ... The newest and the best are kept, older ones
/// are removed once a new one is safely on the disk.
///
///     optim::Checkpoints checkpoints("runs/a/checkpoints");
///     optim::TrainingState state{model, &optimizer, &schedule};
///     if (resume) checkpoints.load_latest(state);
///     while (state.step < steps) {
///       ...
///       ++state.step;
///       if (state.step % 100 == 0) checkpoints.save(state, validation_loss);
///     }
class Checkpoints {
 public:
  /// Makes nothing: the folder appears with the first checkpoint.
  explicit Checkpoints(std::filesystem::path folder, const CheckpointsOptions& options = {});

  /// Writes a checkpoint and returns its folder, then removes those that are not to be kept. Where there is one of the
  /// same step already, the new one is called step-100.2 and replaces it: at no time are all gone. What a crash left
  /// half-written is removed too.
  std::filesystem::path save(const TrainingState& state, std::optional<double> metric = std::nullopt);

  /// All that are whole, oldest first. A damaged one is left out, with a warning that says what is wrong.
  std::vector<CheckpointInfo> list() const;
  std::optional<CheckpointInfo> latest() const;
  /// The one with the best metric, the oldest of equal ones; none where no metric was given.
  std::optional<CheckpointInfo> best() const;

  /// Loads the newest that is whole. FileError where there is none, and as load_checkpoint().
  CheckpointInfo load_latest(TrainingState& state) const;
  CheckpointInfo load(const std::filesystem::path& path, TrainingState& state) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  CheckpointsOptions options_;
};

}  // namespace regard::optim
