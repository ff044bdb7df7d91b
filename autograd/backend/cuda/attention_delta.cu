// Attention backward: of each row the sum of dy y, for every type of elements.
#include <regard/autograd/backend/cuda/attention_parts.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>

namespace regard::cuda_backend {
namespace {

constexpr int delta_lanes = 8;

/// delta[row] = the sum of dy y, eight lanes a row.
template <class E, class T = Number<E>>
__global__ void delta_kernel(T* delta, HeadRows<const E> dy, HeadRows<const E> y, int64_t rows, int heads, int queries,
                             int width) {
  const int lane = static_cast<int>(threadIdx.x) % delta_lanes;
  const int64_t step = int64_t{gridDim.x} * blockDim.x / delta_lanes;
  int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / delta_lanes;
  for (const int64_t end = (rows + 3) / 4 * 4; row < end; row += step) {  // whole warps
    T sum = 0;
    if (row < rows) {
      const int64_t head = row / queries, query = row - head * queries, n = head / heads, h = head - n * heads;
      const E *a = dy.at(n, h) + query * dy.row, *b = y.at(n, h) + query * y.row;
      if (dy.vectors && y.vectors) {
        for (int j = lane * vector_width<E>; j < width; j += delta_lanes * vector_width<E>) {
          const Vector<E> left = load_vector(a + j), right = load_vector(b + j);
#pragma unroll
          for (int e = 0; e < vector_width<E>; ++e) sum += number(left.at[e]) * number(right.at[e]);
        }
      } else {
        for (int j = lane; j < width; j += delta_lanes) sum += number(a[j * dy.column]) * number(b[j * y.column]);
      }
    }
    sum = warp_reduce(sum, Plus(), delta_lanes);
    if (lane == 0 && row < rows) delta[row] = sum;
  }
}

}  // namespace

void write_delta(void* delta, const Tensor& dy, const Tensor& y) {
  visit_floating(y.dtype(), [&]<class E>(E) {
    const int64_t rows = y.size(0) * y.size(1) * y.size(2);
    const Grid grid = grid_for((rows + 3) / 4 * 32, 1, 128);
    launch("scaled_dot_product_attention", stream_of(y), grid, delta_kernel<E>, static_cast<Number<E>*>(delta),
           rows_of<const E>(dy), rows_of<const E>(y), rows, static_cast<int>(y.size(1)), static_cast<int>(y.size(2)),
           static_cast<int>(y.size(3)));
  });
}

void attention_delta(const Tensor& delta, const Tensor& dy, const Tensor& y) {
  write_delta(device_pointer<void>(delta), dy, y);
}

}  // namespace regard::cuda_backend
