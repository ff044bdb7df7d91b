// Where a tensor's elements live.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace regard {

struct Device {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

constexpr Device cpu() { return {}; }
/// A GPU, by its number: `model.to(cuda())`. What runs there and how: backend/cuda_backend.hpp and cuda.hpp.
constexpr Device cuda(int index = 0) { return {Device::Kind::cuda, index}; }

/// `cpu`, `cuda:0`
std::string to_string(Device device);
std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace regard
