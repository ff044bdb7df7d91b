#include <regard/optim/checkpoint_files.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <vector>

#include <regard/autograd/error.hpp>

namespace regard::optim::detail {

namespace {

StageObserver stage_observer = nullptr;

}  // namespace

void set_checkpoint_stage_observer(StageObserver observer) { stage_observer = observer; }
void checkpoint_stage(const char* stage) {
  if (stage_observer != nullptr) stage_observer(stage);
}

std::filesystem::path partial_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  return folder / ("." + path.filename().string() + "-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) +
                   ".partial");
}

bool is_partial_name(const std::string& name) { return name.starts_with(".step-") && name.ends_with(".partial"); }

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;  // a folder that may be written but not read
  // Some file systems cannot do that for a folder and say EINVAL.
  const int error = ::fsync(file) == 0 || errno == EINVAL ? 0 : errno;
  ::close(file);
  check<FileError>(error == 0, "write", folder.string(),
                   ": cannot flush the folder to the disk: ", std::generic_category().message(error));
}

void make_folders(const std::filesystem::path& folder, std::error_code& error) {
  std::vector<std::filesystem::path> made;
  std::error_code unknown;  // what cannot be looked at cannot be made either: create_directories() says why
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, unknown); at = at.parent_path())
    made.push_back(at);
  std::filesystem::create_directories(folder, error);
  if (error || made.empty()) return;
  for (const std::filesystem::path& one : made)
    sync_folder(one.has_parent_path() ? one.parent_path() : std::filesystem::path("."));
  checkpoint_stage("folders above flushed");
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (folder_ >= 0 && ::flock(folder_, LOCK_EX) != 0 && errno == EINTR) {
  }
}
FolderLock::~FolderLock() {
  if (folder_ >= 0) ::close(folder_);
}

}  // namespace regard::optim::detail
