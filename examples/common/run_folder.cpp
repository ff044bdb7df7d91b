#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/utf8.hpp>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& what, const std::string& reason) {
  throw std::runtime_error(path.string() + ": cannot " + what + ": " + reason);
}

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  fail(path, what, std::string(std::strerror(error)));
}

// Writes everything; returns 0 or the error.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

std::string dumped(const nlohmann::ordered_json& value, int indent) {
  return with_finite_numbers(value).dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void check_name(const std::string& name) {
  if (name == "." || name == ".." || name.empty())
    throw UsageError("name", in_quotes(name) + " cannot be a folder's name");
  if (name.size() > 200) throw UsageError("name", in_quotes(name) + " is longer than 200 bytes");
  for (char c : name)
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      throw UsageError("name", in_quotes(name) + " holds a slash or a control character; give a plain name");
}

// A new name lasts through a power cut only once its folder is on the disk. Some file systems cannot do it for a folder
// and say EINVAL.
void flush_names(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;  // a folder that may be written but not read: the file itself is safe
  const int error = ::fsync(directory) == 0 || errno == EINVAL ? 0 : errno;
  ::close(directory);
  if (error != 0) fail(path, "flush its folder to the disk", error);
}

// Makes one folder; false where something of that name is there already.
bool make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0) {
    flush_names(path);
    return true;
  }
  if (errno == EEXIST) return false;
  fail(path, "create the folder", errno);
}

bool is_taken(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

}  // namespace

RunFolder make_run_folder(const fs::path& parent, const std::optional<std::string>& name, std::string_view base) {
  if (name) check_name(*name);
  std::error_code error;
  fs::create_directories(parent, error);
  if (!fs::is_directory(parent)) fail(parent, "create the folder", error ? error.message() : "a file is in its place");

  if (!name) {
    for (int number = 1;; ++number) {  // mkdir itself is the test, so that two runs at once get two folders
      const fs::path path = parent / (std::string(base) + "-" + std::to_string(number));
      if (make_folder(path)) return {path};
    }
  }
  const fs::path path = parent / *name;
  if (make_folder(path)) return {path};
  if (!fs::is_directory(path, error)) throw UsageError("name", path.string() + " is there already, and is no folder");
  if (fs::is_empty(path, error) && !error) return {path};
  { const RunLock unused(path); }  // nobody's files are moved from under his feet
  int number = 1;
  fs::path aside;
  do aside = parent / (*name + "." + std::to_string(number++));
  while (is_taken(aside));
  fs::rename(path, aside, error);
  if (error) fail(path, "move the earlier run to " + aside.string(), error.message());
  if (!make_folder(path)) fail(path, "create the folder", std::string("another run has just taken the name"));
  return {path, aside};
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  static std::atomic<unsigned> counter{0};
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  fs::path temporary;
  int file = -1;
  do {  // a name of its own, whatever an earlier process of the same number left behind
    temporary = folder / (".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file < 0 && errno == EEXIST);
  if (file < 0) fail(path, "write", errno);

  int error = write_all(file, text);
  if (error == 0 && ::fsync(file) != 0) error = errno;
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    fail(path, "write", error);
  }
  flush_names(path);
}

nlohmann::ordered_json with_finite_numbers(nlohmann::ordered_json value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  }
  if (value.is_structured())
    for (auto& element : value) element = with_finite_numbers(std::move(element));
  return value;
}

void write_json(const fs::path& path, const nlohmann::ordered_json& value) {
  write_file_atomically(path, dumped(value, 2));
}

std::vector<nlohmann::ordered_json> read_metrics(const fs::path& path, int64_t last_step) {
  std::vector<nlohmann::ordered_json> lines;
  if (!is_taken(path)) return lines;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "read", errno);
  int64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (file.eof()) break;  // no end of line: cut off
    auto line = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      // What is written behind a checkpoint need not be on the disk after a power cut, and is not wanted.
      if (!lines.empty() && lines.back()["step"] == last_step) break;
      throw std::runtime_error(path.string() + ":" + std::to_string(number) +
                               ": not a line of metrics; mend it or take it out");
    }
    if (line["step"].get<int64_t>() <= last_step) lines.push_back(std::move(line));
  }
  return lines;
}

MetricsWriter::MetricsWriter(fs::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path_, "write", errno);
}

MetricsWriter::MetricsWriter(fs::path path, int64_t last_step) : path_(std::move(path)) {
  std::string kept;
  for (const auto& line : read_metrics(path_, last_step)) kept += dumped(line, -1);
  write_file_atomically(path_, kept);
  file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) fail(path_, "write", errno);
}

void MetricsWriter::flush() {
  if (::fsync(file_) != 0 && errno != EINVAL) fail(path_, "write", errno);  // EINVAL: a pipe or device has no disk
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::write(const nlohmann::ordered_json& line) {
  if (!line.is_object()) throw std::invalid_argument("MetricsWriter: a line must be a JSON object, not " + line.dump());
  if (const int error = write_all(file_, dumped(line, -1)); error != 0) fail(path_, "write", error);
}

}  // namespace examples
