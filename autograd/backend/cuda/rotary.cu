// Rotary positions: pairs of a row's elements are turned by the angles of the row's position.
#include <algorithm>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/row_grid.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {
namespace {

struct Rotation {
  Layout<2> rows;  // of y and x
  int64_t positions, width, pairs;
  int64_t x_step;  // between a row's elements
  bool interleaved, back;
};

// A thread turns `units` pairs at a time, from two runs of as many elements of type E. These hold a pair's first
// elements and its second ones or, `in_turn`, pair by pair.
template <int units, bool in_turn, class E>
__global__ void rotate_kernel(Rotation r, E* y, const E* x, const Number<E>* cosines, const Number<E>* sines) {
  using T = Number<E>;
  for (int64_t row = first_row(); row < r.rows.numel; row += row_step()) {
    const Offsets<2> at = r.rows.offsets(row);
    E* to = y + at.at[0];
    const E* from = x + at.at[1];
    const int64_t position =
        r.rows.narrow ? static_cast<uint32_t>(row) % static_cast<uint32_t>(r.positions) : row % r.positions;
    for (int64_t j = first_column() * units; j < r.pairs; j += column_step() * units) {
      const int64_t first = r.interleaved ? 2 * j : j, second = r.interleaved ? first + units : r.pairs + j;
      const Line<E, units> in[2] = {load_line<units>(from + first * r.x_step),
                                    load_line<units>(from + second * r.x_step)};
      const auto cosine = load_line<units>(cosines + position * r.pairs + j);
      const auto sine = load_line<units>(sines + position * r.pairs + j);
      Line<E, units> out[2];
#pragma unroll
      for (int i = 0; i < units; ++i) {
        const int one = in_turn ? 2 * i : i, other = in_turn ? one + 1 : units + i;  // in both runs together
        const T a = number(in[one / units].at[one % units]), b = number(in[other / units].at[other % units]);
        const T c = cosine.at[i], s = r.back ? -sine.at[i] : sine.at[i];
        out[one / units].at[one % units] = element<E>(a * c - b * s);
        out[other / units].at[other % units] = element<E>(b * c + a * s);
      }
      store_line(to + first, out[0]);
      store_line(to + second, out[1]);
    }
    for (int64_t j = 2 * r.pairs + first_column(); j < r.width; j += column_step()) to[j] = from[j * r.x_step];
  }
}

// x at the beginning of its rows.
Tensor rows_of(const Tensor& x) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(shape.dim() - 1);
  strides.erase(strides.dim() - 1);
  return make_view(x, shape, strides, x.storage_offset());
}

}  // namespace

void rotate(const Tensor& y, const Tensor& x, const Tensor& cosines, const Tensor& sines, bool interleaved, bool back) {
  if (x.numel() == 0) return;
  const int64_t width = x.size(-1), pairs = cosines.size(1);
  const Tensor y_rows = rows_of(y), x_rows = rows_of(x);
  const int64_t x_step = width == 1 ? 1 : x.strides().back();
  const Rotation rotation{Layout<2>({&y_rows, &x_rows}), x.size(-2), width, pairs, x_step, interleaved, back};

  const int64_t bytes = element_size(x.dtype());
  Alignment alignment;
  for (const Tensor* t : {&y, &x, &cosines, &sines}) alignment.meet(t->raw_data());
  for (int64_t d = 0; d < x_rows.dim(); ++d)
    if (x_rows.shape()[d] != 1) alignment.meet(y.strides()[d] * bytes).meet(x.strides()[d] * bytes);

  visit_floating(x.dtype(), [&]<class E>(E) {
    constexpr int units = line_width<E>;
    const bool dense = x_step == 1 && pairs % units == 0 && alignment.bytes() == 16;
    const auto kernel = !dense        ? rotate_kernel<1, false, E>
                        : interleaved ? rotate_kernel<units, true, E>
                                      : rotate_kernel<units, false, E>;
    launch("rotary_positions", stream_of(y), row_grid(rotation.rows.numel, dense ? pairs / units : pairs), kernel,
           rotation, device_pointer<E>(y), device_pointer<const E>(x), device_pointer<const Number<E>>(cosines),
           device_pointer<const Number<E>>(sines));
  });
}

}  // namespace regard::cuda_backend
