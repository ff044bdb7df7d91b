#include <regard/autograd/backend/cpu/random_blocks.hpp>

#include <bit>
#include <type_traits>

#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/philox.hpp>

// Plain loops, compiled once for each instruction set: the compiler makes vectors of them. They hold integer arithmetic
// and IEEE additions, multiplications, divisions and square roots alone, no libm and no fused multiply-add, so all
// instruction sets, compilers and machines give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/random_blocks.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// Philox of philox.hpp on vectors: a counter a 64-bit lane, whose lower half holds a word; what the upper half holds
/// does not matter. Vectors of even and of odd counters run side by side and are put together in the end.
template <int words>
HWY_INLINE void fill_words(BitBlock& bits, uint64_t seed, uint64_t first, int64_t count) {
  using Philox = regard::detail::PhiloxConstants;
  const hn::ScalableTag<uint64_t> wide;
  const hn::ScalableTag<uint32_t> narrow;
  using V = hn::Vec<decltype(wide)>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(narrow));
  const auto multiplier0 = hn::Set(narrow, Philox::multiplier0), multiplier1 = hn::Set(narrow, Philox::multiplier1);
  const auto product = [&](V word, auto multiplier)
                           HWY_ATTR { return hn::MulEven(hn::BitCast(narrow, word), multiplier); };
  const auto key = [&](uint64_t start, uint64_t step, int round)
                       HWY_ATTR { return hn::Set(wide, (start + static_cast<uint64_t>(round) * step) & 0xffffffffU); };
  const uint64_t key0 = seed & 0xffffffffU, key1 = seed >> 32;
  struct Words {
    V word0, word1, word2, word3;
  };
  const auto words_of = [&](V counter) HWY_ATTR {
    V product0 = product(counter, multiplier0);  // of the first round; there words 2 and 3 are 0
    V word0 = hn::Xor(hn::ShiftRight<32>(counter), key(key0, Philox::weyl0, 0)), word1 = hn::Zero(wide);
    V word2 = hn::Xor(hn::ShiftRight<32>(product0), key(key1, Philox::weyl1, 0)), word3 = product0;
    for (int round = 1; round < Philox::rounds; ++round) {
      product0 = product(word0, multiplier0);
      const V product1 = product(word2, multiplier1);
      word0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), word1), key(key0, Philox::weyl0, round));
      word1 = product1;
      word2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), word3), key(key1, Philox::weyl1, round));
      word3 = product0;
    }
    return Words{word0, word1, word2, word3};
  };
  const auto put = [&](V even, V odd, uint32_t* to) HWY_ATTR {
    hn::StoreU(hn::OddEven(hn::BitCast(narrow, hn::ShiftLeft<32>(odd)), hn::BitCast(narrow, even)), narrow, to);
  };
  const V places = hn::Add(hn::Iota(wide, 0), hn::Iota(wide, 0)), one = hn::Set(wide, 1);
  for (int64_t i = 0; i < count; i += lanes) {  // the block has room for whole vectors
    const V counters = hn::Add(hn::Set(wide, first + static_cast<uint64_t>(i)), places);
    const Words even = words_of(counters), odd = words_of(hn::Add(counters, one));
    put(even.word0, odd.word0, bits.word[0] + i);
    if constexpr (words > 1) put(even.word1, odd.word1, bits.word[1] + i);
    if constexpr (words > 2) {
      put(even.word2, odd.word2, bits.word[2] + i);
      put(even.word3, odd.word3, bits.word[3] + i);
    }
  }
}

void fill_bits(BitBlock& bits, uint64_t seed, uint64_t first, int64_t count, int words) {
  static_assert(BitBlock::size % (HWY_MAX_BYTES / sizeof(uint32_t)) == 0);
  if (words == 1) return fill_words<1>(bits, seed, first, count);
  if (words == 2) return fill_words<2>(bits, seed, first, count);
  fill_words<4>(bits, seed, first, count);
}

/// log u for u in (0, 1]; the polynomial is the Cephes library's.
HWY_INLINE float log_unit(float u) {
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

/// cos(x + quadrant pi / 2) from cos x and sin x; by bits, since branches keep a loop off vectors.
template <class T>
HWY_INLINE T quarter_turn(int32_t quadrant, T cosine, T sine) {
  using Bits = BitsOf<T>;
  Bits odd = Bits{0} - static_cast<Bits>(quadrant & 1);
  Bits sign = static_cast<Bits>((quadrant + 1) & 2) << (8 * sizeof(T) - 2);
  Bits value = (std::bit_cast<Bits>(sine) & odd) | (std::bit_cast<Bits>(cosine) & ~odd);
  return std::bit_cast<T>(value ^ sign);
}

/// cos(2 pi v) for v in [0, 1).
HWY_INLINE float cos_turn(float v) {
  float quarters = v * 4.0F;
  auto quadrant = static_cast<int32_t>(quarters + 0.5F);
  float x = (quarters - static_cast<float>(quadrant)) * 1.57079632679489662F;
  float z = x * x;
  float cosine = ((2.443315711809948E-5F * z - 1.388731625493765E-3F) * z + 4.166664568298827E-2F) * z * z;
  cosine = cosine - 0.5F * z + 1.0F;
  float sine = ((-1.9515295891E-4F * z + 8.3321608736E-3F) * z - 1.6666654611E-1F) * z * x + x;
  return quarter_turn(quadrant, cosine, sine);
}

/// The same in f64, with the polynomials of Sun's fdlibm.
HWY_INLINE double log_unit(double u) {
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

HWY_INLINE double cos_turn(double v) {
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
  return quarter_turn(quadrant, cosine, sine);
}

HWY_INLINE float unit_of(const BitBlock& bits, int64_t i, float) {
  return (static_cast<float>(static_cast<int32_t>(bits.word[0][i] >> 1)) + 0.5F) * 0x1p-31F;
}
HWY_INLINE float turn_of(const BitBlock& bits, int64_t i, float) {
  return static_cast<float>(static_cast<int32_t>(bits.word[1][i] >> 8)) * 0x1p-24F;
}

/// The upper 52 bits as a number in [0, 1), in a way that runs on vectors.
HWY_INLINE double unit_52(uint32_t high, uint32_t low) {
  uint64_t bits = (uint64_t{high} << 32 | low) >> 12;
  return std::bit_cast<double>(bits | 0x3ff0000000000000U) - 1.0;
}
HWY_INLINE double unit_of(const BitBlock& bits, int64_t i, double) {
  return unit_52(bits.word[0][i], bits.word[1][i]) + 0x1p-53;
}
HWY_INLINE double turn_of(const BitBlock& bits, int64_t i, double) { return unit_52(bits.word[2][i], bits.word[3][i]); }

template <class T>
HWY_INLINE void normal_loop(const BitBlock& bits, int64_t count, T mean, T std, T* out) {
  alignas(64) T radius[BitBlock::size] = {};
  for (int64_t i = 0; i < count; ++i) radius[i] = T{-2} * log_unit(unit_of(bits, i, T{}));
  const hn::ScalableTag<T> d;  // std::sqrt may set errno, which keeps a loop off vectors
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(d)))
    hn::Store(hn::Sqrt(hn::Load(d, radius + i)), d, radius + i);
  for (int64_t i = 0; i < count; ++i) out[i] = mean + std * (radius[i] * cos_turn(turn_of(bits, i, T{})));
}

template <class T>
HWY_INLINE void drop_loop(const BitBlock& bits, int64_t count, const T* x, uint32_t threshold, T scale, T* out) {
  using Bits = BitsOf<T>;
  for (int64_t i = 0; i < count; ++i) {
    Bits keep = (bits.word[0][i] >> 8) >= threshold ? ~Bits{0} : Bits{0};
    out[i] = std::bit_cast<T>(std::bit_cast<Bits>(x[i] * scale) & keep);
  }
}

void normal_f32(const BitBlock& bits, int64_t count, float mean, float std, float* out) {
  normal_loop(bits, count, mean, std, out);
}
void normal_f64(const BitBlock& bits, int64_t count, double mean, double std, double* out) {
  normal_loop(bits, count, mean, std, out);
}
void drop_f32(const BitBlock& bits, int64_t count, const float* x, uint32_t threshold, float scale, float* out) {
  drop_loop(bits, count, x, threshold, scale, out);
}
void drop_f64(const BitBlock& bits, int64_t count, const double* x, uint32_t threshold, double scale, double* out) {
  drop_loop(bits, count, x, threshold, scale, out);
}

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(fill_bits);
HWY_EXPORT(normal_f32);
HWY_EXPORT(normal_f64);
HWY_EXPORT(drop_f32);
HWY_EXPORT(drop_f64);

void fill_bits(BitBlock& bits, uint64_t seed, uint64_t first, int64_t count, int words) {
  HWY_DYNAMIC_DISPATCH(fill_bits)(bits, seed, first, count, words);
}
void fill_normal(const BitBlock& bits, int64_t count, float mean, float std, float* out) {
  HWY_DYNAMIC_DISPATCH(normal_f32)(bits, count, mean, std, out);
}
void fill_normal(const BitBlock& bits, int64_t count, double mean, double std, double* out) {
  HWY_DYNAMIC_DISPATCH(normal_f64)(bits, count, mean, std, out);
}
void drop(const BitBlock& bits, int64_t count, const float* x, uint32_t threshold, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(drop_f32)(bits, count, x, threshold, scale, out);
}
void drop(const BitBlock& bits, int64_t count, const double* x, uint32_t threshold, double scale, double* out) {
  HWY_DYNAMIC_DISPATCH(drop_f64)(bits, count, x, threshold, scale, out);
}

}  // namespace regard::cpu_backend
#endif
