#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <regard/autograd/safetensors.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/utf8.hpp>
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

std::string shown(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

RunLock::RunLock(const fs::path& folder) : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // Where the file system knows no locks, the run goes without.
  if (folder_ >= 0 && ::flock(folder_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(folder_);
    throw std::runtime_error(folder.string() + ": another program is writing to this run; wait for it, or stop it");
  }
}

RunLock::~RunLock() {
  if (folder_ >= 0) ::close(folder_);
}

Json read_config(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw UsageError("resume", in_quotes(folder.string()) + " is no folder");
  const fs::path path = folder / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError("resume", path.string() + " cannot be read: is this the folder of a run?");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw std::runtime_error(path.string() + ": it is damaged: no JSON object");
  return json;
}

bool has_results(const fs::path& weights, int64_t step) {
  std::error_code error;
  if (!fs::exists(weights, error)) return false;
  const auto metadata = regard::load_safetensors_file(weights).metadata;
  const auto config = metadata.find("config");
  const Json json = Json::parse(config == metadata.end() ? "" : config->second, nullptr, false);
  return json.is_object() && json.contains("steps") && json.at("steps").is_number_integer() &&
         json.at("steps").get<int64_t>() >= step;
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
