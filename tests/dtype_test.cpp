// bf16 and f16: rounding to nearest even, subnormal numbers, infinities and NaN; numbers given beside tensors.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <regard/autograd/dtype.hpp>
#include <regard/autograd/ops.hpp>

namespace dtype_test {

using namespace regard;

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "compiled as if NaN and infinity did not exist (-ffast-math): masks, losses and clipping rely on them"
#endif

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

struct Row {
  float value;
  uint16_t bits;
};

const std::vector<Row> kHalf = {
    {0.0F, 0x0000},
    {-0.0F, 0x8000},
    {1.0F, 0x3c00},
    {-2.0F, 0xc000},
    {0.1F, 0x2e66},
    {0x1.554p-2F, 0x3555},
    {65504.0F, 0x7bff},    // the largest
    {65519.996F, 0x7bff},  // just below half-way to 2^16
    {65520.0F, 0x7c00},    // half-way: even is infinity
    {1e30F, 0x7c00},
    {-65520.0F, 0xfc00},
    {inf, 0x7c00},
    {-inf, 0xfc00},
    {0x1p-14F, 0x0400},      // the smallest normal
    {0x1.ff8p-15F, 0x03ff},  // the largest subnormal
    {0x1.ffcp-15F, 0x0400},  // half-way between these: even
    {0x1p-24F, 0x0001},      // the smallest subnormal
    {-0x1p-24F, 0x8001},
    {0x1p-25F, 0x0000},  // half of it: even is zero
    {-0x1p-25F, 0x8000},
    {0x1.000002p-25F, 0x0001},  // a little more than half
    {0x1.8p-24F, 0x0002},       // 1.5: even is 2
    {0x1.4p-23F, 0x0002},       // 2.5: even is 2
    {1e-30F, 0x0000},
    {std::numeric_limits<float>::denorm_min(), 0x0000},
    {1.0F + 0x1p-11F, 0x3c00},             // half-way: even below
    {1.0F + 0x1.8p-10F, 0x3c02},           // half-way: even above
    {1.0F + 0x1p-11F + 0x1p-23F, 0x3c01},  // just above half-way
    {2047.0F, 0x67ff},
    {2049.0F, 0x6800},
    {2051.0F, 0x6802},
};

const std::vector<Row> kBrain = {
    {0.0F, 0x0000},
    {-0.0F, 0x8000},
    {1.0F, 0x3f80},
    {-2.0F, 0xc000},
    {3.14159265F, 0x4049},
    {1.0F + 0x1p-8F, 0x3f80},             // half-way: even below
    {1.0F + 0x1.8p-7F, 0x3f82},           // half-way: even above
    {1.0F + 0x1p-8F + 0x1p-23F, 0x3f81},  // just above half-way
    {255.5F, 0x4380},                     // up into the next power of two
    {0x1.fep127F, 0x7f7f},                // the largest
    {0x1.fefffep127F, 0x7f7f},            // just below half-way to 2^128
    {0x1.ffp127F, 0x7f80},                // half-way: even is infinity
    {std::numeric_limits<float>::max(), 0x7f80},
    {-std::numeric_limits<float>::max(), 0xff80},
    {inf, 0x7f80},
    {-inf, 0xff80},
    {0x1p-126F, 0x0080},  // the smallest normal
    {0x1p-133F, 0x0001},  // the smallest subnormal
    {0x1p-134F, 0x0000},  // half of it: even is zero
    {0x1.8p-133F, 0x0002},
    {std::numeric_limits<float>::denorm_min(), 0x0000},
    {-std::numeric_limits<float>::denorm_min(), 0x8000},
};

template <class Half>
void check_table(const std::vector<Row>& table, DType dtype) {
  for (const Row& row : table) {
    CAPTURE(row.value, row.bits);
    CHECK(Half(row.value).bits == row.bits);
    // A cast of tensors is the same, one element and many (the vectorised path) alike.
    for (int64_t count : {1, 37}) {
      Tensor cast = full({count}, row.value).to(dtype);
      CHECK(cast.data<Half>()[0].bits == row.bits);
      CHECK(cast.data<Half>()[count - 1].bits == row.bits);
    }
  }
}

/// What rounding to the nearest of two neighbours, ties to even, gives: found by looking at both.
template <class Half>
uint16_t nearest(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double wanted = std::abs(static_cast<double>(value));
  const uint16_t infinite = std::is_same_v<Half, float16> ? 0x7c00 : 0x7f80;
  auto number = [&](uint16_t bits) {
    Half half;
    half.bits = bits;
    // Infinity stands where the next number would be.
    if (bits == infinite) return std::is_same_v<Half, float16> ? 65536.0 : 0x1p128;
    return static_cast<double>(static_cast<float>(half));
  };
  uint16_t low = 0, high = infinite;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (number(middle) <= wanted ? low : high) = middle;
  }
  if (wanted >= number(high)) return static_cast<uint16_t>(sign | high);
  const double below = wanted - number(low), above = number(high) - wanted;
  const uint16_t bits = below < above ? low : above < below ? high : (low & 1) != 0 ? high : low;
  return static_cast<uint16_t>(sign | bits);
}

template <class Half>
void check_round_trips() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    const auto value = static_cast<float>(half);
    const Half again(value);
    if (std::isnan(value)) {
      if (!std::isnan(static_cast<float>(again))) FAIL("NaN " << bits << " became " << again.bits);
    } else if (again.bits != half.bits) {
      FAIL(bits << " became " << again.bits);
    }
  }
}

template <class Half>
void check_random() {
  std::mt19937 engine(5);
  for (int i = 0; i < 100'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    if (!std::isfinite(value)) continue;
    if (Half(value).bits != nearest<Half>(value)) FAIL(value << " became " << Half(value).bits);
  }
}

}  // namespace

TEST_CASE("f16 rounds to nearest even, with subnormal numbers and infinities") {
  check_table<float16>(kHalf, DType::f16);
  check_random<float16>();
}

TEST_CASE("bf16 rounds to nearest even, with subnormal numbers and infinities") {
  check_table<bfloat16>(kBrain, DType::bf16);
  check_random<bfloat16>();
}

TEST_CASE("every f16 and bf16 number comes back from f32") {
  check_round_trips<float16>();
  check_round_trips<bfloat16>();
  float16 subnormal;
  subnormal.bits = 0x0001;
  CHECK(static_cast<float>(subnormal) == 0x1p-24F);
  subnormal.bits = 0x83ff;
  CHECK(static_cast<float>(subnormal) == -0x1.ff8p-15F);
}

TEST_CASE("NaN stays NaN in f16 and bf16, whatever its payload") {
  for (uint32_t word : {0x7fc00000U, 0x7f800001U, 0xff800001U, 0x7fffffffU, 0xffc12345U}) {
    const auto value = std::bit_cast<float>(word);
    CAPTURE(word);
    CHECK(std::isnan(static_cast<float>(float16(value))));
    CHECK(std::isnan(static_cast<float>(bfloat16(value))));
    for (DType dtype : {DType::f16, DType::bf16, DType::f64}) {
      Tensor x = from_vector(std::vector<float>(21, value)).to(dtype).to(DType::f32);
      CHECK(std::isnan(x.data<float>()[0]));
      CHECK(std::isnan(x.data<float>()[20]));
    }
  }
}

TEST_CASE("NaN and infinity are seen as such: the build has not been told that they do not exist") {
  const Tensor x = from_vector<float>({1, std::nanf(""), inf, -inf});
  CHECK(isfinite(x).to_vector<bool>() == std::vector<bool>{true, false, false, false});
  CHECK((x == x).to_vector<bool>() == std::vector<bool>{true, false, true, true});
}

TEST_CASE("names, sizes and kinds of dtypes") {
  CHECK(std::string(to_string(DType::f32)) == "f32");
  CHECK(std::string(to_string(DType::bf16)) == "bf16");
  CHECK(std::string(to_string(DType::boolean)) == "bool");
  CHECK(element_size(DType::f64) == 8);
  CHECK(element_size(DType::f16) == 2);
  CHECK(element_size(DType::boolean) == 1);
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::i64));
  CHECK(dtype_of<int64_t>() == DType::i64);
}

TEST_CASE("a number beside a tensor keeps its value: large integers, fractions, booleans") {
  CHECK(Scalar((int64_t{1} << 60) + 1).to<int64_t>() == (int64_t{1} << 60) + 1);
  CHECK(Scalar(0.1).to<double>() == 0.1);
  CHECK(Scalar(0.1).to<float>() == 0.1F);
  CHECK(Scalar(-2.7).to<int64_t>() == -2);
  CHECK(Scalar(0.5).to<bool>());
  CHECK(Scalar(1e300).to<int64_t>() == 0);
  CHECK(Scalar(true).dtype() == DType::boolean);
  CHECK(Scalar(1).dtype() == DType::i64);
  CHECK(Scalar(1.0F).dtype() == DType::f32);
}

}  // namespace dtype_test
