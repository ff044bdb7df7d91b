#include <regard/autograd/file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>

#include <regard/autograd/error.hpp>

namespace regard {

namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

}  // namespace

// ---- Writing

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  std::error_code error;
  if (fs::is_symlink(path, error)) {
    fs::path target = fs::weakly_canonical(path, error);
    if (!error) path_ = target;
  }
  struct stat former {};
  bool replaces = ::stat(path_.c_str(), &former) == 0;
  if (path.empty() || !path_.has_filename()) fail<FileError>("write", "'", path.string(), "' is no file's name");
  if (replaces && !S_ISREG(former.st_mode))
    fail<FileError>("write", path_.string(), ": there is something of that name already which is not a regular file");

  static std::atomic<unsigned> counter{0};
  do {  // a name of its own, whatever an earlier process of the same number left behind
    temporary_ =
        folder_of(path_) / (".regard-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp");
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail<FileError>("write", path_.string(), ": cannot create a file in its folder: ", reason(errno));
  // A file that only its owner may read stays so.
  if (replaces && ::fchmod(file_, former.st_mode & 07777) != 0) fail_with("cannot set its permissions", errno);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail_with(const char* what, int error) {
  discard();
  fail<FileError>("write", path_.string(), ": ", what, ": ", reason(error));
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t written = ::write(file_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with("cannot write", errno);
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t written = ::pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with("cannot write", errno);
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(file_) != 0) fail_with("cannot flush to the disk", errno);
  int closed = ::close(file_);
  file_ = -1;
  if (closed != 0) fail_with("cannot close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with("cannot take the name", errno);
  temporary_.clear();
  // The new name lasts through a power cut only once the folder is on the disk. Some file systems cannot do that for a
  // folder and say EINVAL; a folder that may be written but not read cannot be opened: the file itself is safe.
  int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  int error = ::fsync(folder) == 0 || errno == EINVAL ? 0 : errno;
  ::close(folder);
  if (error != 0) fail_with("cannot flush its folder to the disk", error);
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

// ---- Reading

InputFile::InputFile(const fs::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) fail<FileError>("read", path.string(), ": cannot open: ", reason(errno));
  struct stat state {};
  int error = ::fstat(file_, &state) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(state.st_mode)) {
    ::close(file_);
    fail<FileError>("read", path.string(), ": ", error != 0 ? reason(error) : "it is not a regular file");
  }
  size_ = static_cast<uint64_t>(state.st_size);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(uint64_t offset, void* data, size_t bytes) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t count = ::pread(file_, to, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail<FileError>("read", path_.string(), ": cannot read: ", reason(errno));
    if (count == 0) fail<FileError>("read", path_.string(), ": it ends early: it has shrunk while it was read");
    to += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
}

}  // namespace regard
