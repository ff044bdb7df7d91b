// Softmax and cross-entropy in one pass over the logits, and its gradient in another. The op checks targets, and may
// learn later what it found: a target that is no class counts as one that is ignored.
#include <optional>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/reduce_tensor.hpp>
#include <regard/autograd/backend/cuda/rows.hpp>

namespace regard::cuda_backend {
namespace {

/// Elements of type E of a row that a thread has in registers at a time: 32 bytes.
template <class E>
constexpr int row_values = 32 / static_cast<int>(sizeof(E));

/// What is computed of each row is kept as numbers, that of 16-bit logits in f32.
template <class E>
struct CrossEntropy {
  using T = Number<E>;
  int64_t rows, classes;
  int lanes;
  const E* logits;
  const int64_t* targets;
  int64_t target_stride;
  const E* weight;           // null: 1 everywhere
  const double* weight_sum;  // over all classes; null where not needed
  int64_t ignore_index;
  double label_smoothing;
  T* log_sum_exp;    // written forward, read backward
  T* losses;         // forward
  const T* dlosses;  // backward
  int64_t dloss_stride;
  E* dlogits;

  __device__ int64_t target(int64_t row) const {
    const int64_t given = targets[row * target_stride];
    return static_cast<uint64_t>(given) < static_cast<uint64_t>(classes) ? given : ignore_index;
  }
  __device__ double sum_of_weights() const { return weight_sum ? *weight_sum : static_cast<double>(classes); }
};

// loss = (1 - s) w[t] (L - x[t]) + s / C sum(w (L - x)), where L is the log-sum-exp and s the label smoothing.
template <class E, int V>
__global__ void __launch_bounds__(most_row_threads, 1) cross_entropy_kernel(CrossEntropy<E> p) {
  using T = Number<E>;
  const Lanes lanes(p.lanes);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < p.rows; first += step) {
    const int64_t index = first + lanes.group();
    const bool inside = index < p.rows;
    const int64_t target = inside ? p.target(index) : p.ignore_index;
    const bool counts = inside && target != p.ignore_index;
    const E* x = p.logits + index * p.classes;
    Row<V, row_values<E>, false, Lanes, E> row(lanes, counts ? p.classes : 0);
    row.template point<0>(x);
    const RowExponentials<T> of = exponentials_of<T>(row, lanes);
    T below = 0;  // sum(w (largest - x))
    if (p.label_smoothing != 0) {
      row.each([&](int64_t i, T logit) {
        const T gap = of.largest - logit;
        below += p.weight ? gap * number(p.weight[i]) : gap;
      });
      below = lanes.reduce(below, Plus());
    }
    if (!inside || lanes.lane != 0) continue;
    if (!counts) {
      p.losses[index] = p.log_sum_exp[index] = 0;
      continue;
    }
    const double largest = static_cast<double>(of.largest), log_sum = log(static_cast<double>(of.sum));
    p.log_sum_exp[index] = static_cast<T>(largest + log_sum);
    double loss = (largest - static_cast<double>(number(x[target]))) + log_sum;
    if (p.weight) loss *= static_cast<double>(number(p.weight[target]));
    if (p.label_smoothing != 0) {
      const double smooth =
          (p.sum_of_weights() * log_sum + static_cast<double>(below)) / static_cast<double>(p.classes);
      loss = p.label_smoothing == 1 ? smooth : (1 - p.label_smoothing) * loss + p.label_smoothing * smooth;
    }
    p.losses[index] = static_cast<T>(loss);
  }
}

// dx = g (softmax(x) ((1 - s) w[t] + s / C sum(w)) - s / C w - (1 - s) w[t] [at t])
template <class E, int V>
__global__ void __launch_bounds__(most_row_threads, 1) cross_entropy_grad_kernel(CrossEntropy<E> p) {
  using T = Number<E>;
  const Lanes lanes(p.lanes);
  const double share = p.label_smoothing / static_cast<double>(p.classes);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t index = int64_t{blockIdx.x} * lanes.groups() + lanes.group(); index < p.rows; index += step) {
    const int64_t target = p.target(index);
    E* dx = p.dlogits + index * p.classes;
    Row<V, row_values<E>, false, Lanes, E> row(lanes, p.classes);
    if (target == p.ignore_index) {
      row.template point<0>(nullptr);
      row.write(dx, 1, [](int64_t, T) { return T(0); });
      continue;
    }
    row.template point<0>(p.logits + index * p.classes);
    const auto g = static_cast<double>(p.dlosses[index * p.dloss_stride]);
    const double at_target = (1 - p.label_smoothing) * (p.weight ? static_cast<double>(number(p.weight[target])) : 1.0);
    const auto factor = static_cast<T>(g * (at_target + (share != 0 ? share * p.sum_of_weights() : 0.0)));
    const auto smooth = static_cast<T>(g * share), taken = static_cast<T>(g * at_target);
    const T log_sum_exp = p.log_sum_exp[index];
    row.write(dx, 1, [&](int64_t i, T x) {
      T value = exp(x - log_sum_exp) * factor;
      if (share != 0) value -= p.weight ? smooth * number(p.weight[i]) : smooth;
      return i == target ? value - taken : value;
    });
  }
}

/// The sum of all elements, in f64.
template <class T>
struct Total {
  using Accumulator = double;
  double* to;

  __device__ double start() const { return 0; }
  __device__ Total at(int64_t) const { return *this; }
  __device__ void add(double& total, T x, int64_t) const { total += static_cast<double>(x); }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ void write(int64_t, const Offsets<3>&, double total) const { *to = total; }
};

/// What both directions read, and the sum of weights where it is needed: it lives on the GPU as long as this.
template <class E>
struct Problem {
  using T = Number<E>;
  CrossEntropy<E> p{};
  std::optional<Scratch> weight_sum;
  RowGrid how;

  Problem(const char* op, const Tensor& logits, const Tensor& log_sum_exp, const Tensor& targets, const Tensor& weight,
          int64_t ignore_index, double label_smoothing)
      : how(logits.shape()[0], logits.shape()[1], row_values<E>, line_width<E>) {
    p.rows = logits.shape()[0];
    p.classes = logits.shape()[1];
    p.lanes = static_cast<int>(how.lanes);
    p.logits = device_pointer<const E>(logits);
    p.targets = device_pointer<const int64_t>(targets);
    p.target_stride = targets.strides()[0];
    p.weight = device_pointer<const E>(weight);
    p.ignore_index = ignore_index;
    p.label_smoothing = label_smoothing;
    p.log_sum_exp = device_pointer<T>(log_sum_exp);
    if (weight.defined() && label_smoothing != 0 && p.rows > 0) {
      auto* sum = weight_sum.emplace(static_cast<int64_t>(sizeof(double)), logits.device()).template as<double>();
      p.weight_sum = sum;
      const Tensor one = make_view(weight, {1}, {1}, weight.storage_offset());
      reduce_tensor<E>(op, Total<T>{sum}, one, {}, weight);
    }
  }
};

}  // namespace

void cross_entropy(const Tensor& losses, const Tensor& log_sum_exp, const Tensor& logits, const Tensor& targets,
                   const Tensor& weight, int64_t ignore_index, double label_smoothing) {
  visit_floating(logits.dtype(), [&]<class E>(E) {
    Problem<E> problem("cross_entropy", logits, log_sum_exp, targets, weight, ignore_index, label_smoothing);
    problem.p.losses = device_pointer<Number<E>>(losses);
    const bool packed = rows_packed<E>(problem.p.classes, logits);
    launch("cross_entropy", stream_of(logits), problem.how.grid,
           packed ? cross_entropy_kernel<E, line_width<E>> : cross_entropy_kernel<E, 1>, problem.p);
  });
}

void cross_entropy_grad(const Tensor& dlogits, const Tensor& dlosses, const Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& targets, const Tensor& weight, int64_t ignore_index, double label_smoothing) {
  visit_floating(logits.dtype(), [&]<class E>(E) {
    Problem<E> problem("cross_entropy_grad", logits, log_sum_exp, targets, weight, ignore_index, label_smoothing);
    problem.p.dlosses = device_pointer<const Number<E>>(dlosses);
    problem.p.dloss_stride = dlosses.strides()[0];
    problem.p.dlogits = device_pointer<E>(dlogits);
    const bool packed = rows_packed<E>(problem.p.classes, logits, dlogits);
    launch("cross_entropy_grad", stream_of(logits), problem.how.grid,
           packed ? cross_entropy_grad_kernel<E, line_width<E>> : cross_entropy_grad_kernel<E, 1>, problem.p);
  });
}

}  // namespace regard::cuda_backend
