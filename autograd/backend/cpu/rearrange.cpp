// Triangles of matrices, and dimensions reversed.
#include <algorithm>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {

namespace {

template <class T>
void copy_row(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t begin, int64_t end) {
  if (to_step == 1 && from_step == 1) {
    if (begin < end) std::copy(from + begin, from + end, to + begin);
  } else {
    for (int64_t j = begin; j < end; ++j) to[j * to_step] = from[j * from_step];
  }
}

}  // namespace

void triangle(const Tensor& y, const Tensor& a, int64_t diagonal, bool upper) {
  const Shape& shape = y.shape();
  const int64_t columns = shape.back(), rows = shape[shape.dim() - 2];
  if (shape.numel() == 0) return;
  diagonal = std::clamp(diagonal, -rows - 1, columns + 1);
  const int64_t to_step = y.strides().back(), from_step = a.strides().back();

  visit_dtype(y.dtype(), [&]<class T>(T) {
    T* const to_first = reinterpret_cast<T*>(first_byte(y));
    const T* const from_first = reinterpret_cast<const T*>(first_byte(a));
    const int64_t all_rows = shape.numel() / columns;
    parallel_for_short(all_rows, std::max<int64_t>(1, cheap_grain / columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* to = to_first;
        const T* from = from_first;
        int64_t rest = row;
        for (int64_t d = shape.dim() - 2; d >= 0; --d) {
          to += rest % shape[d] * y.strides()[d];
          from += rest % shape[d] * a.strides()[d];
          rest /= shape[d];
        }
        const int64_t edge = std::clamp<int64_t>(row % rows + diagonal + (upper ? 0 : 1), 0, columns);
        const int64_t keep_begin = upper ? edge : 0, keep_end = upper ? columns : edge;
        for (int64_t j = 0; j < keep_begin; ++j) to[j * to_step] = T{};
        copy_row(to, to_step, from, from_step, keep_begin, keep_end);
        for (int64_t j = keep_end; j < columns; ++j) to[j * to_step] = T{};
      }
    });
  });
}

void flip(const Tensor& y, const Tensor& a, const Shape& dims) {
  if (y.numel() == 0) return;
  // The reversed tensor is a view from the other end, with negative strides.
  Strides strides = a.strides();
  int64_t offset = a.storage_offset();
  for (int64_t dim : dims) {
    offset += (a.shape()[dim] - 1) * strides[dim];
    strides[dim] = -strides[dim];
  }
  const Tensor reversed = make_view(a, a.shape(), strides, offset);
  visit_dtype(y.dtype(), [&]<class T>(T) {
    iterate<2>({&y, &reversed}, cheap_grain, [](const auto& pointers, const auto& strides, int64_t count) {
      T* to = reinterpret_cast<T*>(pointers[0]);
      const T* from = reinterpret_cast<const T*>(pointers[1]);
      if (strides[0] == 1 && strides[1] == -1)
        for (int64_t i = 0; i < count; ++i) to[i] = from[-i];
      else
        copy_row(to, strides[0], from, strides[1], 0, count);
    });
  });
}

}  // namespace regard::cpu_backend
