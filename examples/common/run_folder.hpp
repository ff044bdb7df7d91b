#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// The folder that a training run writes its results to, PARENT/NAME.
struct RunFolder {
  std::filesystem::path path;
  /// Where an earlier run of the same name was moved to, if there was one: PARENT/NAME.1, NAME.2, ...
  std::optional<std::filesystem::path> moved_earlier = std::nullopt;

  std::filesystem::path file(std::string_view name) const { return path / name; }
};

/// Makes the folder for a run, and `parent` (usually "runs") where it is missing. Nothing of an earlier run is ever
/// lost or mixed with the new one's files:
/// - without a name, the run is called BASE-1, BASE-2, ...: the first number that is free;
/// - with a name that is taken, the earlier folder is renamed to NAME.1 (or the next free number) first. An empty
///   folder of that name is used as it is. One that a program is still writing to (see RunLock) is not moved: that is
///   an error.
/// Throws UsageError for a name that cannot be a folder's (empty, ".", "..", with a slash or control characters, longer
/// than 200 bytes) or that is taken by a file, and std::runtime_error with path and reason where the system refuses.
RunFolder make_run_folder(const std::filesystem::path& parent, const std::optional<std::string>& name,
                          std::string_view base);

/// Writes a file so that a reader finds either all of the old text or all of the new, even after a crash: into a
/// temporary file of the same folder, flushed to the disk, then renamed over `path`. Throws std::runtime_error with
/// path and reason; the temporary file is removed then, and what was at `path` is untouched.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// `value` with every number that is not finite, at any depth, replaced by the string "nan", "inf" or "-inf": JSON has
/// no such numbers, and null would hide what happened.
nlohmann::ordered_json with_finite_numbers(nlohmann::ordered_json value);

/// Writes `value` as indented JSON, atomically, keys in their order, through with_finite_numbers().
void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value);

/// The lines of a metrics file up to "step" `last_step`, behind whose line nothing need be whole. A line that is cut
/// off at the end is passed over; any other that is no JSON object with a "step" is a std::runtime_error with file and
/// line. Empty where there is no file.
std::vector<nlohmann::ordered_json> read_metrics(const std::filesystem::path& path, int64_t last_step = INT64_MAX);

/// A file of one JSON object a line, keys in the order they were given, through with_finite_numbers(). Each line goes
/// to the system at once and in one piece: a run that is stopped leaves whole lines.
///
///     MetricsWriter metrics(folder.file("metrics.jsonl"));
///     metrics.write({{"step", 10}, {"loss", 0.25}});
class MetricsWriter {
 public:
  /// Begins the file anew. Throws std::runtime_error with path and reason.
  explicit MetricsWriter(std::filesystem::path path);
  /// Goes on with the file of an earlier run after its step `last_step`: lines up to that "step" are kept, those behind
  /// it, which the run will write again, and one that was cut off are dropped. The file is replaced whole, so that a
  /// crash on the way loses nothing. Where there is no file, one is begun.
  MetricsWriter(std::filesystem::path path, int64_t last_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Throws std::invalid_argument where `line` is no JSON object, std::runtime_error where it cannot be written.
  void write(const nlohmann::ordered_json& line);
  /// Sees to it that the lines are on the disk: before a checkpoint is written, whose steps they tell of.
  void flush();

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace examples
