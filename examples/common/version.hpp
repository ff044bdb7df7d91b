#pragma once

namespace examples {

/// Regard's version, for what a run writes down about itself: as in the top folder's CMakeLists.txt (a test compares).
constexpr const char* regard_version = "0.1.0";

}  // namespace examples
