// Conversion of one element to another dtype.
#pragma once

#include <cstdint>
#include <type_traits>

#include <regard/autograd/dtype.hpp>

namespace regard::cpu_backend {

/// `value` as a To. To a boolean: whether it is not 0. A floating number to i64: cut towards 0, held within what an
/// i64 can be; NaN gives 0.
template <class To, class From>
inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, bfloat16> || std::is_same_v<From, float16>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (std::is_same_v<To, bfloat16> || std::is_same_v<To, float16>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, int64_t> && std::is_floating_point_v<From>) {
    constexpr From limit = 9223372036854775808.0;  // 2^63
    if (value >= limit) return INT64_MAX;
    if (!(value >= -limit)) return value != value ? 0 : INT64_MIN;
    return static_cast<int64_t>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace regard::cpu_backend
