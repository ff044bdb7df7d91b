// Conversion of one element to another dtype, on the GPU as on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include <regard/autograd/dtype.hpp>

namespace regard::cuda_backend {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

__device__ inline float to_float(bfloat16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
__device__ inline float to_float(float16 value) {
  const uint32_t sign = (value.bits & 0x8000U) << 16U, exponent = (value.bits >> 10U) & 0x1fU;
  const uint32_t fraction = value.bits & 0x3ffU;
  if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000U | (fraction << 13U));
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24F;
    return sign ? -small : small;
  }
  return __uint_as_float(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

/// Rounds to nearest even, as the constructors of dtype.hpp do on the CPU.
template <class T>
__device__ T from_float(float value) {
  const uint32_t word = __float_as_uint(value), magnitude = word & 0x7fffffffU;
  T result;
  if constexpr (std::is_same_v<T, bfloat16>) {
    result.bits = magnitude > 0x7f800000U ? static_cast<uint16_t>((word >> 16) | 0x40U)
                                          : static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  } else {
    const uint32_t sign = (word >> 16) & 0x8000U;
    if (magnitude > 0x7f800000U)  // NaN
      result.bits = static_cast<uint16_t>(sign | 0x7e00U);
    else if (magnitude >= 0x477ff000U)  // rounds to 2^16 or more: infinity
      result.bits = static_cast<uint16_t>(sign | 0x7c00U);
    else if (magnitude < 0x38800000U)  // subnormal: adding 0.5 leaves the rounded fraction in the low bits
      result.bits = static_cast<uint16_t>(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5F) - 0x3f000000U));
    else
      result.bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13));
  }
  return result;
}

/// `value` as a To. To a boolean: whether it is not 0. A floating number to i64: cut towards 0, held within what an
/// i64 can be; NaN gives 0.
template <class To, class From>
__device__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(to_float(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (is_half<To>) {
    return from_float<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, int64_t> && std::is_floating_point_v<From>) {
    constexpr From limit = 9223372036854775808.0;  // 2^63
    if (value >= limit) return INT64_MAX;
    if (!(value >= -limit)) return value != value ? 0 : INT64_MIN;
    return static_cast<int64_t>(value);
  } else {
    return static_cast<To>(value);
  }
}

/// What kernels compute with where elements are of type T: float for the 16-bit types, T itself for others.
template <class T>
using Number = std::conditional_t<is_half<T>, float, T>;

/// An element as a number, and a number as an element, rounded.
template <class T>
__device__ Number<T> number(T element) {
  if constexpr (is_half<T>)
    return to_float(element);
  else
    return element;
}
template <class T>
__device__ T element(Number<T> number) {
  if constexpr (is_half<T>)
    return from_float<T>(number);
  else
    return number;
}

}  // namespace regard::cuda_backend
