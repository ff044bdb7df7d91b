#pragma once

#include <cstdint>

namespace examples {

/// The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): every
/// bit of the result depends on every bit of `x`.
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The splitmix64 generator, keyed by a seed and two numbers that tell its uses apart. The standard library's
/// distributions differ between implementations; this gives the same numbers everywhere.
class Random {
 public:
  explicit constexpr Random(uint64_t seed, uint64_t use = 0, uint64_t index = 0)
      : state_(mix_bits(mix_bits(mix_bits(seed) ^ use) ^ index)) {}

  constexpr uint64_t next() {
    const uint64_t result = mix_bits(state_);
    state_ += 0x9E3779B97F4A7C15u;
    return result;
  }

  /// A whole number in [0, n), each equally likely; n > 0.
  constexpr int64_t below(int64_t n) {
    const auto range = static_cast<uint64_t>(n);
    const uint64_t rest = (0 - range) % range;  // 2^64 mod n: so many values would make the first ones likelier
    uint64_t value = next();
    while (value < rest) value = next();
    return static_cast<int64_t>(value % range);
  }

 private:
  uint64_t state_;
};

}  // namespace examples
