// Layer norm and RMS norm, and their gradients, each in one pass over memory where a row fits in a block's registers.
// The gradients of weight and bias are sums over rows: the threads of a row go on to other rows and keep theirs, and a
// second kernel adds what all of them have, in a fixed order.
#include <algorithm>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/rows.hpp>

namespace regard::cuda_backend {
namespace {

/// Elements of type E of a row that a thread keeps in registers: 32 bytes of numbers, and where it keeps none but what
/// it is at, 16.
template <class E, bool held>
constexpr int row_values = (held ? 32 : 16) / static_cast<int>(sizeof(Number<E>));

/// Null where not given or not wanted.
template <class E>
struct Norm {
  int64_t rows, width;
  int lanes;
  const E* a;
  const E* weight;
  const E* bias;
  E* y;
  Number<E>* mean;
  Number<E>* rstd;
  double eps;
};

// y = (a - mean) rstd weight + bias. The mean is taken twice, so that its rounding does not show where it is large
// beside the deviations.
template <class E, bool centered, int V, bool held>
__global__ void __launch_bounds__(most_row_threads, 1) norm_kernel(Norm<E> p) {
  using T = Number<E>;
  const Lanes lanes(p.lanes);
  const double share = 1 / static_cast<double>(p.width);
  Row<V, row_values<E, held>, held, Lanes, E, E, E> row(lanes, p.width);
  row.template point<1>(p.weight, 1, T(1));
  row.template point<2>(p.bias);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < p.rows; first += step) {
    const int64_t index = first + lanes.group();
    const bool inside = index < p.rows;
    row.set_length(inside ? p.width : 0);
    row.template point<0>(p.a + index * p.width);
    T mean = 0, rest = 0, squares = 0;
    if constexpr (centered) {
      row.each([&](int64_t, T x, T, T) { mean += x; });
      mean = lanes.reduce(mean, Plus()) * static_cast<T>(share);
      row.each([&](int64_t, T x, T, T) { rest += x - mean; });
      rest = lanes.reduce(rest, Plus()) * static_cast<T>(share);
    }
    row.each([&](int64_t, T x, T, T) {
      const T deviation = (x - mean) - rest;
      squares += deviation * deviation;
    });
    squares = lanes.reduce(squares, Plus());
    const auto rstd = static_cast<T>(1 / sqrt(static_cast<double>(squares) * share + p.eps));
    row.write(p.y + index * p.width, 1,
              [&](int64_t, T x, T weight, T bias) { return ((x - mean) - rest) * rstd * weight + bias; });
    if (!inside || lanes.lane != 0) continue;
    p.rstd[index] = rstd;
    if constexpr (centered) p.mean[index] = mean + rest;
  }
}

/// Null where not given or not wanted.
template <class E>
struct NormGrad {
  int64_t rows, width;
  int lanes;
  const E* a;
  const E* dy;
  const E* weight;
  const Number<E>* mean;
  const Number<E>* rstd;
  E* da;
  Number<E>* dweight;  // [groups of lanes, width]
  Number<E>* dbias;    // the same
};

// With x = (a - mean) rstd and g = dy weight:  da = rstd (g - mean(g) - x mean(g x)), dweight = sum(dy x),
// dbias = sum(dy). RMS norm has no mean(g).
template <class E, bool centered, int V, bool held>
__global__ void __launch_bounds__(most_row_threads, 1) norm_grad_kernel(NormGrad<E> p) {
  using T = Number<E>;
  const Lanes lanes(p.lanes);
  const auto share = static_cast<T>(1 / static_cast<double>(p.width));
  const int64_t own = (int64_t{blockIdx.x} * lanes.groups() + lanes.group()) * p.width;
  T* const dweights = p.dweight ? p.dweight + own : nullptr;
  T* const dbiases = p.dbias ? p.dbias + own : nullptr;
  // a, dy, weight, and the sums for dweight and dbias, which begin as zeros: held rows keep them in registers.
  Row<V, row_values<E, held>, held, Lanes, E, E, E, T, T> row(lanes, p.width);
  row.template point<2>(p.weight, 1, T(1));
  row.template point<3>(held ? nullptr : dweights);
  row.template point<4>(held ? nullptr : dbiases);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < p.rows; first += step) {
    const int64_t index = first + lanes.group();
    const bool inside = index < p.rows;
    row.set_length(inside ? p.width : 0);
    row.template point<0>(p.a + index * p.width);
    row.template point<1>(p.dy + index * p.width);
    const T rstd = inside ? p.rstd[index] : T(0);
    T mean = 0, rest = 0;
    if constexpr (centered) {
      mean = inside ? p.mean[index] : T(0);
      row.each([&](int64_t, T a, T, T, T, T) { rest += a - mean; });
      rest = lanes.reduce(rest, Plus()) * share;  // what the rounding of the mean left over
    }
    Two<T> means{0, 0};  // of g and of g x
    if (p.da) {
      row.each([&](int64_t, T a, T dy, T weight, T, T) {
        const T g = dy * weight;
        means.first += g;
        means.second += g * (((a - mean) - rest) * rstd);
      });
      means = lanes.reduce(means, Plus());
      means.first *= centered ? share : T(0);
      means.second *= share;
    }
    row.chunks([&] {
      const auto add = [&](T a, T dy, T& dweight, T& dbias) {
        const T x = ((a - mean) - rest) * rstd;
        dweight += dy * x;
        dbias += dy;
        return x;
      };
      if (p.da)
        row.write_here(p.da + index * p.width, 1, [&](int64_t, T a, T dy, T weight, T& dweight, T& dbias) {
          const T x = add(a, dy, dweight, dbias);
          return rstd * (dy * weight - means.first - x * means.second);
        });
      else
        row.here([&](int64_t, T a, T dy, T, T& dweight, T& dbias) { add(a, dy, dweight, dbias); });
      if constexpr (!held) {
        row.template store<3>(dweights);
        row.template store<4>(dbiases);
      }
    });
  }
  if constexpr (held) {
    row.set_length(p.width);
    row.template store<3>(dweights);
    row.template store<4>(dbiases);
  }
}

template <class E, bool centered>
void normalize(const char* op, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a,
               const Tensor& weight, const Tensor& bias, double eps) {
  const int64_t rows = rstd.numel();
  if (rows == 0) return;
  const int64_t width = a.numel() / rows;
  cudaStream_t stream = stream_of(y);
  const RowGrid how(rows, width, row_values<E, true>, line_width<E>);
  const Norm<E> p{rows,
                  width,
                  static_cast<int>(how.lanes),
                  device_pointer<const E>(a),
                  device_pointer<const E>(weight),
                  device_pointer<const E>(bias),
                  device_pointer<E>(y),
                  device_pointer<Number<E>>(mean),
                  device_pointer<Number<E>>(rstd),
                  eps};
  if (!how.held)
    launch(op, stream, how.grid, norm_kernel<E, centered, 1, false>, p);
  else if (rows_packed<E>(width, a, weight, bias, y))
    launch(op, stream, how.grid, norm_kernel<E, centered, line_width<E>, true>, p);
  else
    launch(op, stream, how.grid, norm_kernel<E, centered, 1, true>, p);
}

// sums, dense, as one row.
Tensor as_row(const Tensor& sums, int64_t width) {
  return make_view(sums, {1, width}, {width, 1}, sums.storage_offset());
}

template <class E, bool centered>
void normalize_grad(const char* op, const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                    const Tensor& a, const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const int64_t rows = rstd.numel();
  if (rows == 0) {
    if (dweight.defined()) fill(dweight, 0);
    if (dbias.defined()) fill(dbias, 0);
    return;
  }
  const int64_t width = a.numel() / rows;
  cudaStream_t stream = stream_of(a);
  RowGrid how(rows, width, row_values<E, true>, line_width<E>);
  const int64_t groups = how.grid.threads.x / how.lanes;
  const bool sums = dweight.defined() || dbias.defined();
  int64_t blocks = how.grid.blocks.x;
  if (sums) {
    // Each group of lanes takes several rows, as many as it can without leaving multiprocessors idle.
    const int64_t at_once = int64_t{device_limits().multiprocessors} * most_row_threads / how.grid.threads.x;
    blocks = std::min({blocks, (rows + 4 * groups - 1) / (4 * groups), at_once});
    how.grid.blocks.x = static_cast<unsigned>(blocks);
  }
  Tensor dweights, dbiases;
  for (const auto& [wanted, parts] : {std::pair{&dweight, &dweights}, std::pair{&dbias, &dbiases}}) {
    if (!wanted->defined()) continue;
    *parts = empty({blocks * groups, width}, {dtype_of<Number<E>>(), a.device()});
    if (!how.held)
      check_cuda(
          op, cudaMemsetAsync(parts->raw_data(), 0, static_cast<size_t>(parts->numel()) * sizeof(Number<E>), stream));
  }
  const NormGrad<E> p{rows,
                      width,
                      static_cast<int>(how.lanes),
                      device_pointer<const E>(a),
                      device_pointer<const E>(dy),
                      device_pointer<const E>(weight),
                      device_pointer<const Number<E>>(mean),
                      device_pointer<const Number<E>>(rstd),
                      device_pointer<E>(da),
                      device_pointer<Number<E>>(dweights),
                      device_pointer<Number<E>>(dbiases)};
  if (!how.held)
    launch(op, stream, how.grid, norm_grad_kernel<E, centered, 1, false>, p);
  else if (rows_packed<E>(width, a, dy, weight, da, dweights, dbiases))
    launch(op, stream, how.grid, norm_grad_kernel<E, centered, line_width<E>, true>, p);
  else
    launch(op, stream, how.grid, norm_grad_kernel<E, centered, 1, true>, p);
  if (dweight.defined()) reduce(ReduceOp::sum, as_row(dweight, width), dweights);
  if (dbias.defined()) reduce(ReduceOp::sum, as_row(dbias, width), dbiases);
}

}  // namespace

void layer_norm(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& a, const Tensor& weight,
                const Tensor& bias, double eps) {
  visit_floating(a.dtype(), [&]<class E>(E) { normalize<E, true>("layer_norm", y, mean, rstd, a, weight, bias, eps); });
}
void layer_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& a,
                     const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  visit_floating(a.dtype(), [&]<class E>(E) {
    normalize_grad<E, true>("layer_norm_grad", da, dweight, dbias, dy, a, mean, rstd, weight);
  });
}
void rms_norm(const Tensor& y, const Tensor& rstd, const Tensor& a, const Tensor& weight, double eps) {
  visit_floating(a.dtype(), [&]<class E>(E) { normalize<E, false>("rms_norm", y, {}, rstd, a, weight, {}, eps); });
}
void rms_norm_grad(const Tensor& da, const Tensor& dweight, const Tensor& dy, const Tensor& a, const Tensor& rstd,
                   const Tensor& weight) {
  visit_floating(a.dtype(), [&]<class E>(E) {
    normalize_grad<E, false>("rms_norm_grad", da, dweight, {}, dy, a, {}, rstd, weight);
  });
}

}  // namespace regard::cuda_backend
