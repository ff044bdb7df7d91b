#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <regard/autograd/profiler.hpp>
#include <string>

namespace examples {

/// --profile FILE: a Profiler over a few steps of a training, once it is warm. Without a file it does nothing.
///
///     StepProfile profile(options.profile, options.steps - step);
///     while (...) {
///       profile.next_step();
///       take_step();
///     }
///     profile.finish(std::cout);
class StepProfile {
 public:
  static constexpr int64_t warm_up = 10, most_steps = 5;

  /// `steps` are to be taken: of a short training the last ones are looked at.
  StepProfile(const std::optional<std::string>& file, int64_t steps);
  /// A step begins.
  void next_step();
  /// What follows is no part of a step: evaluating, saving.
  void step_is_over();
  /// Writes the trace and shows the table. A trace that cannot be written is a line that says so.
  void finish(std::ostream& out);

 private:
  void stop();

  std::optional<std::filesystem::path> file_;
  int64_t first_, step_ = 0, profiled_ = 0;
  std::optional<regard::Profiler> profiler_;
  std::optional<regard::ProfilerRegion> region_;
  bool was_synchronous_ = false;
};

/// Throws UsageError for a --profile FILE that cannot be a file: before there is anything to write, not after.
void check_profile(const std::optional<std::string>& file);

}  // namespace examples
