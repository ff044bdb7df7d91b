#include <regard/autograd/backend/cuda/gemm_copy.hpp>

#include <utility>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>

namespace regard::cuda_backend {

namespace {

/// Elements counted along columns, then rows, then the batch.
struct MatrixWalk {
  int64_t rows, columns;
  bool narrow;  // 32-bit division will do
  Divider row_divider, column_divider;
  MatrixStrides to, from;

  MatrixWalk(const MatrixSizes& sizes, MatrixStrides to_strides, MatrixStrides from_strides)
      : rows(sizes.rows),
        columns(sizes.columns),
        narrow(sizes.batch * sizes.rows * sizes.columns < (int64_t{1} << 31)),
        to(to_strides),
        from(from_strides) {
    if (!narrow) return;
    row_divider = Divider(static_cast<uint32_t>(rows));
    column_divider = Divider(static_cast<uint32_t>(columns));
  }

  __device__ void offsets(int64_t i, int64_t& to_offset, int64_t& from_offset) const {
    int64_t item, row, column;
    if (narrow) {
      const auto n = static_cast<uint32_t>(i);
      const uint32_t line = column_divider.divide(n);
      const uint32_t of_batch = row_divider.divide(line);
      column = n - line * column_divider.divisor();
      row = line - of_batch * row_divider.divisor();
      item = of_batch;
    } else {
      const int64_t line = i / columns;
      item = line / rows;
      column = i - line * columns;
      row = line - item * rows;
    }
    to_offset = item * to.batch + row * to.row + column * to.column;
    from_offset = item * from.batch + row * from.row + column * from.column;
  }
};

template <class T>
__global__ void copy_matrices_kernel(MatrixWalk walk, int64_t numel, Number<T> factor, T* to, const T* from) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel; i += step) {
    int64_t to_offset, from_offset;
    walk.offsets(i, to_offset, from_offset);
    to[to_offset] = element<T>(factor == 0 ? Number<T>(0) : factor * number(from[from_offset]));
  }
}

}  // namespace

void copy_matrices(const char* op, cudaStream_t stream, DType dtype, MatrixSizes sizes, void* to,
                   MatrixStrides to_strides, const void* from, MatrixStrides from_strides, double factor) {
  const int64_t numel = sizes.batch * sizes.rows * sizes.columns;
  if (numel == 0) return;
  // Threads side by side take neighbours.
  if (from_strides.row < from_strides.column && to_strides.row <= to_strides.column) {
    std::swap(sizes.rows, sizes.columns);
    std::swap(to_strides.row, to_strides.column);
    std::swap(from_strides.row, from_strides.column);
  }
  const MatrixWalk walk(sizes, to_strides, from_strides);
  visit_floating(dtype, [&]<class T>(T) {
    launch(op, stream, grid_for(numel), copy_matrices_kernel<T>, walk, numel, static_cast<Number<T>>(factor),
           static_cast<T*>(to), static_cast<const T*>(from));
  });
}

}  // namespace regard::cuda_backend
