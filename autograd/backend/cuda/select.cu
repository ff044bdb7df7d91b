// Selection: where, masked_fill, clamp, triangles of matrices.
#include <algorithm>
#include <cstring>

#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cuda/elementwise.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {
namespace {

template <class Word>
struct Choose {
  __device__ Word operator()(uint8_t condition, Word a, Word b) const { return condition ? a : b; }
};
template <class Word>
struct Replace {
  Word value;
  template <class Mask>
  __device__ Word operator()(Word a, Mask mask) const {
    return mask != 0 ? value : a;
  }
};
template <class T>
struct Clamp {
  T low, high;
  __device__ T operator()(T x) const {  // NaN passes both comparisons
    x = x < low ? low : x;
    return x > high ? high : x;
  }
};

// Element i, counted in row-major order, stands in row (i / columns) % rows; kept are the columns from `diagonal` away
// from it on: to its right (upper) or up to there.
struct Triangle {
  int64_t rows, columns, diagonal;
  bool upper;
};
template <class Word>
__global__ void triangle_kernel(Triangle triangle, Layout<2> layout, Divider by_columns, Divider by_rows, Word* y,
                                const Word* a) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < layout.numel; i += step) {
    int64_t row, column;
    if (layout.narrow) {
      const auto n = static_cast<uint32_t>(i);
      const uint32_t line = by_columns.divide(n);
      column = n - line * by_columns.divisor();
      row = line - by_rows.divide(line) * by_rows.divisor();
    } else {
      column = i % triangle.columns;
      row = i / triangle.columns % triangle.rows;
    }
    const int64_t beyond = column - row - triangle.diagonal;
    const Offsets<2> offsets = layout.offsets(i);
    const bool kept = triangle.upper ? beyond >= 0 : beyond <= 0;
    y[offsets.at[0]] = kept ? a[offsets.at[1]] : Word{};
  }
}

}  // namespace

void where(const Tensor& y, const Tensor& condition, const Tensor& a, const Tensor& b) {
  visit_word(y.dtype(), [&]<class Word>(Word) {
    elementwise<Word, uint8_t, Word, Word>("where", Choose<Word>(), y, condition, a, b);
  });
}

void masked_fill(const Tensor& y, const Tensor& a, const Tensor& mask, Scalar value) {
  uint64_t bits = 0;
  visit_dtype(y.dtype(), [&]<class T>(T) {
    const T element = value.to<T>();
    std::memcpy(&bits, &element, sizeof(T));
  });
  visit_word(y.dtype(), [&]<class Word>(Word) {
    const Replace<Word> replace{static_cast<Word>(bits)};
    if (mask.dtype() == DType::i64)
      elementwise<Word, Word, int64_t>("masked_fill", replace, y, a, mask);
    else
      elementwise<Word, Word, uint8_t>("masked_fill", replace, y, a, mask);
  });
}

void clamp(const Tensor& y, const Tensor& a, double low, double high) {
  const auto run = [&]<class T>(T) {
    elementwise<T, T>(
        "clamp", Clamp<Number<T>>{cpu_backend::convert<Number<T>>(low), cpu_backend::convert<Number<T>>(high)}, y, a);
  };
  if (y.dtype() == DType::i64)
    run(int64_t{});
  else
    visit_floating(y.dtype(), run);
}

void triangle(const Tensor& y, const Tensor& a, int64_t diagonal, bool upper) {
  const Shape& shape = y.shape();
  const int64_t columns = shape.back(), rows = shape[shape.dim() - 2];
  const Layout<2> layout({&y, &a});
  if (layout.numel == 0) return;
  const Triangle kept{rows, columns, std::clamp(diagonal, -rows - 1, columns + 1), upper};
  const Divider by_columns(static_cast<uint32_t>(layout.narrow ? columns : 1));
  const Divider by_rows(static_cast<uint32_t>(layout.narrow ? rows : 1));
  visit_word(y.dtype(), [&]<class Word>(Word) {
    launch(upper ? "triu" : "tril", stream_of(y), grid_for(layout.numel), triangle_kernel<Word>, kept, layout,
           by_columns, by_rows, device_pointer<Word>(y), device_pointer<const Word>(a));
  });
}

}  // namespace regard::cuda_backend
