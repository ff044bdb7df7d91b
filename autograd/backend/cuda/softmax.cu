// Softmax, its logarithm, and their gradients, along any dimension.
#include <array>
#include <type_traits>

#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/rows.hpp>

namespace regard::cuda_backend {
namespace {

/// Elements of type E of a row that a thread keeps in registers: 64 bytes of numbers, and where it keeps none but what
/// it is at, 32.
template <class E, bool held>
constexpr int row_values = (held ? 64 : 32) / static_cast<int>(sizeof(Number<E>));

/// Where the rows of an op's N inputs lie, and that of its output, which is the first of `offsets` and `along`.
template <int N>
struct RowsLayout {
  Layout<N + 1> rows;
  Offsets<N + 1> along;  // elements between neighbours in a row
  int64_t length;
};

template <int N, int V, int values, bool held, class LanesOf, class E>
using InputRow = std::conditional_t<N == 1, Row<V, values, held, LanesOf, E>, Row<V, values, held, LanesOf, E, E>>;

/// Calls f(row, lanes, y, stride) for every row, whose result goes to y.
template <class F, class E, int N, int V, bool held, class LanesOf>
__global__ void __launch_bounds__(most_row_threads, 1)
    rows_kernel(F f, RowsLayout<N> layout, int setting, E* y, const E* a, const E* b) {
  const LanesOf lanes(setting);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < layout.rows.numel; first += step) {
    const int64_t index = first + lanes.group();
    const bool inside = index < layout.rows.numel;
    const Offsets<N + 1> offsets = layout.rows.offsets(inside ? index : 0);
    InputRow<N, V, row_values<E, held>, held, LanesOf, E> row(lanes, inside ? layout.length : 0);
    row.template point<0>(a + offsets.at[1], layout.along.at[1]);
    if constexpr (N == 2) row.template point<1>(b + offsets.at[2], layout.along.at[2]);
    f(row, lanes, y + offsets.at[0], layout.along.at[0]);
  }
}

template <class T>
struct Softmax {
  bool empty_rows_zero;
  template <class RowOf, class LanesOf, class E>
  __device__ void operator()(RowOf& row, const LanesOf& lanes, E* y, int64_t stride) const {
    const RowExponentials<T> of = exponentials_of<T>(row, lanes);
    const T largest = of.largest, factor = empty_rows_zero && of.nothing ? T(0) : 1 / of.sum;
    row.write(y, stride, [&](int64_t, T x) { return exp(x - largest) * factor; });
  }
};

template <class T>
struct LogSoftmax {
  template <class RowOf, class LanesOf, class E>
  __device__ void operator()(RowOf& row, const LanesOf& lanes, E* y, int64_t stride) const {
    const RowExponentials<T> of = exponentials_of<T>(row, lanes);
    const T largest = of.largest, log_sum = log(of.sum);
    row.write(y, stride, [&](int64_t, T x) { return (x - largest) - log_sum; });
  }
};

// da = y (dy - sum(y dy)). Where y is 0 the products are 0 by selection: what is masked may have any dy, also one that
// left the range of its type.
template <class T>
struct SoftmaxGrad {
  template <class RowOf, class LanesOf, class E>
  __device__ void operator()(RowOf& row, const LanesOf& lanes, E* da, int64_t stride) const {
    T sum = 0;
    row.each([&](int64_t, T y, T dy) { sum += y == 0 ? T(0) : y * dy; });
    sum = lanes.reduce(sum, Plus());
    row.write(da, stride, [&](int64_t, T y, T dy) { return y == 0 ? T(0) : y * (dy - sum); });
  }
};

// da = dy - exp(y) sum(dy)
template <class T>
struct LogSoftmaxGrad {
  template <class RowOf, class LanesOf, class E>
  __device__ void operator()(RowOf& row, const LanesOf& lanes, E* da, int64_t stride) const {
    T sum = 0;
    row.each([&](int64_t, T, T dy) { sum += dy; });
    sum = lanes.reduce(sum, Plus());
    row.write(da, stride, [&](int64_t, T y, T dy) { return dy - exp(y) * sum; });
  }
};

// x with its rows' dimension at size 1.
Tensor first_elements(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  if (shape.dim() > 0) shape[dim] = 1;
  return make_view(x, shape, x.strides(), x.storage_offset());
}

template <class E, class F, class... Inputs>
void each_row(const char* op, const F& f, int64_t dim, const Tensor& y, const Inputs&... inputs) {
  constexpr int N = sizeof...(Inputs), width = line_width<E>;
  if (y.numel() == 0) return;
  const bool number = y.dim() == 0;
  const std::array<const Tensor*, N> in{&inputs...};
  std::array<Tensor, N + 1> firsts{first_elements(y, dim), first_elements(inputs, dim)...};
  std::array<const Tensor*, N + 1> pointers{};
  for (size_t k = 0; k <= N; ++k) pointers[k] = &firsts[k];
  RowsLayout<N> layout{Layout<N + 1>(pointers), {}, number ? 1 : y.shape()[dim]};
  layout.along.at[0] = number ? 1 : y.strides()[dim];
  for (size_t k = 0; k < N; ++k) layout.along.at[k + 1] = number ? 1 : in[k]->strides()[dim];
  const int64_t rows = layout.rows.numel, length = layout.length;
  cudaStream_t stream = stream_of(y);

  const auto run = [&](auto kernel, const Grid& grid, int64_t setting) {
    const auto* a = device_pointer<const E>(*in[0]);
    launch(op, stream, grid, kernel, f, layout, static_cast<int>(setting), device_pointer<E>(y), a,
           device_pointer<const E>(*in[N - 1]));
  };
  // Threads of a warp read what lies side by side, be it a row or the same element of many rows.
  const int64_t rows_step = rows == 1 ? 0 : layout.rows.dense() ? 1 : layout.rows.strides[0][1];
  const int64_t side_by_side = layout.rows.dense() ? rows : layout.rows.sizes[0];
  if (length > 1 && rows_step != 0 && rows_step < layout.along.at[1]) {
    // A sector of memory is 32 bytes: 8 columns of f32 are enough where columns are long.
    constexpr int64_t sector = sizeof(E) == 2 ? 16 : 8;
    const int64_t columns = std::min<int64_t>(power_of_two_from(side_by_side), length > 128 ? sector : 32);
    const int64_t lanes = std::clamp<int64_t>(power_of_two_from((length + 3) / 4), warp_threads / columns,
                                              ColumnLanes::most_threads / columns);
    const int64_t blocks = std::min((rows + columns - 1) / columns, int64_t{device_limits().multiprocessors} * 32);
    const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(columns * lanes))};
    if (length <= lanes * row_values<E, true>)
      run(rows_kernel<F, E, N, 1, true, ColumnLanes>, grid, columns);
    else
      run(rows_kernel<F, E, N, 1, false, ColumnLanes>, grid, columns);
    return;
  }
  bool packed = rows_packed<E>(length, y, inputs...) && (rows == 1 || !layout.rows.dense());
  for (int k = 0; k <= N; ++k) {
    packed = packed && layout.along.at[k] == 1;
    for (int d = 0; d < layout.rows.dims; ++d) packed = packed && layout.rows.strides[d][k] % width == 0;
  }
  const RowGrid how(rows, length, row_values<E, true>, width);
  if (how.held && packed)
    run(rows_kernel<F, E, N, width, true, Lanes>, how.grid, how.lanes);
  else if (how.held)
    run(rows_kernel<F, E, N, 1, true, Lanes>, how.grid, how.lanes);
  else if (packed)
    run(rows_kernel<F, E, N, width, false, Lanes>, how.grid, how.lanes);
  else
    run(rows_kernel<F, E, N, 1, false, Lanes>, how.grid, how.lanes);
}

}  // namespace

void softmax(const Tensor& y, const Tensor& a, int64_t dim, bool empty_rows_zero) {
  visit_floating(a.dtype(),
                 [&]<class E>(E) { each_row<E>("softmax", Softmax<Number<E>>{empty_rows_zero}, dim, y, a); });
}
void softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim) {
  visit_floating(y.dtype(), [&]<class E>(E) { each_row<E>("softmax_grad", SoftmaxGrad<Number<E>>(), dim, da, y, dy); });
}
void log_softmax(const Tensor& y, const Tensor& a, int64_t dim) {
  visit_floating(a.dtype(), [&]<class E>(E) { each_row<E>("log_softmax", LogSoftmax<Number<E>>(), dim, y, a); });
}
void log_softmax_grad(const Tensor& da, const Tensor& y, const Tensor& dy, int64_t dim) {
  visit_floating(y.dtype(),
                 [&]<class E>(E) { each_row<E>("log_softmax_grad", LogSoftmaxGrad<Number<E>>(), dim, da, y, dy); });
}

}  // namespace regard::cuda_backend
