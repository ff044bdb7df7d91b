// Random numbers: a counter-based generator (Philox 4x32-10), so that a value depends on seed and position alone.
#pragma once

#include <array>
#include <cstdint>

#include <regard/autograd/tensor.hpp>

namespace regard {

/// Philox 4x32-10: 128 random bits for a key and a counter. Salmon, Moraes, Dror, Shaw, "Parallel random numbers:
/// as easy as 1, 2, 3", SC 2011.
std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter);

/// A stream of random numbers: a seed and how many counters were used. An op takes a range of counters, one an
/// element in logical row-major order, so values do not depend on threads, layout or device. Not thread-safe:
/// one a thread, or one lock around it.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  uint64_t seed() const { return seed_; }
  uint64_t offset() const { return offset_; }
  void set_state(uint64_t seed, uint64_t offset) {
    seed_ = seed;
    offset_ = offset;
  }
  /// Takes `count` counters and returns the first.
  uint64_t reserve(int64_t count) {
    uint64_t first = offset_;
    offset_ += static_cast<uint64_t>(count);
    return first;
  }

 private:
  uint64_t seed_;
  uint64_t offset_ = 0;
};

/// The generator that random functions use when none is given; one a process, seeded with 0 at first. Guard it
/// yourself when several threads draw.
Generator& default_generator();
/// Starts the default generator again with `seed`.
void manual_seed(uint64_t seed);

/// How counters become numbers, the same on every device. Uniform: the upper 24 (f32) or 53 (f64) bits, in [0, 1).
constexpr float uniform_float(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }
constexpr double uniform_double(uint32_t high, uint32_t low) {
  return static_cast<double>(((static_cast<uint64_t>(high) << 32) | low) >> 11) * 0x1p-53;
}

// Floating numbers are f32 or f64, on GPUs bf16 or f16 too: f32 numbers, rounded.
Tensor rand(const Shape& shape, TensorOptions options = {}, Generator& generator = default_generator());   ///< [0, 1)
Tensor randn(const Shape& shape, TensorOptions options = {}, Generator& generator = default_generator());  ///< N(0, 1)
/// Integers in [low, high).
Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options = DType::i64,
               Generator& generator = default_generator());
/// A random order of 0 ... n - 1.
Tensor randperm(int64_t n, TensorOptions options = DType::i64, Generator& generator = default_generator());
/// 1 with the probability that each element of p gives, else 0; p's shape and dtype.
Tensor bernoulli(const Tensor& p, Generator& generator = default_generator());
/// Fill in place: what initialisers use.
void uniform_(const Tensor& x, double low, double high, Generator& generator = default_generator());
void normal_(const Tensor& x, double mean, double std, Generator& generator = default_generator());

}  // namespace regard
