// The tiles of C in registers for bf16_gemm.cpp, which includes this where the compiler may use AVX-512 with bf16.
#pragma once

namespace regard::cpu_backend::bf16 {
namespace {

constexpr int tile_rows = 12;  // by two vectors: 24 sums, 2 vectors of B and a word of A in 32 registers

struct Result {
  float alpha, beta;
  Matrix<const float> d;
  Matrix<float> c;
  bool along_rows() const { return c.column_stride == 1 && (beta == 0 || d.column_stride == 1); }
};

// c[0, columns) = alpha * product + beta * d, with the same arithmetic for whole vectors, tails and strided rows.
inline void write(__m512 product, const Result& result, const float* d, float* c, int64_t columns) {
  const __m512 alpha = _mm512_set1_ps(result.alpha), beta = _mm512_set1_ps(result.beta);
  __m512 value = _mm512_mul_ps(alpha, product);
  const int64_t written = std::min(columns, lanes);
  if (result.along_rows()) {
    const auto mask = static_cast<__mmask16>((1U << written) - 1);
    if (result.beta != 0) value = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, d), value);
    _mm512_mask_storeu_ps(c, mask, value);
    return;
  }
  alignas(64) float buffer[lanes] = {};
  if (result.beta != 0) {
    for (int64_t j = 0; j < written; ++j) buffer[j] = d[j * result.d.column_stride];
    value = _mm512_fmadd_ps(beta, _mm512_load_ps(buffer), value);
  }
  _mm512_store_ps(buffer, value);
  for (int64_t j = 0; j < written; ++j) c[j * result.c.column_stride] = buffer[j];
}

// Clang 16 does not survive to see that a vector of bf16 is one word over and over.
inline void hide([[maybe_unused]] __m512i& word) {
#ifdef __clang__
  asm("" : "+v"(word));
#endif
}

using TileFunction = void (*)(int64_t pairs, const Words& a, const uint32_t* b, const Result& result, int64_t i0,
                              int64_t j0, int64_t columns);

// `rows` rows of C from i0 by `vectors` vectors of columns from j0, of which `columns` are C's.
template <int rows, int vectors>
void tile(int64_t pairs, const Words& a, const uint32_t* b, const Result& result, int64_t i0, int64_t j0,
          int64_t columns) {
  const auto c_at = [&](int64_t i, int64_t j) {
    return result.c.data + (i0 + i) * result.c.row_stride + (j0 + j) * result.c.column_stride;
  };
  const auto d_at = [&](int64_t i, int64_t j) {
    return result.d.data + (i0 + i) * result.d.row_stride + (j0 + j) * result.d.column_stride;
  };
  constexpr int groups = (rows + 2) / 3;  // one pointer for three rows of A: processors multiply a stride by 1 and 2
  const uint32_t* left[groups];
  for (int g = 0; g < groups; ++g) left[g] = a.data + 3 * g * a.row_stride;
  __m512 sums[rows][vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
    // C arrives while the sums are made; a row of it may begin amid a cache line.
    const float* to = c_at(i, 0);
    for (int v = 0; v < vectors; ++v) _mm_prefetch(to + v * lanes, _MM_HINT_T0);
    _mm_prefetch(to + vectors * lanes - 1, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[i][v] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < pairs; ++p, b += vectors * lanes) {
    __m512bh right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + v * lanes));
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      __m512i word = _mm512_set1_epi32(static_cast<int>(left[i / 3][static_cast<int64_t>(i % 3) * a.row_stride]));
      hide(word);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], reinterpret_cast<__m512bh>(word), right[v]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) left[g] += a.pair_stride;
  }
  if (result.along_rows() && columns >= vectors * lanes) {
    const __m512 alpha = _mm512_set1_ps(result.alpha), beta = _mm512_set1_ps(result.beta);
    const bool add = result.beta != 0;
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        __m512 value = _mm512_mul_ps(alpha, sums[i][v]);
        if (add) value = _mm512_fmadd_ps(beta, _mm512_loadu_ps(d_at(i, 0) + v * lanes), value);
        _mm512_storeu_ps(c_at(i, 0) + v * lanes, value);
      }
    }
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      if (v * lanes < columns) {
        write(sums[i][v], result, d_at(i, v * lanes), c_at(i, v * lanes), columns - v * lanes);
      }
    }
  }
}

template <int vectors, int... rows>
constexpr std::array<TileFunction, sizeof...(rows)> make_tiles(std::integer_sequence<int, rows...>) {
  return {&tile<rows + 1, vectors>...};
}

// All rows of A by a panel of B, C's from i0 and j0; the last rows are shared out so that no tile is much shorter than
// the others.
inline void multiply_panel(int64_t rows, int64_t columns, int64_t pairs, Words a, const uint32_t* b,
                           const Result& result, int64_t i0, int64_t j0) {
  static constexpr auto one = make_tiles<1>(std::make_integer_sequence<int, tile_rows>());
  static constexpr auto two = make_tiles<2>(std::make_integer_sequence<int, tile_rows>());
  const auto& tiles = columns <= lanes ? one : two;
  for (int64_t left = (rows + tile_rows - 1) / tile_rows; left > 0; --left) {
    const int64_t height = (rows + left - 1) / left;
    tiles[static_cast<size_t>(height - 1)](pairs, a, b, result, i0, j0, columns);
    rows -= height;
    a.data += height * a.row_stride;
    i0 += height;
  }
}

}  // namespace
}  // namespace regard::cpu_backend::bf16
