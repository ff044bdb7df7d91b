#include <regard/optim/checkpoint_files.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

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

FolderLock::FolderLock(const std::filesystem::path& folder)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (folder_ >= 0 && ::flock(folder_, LOCK_EX) != 0 && errno == EINTR) {
  }
}
FolderLock::~FolderLock() {
  if (folder_ >= 0) ::close(folder_);
}

}  // namespace regard::optim::detail
