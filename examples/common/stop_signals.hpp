#pragma once

#include <signal.h>

#include <string>

namespace examples {

/// While it lives, Ctrl-C (SIGINT) and SIGTERM do not end the program but are remembered, so that a training can finish
/// its step, save and then leave. A second one ends the program at once, as ever. One at a time.
///
///     StopSignals stop;
///     while (step < steps && !stop.signal()) ...
///     if (stop.signal()) return stop.exit_status();
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that has come, or 0.
  int signal() const;
  /// "SIGINT" or "SIGTERM".
  std::string name() const;
  /// 128 and the signal's number, as shells have it.
  int exit_status() const { return 128 + signal(); }

 private:
  struct sigaction former_interrupt_ {
  }, former_terminate_{};
};

}  // namespace examples
