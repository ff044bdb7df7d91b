#include <csignal>
#include <regard/examples/common/stop_signals.hpp>

namespace examples {
namespace {

volatile std::sig_atomic_t arrived = 0;

void remember(int signal) { arrived = signal; }

}  // namespace

StopSignals::StopSignals() {
  arrived = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  // The second one finds the system's own handling again; calls that a signal interrupts go on.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &former_interrupt_);
  ::sigaction(SIGTERM, &action, &former_terminate_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &former_interrupt_, nullptr);
  ::sigaction(SIGTERM, &former_terminate_, nullptr);
}

int StopSignals::signal() const { return arrived; }

std::string StopSignals::name() const { return arrived == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace examples
