// Random numbers on the GPU: the CPU's, element for element.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/regard.hpp>

namespace cuda_random_test {

using namespace regard;

namespace {

constexpr uint64_t seed = 0x123456789abcdefULL;
// Also where the counter's lower half runs over.
const std::vector<uint64_t> offsets{0, 5, 0xffffff00U};
const std::vector<Shape> shapes{{0}, {}, {1}, {3}, {4}, {5, 7}, {1031}};

/// What draw(y, offset) makes of memory on each device: the layout of like(device).
template <class T, class Like, class Draw>
void check_same(const Like& like, const Draw& draw) {
  for (uint64_t offset : offsets) {
    const Tensor on_cpu = like(Device{}), on_gpu = like(cuda());
    draw(on_cpu, offset);
    draw(on_gpu, offset);
    INFO(on_cpu.shape() << " " << on_cpu.dtype() << " from counter " << offset);
    CHECK(on_gpu.to(Device{}).to_vector<T>() == on_cpu.to_vector<T>());
  }
}
auto dense(const Shape& shape, DType dtype) {
  return [=](Device device) { return empty(shape, TensorOptions(dtype, device)); };
}
/// Neither dense nor aligned, and turned.
auto strided(DType dtype) {
  return [=](Device device) {
    return zeros({23, 14}, dtype).to(device).transpose(0, 1).slice(1, 1, 22, 2);  // [14, 11]
  };
}

}  // namespace

TEST_CASE("cuda random: uniform numbers are the CPU's to the bit") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const auto draw = [](const Tensor& y, uint64_t offset) { kernels(y).uniform(y, -0.1, 0.7, seed, offset); };
    for (const Shape& shape : shapes) check_same<double>(dense(shape, dtype), draw);
    check_same<double>(strided(dtype), draw);
    // 1 and its neighbour are all there is: rounding reaches the bound, which is left out.
    const double next =
        dtype == DType::f32 ? static_cast<double>(std::nextafter(1.0F, 2.0F)) : std::nextafter(1.0, 2.0);
    check_same<double>(dense({200}, dtype), [&](const Tensor& y, uint64_t offset) {
      kernels(y).uniform(y, 1, next + (next - 1), seed, offset);
      for (double value : y.to(Device{}).to_vector<double>()) REQUIRE((value == 1 || value == next));
    });
    check_same<double>(dense({9}, dtype),
                       [](const Tensor& y, uint64_t offset) { kernels(y).uniform(y, 3, 3, seed, offset); });
  }
}

TEST_CASE("cuda random: integers are the CPU's, of any range") {
  constexpr int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  for (const auto& [low, high] :
       {std::pair<int64_t, int64_t>{-3, 8}, {0, 1}, {lowest, highest}, {highest - 1, highest}})
    for (const Shape& shape : shapes)
      check_same<int64_t>(dense(shape, DType::i64), [low = low, high = high](const Tensor& y, uint64_t offset) {
        kernels(y).randint(y, low, high, seed, offset);
      });
}

TEST_CASE("cuda random: draws are the CPU's, from probabilities of any strides") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Generator generator(1);
    const Tensor p = rand({11, 14}, dtype, generator);
    const std::vector<std::function<Tensor(const Tensor&)>> views{[](const Tensor& x) { return x; },
                                                                  [](const Tensor& x) { return x.transpose(0, 1); },
                                                                  [](const Tensor& x) {
                                                                    return x.slice(0, 3, 4).expand({6, 14});
                                                                  },
                                                                  [](const Tensor& x) { return x.slice(1, 1); }};
    const Tensor there = p.to(cuda());
    for (const auto& view : views)
      check_same<double>(dense(view(p).shape(), dtype), [&](const Tensor& y, uint64_t offset) {
        kernels(y).bernoulli(y, view(y.device() == Device{} ? p : there), seed, offset);
      });
  }
}

TEST_CASE("cuda random: normal numbers are within a few ulp of the CPU's") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double ulp = dtype == DType::f32 ? 0x1p-23 : 0x1p-52;
    for (const Shape& shape : shapes) {
      const Tensor on_cpu = empty(shape, dtype), on_gpu = empty(shape, TensorOptions(dtype, cuda()));
      for (uint64_t offset : offsets) {
        for (const Tensor& y : {on_cpu, on_gpu}) kernels(y).normal(y, 0, 1, seed, offset);
        const std::vector<double> a = on_cpu.to_vector<double>(), b = on_gpu.to(Device{}).to_vector<double>();
        for (size_t i = 0; i < a.size(); ++i) {
          CAPTURE(i, a[i], b[i]);
          REQUIRE(std::abs(a[i] - b[i]) <= 6 * ulp * std::abs(a[i]));
        }
        for (const Tensor& y : {on_cpu, on_gpu}) kernels(y).normal(y, -2, 0.5, seed, offset);
        const std::vector<double> c = on_cpu.to_vector<double>(), d = on_gpu.to(Device{}).to_vector<double>();
        for (size_t i = 0; i < c.size(); ++i) REQUIRE(std::abs(c[i] - d[i]) <= 8 * ulp);
      }
    }
  }
}

TEST_CASE("cuda random: dropout has the CPU's mask and values, also of what is not finite") {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::f32, DType::f64})
    for (double p : {0.0, 0.1, 0.5, 1.0}) {
      Generator generator(2);
      const Tensor x = randn({23, 14}, dtype, generator), x_there = x.to(cuda());
      const auto same = [&](const Tensor& a, const Tensor& a_there) {
        check_same<double>(dense(a.shape(), dtype), [&](const Tensor& y, uint64_t offset) {
          kernels(y).dropout(y, y.device() == Device{} ? a : a_there, p, seed, offset);
        });
      };
      same(x, x_there);
      same(x.transpose(0, 1), x_there.transpose(0, 1));
      same(x.slice(1, 1), x_there.slice(1, 1));
      const Tensor odd = from_vector<double>({inf, -inf, 0, -0.0, 1e300, 3, 4}, {7}).to(dtype);
      same(odd, odd.to(cuda()));
      // In place.
      const Tensor y = x.clone(), y_there = x.to(cuda());
      kernels(y).dropout(y, y, p, seed, 3);
      kernels(y_there).dropout(y_there, y_there, p, seed, 3);
      CHECK(y_there.to(Device{}).to_vector<double>() == y.to_vector<double>());
    }
  // NaN is dropped, and stays where it is kept.
  const Tensor nans = full({64}, std::nan(""), DType::f32).to(cuda()), y = empty({64}, cuda());
  kernels(y).dropout(y, nans, 0.5, seed, 0);
  int dropped = 0;
  for (float value : y.to(Device{}).to_vector<float>()) {
    if (!std::isnan(value)) REQUIRE(value == 0);
    dropped += std::isnan(value) ? 0 : 1;
  }
  CHECK(dropped > 16);
  CHECK(dropped < 48);
}

TEST_CASE("cuda random: 16-bit numbers are those of f32, rounded") {
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Shape& shape : shapes) {
      const Tensor y = empty(shape, {dtype, cuda()}), wide = empty(shape, cuda());
      kernels(y).normal(y, -2, 0.5, seed, 5);
      kernels(wide).normal(wide, -2, 0.5, seed, 5);
      CHECK(equal(y, wide.to(dtype)));
      Generator generator(3);
      const Tensor p = rand(shape, {dtype, cuda()}, generator);
      kernels(y).bernoulli(y, p, seed, 5);
      kernels(wide).bernoulli(wide, p.to(DType::f32), seed, 5);
      CHECK(equal(y, wide.to(dtype)));
      kernels(y).dropout(y, p, 0.25, seed, 5);
      kernels(wide).dropout(wide, p.to(DType::f32), 0.25, seed, 5);
      CHECK(equal(y, wide.to(dtype)));
      // Rounding does not reach the bound.
      for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, 0.0}, {-3.0, -2.0}, {0.25, 0.3}}) {
        kernels(y).uniform(y, low, high, seed, 5);
        kernels(wide).uniform(wide, low, high, seed, 5);
        CAPTURE(low, high, dtype);
        const std::vector<double> got = y.to_vector<double>(), right = wide.to(dtype).to_vector<double>();
        for (size_t i = 0; i < got.size(); ++i)
          if (got[i] >= high || (right[i] < high && got[i] != right[i])) FAIL_CHECK(got[i] << " from " << right[i]);
      }
    }
}

}  // namespace cuda_random_test
