#include <unistd.h>

#include <algorithm>
#include <regard/autograd/cuda.hpp>
#include <regard/autograd/error.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/step_profile.hpp>
#include <system_error>

namespace examples {

StepProfile::StepProfile(const std::optional<std::string>& file, int64_t steps)
    : first_(std::clamp<int64_t>(steps - most_steps, 0, warm_up)) {
  if (file) file_ = *file;
}

void StepProfile::next_step() {
  if (!file_) return;
  const int64_t step = step_++;
  if (step == first_) {
    // Each op waits for what it asked of a GPU, so that its time is its own.
    was_synchronous_ = regard::set_cuda_synchronous(true);
    profiler_.emplace();
  }
  if (!profiler_ || !profiler_->recording()) return;
  region_.emplace("step");
  ++profiled_;
}

void StepProfile::step_is_over() {
  region_.reset();
  if (profiled_ == most_steps) stop();
}

void StepProfile::stop() {
  if (!profiler_->recording()) return;
  profiler_->stop();
  regard::set_cuda_synchronous(was_synchronous_);
}

void StepProfile::finish(std::ostream& out) {
  region_.reset();
  if (!file_) return;
  if (!profiler_) {
    out << "\nno profile: the training ended before its step " << first_ + 1 << "\n";
    return;
  }
  stop();
  out << "\nprofile of " << profiled_ << (profiled_ == 1 ? " step" : " steps") << ", after " << first_ << ":\n"
      << profiler_->table();
  try {
    profiler_->write(*file_);
    out << "trace in " << file_->string() << ", for ui.perfetto.dev or chrome://tracing\n";
  } catch (const regard::FileError& error) {  // what was trained is worth more
    out << "no trace: " << error.what() << "\n";
  }
}

void check_profile(const std::optional<std::string>& file) {
  if (!file) return;
  namespace fs = std::filesystem;
  const fs::path path = *file;
  std::error_code error;
  if (fs::is_directory(path, error)) throw UsageError("profile", *file + " is a folder; give a file");
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) throw UsageError("profile", "there is no folder " + folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    throw UsageError("profile", "no file can be written in " + folder.string());
}

}  // namespace examples
