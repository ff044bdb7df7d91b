// Many checkpoints in a folder: which there are, which are kept.
#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <regard/autograd/error.hpp>
#include <regard/optim/checkpoint.hpp>
#include <regard/optim/checkpoint_files.hpp>

namespace regard::optim {

namespace {

namespace fs = std::filesystem;

struct Numbered {
  int64_t step, turn;  // step-100.2: the second of step 100
  bool operator<(const Numbered& other) const { return std::pair(step, turn) < std::pair(other.step, other.turn); }
};

std::optional<Numbered> number_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  Numbered numbered{0, 1};
  const char* end = name.data() + name.size();
  auto [stopped, error] = std::from_chars(name.data() + prefix.size(), end, numbered.step);
  if (error != std::errc() || numbered.step < 0) return std::nullopt;
  if (stopped == end) return numbered;
  if (*stopped != '.') return std::nullopt;
  const auto [last, second_error] = std::from_chars(stopped + 1, end, numbered.turn);
  if (second_error != std::errc() || last != end || numbered.turn < 2) return std::nullopt;
  return numbered;
}

std::string name_of(const Numbered& numbered) {
  std::string name = "step-" + std::to_string(numbered.step);
  return numbered.turn > 1 ? name + "." + std::to_string(numbered.turn) : name;
}

// By number, whole or not.
std::vector<Numbered> numbers_in(const fs::path& folder) {
  std::vector<Numbered> numbers;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const auto numbered = number_of(at->path().filename().string())) numbers.push_back(*numbered);
  check<FileError>(!error || error == std::errc::no_such_file_or_directory, "checkpoints", folder.string(),
                   ": cannot read the folder: ", error.message());
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Removes a checkpoint so that no part of it is taken for one: it loses its name first.
void discard(const fs::path& path) {
  std::error_code error;
  const fs::path partial = detail::partial_name(path);
  fs::rename(path, partial, error);
  if (!error) {
    detail::checkpoint_stage("old one renamed");
    fs::remove_all(partial, error);
  }
  if (error) warn("checkpoints: cannot remove " + path.string() + ": " + error.message());
}

bool is_better(double a, double b, bool lower_is_better) { return lower_is_better ? a < b : a > b; }

std::optional<CheckpointInfo> best_of(const std::vector<CheckpointInfo>& whole, bool lower_is_better) {
  std::optional<CheckpointInfo> best;
  for (const CheckpointInfo& info : whole)
    if (info.metric && (!best || is_better(*info.metric, *best->metric, lower_is_better))) best = info;
  return best;
}

}  // namespace

Checkpoints::Checkpoints(fs::path folder, const CheckpointsOptions& options)
    : folder_(std::move(folder)), options_(options) {
  check<ValueError>(options.keep_last >= 1, "Checkpoints", "keep_last ", options.keep_last, " must be at least 1");
  check<ValueError>(!folder_.empty(), "Checkpoints", "the folder's name is empty");
}

std::vector<CheckpointInfo> Checkpoints::list() const {
  std::vector<CheckpointInfo> whole;
  for (const Numbered& numbered : numbers_in(folder_)) try {
      whole.push_back(inspect_checkpoint(folder_ / name_of(numbered)));
    } catch (const FileError& error) {
      warn(std::string(error.what()) + "; it is passed over");
    }
  return whole;
}

std::optional<CheckpointInfo> Checkpoints::latest() const {
  std::vector<CheckpointInfo> whole = list();
  return whole.empty() ? std::nullopt : std::optional(whole.back());
}

std::optional<CheckpointInfo> Checkpoints::best() const { return best_of(list(), options_.lower_is_better); }

fs::path Checkpoints::save(const TrainingState& state, std::optional<double> metric) {
  std::error_code error;
  detail::make_folders(folder_, error);
  check<FileError>(fs::is_directory(folder_), "checkpoints", folder_.string(),
                   ": cannot create the folder: ", error ? error.message() : "there is a file of that name");
  const detail::FolderLock lock(folder_);
  // Whoever wrote these is gone: the lock was free.
  std::vector<fs::path> left_behind;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error))
    if (detail::is_partial_name(at->path().filename().string())) left_behind.push_back(at->path());
  for (const fs::path& path : left_behind) fs::remove_all(path, error);

  Numbered numbered{state.step, 1};
  for (const Numbered& other : numbers_in(folder_))
    if (other.step == state.step) numbered.turn = other.turn + 1;
  const fs::path path = folder_ / name_of(numbered);
  save_checkpoint(path, state, metric);

  // The new one is safe; now the others.
  const std::vector<CheckpointInfo> whole = list();
  const std::optional<CheckpointInfo> best_one =
      options_.keep_best ? best_of(whole, options_.lower_is_better) : std::nullopt;
  std::vector<fs::path> kept{path};
  if (best_one) kept.push_back(best_one->path);
  int64_t newest = 0;
  for (auto at = whole.rbegin(); at != whole.rend() && newest < options_.keep_last; ++at) {
    if (at->step == state.step && at->path != path) continue;  // replaced
    kept.push_back(at->path);
    ++newest;
  }
  for (const Numbered& other : numbers_in(folder_)) {  // damaged ones too, once they are the older ones
    const fs::path there = folder_ / name_of(other);
    if (other < numbered || newest >= options_.keep_last) {
      if (std::find(kept.begin(), kept.end(), there) == kept.end()) discard(there);
    }
  }
  detail::checkpoint_stage("old ones removed");
  return path;
}

CheckpointInfo Checkpoints::load(const fs::path& path, TrainingState& state) const {
  return load_checkpoint(path, state);
}

CheckpointInfo Checkpoints::load_latest(TrainingState& state) const {
  const std::optional<CheckpointInfo> info = latest();
  if (!info) {
    const std::vector<Numbered> numbers = numbers_in(folder_);
    if (!numbers.empty()) inspect_checkpoint(folder_ / name_of(numbers.back()));  // says what is wrong with it
    fail<FileError>("checkpoints", folder_.string(), ": there is no checkpoint in it");
  }
  return load_checkpoint(info->path, state);
}

}  // namespace regard::optim
