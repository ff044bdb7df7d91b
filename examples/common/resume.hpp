#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// Held by the one program that writes into a run's folder, from its beginning to its end; the system lets go of it
/// when the program ends, however it does. Throws std::runtime_error where another program holds it.
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

/// Whether `weights`, which a run writes when its training is over, is there and of a run of at least `step` steps: its
/// metadata has the configuration under "config". A run that was ended between its last step and that has none, or an
/// older one's, and can be gone on with to have them.
bool has_results(const std::filesystem::path& weights, int64_t step);

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
