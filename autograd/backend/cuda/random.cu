// Random numbers: element i of a tensor from counter offset + i. Additions and multiplications that a compiler would
// contract are written out, so that uniform numbers, integers and draws are the CPU's to the bit; normal numbers are
// within a few ulp of it. Those of 16 bits are the f32 ones, rounded.
#include <algorithm>
#include <cmath>
#include <limits>

#include <regard/autograd/backend/cuda/counted.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/random.hpp>

namespace regard::cuda_backend {
namespace {

__device__ float multiply_add_rounding_twice(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }
__device__ double multiply_add_rounding_twice(double a, double b, double c) { return __dadd_rn(__dmul_rn(a, b), c); }

template <class T>
struct Uniform {
  Counters counters;
  T start, range, last;  // the last value is the largest one below the upper bound, which rounding may reach
  __device__ T operator()(int64_t i) const {
    const T number = counters.template uniform<T>(static_cast<uint64_t>(i));
    const T value = multiply_add_rounding_twice(range, number, start);
    return value < last ? value : last;
  }
};

// Box and Muller, 1958, from the bits that backend/cpu/random_blocks.hpp names.
struct Normal {
  Counters counters;
  double mean, std;
  __device__ float make(int64_t i, float) const {
    const auto bits = counters.bits(static_cast<uint64_t>(i));
    const float u = __fmul_rn(__fadd_rn(static_cast<float>(static_cast<int32_t>(bits[0] >> 1)), 0.5F), 0x1p-31F);
    const float v = static_cast<float>(bits[1] >> 8) * 0x1p-24F;
    const float number = sqrtf(-2.0F * logf(u)) * cospif(2.0F * v);
    return multiply_add_rounding_twice(static_cast<float>(std), number, static_cast<float>(mean));
  }
  __device__ double make(int64_t i, double) const {
    const auto bits = counters.bits(static_cast<uint64_t>(i));
    const double u = unit(bits[0], bits[1]) + 0x1p-53, v = unit(bits[2], bits[3]);
    const double number = sqrt(-2.0 * log(u)) * cospi(2.0 * v);
    return multiply_add_rounding_twice(std, number, mean);
  }
  // The upper 52 bits as a number in [0, 1).
  __device__ static double unit(uint32_t high, uint32_t low) {
    return static_cast<double>((uint64_t{high} << 32 | low) >> 12) * 0x1p-52;
  }
};
template <class T>
struct NormalOf {
  Normal normal;
  __device__ T operator()(int64_t i) const { return normal.make(i, T{}); }
};

struct Integer {
  Counters counters;
  uint64_t low, range;
  __device__ int64_t operator()(int64_t i) const {
    const auto bits = counters.bits(static_cast<uint64_t>(i));
    return static_cast<int64_t>(low + __umul64hi(uint64_t{bits[0]} << 32 | bits[1], range));
  }
};

template <class T>
struct Draw {
  Counters counters;
  __device__ T operator()(int64_t i, T probability) const {
    return counters.template uniform<T>(static_cast<uint64_t>(i)) < probability ? T{1} : T{0};
  }
};

// The largest element below `end`.
template <class E>
Number<E> last_below(Number<E> end) {
  if constexpr (is_half<E>) {
    E value(end);
    if (static_cast<float>(value) >= end) {
      const bool negative = (value.bits & 0x8000U) != 0, zero = (value.bits & 0x7fffU) == 0;
      value.bits = zero ? uint16_t{0x8001} : static_cast<uint16_t>(negative ? value.bits + 1 : value.bits - 1);
    }
    return static_cast<float>(value);
  } else {
    return std::nextafter(end, -std::numeric_limits<E>::infinity());
  }
}

}  // namespace

void uniform(const Tensor& y, double low, double high, uint64_t seed, uint64_t offset) {
  const Counters counters("uniform", seed, offset);
  visit_floating(y.dtype(), [&]<class E>(E) {
    using T = Number<E>;
    const auto start = static_cast<T>(low), end = static_cast<T>(high);
    const T last = end > start ? std::max(start, last_below<E>(end)) : start;
    counted<E>("uniform", Uniform<T>{counters, start, static_cast<T>(high - low), last}, y);
  });
}

void normal(const Tensor& y, double mean, double std, uint64_t seed, uint64_t offset) {
  const Counters counters("normal", seed, offset);
  visit_floating(y.dtype(), [&]<class E>(E) { counted<E>("normal", NormalOf<Number<E>>{{counters, mean, std}}, y); });
}

void randint(const Tensor& y, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  const uint64_t start = static_cast<uint64_t>(low), range = static_cast<uint64_t>(high) - start;
  counted<int64_t>("randint", Integer{Counters("randint", seed, offset), start, range}, y);
}

void bernoulli(const Tensor& y, const Tensor& p, uint64_t seed, uint64_t offset) {
  const Counters counters("bernoulli", seed, offset);
  visit_floating(y.dtype(), [&]<class E>(E) { counted<E, E>("bernoulli", Draw<Number<E>>{counters}, y, p); });
}

}  // namespace regard::cuda_backend
