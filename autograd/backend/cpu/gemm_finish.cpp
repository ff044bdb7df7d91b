#include <regard/autograd/backend/cpu/gemm_finish.hpp>

#include <cstring>
#include <utility>

namespace regard::cpu_backend {
namespace {

constexpr int64_t rows_ahead = 4;

// Pieces of rows that lie far apart: the processor's own prefetching begins anew with each.
template <bool write>
void prefetch(const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, write ? 1 : 0);
}

}  // namespace

void GemmFinish::operator()(int64_t rows, int64_t columns, void* c, int64_t row_stride, int64_t column_stride) const {
  if (row_stride < column_stride) {  // along where the elements are dense
    std::swap(rows, columns);
    std::swap(row_stride, column_stride);
  }
  auto* row = static_cast<char*>(c);
  const ptrdiff_t step = row_stride * static_cast<ptrdiff_t>(element_bytes);
  for (int64_t i = 0; i < rows; ++i, row += step) {
    const ptrdiff_t offset = row - result;
    if (column_stride == 1 && i + rows_ahead < rows) {
      const ptrdiff_t next = offset + rows_ahead * step;
      const size_t bytes = static_cast<size_t>(columns) * element_bytes;
      if (before != nullptr) prefetch<true>(before + next, bytes);
      if (activation_grad != nullptr) prefetch<false>(x + next, bytes);
      if (activation_again != nullptr) prefetch<true>(activated + next, bytes);
      if (residual != nullptr) prefetch<false>(residual + next, bytes);
    }
    if (before != nullptr) {
      if (column_stride == 1) {
        std::memcpy(before + offset, row, static_cast<size_t>(columns) * element_bytes);
      } else {
        for (int64_t j = 0; j < columns; ++j) {
          const ptrdiff_t element = j * column_stride * static_cast<ptrdiff_t>(element_bytes);
          std::memcpy(before + offset + element, row + element, element_bytes);
        }
      }
    }
    if (activation != nullptr) activation(row, row, column_stride, column_stride, columns);
    if (activation_grad != nullptr) {
      activation_grad(row, x + offset, row, column_stride, column_stride, column_stride, columns);
    }
    if (activation_again != nullptr) {
      activation_again(activated + offset, x + offset, column_stride, column_stride, columns);
    }
    if (add != nullptr) add(row, residual + offset, row, column_stride, column_stride, column_stride, columns);
  }
}

}  // namespace regard::cpu_backend
