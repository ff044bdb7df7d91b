// Rotary positions on the CPU.
#include <algorithm>
#include <array>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>
#include <regard/autograd/backend/cpu/parallel.hpp>

namespace regard::cpu_backend {

namespace {

/// One row: pair j of (first[j * step], second[j * step]) turned.
template <class T>
void turn(T* y, const T* x, int64_t x_step, const T* cosines, const T* sines, int64_t pairs, int64_t step,
          int64_t apart, T direction) {
  const T *first = x, *second = x + apart * x_step;
  T *first_y = y, *second_y = y + apart;
  for (int64_t j = 0; j < pairs; ++j) {
    const T a = first[j * step * x_step], b = second[j * step * x_step], c = cosines[j], s = direction * sines[j];
    first_y[j * step] = a * c - b * s;
    second_y[j * step] = b * c + a * s;
  }
}

/// The same with x dense, for the compiler to vectorise.
template <class T>
void turn_halves(T* __restrict y, const T* __restrict x, const T* __restrict cosines, const T* __restrict sines,
                 int64_t pairs, T direction) {
  for (int64_t j = 0; j < pairs; ++j) {
    const T a = x[j], b = x[pairs + j], c = cosines[j], s = direction * sines[j];
    y[j] = a * c - b * s;
    y[pairs + j] = b * c + a * s;
  }
}

}  // namespace

void rotate(const Tensor& y, const Tensor& x, const Tensor& cosines, const Tensor& sines, bool interleaved, bool back) {
  const int64_t dims = x.dim(), width = x.size(-1), pairs = cosines.size(1);
  if (x.numel() == 0) return;
  const int64_t rows = x.numel() / width, step = interleaved ? 2 : 1, apart = interleaved ? 1 : pairs;
  const Shape& shape = x.shape();
  const Strides &x_strides = x.strides(), &y_strides = y.strides();
  const int64_t x_step = width == 1 ? 1 : x_strides[dims - 1];
  visit_compute(x.dtype(), [&]<class T>(T) {
    const T direction = back ? T(-1) : T(1);
    const auto* from = static_cast<const T*>(x.raw_data());
    auto* to = static_cast<T*>(y.raw_data());
    const auto *cosine = static_cast<const T*>(cosines.raw_data()), *sine = static_cast<const T*>(sines.raw_data());
    parallel_for_short(rows, std::max<int64_t>(cheap_grain / (2 * width), 1), [&](int64_t begin, int64_t end) {
      std::array<int64_t, Shape::max_dims> at{};
      int64_t x_at = 0, y_at = 0, rest = begin;
      for (int64_t d = dims - 2; d >= 0; --d) {
        at[d] = rest % shape[d];
        rest /= shape[d];
        x_at += at[d] * x_strides[d];
        y_at += at[d] * y_strides[d];
      }
      for (int64_t row = begin; row < end; ++row) {
        const int64_t angles = at[dims - 2] * pairs;
        if (x_step == 1 && !interleaved)
          turn_halves(to + y_at, from + x_at, cosine + angles, sine + angles, pairs, direction);
        else
          turn(to + y_at, from + x_at, x_step, cosine + angles, sine + angles, pairs, step, apart, direction);
        for (int64_t j = 2 * pairs; j < width; ++j) to[y_at + j] = from[x_at + j * x_step];
        for (int64_t d = dims - 2; d >= 0; --d) {  // the next row
          x_at += x_strides[d];
          y_at += y_strides[d];
          if (++at[d] < shape[d]) break;
          x_at -= shape[d] * x_strides[d];
          y_at -= shape[d] * y_strides[d];
          at[d] = 0;
        }
      }
    });
  });
}

}  // namespace regard::cpu_backend
