#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// Held by the one program that writes into a run's folder, from its beginning to its end; the system lets go of it
/// when the program ends, however it does. Removes half-written files that a killed program left in the folder. Throws
/// std::runtime_error where another program holds it.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int folder_ = -1;
};

/// The config.json of the run in `folder`, to go on with it. Throws UsageError for --resume where there is no such
/// folder or file, std::runtime_error where the file is no JSON object.
nlohmann::ordered_json read_config(const std::filesystem::path& folder);

/// What is said of a run's config.json that is not of `program`: which program's it is, where it says so.
std::string foreign_config(const nlohmann::ordered_json& config, const std::filesystem::path& file,
                           const std::string& program);

/// Throws UsageError where the file that a run learned from is not there: its name is as it was given when the run
/// began, so that a run is gone on with in the same folder.
void check_data_is_there(const std::filesystem::path& data, const std::filesystem::path& run);

/// results.json, the last file that a run writes: `results`, with the step they are of in front.
void write_results(const std::filesystem::path& run, int64_t step, const nlohmann::ordered_json& results);
/// Whether a run wrote its results behind this step. If not, it was ended between its last checkpoint and them, and
/// --resume makes up for it.
bool has_results(const std::filesystem::path& run, int64_t step);

/// Options given beside --resume must be those that the run was started with, but for those named in `may_change`.
/// `given` and `config` hold values by key, as in config.json (`weight_decay` for --weight-decay). Throws UsageError.
void check_unchanged(const nlohmann::ordered_json& given, const nlohmann::ordered_json& config,
                     const std::vector<std::string>& may_change, const std::filesystem::path& folder);

/// The command line (with the program's name in front) that stands for a configuration: `--key=value` for every key
/// but those in `leave_out`. Read by the program's own options, it is checked as strictly as a user's. A false flag and
/// null are left out; a true flag is `--key`.
std::vector<std::string> command_line(const std::string& program, const nlohmann::ordered_json& config,
                                      const std::vector<std::string>& leave_out);

}  // namespace examples
