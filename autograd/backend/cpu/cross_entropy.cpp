// Softmax and cross-entropy in one pass over the logits, and its gradient in another.
#include <algorithm>
#include <cmath>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/row_sums.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/cross_entropy.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/rows-inl.hpp>

#ifndef REGARD_CPU_CROSS_ENTROPY_ROWS
#define REGARD_CPU_CROSS_ENTROPY_ROWS
namespace regard::cpu_backend {

// Pointers stand at the first row.
template <class T>
struct CrossEntropyRows {
  int64_t rows, classes;
  const T* logits;
  const int64_t* targets;
  int64_t target_stride;
  const T* weight;    // null: 1 everywhere
  double weight_sum;  // over all classes
  int64_t ignore_index;
  double label_smoothing;
  T* log_sum_exp;    // written forward, read backward
  T* losses;         // forward
  const T* dlosses;  // backward
  int64_t dloss_stride;
  T* dlogits;
};

}  // namespace regard::cpu_backend
#endif

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

// loss = (1 - s) w[t] (L - x[t]) + s / C sum(w (L - x)), where L is the log-sum-exp and s the label smoothing.
template <class T>
void losses_of_rows(const CrossEntropyRows<T>& r) {
  const Tag<T> d;
  const int64_t n = r.classes;
  const T* x = r.logits;
  const T* weight = r.weight;
  for (int64_t row = 0; row < r.rows; ++row, x += n) {
    const int64_t target = r.targets[row * r.target_stride];
    if (target == r.ignore_index) {
      r.losses[row] = r.log_sum_exp[row] = 0;
      continue;
    }
    const T largest = max_row(x, n);
    const auto shift = hn::Set(d, largest);
    const double log_sum = std::log(
        sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR { return exp_of(d, hn::Sub(load(d, x + i, k), shift)); }));
    r.log_sum_exp[row] = static_cast<T>(static_cast<double>(largest) + log_sum);
    double loss = (static_cast<double>(largest) - static_cast<double>(x[target])) + log_sum;
    if (weight) loss *= static_cast<double>(weight[target]);
    if (r.label_smoothing != 0) {
      const double below = sum_row<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
        const auto gap = hn::Sub(shift, load(d, x + i, k));
        return weight ? hn::Mul(gap, load(d, weight + i, k)) : gap;
      });
      const double smooth = (r.weight_sum * log_sum + below) / static_cast<double>(n);
      loss = r.label_smoothing == 1 ? smooth : (1 - r.label_smoothing) * loss + r.label_smoothing * smooth;
    }
    r.losses[row] = static_cast<T>(loss);
  }
}

// dx = g (softmax(x) ((1 - s) w[t] + s / C sum(w)) - s / C w - (1 - s) w[t] [at t])
template <class T>
void gradients_of_rows(const CrossEntropyRows<T>& r) {
  const Tag<T> d;
  const int64_t n = r.classes;
  const T* x = r.logits;
  T* dx = r.dlogits;
  const T* weight = r.weight;
  for (int64_t row = 0; row < r.rows; ++row, x += n, dx += n) {
    const int64_t target = r.targets[row * r.target_stride];
    if (target == r.ignore_index) {
      std::fill_n(dx, n, T{0});
      continue;
    }
    const auto g = static_cast<double>(r.dlosses[row * r.dloss_stride]);
    const double share = r.label_smoothing / static_cast<double>(n);
    const double at_target = (1 - r.label_smoothing) * (weight ? static_cast<double>(weight[target]) : 1.0);
    const auto factor = hn::Set(d, static_cast<T>(g * (at_target + share * r.weight_sum)));
    const auto smooth = hn::Set(d, static_cast<T>(g * share));
    const auto shift = hn::Set(d, r.log_sum_exp[row]);
    const bool smoothing = share != 0;
    each_vector<T>(n, [=](int64_t i, int64_t k) HWY_ATTR {
      auto value = hn::Mul(exp_of(d, hn::Sub(load(d, x + i, k), shift)), factor);
      if (smoothing) value = hn::Sub(value, weight ? hn::Mul(smooth, load(d, weight + i, k)) : smooth);
      store(value, d, dx + i, k);
    });
    dx[target] = static_cast<T>(static_cast<double>(dx[target]) - g * at_target);
  }
}

void losses_f32(const CrossEntropyRows<float>& r) { losses_of_rows(r); }
void losses_f64(const CrossEntropyRows<double>& r) { losses_of_rows(r); }
void gradients_f32(const CrossEntropyRows<float>& r) { gradients_of_rows(r); }
void gradients_f64(const CrossEntropyRows<double>& r) { gradients_of_rows(r); }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(losses_f32);
HWY_EXPORT(losses_f64);
HWY_EXPORT(gradients_f32);
HWY_EXPORT(gradients_f64);

namespace {

void losses_of(const CrossEntropyRows<float>& r) { HWY_DYNAMIC_DISPATCH(losses_f32)(r); }
void losses_of(const CrossEntropyRows<double>& r) { HWY_DYNAMIC_DISPATCH(losses_f64)(r); }
void gradients_of(const CrossEntropyRows<float>& r) { HWY_DYNAMIC_DISPATCH(gradients_f32)(r); }
void gradients_of(const CrossEntropyRows<double>& r) { HWY_DYNAMIC_DISPATCH(gradients_f64)(r); }

template <class T>
T* elements(const Tensor& x) {
  return static_cast<T*>(x.raw_data());
}

// What both directions read.
template <class T>
CrossEntropyRows<T> rows_of(const Tensor& logits, const Tensor& log_sum_exp, const Tensor& targets,
                            const Tensor& weight, int64_t ignore_index, double label_smoothing) {
  CrossEntropyRows<T> r{};
  r.rows = logits.shape()[0];
  r.classes = logits.shape()[1];
  r.logits = elements<T>(logits);
  r.targets = elements<int64_t>(targets);
  r.target_stride = targets.strides()[0];
  r.weight = weight.defined() ? elements<T>(weight) : nullptr;
  r.weight_sum = r.weight ? row_sum(r.weight, r.classes) : static_cast<double>(r.classes);
  r.ignore_index = ignore_index;
  r.label_smoothing = label_smoothing;
  r.log_sum_exp = elements<T>(log_sum_exp);
  return r;
}

template <class T, class F>
void in_chunks(const CrossEntropyRows<T>& all, F f) {
  parallel_for_short(all.rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, all.classes)),
                     [&](int64_t begin, int64_t end) {
                       CrossEntropyRows<T> part = all;
                       part.rows = end - begin;
                       part.logits += begin * all.classes;
                       part.targets += begin * all.target_stride;
                       part.log_sum_exp += begin;
                       if (part.losses) part.losses += begin;
                       if (part.dlosses) part.dlosses += begin * all.dloss_stride;
                       if (part.dlogits) part.dlogits += begin * all.classes;
                       f(part);
                     });
}

}  // namespace

void cross_entropy(const Tensor& losses, const Tensor& log_sum_exp, const Tensor& logits, const Tensor& targets,
                   const Tensor& weight, int64_t ignore_index, double label_smoothing) {
  visit_compute(logits.dtype(), [&]<class T>(T) {
    CrossEntropyRows<T> r = rows_of<T>(logits, log_sum_exp, targets, weight, ignore_index, label_smoothing);
    r.losses = elements<T>(losses);
    in_chunks(r, [](const CrossEntropyRows<T>& part) { losses_of(part); });
  });
}

void cross_entropy_grad(const Tensor& dlogits, const Tensor& dlosses, const Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& targets, const Tensor& weight, int64_t ignore_index, double label_smoothing) {
  visit_compute(logits.dtype(), [&]<class T>(T) {
    CrossEntropyRows<T> r = rows_of<T>(logits, log_sum_exp, targets, weight, ignore_index, label_smoothing);
    r.dlosses = elements<T>(dlosses);
    r.dloss_stride = dlosses.strides()[0];
    r.dlogits = elements<T>(dlogits);
    in_chunks(r, [](const CrossEntropyRows<T>& part) { gradients_of(part); });
  });
}

}  // namespace regard::cpu_backend
#endif
