// Files: written whole or not at all, and read without trusting what they say about themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace regard {

/// Writes a file so that a reader finds either all of the old contents or all of the new, even after a crash: into a
/// temporary file of the same folder, flushed to the disk, then renamed over `path`. A FileError names path and
/// reason; the temporary file is removed then, and what was at `path` is untouched. Through a symbolic link its target
/// is written. What is there and is no regular file (a folder, a device) is refused.
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

/// The same, in pieces: `path` changes only in commit(). Without it, also when an exception passes by, the pieces
/// vanish.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes over bytes that were written before: a header, say, whose numbers are known at the end only.
  void write_at(uint64_t offset, const void* data, size_t bytes);
  /// Flushes to the disk and takes the name.
  void commit();

 private:
  [[noreturn]] void fail_with(const char* what, int error);
  void discard();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
};

/// A regular file opened for reading at any place. Nothing is mapped: a file that shrinks meanwhile is a FileError,
/// never a crash.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }  ///< bytes, when it was opened
  /// Reads exactly `bytes` bytes from `offset` on.
  void read(uint64_t offset, void* data, size_t bytes) const;

 private:
  std::filesystem::path path_;
  uint64_t size_ = 0;
  int file_ = -1;
};

}  // namespace regard
