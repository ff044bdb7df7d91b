// One pass over a parameter, its gradient and its moments: SGD, Adam, AdamW, Lion; and the norm of a gradient.
#include <cmath>
#include <numeric>
#include <vector>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/highway_targets.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <regard/autograd/backend/cpu/optimizer.cpp>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <regard/autograd/backend/cpu/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace regard::cpu_backend::HWY_NAMESPACE {

template <class T>
void sgd(int64_t n, T* p, const T* grad, T* velocity, const SgdStep& o) {
  const Tag<T> d;
  const auto decay = hn::Set(d, static_cast<T>(o.weight_decay)), momentum = hn::Set(d, static_cast<T>(o.momentum)),
             rest = hn::Set(d, static_cast<T>(1 - o.dampening)), lr = hn::Set(d, static_cast<T>(o.lr));
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto x = load(d, p + i, count);
    auto g = load(d, grad + i, count);
    if (o.weight_decay != 0) g = hn::MulAdd(decay, x, g);
    if (velocity) {
      auto v = g;
      if (!o.first) v = hn::MulAdd(momentum, load(d, velocity + i, count), hn::Mul(rest, g));
      store(v, d, velocity + i, count);
      g = o.nesterov ? hn::MulAdd(momentum, v, g) : v;
    }
    store(hn::NegMulAdd(lr, g, x), d, p + i, count);
  });
}

template <class T>
void adam(int64_t n, T* p, const T* grad, T* exp_avg, T* exp_avg_sq, const AdamStep& o) {
  const Tag<T> d;
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  const auto beta1 = hn::Set(d, static_cast<T>(o.beta1)), rest1 = hn::Set(d, static_cast<T>(1 - o.beta1)),
             beta2 = hn::Set(d, static_cast<T>(o.beta2)), rest2 = hn::Set(d, static_cast<T>(1 - o.beta2)),
             scale = hn::Set(d, static_cast<T>(1 / std::sqrt(correction2))), eps = hn::Set(d, static_cast<T>(o.eps)),
             lr = hn::Set(d, static_cast<T>(o.lr / correction1)),
             keep = hn::Set(d, static_cast<T>(1 - o.lr * o.weight_decay)),
             decay = hn::Set(d, static_cast<T>(o.weight_decay));
  const bool couples = !o.decoupled && o.weight_decay != 0, shrinks = o.decoupled && o.weight_decay != 0;
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    auto x = load(d, p + i, count);
    auto g = load(d, grad + i, count);
    if (couples) g = hn::MulAdd(decay, x, g);
    if (shrinks) x = hn::Mul(x, keep);
    const auto m = hn::MulAdd(beta1, load(d, exp_avg + i, count), hn::Mul(rest1, g));
    const auto v = hn::MulAdd(beta2, load(d, exp_avg_sq + i, count), hn::Mul(rest2, hn::Mul(g, g)));
    store(m, d, exp_avg + i, count);
    store(v, d, exp_avg_sq + i, count);
    const auto divisor = hn::MulAdd(hn::Sqrt(v), scale, eps);
    store(hn::NegMulAdd(lr, hn::Div(m, divisor), x), d, p + i, count);
  });
}

template <class T>
void lion(int64_t n, T* p, const T* grad, T* exp_avg, const LionStep& o) {
  const Tag<T> d;
  const auto beta1 = hn::Set(d, static_cast<T>(o.beta1)), rest1 = hn::Set(d, static_cast<T>(1 - o.beta1)),
             beta2 = hn::Set(d, static_cast<T>(o.beta2)), rest2 = hn::Set(d, static_cast<T>(1 - o.beta2)),
             lr = hn::Set(d, static_cast<T>(o.lr)), keep = hn::Set(d, static_cast<T>(1 - o.lr * o.weight_decay)),
             zero = hn::Zero(d), one = hn::Set(d, T{1});
  each_vector<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto g = load(d, grad + i, count), m = load(d, exp_avg + i, count);
    const auto c = hn::MulAdd(beta1, m, hn::Mul(rest1, g));
    // The sign, 0 for 0; NaN stays NaN: a step that went wrong is seen in the parameter.
    const auto sign = hn::IfThenElse(hn::Gt(c, zero), one, hn::IfThenElse(hn::Lt(c, zero), hn::Neg(one), c));
    store(hn::NegMulAdd(lr, sign, hn::Mul(load(d, p + i, count), keep)), d, p + i, count);
    store(hn::MulAdd(beta2, m, hn::Mul(rest2, g)), d, exp_avg + i, count);
  });
}

// In f64 throughout: the square of an f32 as large as 1e20 is no f32.
double squares_f32(int64_t n, const float* x) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(half, x + i)), b = hn::PromoteTo(d, hn::LoadU(half, x + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < n; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return total;
}

double squares_f64(int64_t n, const double* x) {
  const Tag<double> d;
  return sum_row<double>(n, [=](int64_t i, int64_t count) HWY_ATTR {
    const auto a = load(d, x + i, count);
    return hn::Mul(a, a);
  });
}

void sgd_f32(int64_t n, float* p, const float* g, float* v, const SgdStep& o) { sgd(n, p, g, v, o); }
void sgd_f64(int64_t n, double* p, const double* g, double* v, const SgdStep& o) { sgd(n, p, g, v, o); }
void adam_f32(int64_t n, float* p, const float* g, float* m, float* v, const AdamStep& o) { adam(n, p, g, m, v, o); }
void adam_f64(int64_t n, double* p, const double* g, double* m, double* v, const AdamStep& o) {
  adam(n, p, g, m, v, o);
}
void lion_f32(int64_t n, float* p, const float* g, float* m, const LionStep& o) { lion(n, p, g, m, o); }
void lion_f64(int64_t n, double* p, const double* g, double* m, const LionStep& o) { lion(n, p, g, m, o); }

}  // namespace regard::cpu_backend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace regard::cpu_backend {

HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(lion_f32);
HWY_EXPORT(lion_f64);
HWY_EXPORT(squares_f32);
HWY_EXPORT(squares_f64);

namespace {
constexpr int64_t kGrain = 8192;
}  // namespace

void sgd_step(const Tensor& p, const Tensor& grad, const Tensor& velocity, const SgdStep& options) {
  visit_compute(p.dtype(), [&]<class T>(T) {
    T* x = p.data<T>();
    const T* g = grad.data<T>();
    T* v = velocity.defined() ? velocity.data<T>() : nullptr;
    parallel_for_short(p.numel(), kGrain, [&](int64_t begin, int64_t end) {
      T* part = v ? v + begin : nullptr;
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(sgd_f64)(end - begin, x + begin, g + begin, part, options);
      else
        HWY_DYNAMIC_DISPATCH(sgd_f32)(end - begin, x + begin, g + begin, part, options);
    });
  });
}

void adam_step(const Tensor& p, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
               const AdamStep& options) {
  visit_compute(p.dtype(), [&]<class T>(T) {
    T* x = p.data<T>();
    const T* g = grad.data<T>();
    T* m = exp_avg.data<T>();
    T* v = exp_avg_sq.data<T>();
    parallel_for_short(p.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(adam_f64)(end - begin, x + begin, g + begin, m + begin, v + begin, options);
      else
        HWY_DYNAMIC_DISPATCH(adam_f32)(end - begin, x + begin, g + begin, m + begin, v + begin, options);
    });
  });
}

void lion_step(const Tensor& p, const Tensor& grad, const Tensor& exp_avg, const LionStep& options) {
  visit_compute(p.dtype(), [&]<class T>(T) {
    T* x = p.data<T>();
    const T* g = grad.data<T>();
    T* m = exp_avg.data<T>();
    parallel_for_short(p.numel(), kGrain, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(lion_f64)(end - begin, x + begin, g + begin, m + begin, options);
      else
        HWY_DYNAMIC_DISPATCH(lion_f32)(end - begin, x + begin, g + begin, m + begin, options);
    });
  });
}

void norm_squared(const Tensor& x, double* result) {
  const int64_t n = x.numel();
  const auto squares = [&](int64_t begin, int64_t end) {
    return x.dtype() == DType::f64 ? HWY_DYNAMIC_DISPATCH(squares_f64)(end - begin, x.data<double>() + begin)
                                   : HWY_DYNAMIC_DISPATCH(squares_f32)(end - begin, x.data<float>() + begin);
  };
  if (n <= kGrain) {
    *result = n == 0 ? 0 : squares(0, n);
    return;
  }
  // Blocks of one size, added in order: the sum depends on n alone.
  std::vector<double> sums(static_cast<size_t>((n + kGrain - 1) / kGrain));
  parallel_for_short(
      n, kGrain, [&](int64_t begin, int64_t end) { sums[static_cast<size_t>(begin / kGrain)] = squares(begin, end); });
  *result = std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace regard::cpu_backend
#endif  // HWY_ONCE
