// Adding at indices: y += source, in the order of the source, the same bits every time. Few indices: whoever has the
// first of its kind adds up all of them. Many: they are sorted, and neighbours that are equal form a segment, which is
// added up in order, cut into parts where it is long. Sums are kept in f64 (integers: i64) and rounded once. An index
// outside, of which the op learns later, adds at 0.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/functions.hpp>
#include <regard/autograd/backend/cuda/index_views.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/radix_sort.hpp>
#include <regard/autograd/backend/cuda/row_grid.hpp>
#include <regard/autograd/backend/cuda/words.hpp>
#include <regard/autograd/error.hpp>

namespace regard::cuda_backend {
namespace {

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;

template <class F>
void visit_summable(DType dtype, F&& f) {
  if (dtype == DType::i64)
    f(int64_t{});
  else
    visit_floating(dtype, f);
}

template <class T, int width>
struct Sums {
  Sum<T> at[width] = {};

  template <class U>
  __device__ void add(const Line<U, width>& line) {
    for (int j = 0; j < width; ++j) {
      if constexpr (std::is_same_v<Sum<T>, int64_t>)  // wraps around
        at[j] = static_cast<int64_t>(static_cast<uint64_t>(at[j]) + static_cast<uint64_t>(line.at[j]));
      else
        at[j] += static_cast<Sum<T>>(number(line.at[j]));
    }
  }
  __device__ void start(const T* from) {
    const auto line = load_line<width>(from);
    for (int j = 0; j < width; ++j) at[j] = static_cast<Sum<T>>(number(line.at[j]));
  }
  __device__ void finish(T* to) const {
    Line<T, width> line;
    for (int j = 0; j < width; ++j) line.at[j] = convert<T>(at[j]);
    store_line(to, line);
  }
  /// Adds the lines at next(k), next(k + 1) ... up to `end` or to a null, several loads on their way at a time.
  template <class Next>
  __device__ void add_all(int64_t k, int64_t end, const Next& next) {
    constexpr int batch = 4;
    using U = std::remove_cv_t<std::remove_pointer_t<decltype(next(k))>>;
    for (bool open = true; open && k < end; k += batch) {
      const U* from[batch];
      Line<U, width> lines[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) from[b] = k + b < end ? next(k + b) : nullptr;
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (from[b]) lines[b] = load_line<width>(from[b]);
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (from[b]) add(lines[b]);
      open = from[batch - 1] != nullptr;
    }
  }
};

// ---- What is added where. A `lane` is one of the sums at an index: rows of an embedding have one for each element.

// index_add: a whole slice of y for an index.
struct Slices {
  Layout<2> layout;                  // of lanes in y and source
  int64_t size, to_step, from_step;  // along dim
  int64_t lanes = layout.numel;

  __device__ Offsets<2> lane(int64_t i) const { return layout.offsets(i); }
  __device__ int64_t to(const Offsets<2>& lane, uint64_t key) const {
    return lane.at[0] + static_cast<int64_t>(key) * to_step;
  }
  __device__ int64_t from(const Offsets<2>& lane, uint32_t position) const { return lane.at[1] + position * from_step; }
};

// scatter_add: an element for an index; the keys are offsets in y.
struct Elements {
  Layout<3> layout;  // of y, which is held along dim, index and source
  int64_t size, to_step;
  int64_t lanes = 1;

  __device__ int lane(int64_t) const { return 0; }
  __device__ int64_t to(int, uint64_t key) const { return static_cast<int64_t>(key); }
  __device__ int64_t from(int, uint32_t position) const { return layout.offsets(position).at[2]; }
};

// ---- Many: sorted

template <class Key>
__global__ void slice_keys_kernel(int64_t count, int64_t size, const int64_t* index, int64_t step, Key* keys,
                                  uint32_t* positions) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    keys[i] = static_cast<Key>(inside(index[i * step], size));
    positions[i] = static_cast<uint32_t>(i);
  }
}
template <class Key>
__global__ void element_keys_kernel(Elements where, const int64_t* index, Key* keys, uint32_t* positions) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < where.layout.numel; i += threads) {
    const Offsets<3> offsets = where.layout.offsets(i);
    keys[i] = static_cast<Key>(offsets.at[0] + inside(index[offsets.at[1]], where.size) * where.to_step);
    positions[i] = static_cast<uint32_t>(i);
  }
}

// Segments are cut at multiples of `part` of the sorted order, whose sums are then added up.
constexpr int64_t part = 128;

/// Where parts of segments that are cut leave their sums, [parts, lanes] each: those with which a segment begins, and
/// those that begin at a cut.
template <class T>
struct Parts {
  Sum<T>*first, *later;
};

template <class T, int width, class Key, class Where>
__global__ void add_segments_kernel(Where where, const Key* keys, const uint32_t* positions, int64_t count, T* y,
                                    const T* source, Parts<T> parts) {
  for (int64_t slot = first_row(); slot < count; slot += row_step()) {
    const Key key = keys[slot];
    const bool begins = slot == 0 || keys[slot - 1] != key;
    if (!begins && slot % part != 0) continue;
    const int64_t cut = (slot / part + 1) * part, end = cut < count ? cut : count;
    const bool goes_on = end < count && keys[end] == key;
    for (int64_t lane = first_column() * width; lane < where.lanes; lane += column_step() * width) {
      const auto at = where.lane(lane);
      Sums<T, width> sums;
      T* to = y + where.to(at, key);
      if (begins) sums.start(to);
      sums.add_all(slot, end,
                   [&](int64_t k) { return keys[k] == key ? source + where.from(at, positions[k]) : nullptr; });
      if (begins && !goes_on) {
        sums.finish(to);
      } else {
        Sum<T>* left = (begins ? parts.first : parts.later) + slot / part * where.lanes + lane;
        for (int j = 0; j < width; ++j) left[j] = sums.at[j];
      }
    }
  }
}

// A row a cut: the segment that goes on there, if it begins in the part before.
template <class T, int width, class Key, class Where>
__global__ void join_parts_kernel(Where where, const Key* keys, int64_t count, T* y, Parts<T> parts) {
  const int64_t cuts = (count - 1) / part;
  for (int64_t cut = first_row(); cut < cuts; cut += row_step()) {
    const int64_t begin = cut * part, next = begin + part;
    const Key key = keys[next];
    if (keys[next - 1] != key || (begin > 0 && keys[begin - 1] == key)) continue;
    for (int64_t lane = first_column() * width; lane < where.lanes; lane += column_step() * width) {
      Sums<T, width> sums;
      sums.add(load_line<width>(parts.first + cut * where.lanes + lane));
      sums.add_all(cut + 1, cuts + 1, [&](int64_t k) -> const Sum<T>* {
        return keys[k * part] == key ? parts.later + k * where.lanes + lane : nullptr;
      });
      sums.finish(y + where.to(where.lane(lane), key));
    }
  }
}

template <class T, int width, class Key, class Where>
void add_segments(const char* op, const Where& where, const RadixSort<Key>& sorted, int64_t count, const Tensor& y,
                  const Tensor& source) {
  const int64_t cuts = (count - 1) / part, sums = (cuts + 1) * where.lanes;
  const Scratch scratch(2 * sums * static_cast<int64_t>(sizeof(Sum<T>)), y.device());
  const Parts<T> parts{scratch.as<Sum<T>>(), scratch.as<Sum<T>>() + sums};
  cudaStream_t stream = stream_of(y);
  launch(op, stream, row_grid(count, where.lanes / width, 128), add_segments_kernel<T, width, Key, Where>, where,
         sorted.keys(), sorted.positions(), count, device_pointer<T>(y), device_pointer<const T>(source), parts);
  launch(op, stream, row_grid(cuts, where.lanes / width, 128), join_parts_kernel<T, width, Key, Where>, where,
         sorted.keys(), count, device_pointer<T>(y), parts);
}

// Calls f with a value of a type that holds keys below `keys`, and with their bits.
template <class F>
void visit_keys(int64_t keys, F&& f) {
  const int bits = std::bit_width(static_cast<uint64_t>(keys - 1));
  if (bits <= 32)
    f(uint32_t{}, bits);
  else
    f(uint64_t{}, bits);
}

void check_count(const char* op, int64_t count) {
  check<ValueError>(count < (int64_t{1} << 31), op, count,
                    " indices are more than a GPU sorts at a time (2^31 - 1): ", "give them in several calls");
}

// ---- Few

// A warp an index, which goes on where it is the first of its kind: 32 indices are compared at a time.
template <class T, int width>
__global__ void add_few_slices_kernel(Slices where, int count, const int64_t* index, int64_t step, T* y,
                                      const T* source) {
  constexpr unsigned all = 0xffffffffU;
  const auto lane = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (own >= count) return;
  const int64_t place = inside(index[own * step], where.size);
  const auto is_here = [&](int i) { return inside(index[i * step], where.size) == place; };
  for (int i = 0; i < own; i += 32)
    if (__any_sync(all, i + lane < own && is_here(i + lane))) return;
  for (int64_t first = blockIdx.y * 32 * width; first < where.lanes; first += gridDim.y * 32 * width) {
    const int64_t sum = first + lane * width;
    const bool exists = sum < where.lanes;
    const Offsets<2> at = where.lane(exists ? sum : 0);
    Sums<T, width> sums;
    T* to = y + where.to(at, static_cast<uint64_t>(place));
    if (exists) sums.start(to);
    for (int i = own / 32 * 32; i < count; i += 32) {
      unsigned equal = __ballot_sync(all, i + lane < count && is_here(i + lane));
      for (; equal != 0; equal &= equal - 1) {
        const auto position = static_cast<uint32_t>(i + __ffs(static_cast<int>(equal)) - 1);
        if (exists) sums.add(load_line<width>(source + where.from(at, position)));
      }
    }
    if (exists) sums.finish(to);
  }
}

// A thread an element, which goes on where it is the first with its index among the `count` along dim; `inner` elements
// make up what follows dim.
template <class T>
__global__ void add_few_elements_kernel(Elements where, int64_t count, int64_t inner, int64_t index_step,
                                        int64_t from_step, T* y, const int64_t* index, const T* source) {
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < where.layout.numel; i += threads) {
    const int64_t own = where.layout.narrow
                            ? static_cast<uint32_t>(i) / static_cast<uint32_t>(inner) % static_cast<uint32_t>(count)
                            : i / inner % count;
    const Offsets<3> offsets = where.layout.offsets(i);
    const int64_t* along = index + offsets.at[1] - own * index_step;
    const auto place_of = [&](int64_t k) { return inside(along[k * index_step], where.size); };
    const int64_t place = place_of(own);
    bool first = true;
    for (int64_t k = 0; first && k < own; ++k) first = place_of(k) != place;
    if (!first) continue;
    Sums<T, 1> sums;
    T* to = y + offsets.at[0] + place * where.to_step;
    sums.start(to);
    for (int64_t k = own; k < count; ++k)
      if (place_of(k) == place) sums.add(load_line<1>(source + offsets.at[2] + (k - own) * from_step));
    sums.finish(to);
  }
}

}  // namespace

void scatter_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source) {
  constexpr const char* op = "scatter_add";
  const Shape& shape = index.shape();
  if (shape.numel() == 0) return;
  const Tensor held = held_along(y, shape, dim);
  const Elements where{Layout<3>({&held, &index, &source}), y.shape()[dim], y.strides()[dim]};
  const int64_t count = shape[dim], total = shape.numel();
  cudaStream_t stream = stream_of(y);

  visit_summable(y.dtype(), [&]<class T>(T) {
    if (count <= 32 || count * total <= (1 << 20)) {
      int64_t inner = 1;
      for (int64_t d = dim + 1; d < shape.dim(); ++d) inner *= shape[d];
      launch(op, stream, grid_for(total), add_few_elements_kernel<T>, where, count, inner, index.strides()[dim],
             source.strides()[dim], device_pointer<T>(y), device_pointer<const int64_t>(index),
             device_pointer<const T>(source));
      return;
    }
    check_count(op, total);
    int64_t keys = 1;  // the offsets of y end there
    for (int64_t d = 0; d < y.dim(); ++d) keys += (y.shape()[d] - 1) * y.strides()[d];
    visit_keys(keys, [&]<class Key>(Key, int bits) {
      RadixSort<Key> sorting(total, y.device());
      launch(op, stream, grid_for(total), element_keys_kernel<Key>, where, device_pointer<const int64_t>(index),
             sorting.keys(), sorting.positions());
      sorting.sort(op, stream, bits);
      add_segments<T, 1>(op, where, sorting, total, y, source);
    });
  });
}

void index_add(const Tensor& y, int64_t dim, const Tensor& index, const Tensor& source) {
  constexpr const char* op = "index_add";
  if (source.numel() == 0) return;
  const Tensor to_lanes = lanes_of(y, dim), from_lanes = lanes_of(source, dim);
  const Slices where{Layout<2>({&to_lanes, &from_lanes}), y.shape()[dim], y.strides()[dim], source.strides()[dim]};
  const int64_t count = source.shape()[dim], step = index.strides()[0];
  cudaStream_t stream = stream_of(y);

  visit_summable(y.dtype(), [&]<class T>(T) {
    const auto add = [&]<int width>(std::integral_constant<int, width>) {
      if (count <= 1024) {
        const auto warps = static_cast<unsigned>(std::min<int64_t>(count, 4));
        const auto x = static_cast<unsigned>((count + warps - 1) / warps);
        const auto y_blocks =
            static_cast<unsigned>(std::min<int64_t>((where.lanes + 32 * width - 1) / (32 * width), 65535));
        launch(op, stream, {dim3(x, y_blocks), dim3(32, warps)}, add_few_slices_kernel<T, width>, where,
               static_cast<int>(count), device_pointer<const int64_t>(index), step, device_pointer<T>(y),
               device_pointer<const T>(source));
        return;
      }
      check_count(op, count);
      visit_keys(y.shape()[dim], [&]<class Key>(Key, int bits) {
        RadixSort<Key> sorting(count, y.device());
        launch(op, stream, grid_for(count), slice_keys_kernel<Key>, count, where.size,
               device_pointer<const int64_t>(index), step, sorting.keys(), sorting.positions());
        sorting.sort(op, stream, bits);
        add_segments<T, width>(op, where, sorting, count, y, source);
      });
    };
    constexpr int line = line_width<T>;
    const auto divides = [](int64_t value) { return value % line == 0; };
    if (where.layout.dense() && divides(where.lanes) && divides(where.to_step) && divides(where.from_step) &&
        Alignment().meet(y.raw_data()).meet(source.raw_data()).bytes() == 16)
      add(std::integral_constant<int, line>());
    else
      add(std::integral_constant<int, 1>());
  });
}

}  // namespace regard::cuda_backend
