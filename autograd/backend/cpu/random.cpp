// Random numbers on the CPU. Every value is a function of (seed, counter) made of integer arithmetic and of IEEE
// additions, multiplications, divisions and square roots alone, no libm: the same bits with every compiler, library,
// processor and number of threads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/philox.hpp>
#include <regard/autograd/random.hpp>

namespace regard::cpu {

namespace {

constexpr int64_t block_size = 256;         // counters at a time: 4 KiB of bits, small enough to stay in cache
constexpr int64_t elements_a_chunk = 8192;  // some 50 microseconds of work

/// The bits of `count` neighbouring counters, word by word, so that what follows runs on vectors.
struct BitBlock {
  alignas(64) uint32_t word[4][block_size];

  void fill(uint64_t seed, uint64_t first, int64_t count) {
    using Philox = regard::detail::PhiloxConstants;
    for (int64_t i = 0; i < count; ++i) {
      uint64_t counter = first + static_cast<uint64_t>(i);
      word[0][i] = static_cast<uint32_t>(counter);
      word[1][i] = static_cast<uint32_t>(counter >> 32);
      word[2][i] = 0;
      word[3][i] = 0;
    }
    auto key0 = static_cast<uint32_t>(seed);
    auto key1 = static_cast<uint32_t>(seed >> 32);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t c0 = word[0][i], c1 = word[1][i], c2 = word[2][i], c3 = word[3][i];
      uint32_t k0 = key0, k1 = key1;
      for (int round = 0; round < Philox::rounds; ++round) {
        uint64_t product0 = uint64_t{Philox::multiplier0} * c0;
        uint64_t product1 = uint64_t{Philox::multiplier1} * c2;
        c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(product1);
        c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(product0);
        k0 += Philox::weyl0;
        k1 += Philox::weyl1;
      }
      word[0][i] = c0;
      word[1][i] = c1;
      word[2][i] = c2;
      word[3][i] = c3;
    }
  }
};

/// A tensor's elements by logical row-major index, whatever its layout.
template <class T>
class Elements {
 public:
  explicit Elements(const Tensor& x)
      : data_(static_cast<T*>(x.raw_data())), shape_(x.shape()), strides_(x.strides()), dense_(x.is_contiguous()) {}

  /// Where to compute elements first ...: in place when dense, else in `buffer`, and store() brings them home.
  T* place(int64_t first, T* buffer) const { return dense_ ? data_ + first : buffer; }
  void store(int64_t first, int64_t count, const T* buffer) const {
    if (!dense_) walk(first, count, [&](int64_t i, T& element) { element = buffer[i]; });
  }
  /// The elements first ..., in place when dense, else copied to `buffer`.
  const T* load(int64_t first, int64_t count, T* buffer) const {
    if (dense_) return data_ + first;
    walk(first, count, [&](int64_t i, T& element) { buffer[i] = element; });
    return buffer;
  }

 private:
  template <class F>
  void walk(int64_t first, int64_t count, F&& f) const {
    if (count == 0) return;
    Shape position = shape_;
    int64_t offset = 0;
    for (int64_t d = shape_.dim() - 1, rest = first; d >= 0; --d) {
      position[d] = rest % shape_[d];
      rest /= shape_[d];
      offset += position[d] * strides_[d];
    }
    for (int64_t i = 0; i < count; ++i) {
      f(i, data_[offset]);
      for (int64_t d = shape_.dim() - 1; d >= 0; --d) {
        offset += strides_[d];
        if (++position[d] < shape_[d]) break;
        offset -= strides_[d] * shape_[d];
        position[d] = 0;
      }
    }
  }

  T* data_;
  Shape shape_;
  Strides strides_;
  bool dense_;
};

/// Fills y in blocks: `make(bits, first, count, out)` computes the elements first ... of the logical order.
template <class T, class Make>
void fill_blocks(const Tensor& y, uint64_t seed, uint64_t offset, const Make& make) {
  Elements<T> elements(y);
  parallel_for(y.numel(), elements_a_chunk, [&](int64_t begin, int64_t end) {
    BitBlock bits;
    alignas(64) T buffer[block_size];
    for (int64_t first = begin; first < end; first += block_size) {
      int64_t count = std::min(block_size, end - first);
      bits.fill(seed, offset + static_cast<uint64_t>(first), count);
      make(bits, first, count, elements.place(first, buffer));
      elements.store(first, count, buffer);
    }
  });
}

float uniform_of(const BitBlock& bits, int64_t i, float) { return uniform_float(bits.word[0][i]); }
double uniform_of(const BitBlock& bits, int64_t i, double) { return uniform_double(bits.word[0][i], bits.word[1][i]); }

// ---- Box and Muller, 1958: sqrt(-2 log u) cos(2 pi v), for u in (0, 1) and v in [0, 1), to about 2 ulp.

/// log u for u in (0, 1]; the polynomial is the Cephes library's.
inline float log_unit(float u) {
  auto bits = std::bit_cast<uint32_t>(u);
  int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3U) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
  float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0F;
  auto e = static_cast<float>(exponent);
  float z = f * f;
  float p = 7.0376836292E-2F;
  p = p * f - 1.1514610310E-1F;
  p = p * f + 1.1676998740E-1F;
  p = p * f - 1.2420140846E-1F;
  p = p * f + 1.4249322787E-1F;
  p = p * f - 1.6668057665E-1F;
  p = p * f + 2.0000714765E-1F;
  p = p * f - 2.4999993993E-1F;
  p = p * f + 3.3333331174E-1F;
  p = p * f * z - e * 2.12194440E-4F - 0.5F * z;
  return f + p + e * 0.693359375F;
}

/// cos(2 pi v) for v in [0, 1).
inline float cos_turn(float v) {
  float quarters = v * 4.0F;
  auto quadrant = static_cast<int32_t>(quarters + 0.5F);
  float x = (quarters - static_cast<float>(quadrant)) * 1.57079632679489662F;
  float z = x * x;
  float cosine = ((2.443315711809948E-5F * z - 1.388731625493765E-3F) * z + 4.166664568298827E-2F) * z * z;
  cosine = cosine - 0.5F * z + 1.0F;
  float sine = ((-1.9515295891E-4F * z + 8.3321608736E-3F) * z - 1.6666654611E-1F) * z * x + x;
  float value = (quadrant & 1) != 0 ? sine : cosine;
  return ((quadrant + 1) & 2) != 0 ? -value : value;
}

/// The same in f64, with the polynomials of Sun's fdlibm.
inline double log_unit(double u) {
  auto bits = std::bit_cast<uint64_t>(u);
  int32_t exponent = static_cast<int32_t>(static_cast<uint32_t>((bits - 0x3fe6a09e667f3bcdU) >> 32)) >> 20;
  double f = std::bit_cast<double>(bits - (static_cast<uint64_t>(static_cast<int64_t>(exponent)) << 52)) - 1.0;
  auto e = static_cast<double>(exponent);
  double s = f / (2.0 + f);
  double z = s * s, w = z * z;
  double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  double odd = z * (6.666666666666735130e-01 +
                    w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  double half_square = 0.5 * f * f;
  return e * 6.93147180369123816490e-01 -
         ((half_square - (s * (half_square + (odd + even)) + e * 1.90821492927058770002e-10)) - f);
}

inline double cos_turn(double v) {
  double quarters = v * 4.0;
  auto quadrant = static_cast<int32_t>(quarters + 0.5);
  double x = (quarters - static_cast<double>(quadrant)) * 1.57079632679489661923;
  double z = x * x;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  double cosine = 1.0 - (0.5 * z - z * z * c);
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  double sine = x + z * x * s;
  double value = (quadrant & 1) != 0 ? sine : cosine;
  return ((quadrant + 1) & 2) != 0 ? -value : value;
}

/// f32: u from the upper 31 bits of word 0 (so |normal| <= 6.7), v from the upper 24 bits of word 1.
inline float normal_of(const BitBlock& bits, int64_t i, float) {
  float u = (static_cast<float>(static_cast<int32_t>(bits.word[0][i] >> 1)) + 0.5F) * 0x1p-31F;
  return std::sqrt(-2.0F * log_unit(u)) * cos_turn(uniform_float(bits.word[1][i]));
}

/// 52 bits as a number in [0, 1), in a way that runs on vectors.
inline double unit_52(uint32_t high, uint32_t low) {
  uint64_t bits = (uint64_t{high} << 32 | low) >> 12;
  return std::bit_cast<double>(bits | 0x3ff0000000000000U) - 1.0;
}

/// f64: u from the upper 52 bits of words 0 and 1, v from those of words 2 and 3.
inline double normal_of(const BitBlock& bits, int64_t i, double) {
  double u = unit_52(bits.word[0][i], bits.word[1][i]) + 0x1p-53;
  return std::sqrt(-2.0 * log_unit(u)) * cos_turn(unit_52(bits.word[2][i], bits.word[3][i]));
}

}  // namespace

void uniform(const Tensor& y, double low, double high, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto start = static_cast<T>(low), end = static_cast<T>(high);
    auto range = static_cast<T>(high - low);
    // Rounding may reach `high`, which is left out: such a value becomes the largest one below.
    T last = end > start ? std::nextafter(end, start) : start;
    fill_blocks<T>(y, seed, offset, [=](const BitBlock& bits, int64_t, int64_t count, T* out) {
      for (int64_t i = 0; i < count; ++i) {
        T value = start + range * uniform_of(bits, i, T{});
        out[i] = value < last ? value : last;
      }
    });
  });
}

void normal(const Tensor& y, double mean, double std, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto centre = static_cast<T>(mean), width = static_cast<T>(std);
    fill_blocks<T>(y, seed, offset, [=](const BitBlock& bits, int64_t, int64_t count, T* out) {
      for (int64_t i = 0; i < count; ++i) out[i] = centre + width * normal_of(bits, i, T{});
    });
  });
}

void randint(const Tensor& y, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  fill_blocks<int64_t>(y, seed, offset, [=](const BitBlock& bits, int64_t, int64_t count, int64_t* out) {
    for (int64_t i = 0; i < count; ++i) {
      uint64_t word = uint64_t{bits.word[0][i]} << 32 | bits.word[1][i];
      out[i] = static_cast<int64_t>(static_cast<uint64_t>(low) + regard::detail::scale_bits(word, range));
    }
  });
}

void bernoulli(const Tensor& y, const Tensor& p, uint64_t seed, uint64_t offset) {
  visit_compute(y.dtype(), [&]<class T>(T) {
    Elements<T> probabilities(p);
    fill_blocks<T>(y, seed, offset, [&](const BitBlock& bits, int64_t first, int64_t count, T* out) {
      T buffer[block_size];
      const T* probability = probabilities.load(first, count, buffer);
      for (int64_t i = 0; i < count; ++i) out[i] = uniform_of(bits, i, T{}) < probability[i] ? T{1} : T{0};
    });
  });
}

void dropout(const Tensor& y, const Tensor& a, double p, uint64_t seed, uint64_t offset) {
  // The uniform number is bits * 2^-24 in both dtypes, so that f32 and f64 drop the same elements; it is at least
  // p exactly when bits >= p * 2^24.
  auto threshold = static_cast<uint32_t>(std::ceil(p * 0x1p24));
  visit_compute(y.dtype(), [&]<class T>(T) {
    auto scale = static_cast<T>(p < 1 ? 1 / (1 - p) : 0);
    Elements<T> source(a);
    fill_blocks<T>(y, seed, offset, [&](const BitBlock& bits, int64_t first, int64_t count, T* out) {
      T buffer[block_size];
      const T* x = source.load(first, count, buffer);
      for (int64_t i = 0; i < count; ++i) {
        T kept = x[i] * scale;
        out[i] = (bits.word[0][i] >> 8) >= threshold ? kept : T{0};
      }
    });
  });
}

}  // namespace regard::cpu
