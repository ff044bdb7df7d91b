// Transposes small matrices in memory.
#pragma once

#include <cstdint>

namespace regard::cpu_backend {

/// to[i * to_stride + j] = from[j * from_stride + i] for i < rows, j < columns. The matrix should fit the first-level
/// cache: callers go tile by tile.
void transpose(uint32_t* to, int64_t to_stride, const uint32_t* from, int64_t from_stride, int64_t rows,
               int64_t columns);
void transpose(uint64_t* to, int64_t to_stride, const uint64_t* from, int64_t from_stride, int64_t rows,
               int64_t columns);
template <class Word>
void transpose(Word* to, int64_t to_stride, const Word* from, int64_t from_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}

}  // namespace regard::cpu_backend
