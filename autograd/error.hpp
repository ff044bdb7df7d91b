// Errors: one family of exceptions, and check(), which makes every message name the op and the layer around it.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace regard {

/// Base of every exception that Regard throws. Thrown before anything has been changed.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ShapeError : Error {  ///< shapes or dimensions that do not fit
  using Error::Error;
};
struct DTypeError : Error {  ///< element types that do not fit
  using Error::Error;
};
struct DeviceError : Error {  ///< tensors on different devices, or a device that is not there
  using Error::Error;
};
struct IndexError : Error {  ///< an index outside its range
  using Error::Error;
};
struct ValueError : Error {  ///< an option or number outside its range
  using Error::Error;
};
struct FileError : Error {  ///< a file that cannot be read, written or understood
  using Error::Error;
};
struct GraphError : Error {  ///< something the autograd graph does not allow
  using Error::Error;
};

/// A place that error messages mention: layers open one while they compute (see layers/layer.hpp).
class ErrorScope {
 public:
  using Describe = std::string (*)(const void* object);
  ErrorScope(Describe describe, const void* object);
  ~ErrorScope();
  ErrorScope(const ErrorScope&) = delete;
  ErrorScope& operator=(const ErrorScope&) = delete;

  /// ` (in encoder.blocks.2.attention)`, or nothing outside of any layer.
  static std::string suffix();
  /// The innermost place, `encoder.blocks.2.attention`, or nothing.
  static std::string innermost();

 private:
  Describe describe_;
  const void* object_;
  ErrorScope* outer_;
};

/// Throws E with the message `op: parts... (in layer)`.
template <class E, class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  message << ErrorScope::suffix();
  throw E(message.str());
}

/// `check<ShapeError>(a == b, "matmul", "inner dimensions ", a, " and ", b, " differ")`
template <class E, class... Parts>
void check(bool ok, const char* op, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail<E>(op, parts...);
}

/// Where warnings go: by default a line on standard error, `regard: warning: ...`. A program can replace it;
/// an empty handler silences. Returns the former one.
using WarningHandler = std::function<void(const std::string&)>;
WarningHandler set_warning_handler(WarningHandler handler);
void warn(const std::string& message);

}  // namespace regard
