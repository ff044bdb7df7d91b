// Random numbers: Philox's known answers, pinned values, independence of layout and threads, distributions.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/philox.hpp>
#include <regard/autograd/random.hpp>
#include <regard/autograd/threads.hpp>

namespace random_test {

using namespace regard;

namespace {

using Words = std::array<uint32_t, 4>;

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& values) {
  Moments m;
  auto n = static_cast<double>(values.size());
  for (double v : values) m.mean += v / n;
  for (double v : values) m.variance += (v - m.mean) * (v - m.mean) / n;
  double std = std::sqrt(m.variance);
  for (double v : values) {
    double z = (v - m.mean) / std;
    m.skewness += z * z * z / n;
    m.kurtosis += z * z * z * z / n;
  }
  return m;
}

}  // namespace

TEST_CASE("Philox 4x32-10 gives the known answers of its authors") {
  constexpr uint32_t ones = 0xffffffffU;
  CHECK(detail::philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(detail::philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(detail::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(philox(0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(0x0123456789abcdefU, 0xfedcba9876543210U) ==
        detail::philox4x32({0x76543210, 0xfedcba98, 0, 0}, {0x89abcdef, 0x01234567}));
}

TEST_CASE("the upper half of a 64 by 64 bit product, and no index out of range") {
  constexpr uint64_t all = ~uint64_t{0};
  CHECK(detail::scale_bits(all, all) == all - 1);
  CHECK(detail::scale_bits(all, 10) == 9);
  CHECK(detail::scale_bits(0, 10) == 0);
  CHECK(detail::scale_bits(uint64_t{1} << 63, 7) == 3);
  CHECK(detail::scale_bits(0x0123456789abcdefU, 0xfedcba9876543210U) == 0x0121fa00ad77d742U);
}

TEST_CASE("an element's number is that of its counter, in uniform, bernoulli and dropout alike") {
  Generator generator(42);
  generator.reserve(5);
  std::vector<float> values = rand({3, 4}, {}, generator).to_vector<float>();
  for (uint64_t i = 0; i < 12; ++i) CHECK(values[i] == uniform_float(philox(42, 5 + i)[0]));
  CHECK(generator.offset() == 17);

  generator.set_state(42, 5);
  std::vector<double> doubles = rand({12}, DType::f64, generator).to_vector<double>();
  for (uint64_t i = 0; i < 12; ++i) CHECK(doubles[i] == uniform_double(philox(42, 5 + i)[0], philox(42, 5 + i)[1]));

  generator.set_state(42, 5);
  std::vector<float> drawn = bernoulli(full({3, 4}, 0.5), generator).to_vector<float>();
  for (size_t i = 0; i < 12; ++i) CHECK(drawn[i] == (values[i] < 0.5F ? 1.0F : 0.0F));

  generator.set_state(42, 5);
  std::vector<float> kept = dropout(ones({3, 4}), 0.5, generator).to_vector<float>();
  for (size_t i = 0; i < 12; ++i) CHECK(kept[i] == (values[i] >= 0.5F ? 2.0F : 0.0F));
}

TEST_CASE("random numbers for seed 42 are pinned: no library's distributions are in them") {
  auto draw = [](auto&& f) {
    Generator generator(42);
    return f(generator);
  };
  CHECK(draw([](Generator& g) { return rand({8}, {}, g); }).to_vector<float>() ==
        std::vector<float>{0.612959862F, 0.987718642F, 0.825866818F, 0.729599237F, 0.326418102F, 0.314847469F,
                           0.225482047F, 0.358360469F});
  CHECK(draw([](Generator& g) { return rand({8}, DType::f64, g); }).to_vector<double>() ==
        std::vector<double>{0.6129598811894158, 0.9877186509145105, 0.82586682719604931, 0.72959926483934734,
                            0.32641814575508354, 0.31484747149363801, 0.22548206447231056, 0.35836051064731678});
  CHECK(draw([](Generator& g) { return randn({8}, {}, g); }).to_vector<float>() ==
        std::vector<float>{-0.97018975F, -0.0731814876F, -0.336962044F, -0.379737437F, 0.79420805F, -0.410077929F,
                           -0.0743988752F, -1.20028937F});
  CHECK(draw([](Generator& g) { return randn({8}, DType::f64, g); }).to_vector<double>() ==
        std::vector<double>{0.88649750590144116, -0.15660962291201797, -0.49410051266974625, -0.67989166631441367,
                            -0.66036716416009855, 1.4405415102974255, -1.7112455611653561, 1.2079763596247322});
  CHECK(draw([](Generator& g) { return bernoulli(full({8}, 0.5), g); }).to_vector<float>() ==
        std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(draw([](Generator& g) { return randperm(8, DType::i64, g); }).to_vector<int64_t>() ==
        std::vector<int64_t>{4, 7, 6, 2, 5, 0, 3, 1});
  CHECK(draw([](Generator& g) { return randint(-3, 10, {8}, DType::i64, g); }).to_vector<int64_t>() ==
        std::vector<int64_t>{4, 9, 7, 6, 1, 1, -1, 1});
}

TEST_CASE("random numbers have the same bits on one thread and on two") {
  int threads = num_threads();
  auto all_kinds = [] {
    Generator generator(3);
    Tensors results{rand({100001}, {}, generator), randn({100001}, DType::f64, generator),
                    randn({100001}, {}, generator), randint(0, 1000, {100001}, DType::i64, generator)};
    results.push_back(bernoulli(results[0], generator));
    results.push_back(dropout(results[1], 0.3, generator));
    return results;
  };
  set_num_threads(1);
  Tensors one = all_kinds();
  set_num_threads(2);
  Tensors two = all_kinds();
  set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], two[i]));
}

TEST_CASE("filling in place follows the logical order of any layout, and bumps the version") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tensor dense = zeros({5, 700}, dtype), strided = zeros({1400, 11}, dtype);
    Tensor view = strided.transpose(0, 1).slice(0, 1, 11, 2).slice(1, 0, 1400, 2);  // [5, 700]
    REQUIRE(!view.is_contiguous());
    Generator generator(1);
    normal_(dense, 2, 0.5, generator);
    generator.set_state(1, 0);
    uint32_t before = strided.version();
    normal_(view, 2, 0.5, generator);
    CHECK(equal(view, dense));
    CHECK(strided.version() > before);
    CHECK(strided.select(1, 0).abs().sum().item<double>() == 0);

    generator.set_state(1, 0);
    uniform_(dense, -3, 5, generator);
    generator.set_state(1, 0);
    uniform_(view, -3, 5, generator);
    CHECK(equal(view, dense));
  }
}

TEST_CASE("uniform numbers stay below the upper bound where rounding reaches it") {
  Tensor x = empty({200000});
  Generator generator(1);
  float below = std::nextafter(1.0F, 2.0F);
  uniform_(x, 1, std::nextafter(below, 2.0F), generator);  // 1 and its neighbour are all there is
  std::vector<float> values = x.to_vector<float>();
  CHECK(std::all_of(values.begin(), values.end(), [&](float v) { return v == 1.0F || v == below; }));
  uniform_(x, 3, 3, generator);
  CHECK(equal(x, full({200000}, 3.0F)));
}

TEST_CASE("normal numbers have the moments of the normal distribution") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Generator generator(7);
    std::vector<double> values = randn({400000}, dtype, generator).to_vector<double>();
    Moments m = moments(values);
    CHECK(std::abs(m.mean) < 0.007);
    CHECK(std::abs(m.variance - 1) < 0.01);
    CHECK(std::abs(m.skewness) < 0.02);
    CHECK(std::abs(m.kurtosis - 3) < 0.04);
    auto beyond_two = std::count_if(values.begin(), values.end(), [](double v) { return std::abs(v) > 2; });
    CHECK(std::abs(static_cast<double>(beyond_two) / 400000 - 0.0455) < 0.0015);
    CHECK(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }));
  }
}

TEST_CASE("normal numbers are Box and Muller's, as accurate as their dtype") {
  Generator generator(11);
  std::vector<float> floats = randn({20000}, {}, generator).to_vector<float>();
  generator.set_state(11, 0);
  std::vector<double> doubles = randn({20000}, DType::f64, generator).to_vector<double>();
  constexpr double turn = 6.283185307179586476925;
  double worst_float = 0, worst_double = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    Words w = philox(11, i);
    double u = (static_cast<double>(static_cast<float>(w[0] >> 1)) + 0.5) * 0x1p-31;
    double v = static_cast<double>(w[1] >> 8) * 0x1p-24;
    double r = std::sqrt(-2 * std::log(static_cast<double>(static_cast<float>(u))));
    worst_float = std::max(worst_float, std::abs(static_cast<double>(floats[i]) - r * std::cos(turn * v)) / (r + 0.1));
    u = static_cast<double>((uint64_t{w[0]} << 32 | w[1]) >> 12) * 0x1p-52 + 0x1p-53;
    v = static_cast<double>((uint64_t{w[2]} << 32 | w[3]) >> 12) * 0x1p-52;
    r = std::sqrt(-2 * std::log(u));
    worst_double = std::max(worst_double, std::abs(doubles[i] - r * std::cos(turn * v)) / (r + 0.1));
  }
  CHECK(worst_float < 3e-7);
  CHECK(worst_double < 1e-15);
}

TEST_CASE("random integers cover their range evenly, even the widest") {
  Generator generator(5);
  std::vector<int64_t> values = randint(-2, 5, {70000}, DType::i64, generator).to_vector<int64_t>();
  std::array<int, 7> counts{};
  for (int64_t v : values) {
    REQUIRE(v >= -2);
    REQUIRE(v < 5);
    ++counts[static_cast<size_t>(v + 2)];
  }
  for (int count : counts) CHECK(std::abs(count - 10000) < 500);

  constexpr int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> wide = randint(lowest, highest, {1000}, DType::i64, generator).to_vector<int64_t>();
  auto negative = std::count_if(wide.begin(), wide.end(), [](int64_t v) { return v < 0; });
  CHECK(negative > 420);
  CHECK(negative < 580);
  CHECK(randint(0, 9, {2, 3}, DType::f32, generator).dtype() == DType::f32);
}

TEST_CASE("a random permutation holds each number once") {
  Generator generator(5);
  std::vector<int64_t> order = randperm(1000, DType::i64, generator).to_vector<int64_t>();
  CHECK(generator.offset() == 1000);
  CHECK(!std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(order[static_cast<size_t>(i)] == i);
  CHECK(randperm(0, DType::i64, generator).shape() == Shape{0});

  std::array<int, 3> first{};
  for (int i = 0; i < 3000; ++i) ++first[static_cast<size_t>(randperm(3, DType::i64, generator).data<int64_t>()[0])];
  for (int count : first) CHECK(std::abs(count - 1000) < 120);
}

TEST_CASE("manual_seed starts the default generator again") {
  manual_seed(9);
  Tensor a = rand({4}), b = randn({4});
  CHECK(default_generator().offset() == 8);
  manual_seed(9);
  CHECK(equal(rand({4}), a));
  CHECK(equal(randn({4}), b));
  manual_seed(10);
  CHECK(!equal(rand({4}), a));
}

TEST_CASE("random functions refuse what makes no sense, and draw nothing then") {
  Generator generator(1);
  float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(randint(3, 3, {2}, DType::i64, generator), ValueError);
  CHECK_THROWS_AS(randperm(-1, DType::i64, generator), ValueError);
  CHECK_THROWS_AS(rand({2}, DType::i64, generator), DTypeError);
  CHECK_THROWS_AS(bernoulli(from_vector<float>({0.5F, 1.5F}), generator), ValueError);
  CHECK_THROWS_AS(bernoulli(from_vector<float>({nan}), generator), ValueError);
  CHECK_THROWS_AS(bernoulli(from_vector<int64_t>({1}), generator), DTypeError);
  Tensor x = ones({2, 3});
  CHECK_THROWS_AS(uniform_(x, 1, 0, generator), ValueError);
  CHECK_THROWS_AS(normal_(x, 0, -1, generator), ValueError);
  CHECK_THROWS_AS(normal_(ones({1}).expand({4}), 0, 1, generator), ValueError);
  CHECK_THROWS_AS(uniform_(ones({2}).set_requires_grad(), 0, 1, generator), GraphError);
  CHECK(generator.offset() == 0);
  CHECK(equal(x, ones({2, 3})));
  CHECK(rand({0, 3}, {}, generator).numel() == 0);
  CHECK(rand({}, {}, generator).dim() == 0);
}

}  // namespace random_test
