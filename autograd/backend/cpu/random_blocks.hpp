// Blocks of neighbouring counters: their bits, and what is made of them on vectors. For random.cpp.
#pragma once

#include <cstdint>

namespace regard::cpu_backend {

/// The bits of block_size neighbouring counters, word by word.
struct BitBlock {
  static constexpr int64_t size = 256;  // 4 KiB: small enough to stay in cache
  alignas(64) uint32_t word[4][size];
};

/// Fills the first `count` counters of a block, from counter `first` on; of words, the first `words` at least.
void fill_bits(BitBlock& bits, uint64_t seed, uint64_t first, int64_t count, int words = 4);

/// out[i] = mean + std * normal number of counter i. Box and Muller, 1958: sqrt(-2 log u) cos(2 pi v), where
/// f32: u from the upper 31 bits of word 0 (so it stays below 6.7), v from the upper 24 of word 1;
/// f64: u from the upper 52 bits of words 0 and 1, v from those of words 2 and 3.
void fill_normal(const BitBlock& bits, int64_t count, float mean, float std, float* out);
void fill_normal(const BitBlock& bits, int64_t count, double mean, double std, double* out);

/// out[i] = upper 24 bits of word 0 >= threshold ? x[i] * scale : 0. Infinities and NaN are dropped too.
void drop(const BitBlock& bits, int64_t count, const float* x, uint32_t threshold, float scale, float* out);
void drop(const BitBlock& bits, int64_t count, const double* x, uint32_t threshold, double scale, double* out);

}  // namespace regard::cpu_backend
