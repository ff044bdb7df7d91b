// Reading at indices. The op checks them, and may learn later what it found: an index outside reads at 0.
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/index_views.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/row_grid.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {
namespace {

// i64 in the order of unsigned numbers.
__host__ __device__ unsigned long long in_order(int64_t value) {
  return static_cast<unsigned long long>(value) ^ (1ULL << 63);
}

// found[0]: the largest entry; found[1]: the largest complement, that of the smallest entry. Both begin at 0, the least
// that an unsigned number can be.
__global__ void range_kernel(Layout<1> layout, const int64_t* index, unsigned long long* found) {
  unsigned long long largest = 0, complement = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += step) {
    const unsigned long long value = in_order(index[layout.offsets(i).at[0]]);
    largest = max(largest, value);
    complement = max(complement, ~value);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, lanes));
    complement = max(complement, __shfl_xor_sync(0xffffffffU, complement, lanes));
  }
  if (threadIdx.x % 32 == 0) {
    atomicMax(&found[0], largest);
    atomicMax(&found[1], complement);
  }
}

// Tensors: y, index, a; a does not move along dim, along which its `size` elements are `stride` apart.
template <class Word>
__global__ void gather_kernel(Layout<3> layout, int64_t size, int64_t stride, Word* y, const int64_t* index,
                              const Word* a) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += step) {
    const Offsets<3> offsets = layout.offsets(i);
    y[offsets.at[0]] = a[offsets.at[2] + inside(index[offsets.at[1]], size) * stride];
  }
}

// The same for rows of `words` words; offsets and stride are in elements of `bytes` bytes.
template <class Word>
__global__ void gather_rows_kernel(Layout<3> layout, int64_t size, int64_t stride, int64_t bytes, int64_t words,
                                   char* y, const int64_t* index, const char* a) {
  for (int64_t row = first_row(); row < layout.numel; row += row_step()) {
    const Offsets<3> offsets = layout.offsets(row);
    auto* to = reinterpret_cast<Word*>(y + offsets.at[0] * bytes);
    const int64_t place = inside(index[offsets.at[1]], size);
    const auto* from = reinterpret_cast<const Word*>(a + (offsets.at[2] + place * stride) * bytes);
    for (int64_t i = first_column(); i < words; i += column_step()) to[i] = from[i];
  }
}

// The first `dims` dimensions of x.
Tensor leading(const Tensor& x, int64_t dims) {
  Shape shape, strides;
  for (int64_t d = 0; d < dims; ++d) {
    shape.push_back(x.shape()[d]);
    strides.push_back(x.strides()[d]);
  }
  return make_view(x, shape, strides, x.storage_offset());
}

}  // namespace

void index_range(const Tensor& index, int64_t* smallest, int64_t* largest) {
  const Layout<1> layout({&index});
  cudaStream_t stream = stream_of(index);
  unsigned long long found[2];
  const Scratch scratch(sizeof found, index.device());
  check_cuda("index_range", cudaMemsetAsync(scratch.as<char>(), 0, sizeof found, stream));
  launch("index_range", stream, grid_for(layout.numel, 16), range_kernel, layout, device_pointer<const int64_t>(index),
         scratch.as<unsigned long long>());
  copy_memory("index_range", found, Device(), scratch.as<char>(), index.device(), sizeof found);
  *largest = static_cast<int64_t>(in_order(static_cast<int64_t>(found[0])));
  *smallest = static_cast<int64_t>(in_order(static_cast<int64_t>(~found[1])));
}

void gather(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index) {
  const Tensor base = held_along(a, index.shape(), dim);
  const Layout<3> layout({&y, &index, &base});
  if (layout.numel == 0) return;
  visit_word(a.dtype(), [&]<class Word>(Word) {
    launch("gather", stream_of(y), grid_for(layout.numel), gather_kernel<Word>, layout, a.shape()[dim],
           a.strides()[dim], device_pointer<Word>(y), device_pointer<const int64_t>(index),
           device_pointer<const Word>(a));
  });
}

void index_select(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index) {
  if (y.numel() == 0) return;
  const Shape& shape = y.shape();
  // Whether what follows dim is one dense run on both sides: then it is copied as a whole.
  int64_t run = 1;
  bool dense = true;
  for (int64_t d = shape.dim() - 1; d > dim; --d) {
    if (shape[d] != 1) dense = dense && y.strides()[d] == run && a.strides()[d] == run;
    run *= shape[d];
  }
  if (!dense || run == 1) return gather(y, a, dim, along(index, shape, dim));

  const Tensor to_rows = leading(y, dim + 1), from_rows = held_along(leading(a, dim + 1), to_rows.shape(), dim),
               at_rows = along(index, to_rows.shape(), dim);
  const Layout<3> layout({&to_rows, &at_rows, &from_rows});
  const int64_t bytes = element_size(a.dtype());
  Alignment alignment;
  alignment.meet(y.raw_data()).meet(a.raw_data()).meet(run * bytes);
  for (int64_t d = 0; d <= dim; ++d)
    if (shape[d] != 1 || d == dim) alignment.meet(y.strides()[d] * bytes).meet(a.strides()[d] * bytes);
  visit_bytes(alignment.bytes(), [&]<class Word>(Word) {
    const int64_t words = run * bytes / static_cast<int64_t>(sizeof(Word));
    launch("index_select", stream_of(y), row_grid(layout.numel, words), gather_rows_kernel<Word>, layout,
           a.shape()[dim], a.strides()[dim], bytes, words, device_pointer<char>(y),
           device_pointer<const int64_t>(index), device_pointer<const char>(a));
  });
}

}  // namespace regard::cuda_backend
