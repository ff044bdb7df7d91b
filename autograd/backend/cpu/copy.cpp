// Copies between any strides and any dtypes.
#include <cstring>

#include <regard/autograd/backend/cpu/convert.hpp>
#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>
#include <regard/autograd/backend/cpu/transpose.hpp>

namespace regard::cpu_backend {
namespace {

using Copy = Loop<2>;  // 0: to, 1: from

// Rows that lie dense on both sides.
void copy_rows(const Copy& loop, int64_t element_bytes) {
  loop.run(cheap_grain, [element_bytes](const Copy::Pointers& p, const Copy::ElementStrides&, int64_t count) {
    std::memcpy(p[0], p[1], static_cast<size_t>(count * element_bytes));
  });
}

// The dimension along which `tensor` is dense, or -1.
int dense_dim(const Copy& loop, size_t tensor) {
  for (int d = 0; d < loop.dims(); ++d)
    if (loop.strides(d)[tensor] == 1) return d;
  return -1;
}

// Matrices that lie dense along `row` in the output and along `column` in the input: transposed tile by tile, so that
// each cache line that is touched is used whole.
template <class Word>
void copy_transposed(const Copy& loop, int row, int column) {
  constexpr int64_t tile = 64;
  const int64_t columns = loop.size(row), rows = loop.size(column);
  const int64_t to_stride = loop.strides(column)[0], from_stride = loop.strides(row)[1];
  const int64_t bands = (rows + tile - 1) / tile;
  int64_t matrices = 1;
  for (int d = 0; d < loop.dims(); ++d)
    if (d != row && d != column) matrices *= loop.size(d);
  const int64_t band_elements = columns * (rows < tile ? rows : tile);
  const int64_t grain = band_elements >= cheap_grain ? 1 : cheap_grain / band_elements;
  parallel_for_short(matrices * bands, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t rest = i / bands;
      auto* to = reinterpret_cast<Word*>(loop.first(0));
      const auto* from = reinterpret_cast<const Word*>(loop.first(1));
      for (int d = 0; d < loop.dims(); ++d) {
        if (d == row || d == column) continue;
        to += rest % loop.size(d) * loop.strides(d)[0];
        from += rest % loop.size(d) * loop.strides(d)[1];
        rest /= loop.size(d);
      }
      const int64_t first_row = i % bands * tile;
      const int64_t band_rows = rows - first_row < tile ? rows - first_row : tile;
      to += first_row * to_stride;
      from += first_row;
      for (int64_t j = 0; j < columns; j += tile) {
        const int64_t width = columns - j < tile ? columns - j : tile;
        transpose(to + j, to_stride, from + j * from_stride, from_stride, band_rows, width);
      }
    }
  });
}

template <class Word>
void copy_words(const Copy& loop) {
  const auto& inner = loop.strides(0);
  if (inner[0] == 1 && inner[1] == 1) return copy_rows(loop, sizeof(Word));
  const int row = dense_dim(loop, 0), column = dense_dim(loop, 1);
  if (row >= 0 && column >= 0 && row != column && loop.size(row) >= 4 && loop.size(column) >= 4)
    return copy_transposed<Word>(loop, row, column);
  loop.run(cheap_grain, [](const Copy::Pointers& p, const Copy::ElementStrides& s, int64_t count) {
    auto* to = reinterpret_cast<Word*>(p[0]);
    const auto* from = reinterpret_cast<const Word*>(p[1]);
    const int64_t to_stride = s[0], from_stride = s[1];
    if (from_stride == 0) {
      const Word value = *from;
      if (to_stride == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = value;
      else
        for (int64_t i = 0; i < count; ++i) to[i * to_stride] = value;
    } else if (to_stride == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * from_stride];
    } else {
      for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
    }
  });
}

template <class To, class From>
void cast(const Copy& loop) {
  loop.run(cheap_grain, [](const Copy::Pointers& p, const Copy::ElementStrides& s, int64_t count) {
    auto* to = reinterpret_cast<To*>(p[0]);
    const auto* from = reinterpret_cast<const From*>(p[1]);
    const int64_t to_stride = s[0], from_stride = s[1];
    if (to_stride == 1 && from_stride == 1)
      for (int64_t i = 0; i < count; ++i) to[i] = convert<To>(from[i]);
    else
      for (int64_t i = 0; i < count; ++i) to[i * to_stride] = convert<To>(from[i * from_stride]);
  });
}

}  // namespace

void copy(const Tensor& y, const Tensor& a) {
  const Copy loop({&y, &a});
  if (loop.numel() == 0) return;
  if (y.dtype() == a.dtype()) {
    switch (element_size(y.dtype())) {
      case 1:
        return copy_words<uint8_t>(loop);
      case 2:
        return copy_words<uint16_t>(loop);
      case 4:
        return copy_words<uint32_t>(loop);
      default:
        return copy_words<uint64_t>(loop);
    }
  }
  visit_dtype(y.dtype(), [&]<class To>(To) {
    visit_dtype(a.dtype(), [&]<class From>(From) {
      if constexpr (!std::is_same_v<To, From>) cast<To, From>(loop);
    });
  });
}

}  // namespace regard::cpu_backend
