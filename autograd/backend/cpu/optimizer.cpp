// One pass over parameters, their gradients and moments: SGD, Adam, AdamW, Lion; and the norm of gradients.
#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <cmath>
#include <span>

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

// `corrected_lr` and `root_scale` hold the corrections for the moments' start at 0.
template <class T>
void adam(int64_t n, T* p, const T* grad, T* exp_avg, T* exp_avg_sq, const AdamStep& o, double corrected_lr,
          double root_scale) {
  const Tag<T> d;
  const auto beta1 = hn::Set(d, static_cast<T>(o.beta1)), rest1 = hn::Set(d, static_cast<T>(1 - o.beta1)),
             beta2 = hn::Set(d, static_cast<T>(o.beta2)), rest2 = hn::Set(d, static_cast<T>(1 - o.beta2)),
             scale = hn::Set(d, static_cast<T>(root_scale)), eps = hn::Set(d, static_cast<T>(o.eps)),
             lr = hn::Set(d, static_cast<T>(corrected_lr)),
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

template <class T>
void multiply(int64_t n, T* x, double by) {
  const Tag<T> d;
  const auto factor = hn::Set(d, static_cast<T>(by));
  each_vector<T>(
      n, [&](int64_t i, int64_t count) HWY_ATTR { store(hn::Mul(load(d, x + i, count), factor), d, x + i, count); });
}

void sgd_f32(int64_t n, float* p, const float* g, float* v, const SgdStep& o) { sgd(n, p, g, v, o); }
void sgd_f64(int64_t n, double* p, const double* g, double* v, const SgdStep& o) { sgd(n, p, g, v, o); }
void adam_f32(int64_t n, float* p, const float* g, float* m, float* v, const AdamStep& o, double lr, double scale) {
  adam(n, p, g, m, v, o, lr, scale);
}
void adam_f64(int64_t n, double* p, const double* g, double* m, double* v, const AdamStep& o, double lr, double scale) {
  adam(n, p, g, m, v, o, lr, scale);
}
void lion_f32(int64_t n, float* p, const float* g, float* m, const LionStep& o) { lion(n, p, g, m, o); }
void lion_f64(int64_t n, double* p, const double* g, double* m, const LionStep& o) { lion(n, p, g, m, o); }
void multiply_f32(int64_t n, float* x, double by) { multiply(n, x, by); }
void multiply_f64(int64_t n, double* x, double by) { multiply(n, x, by); }

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

HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);

namespace {

constexpr int64_t kGrain = 8192;

// The elements of a list of tensors as one row, cut into chunks for threads: a chunk may hold many small tensors, or a
// part of a large one.
class TensorRow {
 public:
  explicit TensorRow(size_t tensors) {
    starts_.reserve(tensors + 1);
    counts_.reserve(tensors);
    starts_.push_back(0);
  }
  void add(int64_t count) {
    counts_.push_back(count);
    starts_.push_back(starts_.back() + (count + unit - 1) / unit * unit);
  }

  // f(tensor, begin, end), on any thread: some of its elements, each once.
  template <class F>
  void each_part(const F& f) const {
    each_overlap([&](size_t tensor, int64_t begin, int64_t end) {
      begin = std::max<int64_t>(begin, 0);
      end = std::min(end, counts_[tensor]);
      if (begin < end) f(tensor, begin, end);
    });
  }
  // The same for blocks of kGrain elements that begin with each tensor, its last one shorter: f(tensor, begin, end).
  template <class F>
  void each_block(const F& f) const {
    each_overlap([&](size_t tensor, int64_t begin, int64_t end) {
      begin = std::max<int64_t>(begin + kGrain - 1, 0) / kGrain * kGrain;
      end = std::min(end, counts_[tensor]);
      for (; begin < end; begin += kGrain) f(tensor, begin, std::min(begin + kGrain, counts_[tensor]));
    });
  }

 private:
  static constexpr int64_t unit = 16;  // each tensor starts at a multiple: parts keep the alignment of its memory

  // f(tensor, begin, end) for every tensor that a chunk meets: where it begins and ends, counted in the tensor's
  // elements; the tensor need not reach so far.
  template <class F>
  void each_overlap(const F& f) const {
    parallel_for_short(starts_.back(), kGrain, [&](int64_t begin, int64_t end) {
      const auto after = std::upper_bound(starts_.begin(), starts_.end(), begin);
      for (auto tensor = static_cast<size_t>(after - starts_.begin()) - 1; tensor < counts_.size(); ++tensor) {
        if (starts_[tensor] >= end) return;
        f(tensor, begin - starts_[tensor], end - starts_[tensor]);
      }
    });
  }

  boost::container::small_vector<int64_t, 65> starts_;
  boost::container::small_vector<int64_t, 64> counts_;
};

template <class List>
TensorRow row_of_parameters(List list) {
  TensorRow row(list.size());
  for (const auto& one : list) row.add(one.p.numel());
  return row;
}
TensorRow row_of(std::span<const Tensor> list) {
  TensorRow row(list.size());
  for (const Tensor& one : list) row.add(one.numel());
  return row;
}

}  // namespace

void sgd_step(std::span<const SgdTensors> list, const SgdStep& options) {
  if (list.empty()) return;
  const TensorRow row = row_of_parameters(list);
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    row.each_part([&](size_t tensor, int64_t begin, int64_t end) {
      const auto& [p, grad, velocity] = list[tensor];
      T* x = p.data<T>() + begin;
      const T* g = grad.data<T>() + begin;
      T* v = velocity.defined() ? velocity.data<T>() + begin : nullptr;
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(sgd_f64)(end - begin, x, g, v, options);
      else
        HWY_DYNAMIC_DISPATCH(sgd_f32)(end - begin, x, g, v, options);
    });
  });
}

void adam_step(std::span<const AdamTensors> list, const AdamStep& options) {
  if (list.empty()) return;
  const double lr = options.corrected_lr(), scale = options.root_scale();
  const TensorRow row = row_of_parameters(list);
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    row.each_part([&](size_t tensor, int64_t begin, int64_t end) {
      const auto& [p, grad, exp_avg, exp_avg_sq] = list[tensor];
      T* x = p.data<T>() + begin;
      const T* g = grad.data<T>() + begin;
      T* m = exp_avg.data<T>() + begin;
      T* v = exp_avg_sq.data<T>() + begin;
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(adam_f64)(end - begin, x, g, m, v, options, lr, scale);
      else
        HWY_DYNAMIC_DISPATCH(adam_f32)(end - begin, x, g, m, v, options, lr, scale);
    });
  });
}

void lion_step(std::span<const LionTensors> list, const LionStep& options) {
  if (list.empty()) return;
  const TensorRow row = row_of_parameters(list);
  visit_compute(list[0].p.dtype(), [&]<class T>(T) {
    row.each_part([&](size_t tensor, int64_t begin, int64_t end) {
      const auto& [p, grad, exp_avg] = list[tensor];
      T* x = p.data<T>() + begin;
      const T* g = grad.data<T>() + begin;
      T* m = exp_avg.data<T>() + begin;
      if constexpr (std::is_same_v<T, double>)
        HWY_DYNAMIC_DISPATCH(lion_f64)(end - begin, x, g, m, options);
      else
        HWY_DYNAMIC_DISPATCH(lion_f32)(end - begin, x, g, m, options);
    });
  });
}

void norm_squared(const Tensor& y, std::span<const Tensor> list) {
  // Blocks of one size, added in order: the sum depends on the tensors alone.
  boost::container::small_vector<size_t, 64> first_blocks;
  size_t blocks = 0;
  for (const Tensor& x : list) {
    first_blocks.push_back(blocks);
    blocks += static_cast<size_t>((x.numel() + kGrain - 1) / kGrain);
  }
  boost::container::small_vector<double, 64> sums(blocks);
  row_of(list).each_block([&](size_t tensor, int64_t begin, int64_t end) {
    const Tensor& x = list[tensor];
    sums[first_blocks[tensor] + static_cast<size_t>(begin / kGrain)] =
        x.dtype() == DType::f64 ? HWY_DYNAMIC_DISPATCH(squares_f64)(end - begin, x.data<double>() + begin)
                                : HWY_DYNAMIC_DISPATCH(squares_f32)(end - begin, x.data<float>() + begin);
  });
  double total = 0;
  for (size_t tensor = 0; tensor < list.size(); ++tensor) {
    const size_t end = tensor + 1 < list.size() ? first_blocks[tensor + 1] : blocks;
    double of_tensor = 0;
    for (size_t block = first_blocks[tensor]; block < end; ++block) of_tensor += sums[block];
    total += of_tensor;
  }
  *y.data<double>() = total;
}

void limit_norm(std::span<const Tensor> list, const Tensor& norm, double largest) {
  const double before = *norm.data<double>(), factor = largest / (before + 1e-6);
  if (!std::isfinite(before) || factor >= 1) return;
  row_of(list).each_part([&](size_t tensor, int64_t begin, int64_t end) {
    const Tensor& x = list[tensor];
    if (x.dtype() == DType::f64)
      HWY_DYNAMIC_DISPATCH(multiply_f64)(end - begin, x.data<double>() + begin, factor);
    else
      HWY_DYNAMIC_DISPATCH(multiply_f32)(end - begin, x.data<float>() + begin, factor);
  });
}

}  // namespace regard::cpu_backend
#endif  // HWY_ONCE
