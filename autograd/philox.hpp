// Philox 4x32-10, the function behind random.hpp: a bijection of 128-bit counters for each 64-bit key. Salmon, Moraes,
// Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. For backends; programs use random.hpp.
#pragma once

#include <array>
#include <cstdint>

namespace regard::detail {

struct PhiloxConstants {
  static constexpr uint32_t multiplier0 = 0xD2511F53U, multiplier1 = 0xCD9E8D57U;
  static constexpr uint32_t weyl0 = 0x9E3779B9U, weyl1 = 0xBB67AE85U;
  static constexpr int rounds = 10;
};

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < PhiloxConstants::rounds; ++round) {
    uint64_t product0 = uint64_t{PhiloxConstants::multiplier0} * counter[0];
    uint64_t product1 = uint64_t{PhiloxConstants::multiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += PhiloxConstants::weyl0;
    key[1] += PhiloxConstants::weyl1;
  }
  return counter;
}

/// As Regard numbers its elements: the seed is the key, the element's counter the lower half of Philox's.
constexpr std::array<uint32_t, 4> philox_element(uint64_t seed, uint64_t counter) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// The upper half of a 64 x 64 bit product: maps 64 random bits to [0, range) with a bias below range / 2^64.
constexpr uint64_t scale_bits(uint64_t bits, uint64_t range) {
  uint64_t low_low = (bits & 0xffffffffU) * (range & 0xffffffffU);
  uint64_t high_low = (bits >> 32) * (range & 0xffffffffU);
  uint64_t low_high = (bits & 0xffffffffU) * (range >> 32);
  uint64_t middle = (low_low >> 32) + (high_low & 0xffffffffU) + low_high;
  return (bits >> 32) * (range >> 32) + (high_low >> 32) + (middle >> 32);
}

}  // namespace regard::detail
