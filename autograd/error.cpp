#include <regard/autograd/error.hpp>
#include <regard/autograd/profiler_hooks.hpp>

#include <exception>
#include <iostream>
#include <mutex>
#include <utility>

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "Regard relies on NaN and infinity: build it without -ffast-math and -ffinite-math-only"
#endif

namespace regard {

namespace {

thread_local ErrorScope* innermost_scope = nullptr;

std::mutex warning_mutex;
WarningHandler& warning_handler() {
  static WarningHandler handler = [](const std::string& message) {
    std::cerr << "regard: warning: " << message << '\n';
  };
  return handler;
}

}  // namespace

ErrorScope::ErrorScope(Describe describe, const void* object)
    : describe_(describe), object_(object), outer_(innermost_scope) {
  innermost_scope = this;
  if (profiling::active()) [[unlikely]]
    profiling::layer_entered(*this);
}
ErrorScope::~ErrorScope() {
  innermost_scope = outer_;
  if (profiling::active()) [[unlikely]]
    profiling::layer_left(*this);
}

std::string ErrorScope::innermost() {
  if (!innermost_scope) return {};
  // A description that fails, such as that of a layer that was moved from, must not ask for itself again: the scope is
  // out of sight while it describes itself.
  struct OutOfSight {
    ErrorScope* scope = std::exchange(innermost_scope, nullptr);
    ~OutOfSight() { innermost_scope = scope; }
  } hidden;
  try {
    return hidden.scope->describe_(hidden.scope->object_);
  } catch (const std::exception&) {
    return "a layer that cannot describe itself: was it moved from?";
  }
}
std::string ErrorScope::suffix() {
  std::string place = innermost();
  return place.empty() ? place : " (in " + place + ")";
}

WarningHandler set_warning_handler(WarningHandler handler) {
  std::lock_guard lock(warning_mutex);
  return std::exchange(warning_handler(), std::move(handler));
}

void warn(const std::string& message) {
  WarningHandler handler;
  {
    std::lock_guard lock(warning_mutex);
    handler = warning_handler();
  }
  if (handler) handler(message);
}

}  // namespace regard
