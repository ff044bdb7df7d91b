#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace examples {

/// What a training step has to show; what is not set is left out.
struct ProgressValues {
  std::optional<double> loss = std::nullopt;
  std::optional<double> accuracy = std::nullopt;  // 0 to 1; shown in percent
  std::optional<double> tokens_per_second = std::nullopt;
};

/// Where progress is shown. The default is the process' standard output.
struct ProgressOutput {
  std::ostream* stream = nullptr;               // nullptr: std::cout
  std::optional<bool> terminal = std::nullopt;  // not set: asked of the system (a TERM of "dumb" is none)
  std::optional<bool> unicode = std::nullopt;   // not set: as LC_ALL, LC_CTYPE or LANG say
  std::function<int()> columns = {};            // empty: the terminal's width, asked at every drawing
  std::function<double()> seconds = {};         // empty: a steady clock
};

/// The progress of a loop over `total` steps: on a terminal a bar that stays on the last line, redrawn at most ten
/// times a second and never wider than the terminal,
///
///     ━━━━━━━━━━━━╌╌╌╌╌╌╌╌  812/2000  loss 0.1234  accuracy 98.5%  123k tokens/s  0:42 left
///
/// elsewhere (a file, a pipe) a plain line for the first and last step and every twentieth of the way, and at least
/// every ten seconds:
///
///     step 812/2000  loss 0.1234  accuracy 98.5%  123k tokens/s  0:42 left
///
/// Its functions may be called from several threads.
class Progress {
 public:
  /// `done` steps were taken before, in a run that is gone on with: they took none of the time that is measured here.
  explicit Progress(int64_t total, ProgressOutput output = {}, int64_t done = 0);
  /// As finish().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `step` steps of the total are done.
  void update(int64_t step, const ProgressValues& values = {});

  /// Writes a line of its own, above the bar.
  void log(std::string_view line);

  /// Draws the last state and leaves it standing; later output begins on a line of its own.
  void finish();

 private:
  std::string details(bool plain) const;
  std::string bar_line() const;
  void draw();

  int64_t total_;
  int64_t done_;
  std::ostream& stream_;
  bool terminal_;
  bool unicode_;
  std::function<int()> columns_;
  std::function<double()> seconds_;

  std::mutex mutex_;
  double begin_;
  double now_;
  double last_shown_ = 0;
  int64_t step_ = 0;
  int64_t shown_step_ = -1;  // of the last plain line, or of the bar as it stands
  bool bar_stands_ = false;
  bool finished_ = false;
  ProgressValues values_;
};

/// "0:42", "12:03", "1:02:03", "2 days 03:00". Seconds are rounded; what is not finite or negative gives "?".
std::string duration_text(double seconds);

/// "87", "1.2k", "123k", "4.5M".
std::string rate_text(double rate);

/// 103245 as "103,245".
std::string grouped(int64_t number);

/// The seconds of a clock that is never set.
double steady_seconds();

}  // namespace examples
