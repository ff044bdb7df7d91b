// Packing for bf16_gemm.cpp, which includes this where the compiler may use AVX-512 with bf16. Two elements that follow
// one another along k stand in one 32-bit word, the first in the lower half: a pair, as VDPBF16PS wants it.
#pragma once

namespace regard::cpu_backend::bf16 {
namespace {

constexpr int64_t lanes = 16;  // words, or elements of f32, of a vector

// The first `count` (a whole vector or less, perhaps none) of elements that lie `stride` apart; zeros after them.
template <bool dense>
inline __m512 load_some(const float* from, int64_t stride, int64_t count) {
  if constexpr (dense) {
    if (count >= lanes) return _mm512_loadu_ps(from);
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << std::max<int64_t>(count, 0)) - 1), from);
  } else {
    alignas(64) float buffer[lanes] = {};
    for (int64_t i = 0; i < std::min(count, lanes); ++i) buffer[i] = from[i * stride];
    return _mm512_load_ps(buffer);
  }
}

inline __m512i round_both(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

// x [k, columns] into words [pairs, width], of which `width`, a multiple of a vector, are filled up with zeros.
template <bool dense>
void pack_across(int64_t k, int64_t columns, int64_t width, Matrix<const float> x, uint32_t* to) {
  alignas(64) static constexpr uint16_t interleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(interleave);
  const float* from = x.data;
  for (int64_t p = 0; p < k; p += 2, from += 2 * x.row_stride, to += width) {
    const float* next = from + x.row_stride;
    const int64_t in_next = p + 1 < k ? columns : 0;
    for (int64_t j = 0; j < width; j += lanes) {
      if constexpr (dense) {
        _mm_prefetch(from + 8 * x.row_stride + j, _MM_HINT_T0);
        _mm_prefetch(next + 8 * x.row_stride + j, _MM_HINT_T0);
      }
      const __m512 first = load_some<dense>(from + j * x.column_stride, x.column_stride, columns - j);
      const __m512 second = load_some<dense>(next + j * x.column_stride, x.column_stride, in_next - j);
      _mm512_store_si512(to + j, _mm512_permutexvar_epi16(order, round_both(first, second)));
    }
  }
}

// x [rows, k], each row dense along k, into words [rows, stride]; `stride` is a multiple of a vector.
inline void pack_along(int64_t rows, int64_t k, Matrix<const float> x, uint32_t* to, int64_t stride) {
  const float* from = x.data;
  for (int64_t i = 0; i < rows; ++i, from += x.row_stride, to += stride) {
    int64_t p = 0;
    for (; p + 2 * lanes <= k; p += 2 * lanes) {
      _mm_prefetch(from + p + 2 * x.row_stride, _MM_HINT_T0);
      _mm_prefetch(from + p + 2 * x.row_stride + lanes, _MM_HINT_T0);
      _mm512_store_si512(to + p / 2, round_both(_mm512_loadu_ps(from + p), _mm512_loadu_ps(from + p + lanes)));
    }
    if (p < k) {
      _mm512_store_si512(to + p / 2, round_both(load_some<true>(from + p, 1, k - p),
                                                load_some<true>(from + p + lanes, 1, k - p - lanes)));
    }
  }
}

// Columns of B that lie along k, into words [pairs, width] of a panel: blocks of 16 x 16 words are transposed in
// registers. `columns` are the starts of a vector's worth of them.
inline void pack_turned(int64_t k, const float* const* columns, int64_t width, uint32_t* to) {
  for (int64_t p = 0; p < k; p += 2 * lanes) {
    __m512i rows[lanes], halves[lanes];
    if (p + 2 * lanes <= k) {
#pragma GCC unroll 16
      for (int j = 0; j < lanes; ++j) {
        _mm_prefetch(columns[j] + p + 8 * lanes, _MM_HINT_T0);
        _mm_prefetch(columns[j] + p + 9 * lanes, _MM_HINT_T0);
        rows[j] = round_both(_mm512_loadu_ps(columns[j] + p), _mm512_loadu_ps(columns[j] + p + lanes));
      }
    } else {
#pragma GCC unroll 16
      for (int j = 0; j < lanes; ++j) {
        rows[j] = round_both(load_some<true>(columns[j] + p, 1, k - p),
                             load_some<true>(columns[j] + p + lanes, 1, k - p - lanes));
      }
    }
    // 2 x 2 words, then 4 x 4 within the blocks of 128 bits, then the blocks.
#pragma GCC unroll 8
    for (int j = 0; j < lanes; j += 2) {
      halves[j] = _mm512_unpacklo_epi32(rows[j], rows[j + 1]);
      halves[j + 1] = _mm512_unpackhi_epi32(rows[j], rows[j + 1]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < lanes; j += 4) {
      rows[j] = _mm512_unpacklo_epi64(halves[j], halves[j + 2]);
      rows[j + 1] = _mm512_unpackhi_epi64(halves[j], halves[j + 2]);
      rows[j + 2] = _mm512_unpacklo_epi64(halves[j + 1], halves[j + 3]);
      rows[j + 3] = _mm512_unpackhi_epi64(halves[j + 1], halves[j + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      halves[j] = _mm512_shuffle_i32x4(rows[j], rows[j + 4], 0x88);
      halves[j + 4] = _mm512_shuffle_i32x4(rows[j], rows[j + 4], 0xdd);
      halves[j + 8] = _mm512_shuffle_i32x4(rows[j + 8], rows[j + 12], 0x88);
      halves[j + 12] = _mm512_shuffle_i32x4(rows[j + 8], rows[j + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      rows[j] = _mm512_shuffle_i32x4(halves[j], halves[j + 8], 0x88);
      rows[j + 4] = _mm512_shuffle_i32x4(halves[j + 4], halves[j + 12], 0x88);
      rows[j + 8] = _mm512_shuffle_i32x4(halves[j], halves[j + 8], 0xdd);
      rows[j + 12] = _mm512_shuffle_i32x4(halves[j + 4], halves[j + 12], 0xdd);
    }
    const int64_t pairs = std::min<int64_t>(lanes, (k - p + 1) / 2);
    if (pairs == lanes) {
#pragma GCC unroll 16
      for (int j = 0; j < lanes; ++j) _mm512_store_si512(to + j * width, rows[j]);
    } else {
      for (int64_t j = 0; j < pairs; ++j) _mm512_store_si512(to + j * width, rows[j]);
    }
    to += lanes * width;
  }
}

// B [k, columns] into words [pairs, width] of a panel. What stands past the last column is never used.
inline void pack_panel(int64_t k, int64_t columns, int64_t width, Matrix<const float> b, uint32_t* to) {
  if (b.column_stride == 1) return pack_across<true>(k, columns, width, b, to);
  if (b.row_stride != 1) return pack_across<false>(k, columns, width, b, to);
  for (int64_t j0 = 0; j0 < width; j0 += lanes) {
    const float* starts[lanes];
    for (int64_t j = 0; j < lanes; ++j) starts[j] = b.data + std::min(j0 + j, columns - 1) * b.column_stride;
    pack_turned(k, starts, width, to + j0);
  }
}

// Words of A: word (i, p) is data[i * row_stride + p * pair_stride].
struct Words {
  const uint32_t* data;
  int64_t row_stride, pair_stride;
};

constexpr int64_t whole_vectors(int64_t words) { return (words + lanes - 1) / lanes * lanes; }

// How far apart rows of words stand: whole vectors, and their starts on many sets of the first-level cache.
constexpr int64_t words_of_row(int64_t k) {
  const int64_t words = whole_vectors((k + 1) / 2);
  return words % 256 == 0 ? words + lanes : words;
}

// A [rows, k], by rows where it lies so, by pairs of columns otherwise.
inline Words pack_rows(int64_t rows, int64_t k, Matrix<const float> a, uint32_t* to) {
  if (a.column_stride == 1) {
    pack_along(rows, k, a, to, words_of_row(k));
    return {to, words_of_row(k), 1};
  }
  const int64_t width = whole_vectors(rows);
  if (a.row_stride == 1) {
    pack_across<true>(k, rows, width, a.transposed(), to);
  } else {
    pack_across<false>(k, rows, width, a.transposed(), to);
  }
  return {to, 1, width};
}

}  // namespace
}  // namespace regard::cpu_backend::bf16
