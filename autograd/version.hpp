// Regard's version, as in CMakeLists.txt.
#pragma once

namespace regard {

inline constexpr const char* version = "0.1.0";

}  // namespace regard
