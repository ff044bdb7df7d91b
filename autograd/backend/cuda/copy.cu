// Copies between any strides and any dtypes.
#include <algorithm>
#include <type_traits>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/elementwise.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/memory_order.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {
namespace {

using Copy = Layout<2>;  // 0: to, 1: from

template <class To>
struct Convert {
  template <class From>
  __device__ Number<To> operator()(From x) const {
    return convert<Number<To>>(x);
  }
};

template <class Word>
__global__ void copy_kernel(Copy layout, Word* to, const Word* from) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += step) {
    const Offsets<2> offsets = layout.offsets(i);
    to[offsets.at[0]] = from[offsets.at[1]];
  }
}

// Matrices that lie dense along columns in the output and along rows in the input, a tile at a time through shared
// memory, so that both are touched in the order of memory.
struct Transposition {
  int64_t rows, columns;
  int64_t to_stride;    // between rows
  int64_t from_stride;  // between columns
  Copy matrices;
};
constexpr unsigned lines = 8;  // of 32 threads
template <class Word>
constexpr int tile_side = sizeof(Word) <= 2 ? 64 : 32;

template <class Word>
__global__ void transpose_kernel(Transposition t, Word* to, const Word* from) {
  constexpr int side = tile_side<Word>;
  __shared__ Word tile[side][side + 1];  // one more: a column's words are in different banks
  const int64_t across = (t.columns + side - 1) / side, down = (t.rows + side - 1) / side;
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  for (int64_t i = blockIdx.x; i < across * down * t.matrices.numel; i += gridDim.x) {
    const int64_t column = i % across * side, row = i / across % down * side;
    const Offsets<2> matrix = t.matrices.offsets(i / across / down);
    const Word* in = from + matrix.at[1] + column * t.from_stride + row;
    Word* out = to + matrix.at[0] + row * t.to_stride + column;
    for (int c = y; c < side; c += lines)
      for (int r = x; r < side; r += 32)
        if (column + c < t.columns && row + r < t.rows) tile[c][r] = in[c * t.from_stride + r];
    __syncthreads();
    for (int r = y; r < side; r += lines)
      for (int c = x; c < side; c += 32)
        if (column + c < t.columns && row + r < t.rows) out[r * t.to_stride + c] = tile[c][r];
    __syncthreads();
  }
}

// After sizes have changed.
void count_anew(Copy& layout) {
  layout.numel = 1;
  for (int d = 0; d < layout.dims; ++d) layout.numel *= layout.sizes[d];
  layout.narrow = layout.numel < (int64_t{1} << 31);
  for (int d = 0; layout.narrow && d < layout.dims; ++d)
    layout.dividers[d] = Divider(static_cast<uint32_t>(layout.sizes[d]));
}

template <class Word>
void copy_transposed(const Copy& layout, void* to, const void* from, cudaStream_t stream) {
  const auto [row, column] = crossing(layout, 1);
  Transposition t{layout.sizes[column], layout.sizes[row], layout.strides[column][0], layout.strides[row][1], layout};
  t.matrices.dims = 0;
  for (int d = 0; d < layout.dims; ++d) {
    if (d == row || d == column) continue;
    const int kept = t.matrices.dims++;
    t.matrices.sizes[kept] = layout.sizes[d];
    for (int k = 0; k < 2; ++k) t.matrices.strides[kept][k] = layout.strides[d][k];
  }
  count_anew(t.matrices);
  constexpr int side = tile_side<Word>;
  const int64_t tiles = ((t.columns + side - 1) / side) * ((t.rows + side - 1) / side) * t.matrices.numel;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, INT32_MAX));
  launch("copy", stream, {dim3(blocks), dim3(32, lines)}, transpose_kernel<Word>, t, static_cast<Word*>(to),
         static_cast<const Word*>(from));
}

// Rows that lie dense on both sides are copied in words as wide as fits.
void copy_strided(Copy layout, void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  int64_t word = bytes;
  if (layout.strides[0][0] == 1 && layout.strides[0][1] == 1) {
    Alignment alignment;
    alignment.meet(to).meet(from).meet(layout.sizes[0] * bytes);
    for (int d = 1; d < layout.dims; ++d)
      alignment.meet(layout.strides[d][0] * bytes).meet(layout.strides[d][1] * bytes);
    word = std::max(bytes, alignment.bytes());
    layout.sizes[0] /= word / bytes;
    for (int d = 1; d < layout.dims; ++d)
      for (int64_t& stride : layout.strides[d]) stride /= word / bytes;
    count_anew(layout);
  }
  visit_bytes(word, [&]<class Word>(Word) {
    launch("copy", stream, grid_for(layout.numel), copy_kernel<Word>, layout, static_cast<Word*>(to),
           static_cast<const Word*>(from));
  });
}

void copy_elements(const Tensor& y, const Tensor& a) {
  const int64_t bytes = element_size(y.dtype());
  const Copy layout({&y, &a});
  cudaStream_t stream = stream_of(y);
  if (layout.dense()) {
    check_cuda("copy", cudaMemcpyAsync(y.raw_data(), a.raw_data(), static_cast<size_t>(layout.numel * bytes),
                                       cudaMemcpyDeviceToDevice, stream));
    check_launched("copy", stream);
  } else if (lies_across(layout, 1)) {
    visit_word(y.dtype(), [&]<class Word>(Word) { copy_transposed<Word>(layout, y.raw_data(), a.raw_data(), stream); });
  } else {
    copy_strided(layout, y.raw_data(), a.raw_data(), bytes, stream);
  }
}

void convert_elements(const Tensor& y, const Tensor& a) {
  if (lies_across(Copy({&y, &a}), 1)) {
    const Tensor along = empty(a.shape(), {a.dtype(), a.device()});
    copy_elements(along, a);
    return convert_elements(y, along);
  }
  visit_dtype(y.dtype(), [&]<class To>(To) {
    visit_dtype(a.dtype(), [&]<class From>(From) {
      if constexpr (!std::is_same_v<To, From>) elementwise<To, From>("to", Convert<To>(), y, a);
    });
  });
}

}  // namespace

void copy(const Tensor& y, const Tensor& a) {
  if (y.numel() == 0) return;
  const auto copies = y.dtype() == a.dtype() ? copy_elements : convert_elements;
  if (y.is_contiguous()) return copies(y, a);
  const auto views = in_memory_order<2>({&y, &a});
  copies(views[0], views[1]);
}

}  // namespace regard::cuda_backend
