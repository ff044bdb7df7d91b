// Element types.
#pragma once

#include <bit>
#include <cstdint>
#include <iosfwd>
#include <type_traits>

namespace regard {

/// The element type of a tensor. f32 and f64 compute, on GPUs bf16 and f16 too, which elsewhere only store; i64 holds
/// indices and counts; boolean holds masks, a byte each.
enum class DType : uint8_t { f32, f64, bf16, f16, i64, boolean };

/// Brain floating point: the upper half of an f32. Rounds to nearest even.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    auto word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U)
      bits = static_cast<uint16_t>((word >> 16) | 0x40U);  // NaN stays NaN
    else
      bits = static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE 754 half precision. Rounds to nearest even; too large becomes infinity.
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
};

constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::f64:
      return 8;
    case DType::bf16:
      return 2;
    case DType::f16:
      return 2;
    case DType::i64:
      return 8;
    case DType::boolean:
      return 1;
  }
  return 0;
}
constexpr bool is_floating(DType dtype) { return dtype != DType::i64 && dtype != DType::boolean; }

/// `f32`, `f64`, `bf16`, `f16`, `i64`, `bool`
const char* to_string(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

/// The DType of a C++ element type: float, double, bfloat16, float16, int64_t, bool.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, float16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else {
    static_assert(std::is_same_v<T, bool>, "element types are float, double, bfloat16, float16, int64_t and bool");
    return DType::boolean;
  }
}

/// Whether T is the C++ type of a DType.
template <class T>
inline constexpr bool is_element_type =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, bfloat16> ||
    std::is_same_v<T, float16> || std::is_same_v<T, int64_t> || std::is_same_v<T, bool>;

/// A number given to an op beside a tensor: it never changes a floating tensor's dtype.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::boolean;
      integer_ = value ? 1 : 0;
      floating_ = value ? 1 : 0;
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = Kind::integer;
      integer_ = static_cast<int64_t>(value);
      floating_ = static_cast<double>(value);
    } else {
      kind_ = Kind::floating;
      floating_ = static_cast<double>(value);
      // A cast of what an integer cannot hold would be undefined: such values keep 0 there.
      integer_ = floating_ > -9.2e18 && floating_ < 9.2e18 ? static_cast<int64_t>(value) : 0;
    }
  }
  constexpr bool is_floating() const { return kind_ == Kind::floating; }
  constexpr bool is_boolean() const { return kind_ == Kind::boolean; }
  constexpr double to_double() const { return floating_; }
  constexpr int64_t to_int() const { return integer_; }
  /// The scalar as an element of type T.
  template <class T>
  constexpr T to() const {
    if constexpr (std::is_same_v<T, bool>)
      return floating_ != 0;
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(integer_);  // not through a float, which holds 24 bits
    else if constexpr (std::is_same_v<T, double>)
      return floating_;
    else
      return static_cast<T>(static_cast<float>(floating_));
  }
  /// The dtype of a tensor made from it alone: f32, i64 or boolean.
  constexpr DType dtype() const {
    return kind_ == Kind::floating ? DType::f32 : kind_ == Kind::integer ? DType::i64 : DType::boolean;
  }

 private:
  enum class Kind : uint8_t { boolean, integer, floating };
  Kind kind_ = Kind::floating;
  double floating_ = 0;
  int64_t integer_ = 0;
};

/// Calls f with a value of the C++ type of `dtype`: `visit_dtype(x.dtype(), [&]<class T>(T) { ... })`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    case DType::i64:
      return f(int64_t{});
    case DType::boolean:
      break;
  }
  return f(bool{});
}

/// The same for floating dtypes; the caller has checked that it is one.
template <class F>
decltype(auto) visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    default:
      return f(float{});
  }
}

/// The same for f32 and f64 only; the caller has checked that it is one of them.
template <class F>
decltype(auto) visit_compute(DType dtype, F&& f) {
  return dtype == DType::f64 ? f(double{}) : f(float{});
}

}  // namespace regard
