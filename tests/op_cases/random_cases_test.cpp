// Op cases: random numbers. A value depends on seed and counter alone: references compute Philox 4x32-10 again.
#include <catch2/catch.hpp>

#include <array>
#include <numeric>

#include "arrays.hpp"
#include "op_case.hpp"

namespace regard::op_cases {

namespace {

using T = const Tensors&;
using A = const Arrays&;
using Words = std::array<uint32_t, 4>;

constexpr uint64_t seed = 0x123456789abcdefULL;
constexpr uint64_t offset = 5;

/// Salmon, Moraes, Dror, Shaw, 2011: ten rounds.
Words words(uint64_t counter) {
  Words c{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xD2511F53} * c[0], q = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(q >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(q),
         static_cast<uint32_t>(p >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}
double uniform32(uint64_t counter) { return static_cast<double>(words(counter)[0] >> 8) * 0x1p-24; }
double uniform64(uint64_t counter) {
  const Words w = words(counter);
  return static_cast<double>((uint64_t{w[0]} << 32 | w[1]) >> 11) * 0x1p-53;
}
uint64_t below(uint64_t counter, uint64_t range) {
  const Words w = words(counter);
  // The upper half of the product, for ranges below 2^32.
  return ((w[0] * range) + ((w[1] * range) >> 32)) >> 32;
}
double normal32(uint64_t counter) {
  const Words w = words(counter);
  const double u = (static_cast<float>(static_cast<int32_t>(w[0] >> 1)) + 0.5F) * 0x1p-31F;  // rounds as f32 does
  const double v = static_cast<double>(w[1] >> 8) * 0x1p-24;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

Generator started() {
  Generator generator;
  generator.set_state(seed, offset);
  return generator;
}
/// Element i of an array, in logical order, from counter offset + i.
template <class F>
Array counted(const Shape& shape, const F& f) {
  uint64_t counter = offset;
  return make(shape, [&](const Shape&) { return f(counter++); });
}
/// Draws into a copy of x's shape: the input gives shape and dtype alone.
OpCase drawing(const char* op, const char* variant, Function function, Reference reference) {
  return {.op = op,
          .variant = variant,
          .inputs = {{{3, 5}}},
          .function = std::move(function),
          .reference = std::move(reference),
          .more = {{{{}}}, {{{0, 2}}}, {{{700}}}},
          .differentiable = false};
}

}  // namespace

Table random_cases() {
  Table table;
  table.push_back(drawing(
      "rand", "",
      [](T in) {
        Generator generator = started();
        return rand(in[0].shape(), {DType::f64, in[0].device()}, generator);
      },
      [](A in) { return counted(in[0].shape, uniform64); }));
  table.back().results = {DType::f64};
  table.back().of_integers = DType::f64;
  table.push_back(drawing(
      "rand", "f32",
      [](T in) {
        Generator generator = started();
        return rand(in[0].shape(), in[0].device(), generator);
      },
      [](A in) { return counted(in[0].shape, uniform32); }));
  table.back().results = {DType::f32};
  table.back().of_integers = DType::f32;
  table.push_back(drawing(
      "randn", "f32",
      [](T in) {
        Generator generator = started();
        return randn(in[0].shape(), in[0].device(), generator);
      },
      [](A in) { return counted(in[0].shape, normal32); }));
  table.back().results = {DType::f32};
  table.back().of_integers = DType::f32;
  table.back().ulps = 16;
  table.back().accumulates = true;
  table.push_back(drawing(
      "randint", "",
      [](T in) {
        Generator generator = started();
        return randint(-3, 8, in[0].shape(), {DType::i64, in[0].device()}, generator);
      },
      [](A in) { return counted(in[0].shape, [](uint64_t c) { return -3 + static_cast<double>(below(c, 11)); }); }));
  table.back().results = {DType::i64};
  table.back().of_integers = DType::i64;
  table.push_back(drawing(
      "randperm", "",
      [](T in) {
        Generator generator = started();
        return randperm(in[0].numel(), {DType::i64, in[0].device()}, generator);
      },
      [](A in) {
        std::vector<double> order(in[0].values.size());
        std::iota(order.begin(), order.end(), 0);
        for (size_t i = 0; i < order.size(); ++i) std::swap(order[i], order[i + below(offset + i, order.size() - i)]);
        return Array{{static_cast<int64_t>(order.size())}, order};
      }));
  table.back().results = {DType::i64};
  table.back().of_integers = DType::i64;

  const Input probability{{3, 5}, Fill::unit};
  table.push_back({.op = "bernoulli",
                   .variant = "",
                   .inputs = {probability},
                   .function =
                       [](T in) {
                         Generator generator = started();
                         return bernoulli(in[0], generator);
                       },
                   .reference =
                       [](A in) {
                         uint64_t counter = offset;
                         return make(in[0].shape, [&](const Shape& i) { return uniform32(counter++) < at(in[0], i); });
                       },
                   .more = {{{{}, Fill::unit}}, {{{0}, Fill::unit}}, {{{700}, Fill::unit}}},
                   .differentiable = false});
  // In place: into a tensor of the input's layout, so that the order of counters is that of the elements.
  for (const bool transposed : {false, true}) {
    auto blank = [transposed](const Tensor& x) {
      Tensor y = zeros({x.size(1), x.size(0)}, {x.dtype() == DType::i64 ? DType::f32 : x.dtype(), x.device()}).t();
      return transposed ? y : zeros(x.shape(), {y.dtype(), y.device()});
    };
    OpCase uniform = drawing(
        "uniform_", transposed ? "transposed" : "",
        [blank](T in) {
          Generator generator = started();
          Tensor y = blank(in[0]).to(DType::f64);
          uniform_(y, -2, 3, generator);
          return y;
        },
        [](A in) { return counted(in[0].shape, [](uint64_t c) { return -2 + 5 * uniform64(c); }); });
    uniform.results = {DType::f64};
    uniform.of_integers = DType::f64;
    uniform.more = {{{{0, 2}}}, {{{30, 20}}}};
    uniform.accumulates = true;
    table.push_back(uniform);
    OpCase normal = drawing(
        "normal_", transposed ? "transposed" : "",
        [blank](T in) {
          Generator generator = started();
          Tensor y = blank(in[0]).to(DType::f32);
          normal_(y, 1, 0.5, generator);
          return y;
        },
        [](A in) { return counted(in[0].shape, [](uint64_t c) { return 1 + 0.5 * normal32(c); }); });
    normal.results = {DType::f32};
    normal.of_integers = DType::f32;
    normal.more = {{{{0, 2}}}, {{{30, 20}}}};
    normal.ulps = 16;
    normal.accumulates = true;
    table.push_back(normal);
  }
  for (const double p : {0.0, 0.25, 1.0})
    table.push_back({.op = "dropout",
                     .variant = "p = " + std::to_string(p),
                     .inputs = {{{3, 5}}},
                     .function =
                         [p](T in) {
                           Generator generator = started();
                           return dropout(in[0], p, generator);
                         },
                     .reference =
                         [p](A in) {
                           uint64_t counter = offset;
                           return make(in[0].shape, [&](const Shape& i) {
                             const bool kept = uniform32(counter++) >= p;
                             return kept ? at(in[0], i) / (1 - p) : 0.0;
                           });
                         },
                     .more = {{{{}}}, {{{0, 2}}}, {{{700}}}}});
  // The gradient of attention's dropout: weights whose counter draws below p are dropped.
  table.push_back({.op = "scaled_dot_product_attention",
                   .variant = "dropout",
                   .inputs = {{{1, 2, 2, 3}}, {{1, 2, 4, 3}}, {{1, 2, 4, 2}}},
                   .function =
                       [](T in) {
                         Generator generator = started();
                         return scaled_dot_product_attention(in[0], in[1], in[2],
                                                             {.dropout = 0.5, .generator = &generator});
                       },
                   .reference =
                       [](A in) {
                         return make({1, 2, 2, 2}, [&](const Shape& place) {
                           const int64_t h = place[1], l = place[2], column = place[3];
                           double sum = 0, y = 0;
                           for (int64_t s = 0; s < 4; ++s) {
                             double score = 0;
                             for (int64_t d = 0; d < 3; ++d) score += at(in[0], {0, h, l, d}) * at(in[1], {0, h, s, d});
                             const double e = std::exp(score / std::sqrt(3.0));
                             sum += e;
                             if (uniform32(offset + static_cast<uint64_t>((h * 2 + l) * 4 + s)) >= 0.5)
                               y += 2 * e * at(in[2], {0, h, s, column});
                           }
                           return y / sum;
                         });
                       },
                   .ulps = 32,
                   .accumulates = true});
  return table;
}

TEST_CASE("op cases: random numbers") { run_table("random numbers", random_cases()); }

}  // namespace regard::op_cases
