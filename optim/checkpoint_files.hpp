// How a checkpoint's folder comes to be, for checkpoint.cpp and for tests, which stop it half-way.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace regard::optim::detail {

/// Called after each stage of writing a checkpoint, with its name; empty at first. A test may end the process in it or
/// throw. For one thread.
using StageObserver = void (*)(const char* stage);
void set_checkpoint_stage_observer(StageObserver observer);
void checkpoint_stage(const char* stage);

/// FOLDER/.NAME-PID-N.partial: what is written before it has its name. Nobody reads a folder of such a name.
std::filesystem::path partial_name(const std::filesystem::path& path);
bool is_partial_name(const std::string& name);

/// Flushes a folder's names to the disk. FileError.
void sync_folder(const std::filesystem::path& folder);
/// Makes a folder and those above it that are missing, so that they last, too: a folder that the disk has whole is lost
/// with one above it whose name it has not. `error` says why there is none; FileError where one cannot be flushed.
void make_folders(const std::filesystem::path& folder, std::error_code& error);

/// Held by the one that writes into a folder; others wait. Where the file system knows no locks it does nothing.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

}  // namespace regard::optim::detail
