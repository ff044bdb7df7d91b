#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <stdexcept>
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

/// The options of the run in `folder`, which `config` holds, with --steps, --threads, --device and --checkpoint-every
/// as they are in `given`; anything else that is given must be as it was (see check_unchanged()). `read(argc, argv)` is
/// the program's own reading of its command line, and its error is a std::runtime_error that names config.json, unless
/// it is about the --steps that are given now. `leave_out` are keys of the config that are no options.
template <typename Read>
auto options_of_run(const std::filesystem::path& folder, const std::string& program, nlohmann::ordered_json config,
                    const nlohmann::ordered_json& given, const std::vector<std::string>& leave_out, Read read) {
  const std::vector<std::string> may_change{"steps", "threads", "device", "checkpoint_every"};
  check_unchanged(given, config, may_change, folder);
  for (const std::string& key : may_change)
    if (given.contains(key)) config[key] = given.at(key);
  const std::vector<std::string> words = command_line(program, config, leave_out);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    auto options = read(static_cast<int>(arguments.size()), arguments.data());
    options->resume = folder;
    return *options;
  } catch (const UsageError& error) {
    if (given.contains("steps") && std::string(error.what()).starts_with("--steps")) throw;
    throw std::runtime_error((folder / "config.json").string() + ": " + error.what());
  }
}

}  // namespace examples
