#include <regard/autograd/dtype.hpp>

#include <ostream>
#include <string>

#include <regard/autograd/device.hpp>

namespace regard {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i64:
      return "i64";
    case DType::boolean:
      return "bool";
  }
  return "?";
}
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

std::string to_string(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}
std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

float16::float16(float value) {
  auto word = std::bit_cast<uint32_t>(value);
  uint32_t sign = (word >> 16) & 0x8000U;
  uint32_t magnitude = word & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN
    bits = static_cast<uint16_t>(sign | 0x7e00U);
  } else if (magnitude >= 0x477ff000U) {  // rounds to 2^16 or more: infinity
    bits = static_cast<uint16_t>(sign | 0x7c00U);
  } else if (magnitude < 0x38800000U) {  // subnormal: adding 0.5 leaves the rounded fraction in the low bits
    float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  } else {
    uint32_t odd = (magnitude >> 13) & 1U;
    bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
  }
}

float16::operator float() const {
  uint32_t sign = (bits & 0x8000U) << 16U;
  uint32_t exponent = (bits >> 10U) & 0x1fU;
  uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13U));
  if (exponent == 0) {
    float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

}  // namespace regard
