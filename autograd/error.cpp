#include <regard/autograd/error.hpp>

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
}
ErrorScope::~ErrorScope() { innermost_scope = outer_; }

std::string ErrorScope::innermost() {
  return innermost_scope ? innermost_scope->describe_(innermost_scope->object_) : std::string();
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
