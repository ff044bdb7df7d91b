// Rows that threads go over together, several times: softmax, norms, losses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/math.hpp>
#include <regard/autograd/backend/cuda/reduction.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {

/// The most threads of a block that share a row.
inline constexpr int most_row_threads = 512;

/// One thread's part of a row of several tensors, with elements of the types E, of which some may be the same for every
/// row. Elements come in chunks, of which a thread has `values` of each tensor in registers, as numbers. A `held` row
/// is of one chunk, which is read once and stays; others are read again by every walk. V: elements that lie side by
/// side, V of them aligned; 1 where they may not.
template <int V, int values, bool held, class LanesOf, class... E>
class Row {
  static constexpr int N = sizeof...(E);
  template <int J>
  using Element = std::tuple_element_t<J, std::tuple<E...>>;
  using T = Number<Element<0>>;
  static_assert(values % V == 0 && (... && std::is_same_v<Number<E>, T>));

 public:
  __device__ Row(const LanesOf& lanes, int64_t length) : lane_(lanes.lane), count_(lanes.count) { set_length(length); }

  /// How many elements the next walks see; 0 for threads that have no row.
  __device__ void set_length(int64_t length) {
    length_ = length;
    begin_chunk(0);
  }

  /// Where tensor J's row is; every element is `absent` where that is nowhere. A held row is read now.
  template <int J>
  __device__ void point(const Element<J>* from, int64_t stride = 1, T absent = 0) {
    from_[J] = from;
    stride_[J] = stride;
    absent_[J] = absent;
    if constexpr (held) load<J>();
  }

  /// Calls f() with each chunk in registers, for here(), write_here() and store().
  template <class F>
  __device__ void chunks(F f) {
    if constexpr (held) {
      f();
    } else {
      const int64_t step = int64_t{count_} * values;
#pragma unroll 1
      for (int64_t base = 0; base < length_; base += step) {
        begin_chunk(base);
        load_all(std::make_integer_sequence<int, N>());
        f();
      }
      begin_chunk(0);
    }
  }

  /// Calls f(i, the tensors' numbers as references) for this thread's elements of the chunk.
  template <class F>
  __device__ void here(F f) {
    each_place([&](int k, int j) {
#pragma unroll
      for (int v = 0; v < V; ++v) call(f, base_ + j + v, k + v, std::make_integer_sequence<int, N>());
    });
  }
  /// to[i * stride] = f(i, numbers), rounded.
  template <class To, class F>
  __device__ void write_here(To* to, int64_t stride, F f) {
    each_place([&](int k, int j) {
      if constexpr (V == 1) {
        to[(base_ + j) * stride] = element<To>(call(f, base_ + j, k, std::make_integer_sequence<int, N>()));
      } else {
        Line<To, V> line;
#pragma unroll
        for (int v = 0; v < V; ++v)
          line.at[v] = element<To>(call(f, base_ + j + v, k + v, std::make_integer_sequence<int, N>()));
        store_line(to + base_ + j, line);
      }
    });
  }
  /// Writes tensor J's numbers of the chunk to a dense row, if there is one.
  template <int J>
  __device__ void store(T* to) {
    if (!to) return;
    each_place([&](int k, int j) {
#pragma unroll
      for (int v = 0; v < V; ++v) to[base_ + j + v] = values_[J][k + v];
    });
  }

  template <class F>
  __device__ void each(F f) {
    chunks([&] { here(f); });
  }
  template <class To, class F>
  __device__ void write(To* to, int64_t stride, F f) {
    chunks([&] { write_here(to, stride, f); });
  }

 private:
  __device__ void begin_chunk(int64_t base) {
    base_ = base;
    left_ = static_cast<int>(min(length_ - base, int64_t{count_} * values));
  }

  // f(place in registers, place in the chunk)
  template <class F>
  __device__ void each_place(F f) {
#pragma unroll
    for (int k = 0; k < values; k += V) {
      const int j = k * count_ + lane_ * V;
      if (j < left_) f(k, j);
    }
  }
  template <int J>
  __device__ void load() {
    if (!from_[J]) {
#pragma unroll
      for (int k = 0; k < values; ++k) values_[J][k] = absent_[J];
      return;
    }
    const auto* from = static_cast<const Element<J>*>(from_[J]);
    each_place([&](int k, int j) {
      if constexpr (V == 1) {
        values_[J][k] = number(from[(base_ + j) * stride_[J]]);
      } else {
        const auto line = load_line<V>(from + base_ + j);
#pragma unroll
        for (int v = 0; v < V; ++v) values_[J][k + v] = number(line.at[v]);
      }
    });
  }
  template <int... J>
  __device__ void load_all(std::integer_sequence<int, J...>) {
    (load<J>(), ...);
  }
  template <class F, int... J>
  __device__ decltype(auto) call(F& f, int64_t i, int k, std::integer_sequence<int, J...>) {
    return f(i, values_[J][k]...);
  }

  T values_[N][values];
  const void* from_[N];
  int64_t stride_[N];
  T absent_[N];
  int64_t length_, base_;
  int left_, lane_, count_;
};

/// The largest element of a row, and the sum of exp(x - largest). Where the largest is infinite it is taken as 0, and
/// the sum is NaN; `nothing`: all are -inf.
template <class T>
struct RowExponentials {
  T largest, sum;
  bool nothing;
};
template <class T, class RowOf, class LanesOf>
__device__ RowExponentials<T> exponentials_of(RowOf& row, const LanesOf& lanes) {
  T largest = -infinity<T>(), sum = 0;
  row.chunks([&] {
    T now = largest;
    row.here([&](int64_t, T x) { now = x > now ? x : now; });
    sum *= largest == now ? T(1) : exp(largest - now);
    largest = now;
    const T shift = fabs(now) < infinity<T>() ? now : T(0);  // x - now would be NaN
    row.here([&](int64_t, T x) { sum += exp(x - shift); });
  });
  const T own = largest;
  largest = lanes.reduce(own, Larger());
  sum = lanes.reduce(sum * (own == largest ? T(1) : exp(own - largest)), Plus());
  if (fabs(largest) < infinity<T>()) return {largest, sum, false};
  return {T(0), std::numeric_limits<T>::quiet_NaN(), largest < 0 && sum == 0};
}

/// How rows of a length are given to threads, see Lanes, of which each has up to `values` elements in registers, and at
/// least `width` where there are so many.
struct RowGrid {
  int64_t lanes;
  Grid grid;
  bool held;

  RowGrid(int64_t rows, int64_t length, int values, int width) {
    lanes = length <= width * warp_threads ? power_of_two_from((length + width - 1) / width)
                                           : std::clamp<int64_t>(power_of_two_from((length + values - 1) / values),
                                                                 warp_threads, most_row_threads);
    held = length <= lanes * values;
    grid = grid_for_lanes(rows, lanes);
  }
};

/// Whether rows of `length` elements, one after the other from each of the tensors' first elements on, can be read by
/// lines of line_width<T>. Undefined tensors do not matter.
template <class T, class... Tensors>
bool rows_packed(int64_t length, const Tensors&... tensors) {
  Alignment alignment;
  for (const Tensor* x : {&tensors...})
    if (x->defined()) alignment.meet(x->raw_data());
  return length % line_width<T> == 0 && alignment.bytes() == 16;
}

}  // namespace regard::cuda_backend
