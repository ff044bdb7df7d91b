// Layer norm and RMS norm, and their gradients. Sums over rows (the gradients of weight and bias) are kept in blocks
// of rows of fixed height, and the blocks are added in order: the result does not depend on threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/row_sums.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/norm.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/rows-inl.hpp>

#ifndef REGARD_CPU_NORM_ROWS
#define REGARD_CPU_NORM_ROWS
namespace regard::cpu_backend {

// What the row kernels read and write; pointers stand at the first row. Null where not given or not wanted.
template <class T>
struct NormRows {
  int64_t rows, width;
  const T* a;
  const T* weight;
  const T* bias;
  T* y;
  T* mean;  // null for RMS norm
  T* rstd;
  double eps;
};
template <class T>
struct NormGradRows {
  int64_t rows, width;
  const T* a;
  const T* dy;
  const T* weight;
  const T* mean;  // null for RMS norm
  const T* rstd;
  T* da;
  T* dweight;  // sums over these rows, [width]
  T* dbias;
};

}  // namespace regard::cpu_backend
#endif

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

// Rows are taken four at a time where they are short, so that the sums over lanes, the roots and the divisions of
// four go together. Longer ones are taken alone, with sums in f64 on the way.
constexpr int64_t row_group = 4;
template <class T>
HWY_INLINE bool short_rows(int64_t width) {
  return width <= 64 * static_cast<int64_t>(hn::Lanes(Tag<T>()));
}

// The sums over the lanes of four vectors.
template <class T, class V = hn::Vec<Tag<T>>>
HWY_INLINE void sums_of_lanes(const V (&v)[row_group], double (&sums)[row_group]) {
  const Tag<T> d;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(T) == 4) {
    const hn::Repartition<double, Tag<T>> pairs;
    const V v01 = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
    const V v23 = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
    const auto p01 = hn::BitCast(pairs, v01), p23 = hn::BitCast(pairs, v23);
    const V all = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, p01, p23)),
                          hn::BitCast(d, hn::InterleaveUpper(pairs, p01, p23)));  // a sum of each, block by block
    const hn::Half<Tag<T>> half;
    const auto of_half = hn::Add(hn::LowerHalf(half, all), hn::UpperHalf(half, all));
    const hn::FixedTag<double, row_group> four;
#if HWY_TARGET == HWY_AVX3
    const hn::Half<hn::Half<Tag<T>>> quarter;
    hn::StoreU(hn::PromoteTo(four, hn::Add(hn::LowerHalf(quarter, of_half), hn::UpperHalf(quarter, of_half))), four,
               sums);
#else
    hn::StoreU(hn::PromoteTo(four, of_half), four, sums);
#endif
    return;
  }
#endif
  for (int64_t k = 0; k < row_group; ++k) sums[k] = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, v[k])));
}

// Where four rows begin; past the last row they are that one again.
template <class P>
HWY_INLINE void row_starts(P* (&rows)[row_group], P* first, int64_t row, int64_t count, int64_t width) {
  for (int64_t k = 0; k < row_group; ++k) rows[k] = first + (row + k < count ? row + k : count - 1) * width;
}

// y = (a - mean) rstd weight + bias for four rows. False, and nothing done, where a mean is so much larger than the
// deviations that its rounding shows in them.
template <bool centered, class T>
HWY_INLINE bool norm_row_group(const NormRows<T>& r, int64_t row) {
  using V = hn::Vec<Tag<T>>;
  const Tag<T> d;
  const int64_t n = r.width;
  const double share = 1 / static_cast<double>(n);
  const T* a[row_group];
  T* y[row_group];
  row_starts(a, r.a, row, r.rows, n);
  row_starts(y, r.y, row, r.rows, n);
  const V zero = hn::Zero(d);
  V sum[row_group] = {zero, zero, zero, zero}, square[row_group] = {zero, zero, zero, zero};
  V mean[row_group] = {zero, zero, zero, zero}, scale[row_group], rest[row_group];
  double means[row_group] = {}, rests[row_group] = {}, squares[row_group];
  if constexpr (centered) {
    each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      for (int64_t k = 0; k < row_group; ++k) sum[k] = hn::Add(sum[k], load(d, a[k] + i, count));
    });
    sums_of_lanes<T>(sum, means);
    for (int64_t k = 0; k < row_group; ++k) {
      const auto rounded = static_cast<T>(means[k] * share);
      means[k] = static_cast<double>(rounded);
      mean[k] = hn::Set(d, rounded);
      sum[k] = zero;
    }
    each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      for (int64_t k = 0; k < row_group; ++k) {
        const V x = hn::Sub(load(d, a[k] + i, count, hn::GetLane(mean[k])), mean[k]);
        sum[k] = hn::Add(sum[k], x);
        square[k] = hn::MulAdd(x, x, square[k]);
      }
    });
    sums_of_lanes<T>(sum, rests);
  } else {
    each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      for (int64_t k = 0; k < row_group; ++k) {
        const V x = load(d, a[k] + i, count);
        square[k] = hn::MulAdd(x, x, square[k]);
      }
    });
  }
  sums_of_lanes<T>(square, squares);
  for (int64_t k = 0; k < row_group; ++k) {
    rests[k] *= share;  // what the rounding of the mean left over
    squares[k] *= share;
    if (rests[k] * rests[k] > 0.125 * squares[k]) return false;
    squares[k] -= rests[k] * rests[k];
  }
  double roots[row_group];
  for (int64_t k = 0; k < row_group; ++k) roots[k] = 1 / std::sqrt(squares[k] + r.eps);
  for (int64_t k = 0; k < row_group; ++k) {
    const int64_t at = row + k < r.rows ? row + k : r.rows - 1;
    if constexpr (centered) r.mean[at] = static_cast<T>(means[k] + rests[k]);
    r.rstd[at] = static_cast<T>(roots[k]);
    scale[k] = hn::Set(d, static_cast<T>(roots[k]));
    rest[k] = hn::Set(d, static_cast<T>(rests[k]));
  }
  const T* weight = r.weight;
  const T* bias = r.bias;
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V w = weight ? load(d, weight + i, count) : hn::Set(d, T{1});
    const V b = bias ? load(d, bias + i, count) : zero;
    for (int64_t k = 0; k < row_group; ++k) {
      V x = load(d, a[k] + i, count);
      if constexpr (centered) x = hn::Sub(hn::Sub(x, mean[k]), rest[k]);
      store(hn::MulAdd(hn::Mul(x, scale[k]), w, b), d, y[k] + i, count);
    }
  });
  return true;
}

// y = (a - mean) rstd weight + bias. The statistics take two passes and are exact to the last digits also where the
// mean is large beside the deviations.
template <class T>
void norm_rows(const NormRows<T>& r, int64_t first, int64_t last) {
  const Tag<T> d;
  const int64_t n = r.width;
  const auto count = static_cast<double>(n);
  const T* a = r.a + first * n;
  T* y = r.y + first * n;
  for (int64_t row = first; row < last; ++row, a += n, y += n) {
    double mean = 0;
    if (r.mean) {
      mean = sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR { return load(d, a + i, k); }) / count;
      const Shift<T> first(mean);
      // What the rounding of the sum left over.
      mean +=
          sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR { return subtract(d, load(d, a + i, k), first); }) / count;
      r.mean[row] = static_cast<T>(mean);
    }
    const Shift<T> shift(mean);
    const double squares = sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
      const auto x = subtract(d, load(d, a + i, k), shift);
      return hn::Mul(x, x);
    });
    const double rstd = 1 / std::sqrt(squares / count + r.eps);
    r.rstd[row] = static_cast<T>(rstd);
    const auto scale = hn::Set(d, static_cast<T>(rstd));
    const T* weight = r.weight;
    const T* bias = r.bias;
    each_vector<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
      auto x = hn::Mul(subtract(d, load(d, a + i, k), shift), scale);
      if (weight) x = hn::Mul(x, load(d, weight + i, k));
      if (bias) x = hn::Add(x, load(d, bias + i, k));
      store(x, d, y + i, k);
    });
  }
}

template <class T>
void norm_rows(const NormRows<T>& r) {
  if (!short_rows<T>(r.width)) return norm_rows(r, 0, r.rows);
  for (int64_t row = 0; row < r.rows; row += row_group) {
    const bool done = r.mean ? norm_row_group<true>(r, row) : norm_row_group<false>(r, row);
    if (!done) norm_rows(r, row, row + row_group < r.rows ? row + row_group : r.rows);
  }
}

// The gradients from four rows, fewer at the end.
template <bool centered, class T>
HWY_INLINE void norm_grad_row_group(const NormGradRows<T>& r, int64_t row) {
  using V = hn::Vec<Tag<T>>;
  const Tag<T> d;
  const int64_t n = r.width;
  const double share = 1 / static_cast<double>(n);
  const T *a[row_group], *dy[row_group];
  T* da[row_group] = {};
  row_starts(a, r.a, row, r.rows, n);
  row_starts(dy, r.dy, row, r.rows, n);
  if (r.da) row_starts(da, r.da, row, r.rows, n);
  const int64_t rows = r.rows - row < row_group ? r.rows - row : row_group;
  const V zero = hn::Zero(d);
  V sum[row_group] = {zero, zero, zero, zero}, sum_g[row_group] = {zero, zero, zero, zero},
    sum_gx[row_group] = {zero, zero, zero, zero}, mean[row_group], scale[row_group], rest[row_group], mean_g[row_group],
    mean_gx[row_group];
  for (int64_t k = 0; k < row_group; ++k) {
    const int64_t at = row + k < r.rows ? row + k : r.rows - 1;
    mean[k] = centered ? hn::Set(d, r.mean[at]) : zero;
    scale[k] = hn::Set(d, r.rstd[at]);
  }
  const T* weight = r.weight;
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V w = weight ? load(d, weight + i, count) : hn::Set(d, T{1});
    for (int64_t k = 0; k < row_group; ++k) {
      V x = load(d, a[k] + i, count, centered ? hn::GetLane(mean[k]) : T{0});
      if constexpr (centered) {
        x = hn::Sub(x, mean[k]);
        sum[k] = hn::Add(sum[k], x);
      }
      const V g = hn::Mul(load(d, dy[k] + i, count), w);
      if constexpr (centered) sum_g[k] = hn::Add(sum_g[k], g);
      sum_gx[k] = hn::MulAdd(g, x, sum_gx[k]);
    }
  });
  double rests[row_group] = {}, gs[row_group] = {}, gxs[row_group];
  if constexpr (centered) {
    sums_of_lanes<T>(sum, rests);
    sums_of_lanes<T>(sum_g, gs);
  }
  sums_of_lanes<T>(sum_gx, gxs);
  for (int64_t k = 0; k < row_group; ++k) {
    rests[k] *= share;  // what the rounding of the mean left over
    rest[k] = hn::Set(d, static_cast<T>(rests[k]));
    mean_g[k] = hn::Set(d, static_cast<T>(gs[k] * share));
    mean_gx[k] = hn::Mul(scale[k], hn::Set(d, static_cast<T>((gxs[k] - rests[k] * gs[k]) * share)));
  }
  T* dweight = r.dweight;
  T* dbias = r.dbias;
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const V w = weight ? load(d, weight + i, count) : hn::Set(d, T{1});
    V dw = dweight ? load(d, dweight + i, count) : zero, db = dbias ? load(d, dbias + i, count) : zero;
    for (int64_t k = 0; k < row_group; ++k) {
      V x = load(d, a[k] + i, count);
      if constexpr (centered) x = hn::Sub(hn::Sub(x, mean[k]), rest[k]);
      x = hn::Mul(x, scale[k]);
      const V g = load(d, dy[k] + i, count);
      if (k < rows) {
        dw = hn::MulAdd(g, x, dw);
        db = hn::Add(db, g);
      }
      if (r.da) {
        const V own = hn::NegMulAdd(x, mean_gx[k], hn::MulSub(g, w, mean_g[k]));
        store(hn::Mul(scale[k], own), d, da[k] + i, count);
      }
    }
    if (dweight) store(dw, d, dweight + i, count);
    if (dbias) store(db, d, dbias + i, count);
  });
}

// With x = (a - mean) rstd and g = dy weight:  da = rstd (g - mean(g) - x mean(g x)), dweight = sum(dy x),
// dbias = sum(dy). RMS norm has no mean(g).
template <class T>
void norm_grad_rows(const NormGradRows<T>& r) {
  const Tag<T> d;
  const int64_t n = r.width;
  if (short_rows<T>(n)) {
    for (int64_t row = 0; row < r.rows; row += row_group)
      r.mean ? norm_grad_row_group<true>(r, row) : norm_grad_row_group<false>(r, row);
    return;
  }
  const auto count = static_cast<double>(n);
  const T* a = r.a;
  const T* dy = r.dy;
  const T* weight = r.weight;
  T* da = r.da;
  T* dweight = r.dweight;
  T* dbias = r.dbias;
  for (int64_t row = 0; row < r.rows; ++row, a += n, dy += n) {
    double mean = 0;
    if (r.mean) {
      const auto rounded = hn::Set(d, r.mean[row]);
      mean = static_cast<double>(r.mean[row]) +
             sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR { return hn::Sub(load(d, a + i, k), rounded); }) / count;
    }
    const Shift<T> shift(mean);
    const auto scale = hn::Set(d, r.rstd[row]);
    if (da) {
      double sum_g = 0, sum_gx = 0;
      sum_row_twice<T>(n, sum_g, sum_gx, [=](int64_t i, int64_t k, auto& g, auto& gx) HWY_ATTR {
        g = load(d, dy + i, k);
        if (weight) g = hn::Mul(g, load(d, weight + i, k));
        gx = hn::Mul(g, hn::Mul(subtract(d, load(d, a + i, k), shift), scale));
      });
      const auto mean_g = hn::Set(d, r.mean ? static_cast<T>(sum_g / count) : T{0});
      const auto mean_gx = hn::Set(d, static_cast<T>(sum_gx / count));
      each_vector<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
        const auto x = hn::Mul(subtract(d, load(d, a + i, k), shift), scale);
        auto g = load(d, dy + i, k);
        if (dbias) store(hn::Add(load(d, dbias + i, k), g), d, dbias + i, k);
        if (dweight) store(hn::MulAdd(g, x, load(d, dweight + i, k)), d, dweight + i, k);
        if (weight) g = hn::Mul(g, load(d, weight + i, k));
        store(hn::Mul(scale, hn::Sub(hn::Sub(g, mean_g), hn::Mul(x, mean_gx))), d, da + i, k);
      });
      da += n;
    } else {
      each_vector<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
        const auto g = load(d, dy + i, k);
        if (dbias) store(hn::Add(load(d, dbias + i, k), g), d, dbias + i, k);
        if (!dweight) return;
        const auto x = hn::Mul(subtract(d, load(d, a + i, k), shift), scale);
        store(hn::MulAdd(g, x, load(d, dweight + i, k)), d, dweight + i, k);
      });
    }
  }
}

void norm_f32(const NormRows<float>& r) { norm_rows(r); }
void norm_f64(const NormRows<double>& r) { norm_rows(r); }
void norm_grad_f32(const NormGradRows<float>& r) { norm_grad_rows(r); }
void norm_grad_f64(const NormGradRows<double>& r) { norm_grad_rows(r); }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(norm_f32);
HWY_EXPORT(norm_f64);
HWY_EXPORT(norm_grad_f32);
HWY_EXPORT(norm_grad_f64);

namespace {

constexpr int64_t chunk_elements = 4096, worth_waking = 65536;
constexpr int64_t block_rows = 64;  // summed in the tensor's precision; blocks are added in f64
constexpr int64_t column_block = 512;

void run(const NormRows<float>& r) { HWY_DYNAMIC_DISPATCH(norm_f32)(r); }
void run(const NormRows<double>& r) { HWY_DYNAMIC_DISPATCH(norm_f64)(r); }
void run(const NormGradRows<float>& r) { HWY_DYNAMIC_DISPATCH(norm_grad_f32)(r); }
void run(const NormGradRows<double>& r) { HWY_DYNAMIC_DISPATCH(norm_grad_f64)(r); }

template <class T>
T* elements(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw_data()) : nullptr;
}

template <class T>
void normalize(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a, const Tensor& weight,
               const Tensor& bias, double eps) {
  const int64_t rows = rstd.numel();
  if (rows == 0) return;
  const int64_t width = a.numel() / rows;
  const NormRows<T> all{rows,
                        width,
                        elements<T>(a),
                        elements<T>(weight),
                        elements<T>(bias),
                        elements<T>(y),
                        elements<T>(mean),
                        elements<T>(rstd),
                        eps};
  parallel_for_short(rows, std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, width)),
                     rows * width >= worth_waking, [&](int64_t begin, int64_t end) {
                       NormRows<T> part = all;
                       part.rows = end - begin;
                       part.a += begin * width;
                       part.y += begin * width;
                       part.rstd += begin;
                       if (part.mean) part.mean += begin;
                       run(part);
                     });
}

// sums[c] = the sum of the blocks' column c.
template <class T>
void add_blocks(T* sums, const T* blocks, int64_t count, int64_t width) {
  parallel_for_short((width + column_block - 1) / column_block, std::max<int64_t>(1, 64 / count),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t block = begin; block < end; ++block) {
                         const int64_t first = block * column_block;
                         const int64_t columns = std::min(column_block, width - first);
                         double totals[column_block] = {};
                         add_column_sums(totals, blocks + first, width, count, columns, false);
                         for (int64_t c = 0; c < columns; ++c) sums[first + c] = static_cast<T>(totals[c]);
                       }
                     });
}

template <class T>
void normalize_grad(const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& a,
                    const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const int64_t rows = rstd.numel();
  if (rows == 0) {
    if (dweight.defined()) fill(dweight, 0);
    if (dbias.defined()) fill(dbias, 0);
    return;
  }
  const int64_t width = a.numel() / rows;
  const NormGradRows<T> all{rows,
                            width,
                            elements<T>(a),
                            elements<T>(dy),
                            elements<T>(weight),
                            elements<T>(mean),
                            elements<T>(rstd),
                            elements<T>(da),
                            nullptr,
                            nullptr};
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  std::vector<T> weight_blocks(dweight.defined() ? static_cast<size_t>(blocks * width) : 0);
  std::vector<T> bias_blocks(dbias.defined() ? static_cast<size_t>(blocks * width) : 0);
  const int64_t grain = std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, block_rows * width));
  parallel_for_short(blocks, grain, rows * width >= worth_waking, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * block_rows;
      NormGradRows<T> part = all;
      part.rows = std::min(block_rows, rows - first);
      part.a += first * width;
      part.dy += first * width;
      part.rstd += first;
      if (part.mean) part.mean += first;
      if (part.da) part.da += first * width;
      if (dweight.defined()) part.dweight = weight_blocks.data() + block * width;
      if (dbias.defined()) part.dbias = bias_blocks.data() + block * width;
      run(part);
    }
  });
  if (dweight.defined()) add_blocks(elements<T>(dweight), weight_blocks.data(), blocks, width);
  if (dbias.defined()) add_blocks(elements<T>(dbias), bias_blocks.data(), blocks, width);
}

}  // namespace

void layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a, const Tensor& weight,
                const Tensor& bias, double eps) {
  visit_compute(a.dtype(), [&]<class T>(T) { normalize<T>(y, mean, rstd, a, weight, bias, eps); });
}
void layer_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& a,
                     const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  visit_compute(a.dtype(), [&]<class T>(T) { normalize_grad<T>(da, dweight, dbias, dy, a, mean, rstd, weight); });
}
void rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& a, const Tensor& weight, double eps) {
  visit_compute(a.dtype(), [&]<class T>(T) { normalize<T>(y, {}, rstd, a, weight, {}, eps); });
}
void rms_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dy, const Tensor& a, const Tensor& rstd,
                   const Tensor& weight) {
  visit_compute(a.dtype(), [&]<class T>(T) { normalize_grad<T>(da, dweight, {}, dy, a, {}, rstd, weight); });
}

}  // namespace regard::cpu_backend
#endif
