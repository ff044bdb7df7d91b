// What attention's kernels are called with in tests on the GPU, against the CPU's kernels.
#pragma once

#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include <regard/autograd/cuda.hpp>

#include "both_devices.hpp"

namespace attention_problems {

using namespace regard;
using both_devices::on_both;
using both_devices::Pair;
using both_devices::seen;

inline constexpr double inf = std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t n, h, key_heads, queries, keys, width, value_width;
  std::string text() const {
    return "N " + std::to_string(n) + " H " + std::to_string(h) + "/" + std::to_string(key_heads) + " L " +
           std::to_string(queries) + " S " + std::to_string(keys) + " D " + std::to_string(width) + " Dv " +
           std::to_string(value_width);
  }
};

/// How q, k, v and dy lie in memory.
enum class Layout { dense, split_heads, columns_apart, odd_offset };

inline bool is_narrow(DType dtype) { return element_size(dtype) == 2; }
/// What the CPU has of a GPU's tensor: 16 bits as f64.
inline DType cpu_type(DType dtype) { return is_narrow(dtype) ? DType::f64 : dtype; }
/// Numbers of `dtype` on the GPU, the same numbers on the CPU.
inline Pair numbers_on_both(const Tensor& x, DType dtype) {
  const Tensor rounded = x.to(dtype);
  return {rounded.to(cpu_type(dtype)), rounded.to(cuda())};
}

inline Pair laid_out(const Shape& shape, DType dtype, Layout layout, Generator& generator) {
  const int64_t n = shape[0], h = shape[1], length = shape[2], width = shape[3];
  const auto on_both = [&](const Shape& dense) {
    return numbers_on_both(randn(dense, cpu_type(dtype), generator), dtype);
  };
  switch (layout) {
    case Layout::dense:
      return on_both(shape);
    case Layout::split_heads:
      return seen(on_both({n, length, h, width}), [](const Tensor& x) { return x.transpose(1, 2); });
    case Layout::columns_apart:
      return seen(on_both({n, h, width, length}), [](const Tensor& x) { return x.transpose(2, 3); });
    case Layout::odd_offset:
      return seen(on_both({n, h, length, width + 3}), [width](const Tensor& x) { return x.narrow(3, 1, width); });
  }
  return {};
}

/// What the kernels are called with. 16 bits: on the CPU the same numbers in f64.
struct Problem {
  Sizes sizes;
  DType dtype;
  Pair q, k, v, dy, mask = {}, key_mask = {}, alibi = {};
  AttentionSettings settings;

  Problem(const Sizes& s, DType type, Layout layout, Generator& generator)
      : sizes(s),
        dtype(type),
        q(laid_out({s.n, s.h, s.queries, s.width}, type, layout, generator)),
        k(laid_out({s.n, s.key_heads, s.keys, s.width}, type, layout, generator)),
        v(laid_out({s.n, s.key_heads, s.keys, s.value_width}, type, layout, generator)),
        dy(laid_out({s.n, s.h, s.queries, s.value_width}, type, layout, generator)),
        settings{.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, s.width))),
                 .causal = false,
                 .dropout = 0,
                 .seed = 0x1234567890abcdef,
                 .offset = 0xfffffff0} {}
  /// A mask that broadcasts to [N, H, L, S].
  void set_mask(const Tensor& x) {
    mask = seen(is_floating(x.dtype()) ? numbers_on_both(x, dtype) : on_both(x), [this](const Tensor& t) {
      return t.expand({sizes.n, sizes.h, sizes.queries, sizes.keys});
    });
  }
};

struct Result {
  Tensor y, statistics, dq, dk, dv;
};

struct Choice {
  bool over = false;        ///< gradients are written over q, k and v, of which the problem's are spent then
  bool from_delta = false;  ///< attention_delta() first
  std::array<bool, 3> wanted{true, true, true};
  bool split_heads = false;  ///< outputs are views of [N, length, H, width]
  Tensor delta = {};         ///< attention_delta()'s result, where another is to be used
};

inline Tensor output(const Tensor& like, int64_t width, const Choice& choice) {
  const TensorOptions options(like.dtype(), like.device());
  const int64_t n = like.size(0), h = like.size(1), length = like.size(2);
  return choice.split_heads ? empty({n, length, h, width}, options).transpose(1, 2)
                            : empty({n, h, length, width}, options);
}

inline Result run(const Problem& p, bool gpu, const Choice& choice = {}) {
  const auto of = [gpu](const Pair& x) { return gpu ? x.gpu : x.cpu; };
  const Tensor q = of(p.q), k = of(p.k), v = of(p.v), dy = of(p.dy);
  const Tensor mask = of(p.mask), key_mask = of(p.key_mask), alibi = of(p.alibi);
  const Kernels& table = kernels(q);
  Result r;
  r.y = output(q, v.size(3), choice);
  const TensorOptions wide(is_narrow(q.dtype()) ? DType::f32 : q.dtype(), q.device());
  r.statistics = empty({q.size(0), q.size(1), 2, q.size(2)}, wide);
  table.attention(r.y, r.statistics, q, k, v, mask, key_mask, alibi, p.settings);
  if (choice.wanted[0]) r.dq = choice.over ? q : output(q, q.size(3), choice);
  if (choice.wanted[1]) r.dk = choice.over ? k : output(k, k.size(3), choice);
  if (choice.wanted[2]) r.dv = choice.over ? v : output(v, v.size(3), choice);
  Tensor y = choice.delta.defined() ? choice.delta : r.y;
  if (choice.from_delta) {
    y = empty({q.size(0), q.size(1), q.size(2)}, wide);
    table.attention_delta(y, dy, r.y);
  }
  table.attention_grad(r.dq, r.dk, r.dv, dy, y, r.statistics, q, k, v, mask, key_mask, alibi, p.settings);
  return r;
}

inline Tensor here(const Tensor& x) {
  if (x.device() == cpu()) return x;
  // Without a copy kernel: the dense memory that lies behind a view of split heads.
  return x.is_contiguous() ? x.to(cpu()) : x.transpose(1, 2).to(cpu()).transpose(1, 2);
}

inline void check_near(const char* what, const Tensor& got, const Tensor& want, double tolerance, double least = 1) {
  INFO(what);
  if (!want.defined()) return;
  const Tensor a = here(got).to(DType::f64), b = want.to(DType::f64);
  REQUIRE(a.shape() == b.shape());
  if (b.numel() == 0) return;
  const double size = std::max(least, b.abs().max().item<double>());
  CHECK((a - b).abs().max().item<double>() <= tolerance * size);
}
inline void check_near(const Result& got, const Result& want, DType dtype, double narrow_roundings = 16) {
  if (is_narrow(dtype)) {
    // Weights, and gradients of scores, are rounded for their product, and so is what comes of it.
    const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    check_near("y", got.y, want.y, 1.5 * rounding, 0.01);
    check_near("statistics", got.statistics, want.statistics, 1e-5);
    check_near("dq", got.dq, want.dq, narrow_roundings * rounding, 0.01);
    check_near("dk", got.dk, want.dk, narrow_roundings * rounding, 0.01);
    check_near("dv", got.dv, want.dv, 1.5 * rounding, 0.01);
    return;
  }
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
  check_near("y", got.y, want.y, tolerance);
  check_near("statistics", got.statistics, want.statistics, tolerance);
  check_near("dq", got.dq, want.dq, tolerance);
  check_near("dk", got.dk, want.dk, tolerance);
  check_near("dv", got.dv, want.dv, tolerance);
}
inline bool same(const Result& a, const Result& b) {
  const auto one = [](const Tensor& x, const Tensor& y) {
    return !x.defined() || !y.defined() || equal(here(x), here(y));
  };
  return one(a.y, b.y) && one(a.statistics, b.statistics) && one(a.dq, b.dq) && one(a.dk, b.dk) && one(a.dv, b.dv);
}
inline void check(const Problem& p, Choice choice = {}) {
  const Result want = run(p, false);
  if (!is_narrow(p.dtype)) return check_near(run(p, true, choice), want, p.dtype);
  // Where one key has nearly all the weight, gradients of scores are differences of larger numbers, and what delta has
  // of the output's rounding is all that one sees: that of outputs that are not rounded shows the kernels' own error.
  if (choice.from_delta) return check_near(run(p, true, choice), want, p.dtype, 100);
  choice.delta = (p.dy.cpu * want.y).sum({-1}).to(DType::f32).to(cuda());
  check_near(run(p, true, choice), want, p.dtype, 3);
}

}  // namespace attention_problems
