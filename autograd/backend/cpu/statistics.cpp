// Reductions that need more than one look at their input: where the extreme is, variance, log-sum-exp.
#include <cmath>
#include <limits>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>
#include <regard/autograd/backend/cpu/reduction_plan.hpp>
#include <regard/autograd/backend/cpu/row_sums.hpp>

namespace regard::cpu_backend {

namespace {

constexpr int64_t chunk_elements = 16384;

int64_t outputs_a_chunk(int64_t length) { return std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, length)); }

// Calls f(first element, output offset) for every output, on threads.
template <class T, class F>
void each_output(const ReductionPlan& plan, const T* a, F f) {
  parallel_for_short(plan.kept.numel(), outputs_a_chunk(plan.reduced.numel()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t input = 0, output = 0;
      plan.kept.locate(i, plan.kept.count, input, output);
      f(a + input, output);
    }
  });
}

// Calls f(first element, count, stride) for the innermost runs of what one output reduces.
template <class T, class F>
void each_run(const Axes& reduced, const T* from, F f) {
  const int64_t runs = reduced.numel() / std::max<int64_t>(1, reduced.inner_size());
  for (int64_t run = 0; run < runs; ++run)
    f(from + reduced.input_offset(run, reduced.count - 1), reduced.inner_size(), reduced.inner_stride());
}

template <class T>
void extreme_as(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a, int64_t dim) {
  const int64_t length = a.dim() == 0 ? 1 : a.shape()[dim];
  const int64_t stride = a.dim() == 0 ? 1 : a.strides()[dim];
  const int64_t rows = indices.numel();
  const T* from = static_cast<const T*>(a.raw_data());
  auto* to = static_cast<int64_t*>(indices.raw_data());
  T* value_to = values.defined() ? static_cast<T*>(values.raw_data()) : nullptr;
  const auto scan = [&](const T* row, auto better) {
    int64_t best = 0;
    if (is_nan(row[0])) return best;
    for (int64_t i = 1; i < length; ++i) {
      const T x = row[i * stride];
      if (better(x, row[best * stride])) {
        best = i;
        if (is_nan(x)) break;  // the first NaN
      }
    }
    return best;
  };
  parallel_for_short(rows, outputs_a_chunk(length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t rest = i, input = 0, index_offset = 0, value_offset = 0;
      for (int64_t d = a.dim() - 1; d >= 0; --d) {
        const int64_t size = indices.shape()[d];
        const int64_t at = rest % size;
        rest /= size;
        if (d != dim) input += at * a.strides()[d];
        index_offset += at * indices.strides()[d];
        if (value_to) value_offset += at * values.strides()[d];
      }
      const T* row = from + input;
      const int64_t best = maximum ? scan(row, [](T x, T y) { return x > y || is_nan(x); })
                                   : scan(row, [](T x, T y) { return x < y || is_nan(x); });
      to[index_offset] = best;
      if (value_to) value_to[value_offset] = row[best * stride];
    }
  });
}

template <class T>
void variance_as(const Tensor& y, const Tensor& mean, const Tensor& a, int64_t correction) {
  const ReductionPlan plan(y, a);
  const int64_t length = plan.reduced.numel();
  const auto count = static_cast<double>(length);
  const auto divisor = static_cast<double>(std::max<int64_t>(0, length - correction));
  T* to = static_cast<T*>(y.raw_data());
  each_output(plan, static_cast<const T*>(a.raw_data()), [&](const T* from, int64_t output) {
    double total = 0;
    each_run(plan.reduced, from, [&](const T* run, int64_t n, int64_t stride) {
      if (stride == 1) {
        total += row_sum(run, n);
      } else {
        for (int64_t i = 0; i < n; ++i) total += static_cast<double>(run[i * stride]);
      }
    });
    const double center = total / count;
    double squares = 0;
    each_run(plan.reduced, from, [&](const T* run, int64_t n, int64_t stride) {
      if (stride == 1) {
        squares += row_squared_deviations(run, n, center);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const double x = static_cast<double>(run[i * stride]) - center;
          squares += x * x;
        }
      }
    });
    to[output] = static_cast<T>(squares / divisor);
  });
  if (mean.defined()) reduce(ReduceOp::mean, mean, a);
}

template <class T>
void logsumexp_as(const Tensor& y, const Tensor& a) {
  const ReductionPlan plan(y, a);
  T* to = static_cast<T*>(y.raw_data());
  each_output(plan, static_cast<const T*>(a.raw_data()), [&](const T* from, int64_t output) {
    T largest = -std::numeric_limits<T>::infinity();
    bool ordered = true;  // no NaN so far
    each_run(plan.reduced, from, [&](const T* run, int64_t n, int64_t stride) {
      for (int64_t i = 0; i < n; ++i) {
        const T x = run[i * stride];
        ordered = ordered && !is_nan(x);
        largest = x > largest ? x : largest;
      }
    });
    if (!ordered) {
      to[output] = std::numeric_limits<T>::quiet_NaN();
      return;
    }
    if (std::isinf(largest)) {  // all -inf, or an inf: that is the result
      to[output] = largest;
      return;
    }
    const auto shift = static_cast<double>(largest);
    double total = 0;
    each_run(plan.reduced, from, [&](const T* run, int64_t n, int64_t stride) {
      if (stride == 1) {
        total += row_sum_exp(run, n, shift);
      } else {
        for (int64_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(run[i * stride]) - shift);
      }
    });
    to[output] = static_cast<T>(shift + std::log(total));
  });
}

}  // namespace

void extreme(bool maximum, const Tensor& values, const Tensor& indices, const Tensor& a, int64_t dim) {
  switch (a.dtype()) {
    case DType::f32:
      return extreme_as<float>(maximum, values, indices, a, dim);
    case DType::f64:
      return extreme_as<double>(maximum, values, indices, a, dim);
    case DType::i64:
      return extreme_as<int64_t>(maximum, values, indices, a, dim);
    case DType::boolean:
      return extreme_as<bool>(maximum, values, indices, a, dim);
    case DType::bf16:
    case DType::f16:
      break;
  }
  fail<DTypeError>("extreme", a.dtype(), " is for storage alone; convert with to(DType::f32)");
}

void variance(const Tensor& y, const Tensor& mean, const Tensor& a, int64_t correction) {
  visit_compute(a.dtype(), [&]<class T>(T) { variance_as<T>(y, mean, a, correction); });
}

void logsumexp(const Tensor& y, const Tensor& a) {
  visit_compute(a.dtype(), [&]<class T>(T) { logsumexp_as<T>(y, a); });
}

}  // namespace regard::cpu_backend
