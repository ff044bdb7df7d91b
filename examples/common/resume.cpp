#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/utf8.hpp>
#include <regex>
#include <stdexcept>

namespace examples {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool holds(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string option_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

// Half-written files and checkpoints of programs that were killed.
void remove_left_behind(const fs::path& folder) {
  static const std::regex half_written(R"(\.tmp-\d+-\d+|\.regard-\d+-\d+\.tmp|\.step-[\d.]+-\d+-\d+\.partial)");
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (std::regex_match(at->path().filename().string(), half_written)) found.push_back(at->path());
  for (const fs::path& path : found) fs::remove_all(path, error);
}

std::string shown(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

RunLock::RunLock(const fs::path& folder) : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // Where the file system knows no locks, the run goes without.
  if (folder_ >= 0 && ::flock(folder_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(folder_);
    throw std::runtime_error(folder.string() + ": another program is writing to this run; wait for it, or stop it");
  }
  if (folder_ >= 0) remove_left_behind(folder);
}

RunLock::~RunLock() {
  if (folder_ >= 0) ::close(folder_);
}

Json read_config(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw UsageError("resume", in_quotes(folder.string()) + " is no folder");
  const fs::path path = folder / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UsageError("resume",
                     path.string() + " cannot be read (" + std::strerror(errno) + "): is this the folder of a run?");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw std::runtime_error(path.string() + ": it is damaged: no JSON object");
  return json;
}

std::string foreign_config(const Json& config, const fs::path& file, const std::string& program) {
  if (config.is_object() && config.contains("program") && config["program"].is_string() && config["program"] != program)
    return file.string() + " is of a run of " + config["program"].get<std::string>() + ", not of " + program;
  return file.string() + " is no configuration of " + program;
}

void check_data_is_there(const fs::path& data, const fs::path& run) {
  std::error_code error;
  if (fs::status(data, error).type() != fs::file_type::not_found) return;
  throw UsageError("resume", data.string() + ", from which the run in " + run.string() +
                                 " learned, is not there; go on in the folder in which the run began, or put the file "
                                 "back");
}

void write_results(const fs::path& run, int64_t step, const Json& results) {
  Json json = {{"step", step}};
  json.update(results);
  write_json(run / "results.json", json);
}

bool has_results(const fs::path& run, int64_t step) {
  std::ifstream file(run / "results.json", std::ios::binary);
  const Json json = Json::parse(file, nullptr, false);
  return json.is_object() && json.contains("step") && json["step"] == step;
}

void check_unchanged(const Json& given, const Json& config, const std::vector<std::string>& may_change,
                     const fs::path& folder) {
  for (const auto& [key, value] : given.items()) {
    if (holds(may_change, key)) continue;
    const std::string name = option_name(key);
    if (!config.contains(key))
      throw UsageError(name, "has no meaning with --resume: the run in " + folder.string() + " was started without it");
    if (config.at(key) != value)
      throw UsageError(name, shown(value) + " conflicts with " + shown(config.at(key)) + ", with which the run in " +
                                 folder.string() + " was started; leave it out, or start another run");
  }
}

std::vector<std::string> command_line(const std::string& program, const Json& config,
                                      const std::vector<std::string>& leave_out) {
  std::vector<std::string> arguments{program};
  for (const auto& [key, value] : config.items()) {
    if (holds(leave_out, key) || value.is_null() || value == false) continue;
    arguments.push_back("--" + option_name(key));
    if (value != true) arguments.back() += "=" + shown(value);
  }
  return arguments;
}

}  // namespace examples
