// Reading and adding at indices. Every index has been checked by the op. Sums at one place are taken in the order of
// their source, whatever the number of threads: work is shared out by place, so no two threads add to the same one.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <vector>

#include <regard/autograd/backend/cpu/functions.hpp>
#include <regard/autograd/backend/cpu/iterate.hpp>

namespace regard::cpu_backend {

namespace {

template <class T>
T* element(char* first) {
  return reinterpret_cast<T*>(first);
}

/// x seen with `shape`, where it does not move along `dim`.
Tensor held_along(const Tensor& x, const Shape& shape, int64_t dim) {
  Strides strides = x.strides();
  strides[dim] = 0;
  return make_view(x, shape, strides, x.storage_offset());
}

/// The first `shape.dim()` dimensions of x.
Tensor leading(const Tensor& x, const Shape& shape) {
  Strides strides;
  for (int64_t d = 0; d < shape.dim(); ++d) strides.push_back(x.strides()[d]);
  return make_view(x, shape, strides, x.storage_offset());
}

/// x at position 0 of `dim`: its lanes, one a line of elements along dim. `shape` is that of x, or smaller.
Tensor lanes_of(const Tensor& x, Shape shape, int64_t dim) {
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make_view(x, shape, strides, x.storage_offset());
}

/// A 1-D index seen along `dim` of `shape`.
Tensor along(const Tensor& index, const Shape& shape, int64_t dim) {
  Strides strides = Strides::filled(shape.dim(), 0);
  strides[dim] = index.strides()[0];
  return make_view(index, shape, strides, index.storage_offset());
}

/// What f32, f64 and i64 are summed in.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;

template <class F>
void visit_summable(DType dtype, F&& f) {
  if (dtype == DType::i64)
    f(int64_t{});
  else
    visit_compute(dtype, f);
}

/// Positions of an index, grouped by the entry they have: group i is order[begins[i]] ... order[begins[i + 1] - 1],
/// ascending.
struct Groups {
  std::vector<int64_t> order, begins;

  Groups(const int64_t* index, int64_t stride, int64_t count, int64_t places) : order(static_cast<size_t>(count)) {
    if (places <= 8 * count + 4096) {
      std::vector<int64_t> next(static_cast<size_t>(places + 1), 0);
      for (int64_t i = 0; i < count; ++i) ++next[static_cast<size_t>(index[i * stride] + 1)];
      for (size_t p = 1; p < next.size(); ++p) next[p] += next[p - 1];
      for (int64_t i = 0; i < count; ++i)
        order[static_cast<size_t>(next[static_cast<size_t>(index[i * stride])]++)] = i;
    } else {
      for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
      std::stable_sort(order.begin(), order.end(),
                       [=](int64_t a, int64_t b) { return index[a * stride] < index[b * stride]; });
    }
    for (size_t i = 0; i < order.size(); ++i)
      if (i == 0 || index[order[i] * stride] != index[order[i - 1] * stride]) begins.push_back(static_cast<int64_t>(i));
    begins.push_back(count);
  }
  int64_t count() const { return static_cast<int64_t>(begins.size()) - 1; }
};

/// Adds `count` lines of `width` elements, those at from + order[k] * from_step, to the line at `to`: in order, in
/// `sums`, rounded once.
template <class T>
void add_group(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t from_step, const int64_t* order,
               int64_t count, int64_t width, Sum<T>* sums) {
  const bool dense = to_stride == 1 && from_stride == 1;
  if (count == 1) {  // the sum of two has the same bits in T
    const T* line = from + order[0] * from_step;
    if (dense)
      for (int64_t i = 0; i < width; ++i) to[i] += line[i];
    else
      for (int64_t i = 0; i < width; ++i) to[i * to_stride] += line[i * from_stride];
    return;
  }
  for (int64_t i = 0; i < width; ++i) sums[i] = static_cast<Sum<T>>(to[i * to_stride]);
  for (int64_t k = 0; k < count; ++k) {
    const T* line = from + order[k] * from_step;
    if (dense)
      for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<Sum<T>>(line[i]);
    else
      for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<Sum<T>>(line[i * from_stride]);
  }
  for (int64_t i = 0; i < width; ++i) to[i * to_stride] = static_cast<T>(sums[i]);
}

}  // namespace

void index_range(const Tensor& index, int64_t* smallest, int64_t* largest) {
  int64_t low = INT64_MAX, high = INT64_MIN;
  std::mutex mutex;
  iterate<1>({&index}, cheap_grain, [&](const auto& pointers, const auto& strides, int64_t count) {
    const auto* at = element<const int64_t>(pointers[0]);
    const int64_t stride = strides[0];
    int64_t run_low = at[0], run_high = at[0];
    for (int64_t i = 1; i < count; ++i) {
      run_low = std::min(run_low, at[i * stride]);
      run_high = std::max(run_high, at[i * stride]);
    }
    std::lock_guard lock(mutex);
    low = std::min(low, run_low);
    high = std::max(high, run_high);
  });
  *smallest = low;
  *largest = high;
}

void gather(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index) {
  const Tensor base = held_along(a, index.shape(), dim);
  const int64_t step = a.strides()[dim];
  visit_dtype(a.dtype(), [&]<class T>(T) {
    iterate<3>({&y, &index, &base}, cheap_grain, [step](const auto& pointers, const auto& strides, int64_t count) {
      T* to = element<T>(pointers[0]);
      const auto* at = element<const int64_t>(pointers[1]);
      const T* from = element<const T>(pointers[2]);
      for (int64_t i = 0; i < count; ++i) to[i * strides[0]] = from[i * strides[2] + at[i * strides[1]] * step];
    });
  });
}

void scatter_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source) {
  const Shape& shape = index.shape();
  const int64_t count = shape[dim];
  if (shape.numel() == 0) return;
  const Tensor to_lanes = lanes_of(y, shape, dim), at_lanes = lanes_of(index, shape, dim),
               from_lanes = lanes_of(source, shape, dim);
  const Loop<3> lanes({&to_lanes, &at_lanes, &from_lanes});
  const int64_t to_step = y.strides()[dim], at_step = index.strides()[dim], from_step = source.strides()[dim];
  // Each lane is added up along dim in order, one lane after the other where a lane's elements are neighbours, else
  // all lanes of a chunk side by side.
  int64_t inner = 1;
  for (int64_t d = dim + 1; d < shape.dim(); ++d) inner *= shape[d];

  visit_summable(y.dtype(), [&]<class T>(T) {
    auto add = [&](const auto& pointers, const auto& strides, int64_t lane_begin, int64_t lane_end, int64_t begin,
                   int64_t end) {
      T* to = element<T>(pointers[0]);
      const auto* at = element<const int64_t>(pointers[1]);
      const T* from = element<const T>(pointers[2]);
      for (int64_t lane = lane_begin; lane < lane_end; ++lane)
        for (int64_t j = begin; j < end; ++j)
          to[lane * strides[0] + at[lane * strides[1] + j * at_step] * to_step] +=
              from[lane * strides[2] + j * from_step];
    };
    parallel_for_short(lanes.numel(), std::max<int64_t>(1, cheap_grain / count), [&](int64_t begin, int64_t end) {
      if (inner == 1) {
        lanes.range(begin, end, [&](const auto& pointers, const auto& strides, int64_t lane_count) {
          add(pointers, strides, 0, lane_count, 0, count);
        });
      } else {
        for (int64_t j = 0; j < count; ++j)
          lanes.range(begin, end, [&](const auto& pointers, const auto& strides, int64_t lane_count) {
            add(pointers, strides, 0, lane_count, j, j + 1);
          });
      }
    });
  });
}

void index_select(const Tensor& y, const Tensor& a, int64_t dim, const Tensor& index) {
  if (y.numel() == 0) return;
  const Shape& shape = y.shape();
  // Whether what follows dim is one dense run on both sides: then it is copied as a whole.
  int64_t run = 1;
  bool dense = true;
  for (int64_t d = shape.dim() - 1; d > dim; --d) {
    if (shape[d] != 1) dense = dense && y.strides()[d] == run && a.strides()[d] == run;
    run *= shape[d];
  }
  if (!dense || run == 1) {
    gather(y, a, dim, along(index, shape, dim));
    return;
  }
  Shape rows;
  for (int64_t d = 0; d <= dim; ++d) rows.push_back(shape[d]);
  const Tensor to_rows = leading(y, rows), from_rows = held_along(leading(a, rows), rows, dim),
               at_rows = along(index, rows, dim);
  const int64_t bytes = element_size(a.dtype());
  const auto run_bytes = static_cast<size_t>(run * bytes);
  const int64_t to_bytes = bytes, step = a.strides()[dim] * bytes;
  iterate<3>({&to_rows, &at_rows, &from_rows}, std::max<int64_t>(1, cheap_grain / run),
             [&](const auto& pointers, const auto& strides, int64_t count) {
               const auto* at = element<const int64_t>(pointers[1]);
               for (int64_t i = 0; i < count; ++i)
                 std::memcpy(pointers[0] + i * strides[0] * to_bytes,
                             pointers[2] + i * strides[2] * bytes + at[i * strides[1]] * step, run_bytes);
             });
}

void index_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source) {
  if (source.numel() == 0) return;
  const auto* at = element<const int64_t>(first_byte(index));
  const int64_t at_step = index.strides()[0];
  const int64_t count = source.shape()[dim];
  const Groups groups(at, at_step, count, y.shape()[dim]);

  const Tensor to_lanes = lanes_of(y, y.shape(), dim), from_lanes = lanes_of(source, source.shape(), dim);
  const Loop<2> lanes({&to_lanes, &from_lanes});
  const int64_t to_step = y.strides()[dim], from_step = source.strides()[dim];
  // A task is one place along dim and a block of lanes; its sums are kept in f64 (integers: i64) and written once.
  constexpr int64_t block = 256;
  const int64_t blocks = (lanes.numel() + block - 1) / block;
  const int64_t work = std::min(lanes.numel(), block) * std::max<int64_t>(1, count / groups.count());

  visit_summable(y.dtype(), [&]<class T>(T) {
    parallel_for_short(groups.count() * blocks, std::max<int64_t>(1, cheap_grain / work),
                       [&](int64_t begin, int64_t end) {
                         Sum<T> sums[block];
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t first = groups.begins[static_cast<size_t>(task / blocks)];
                           const int64_t last = groups.begins[static_cast<size_t>(task / blocks + 1)];
                           const int64_t place = at[groups.order[static_cast<size_t>(first)] * at_step];
                           const int64_t lane = task % blocks * block;
                           lanes.range(lane, std::min(lane + block, lanes.numel()),
                                       [&](const auto& pointers, const auto& strides, int64_t lane_count) {
                                         add_group(element<T>(pointers[0]) + place * to_step, strides[0],
                                                   element<const T>(pointers[1]), strides[1], from_step,
                                                   groups.order.data() + first, last - first, lane_count, sums);
                                       });
                         }
                       });
  });
}

}  // namespace regard::cpu_backend
