// Folds a tensor over any of its dimensions, of any strides: what the reductions share.
//
// An operation is a struct passed to kernels by value, with
//   Accumulator                      trivially copyable
//   Accumulator start()              what nothing folds to
//   void add(Accumulator&, x, i)     takes in element i, a number, of those that one output folds
//   operator()(Accumulator, Accumulator)  joins two of them
//   Op at(output)                    the operation for one output, counted as Reduction::kept counts
//   void write(output, offsets, Accumulator)  offsets: in y, in the second output, and the first element in a
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include <regard/autograd/backend/cuda/convert.hpp>
#include <regard/autograd/backend/cuda/layout.hpp>
#include <regard/autograd/backend/cuda/reduction.hpp>
#include <regard/autograd/backend/cuda/runtime.hpp>
#include <regard/autograd/backend/cuda/words.hpp>

namespace regard::cuda_backend {

/// How a reduction walks its tensors. `y` and `second` have a's shape with the reduced dimensions at size 1.
struct Reduction {
  Layout<3> kept;     ///< in y, in second, in a
  Layout<1> reduced;  ///< in a

  /// The distance in `a` between neighbours of each walk; 0 where there are none or where they are one.
  int64_t kept_step() const { return kept.dims > 0 ? kept.strides[0][2] : kept.numel > 1 ? 1 : 0; }
  int64_t reduced_step() const { return reduced.dims > 0 ? reduced.strides[0][0] : reduced.numel > 1 ? 1 : 0; }
};

/// Dimensions are walked in the order of a's strides, so that what is close in memory is close in the walk.
inline Reduction plan_reduction(const Tensor& y, const Tensor& second, const Tensor& a) {
  std::array<int64_t, Shape::max_dims> order{};
  const auto dims = static_cast<size_t>(a.dim());
  for (size_t d = 0; d < dims; ++d) order[d] = static_cast<int64_t>(d);
  std::stable_sort(order.begin(), order.begin() + a.dim(), [&](int64_t one, int64_t other) {
    const int64_t s = a.strides()[one], t = a.strides()[other];  // repeated elements outermost
    return s != t && t != 0 && (s == 0 || s > t);
  });
  const auto ordered = [&](const Tensor& x, auto size) {
    Shape shape = a.shape();
    Strides strides = a.strides();
    for (size_t d = 0; d < dims; ++d) {
      const int64_t from = order[d], to = static_cast<int64_t>(d);
      shape[to] = size(from);
      strides[to] = x.strides()[from];
    }
    return make_view(x, shape, strides, x.storage_offset());
  };
  const auto kept_size = [&](int64_t d) { return y.shape()[d]; };
  const auto reduced_size = [&](int64_t d) { return y.shape()[d] == 1 ? a.shape()[d] : 1; };
  const Tensor kept_y = ordered(y, kept_size), kept_second = ordered(second, kept_size);
  const Tensor kept_a = ordered(a, kept_size), reduced_a = ordered(a, reduced_size);
  return {Layout<3>({&kept_y, &kept_second, &kept_a}), Layout<1>({&reduced_a})};
}

/// How the elements of one output are cut into pieces, where outputs are few: their results are joined afterwards.
template <class Accumulator>
struct Pieces {
  int64_t count, length;
  Accumulator* results;  ///< [outputs, count]; null where count is 1
};

/// `LanesOf`: Lanes or ColumnLanes, made from `setting`. `packed`: what one output folds is dense and aligned.
template <class LanesOf, class Op, class T>
__global__ void reduce_kernel(Op op, Layout<3> kept, Layout<1> reduced, int setting, bool packed,
                              Pieces<typename Op::Accumulator> pieces, const T* a) {
  constexpr int width = line_width<T>;
  const LanesOf lanes(setting);
  const int64_t begin = int64_t{blockIdx.y} * pieces.length;
  const int64_t end = min(begin + pieces.length, reduced.numel);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < kept.numel; first += step) {
    const int64_t output = first + lanes.group();
    const bool inside = output < kept.numel;
    const Offsets<3> offsets = kept.offsets(inside ? output : 0);
    const Op own = op.at(inside ? output : 0);
    auto total = own.start();
    if (inside) {
      const T* from = a + offsets.at[2];
      int64_t rest = begin;
      if (packed) {
#pragma unroll 4
        for (int64_t i = begin + lanes.lane * width; i + width <= end; i += int64_t{lanes.count} * width) {
          const auto line = load_line<width>(from + i);
#pragma unroll
          for (int j = 0; j < width; ++j) own.add(total, number(line.at[j]), i + j);
        }
        rest = begin + (end - begin) / width * width;
      }
      if (reduced.dims <= 1) {
        const int64_t stride = reduced.dims == 1 ? reduced.strides[0][0] : 1;
#pragma unroll 8  // columns: numbers come one by one
        for (int64_t i = rest + lanes.lane; i < end; i += lanes.count) own.add(total, number(from[i * stride]), i);
      } else {
#pragma unroll 4
        for (int64_t i = rest + lanes.lane; i < end; i += lanes.count)
          own.add(total, number(from[reduced.offsets(i).at[0]]), i);
      }
    }
    total = lanes.reduce(total, own);
    if (!inside || lanes.lane != 0) continue;
    if (pieces.results)
      pieces.results[output * pieces.count + blockIdx.y] = total;
    else
      own.write(output, offsets, total);
  }
}

template <class Op>
__global__ void join_pieces_kernel(Op op, Layout<3> kept, int setting, Pieces<typename Op::Accumulator> pieces) {
  const Lanes lanes(setting);
  const int64_t step = int64_t{gridDim.x} * lanes.groups();
  for (int64_t first = int64_t{blockIdx.x} * lanes.groups(); first < kept.numel; first += step) {
    const int64_t output = first + lanes.group();
    const bool inside = output < kept.numel;
    auto total = op.start();
    for (int64_t i = lanes.lane; inside && i < pieces.count; i += lanes.count)
      total = op(total, pieces.results[output * pieces.count + i]);
    total = lanes.reduce(total, op);
    if (inside && lanes.lane == 0) op.at(output).write(output, kept.offsets(output), total);
  }
}

/// Folds each output's elements of `a`, of type T, and writes it; see the top of this file.
template <class T, class Op>
void reduce_tensor(const char* name, const Op& op, const Tensor& y, const Tensor& second, const Tensor& a) {
  using Accumulator = typename Op::Accumulator;
  constexpr int width = line_width<T>;
  const Reduction plan = plan_reduction(y, second.defined() ? second : y, a);
  const int64_t outputs = plan.kept.numel, length = plan.reduced.numel;
  if (outputs == 0) return;
  cudaStream_t stream = stream_of(y);
  const int64_t kept_step = plan.kept_step(), reduced_step = plan.reduced_step();
  const bool by_columns = kept_step != 0 && (reduced_step == 0 || kept_step < reduced_step);

  Grid grid;
  int64_t lanes = 1, columns = 1;  // of one output; outputs of a block
  if (by_columns) {
    columns = std::min(power_of_two_from(plan.kept.dims > 0 ? plan.kept.sizes[0] : outputs), int64_t{warp_threads});
    lanes = std::min(ColumnLanes::most_threads / columns, power_of_two_from((length + 3) / 4));
    lanes = std::max(lanes, warp_threads / columns);
    const int64_t blocks = std::min((outputs + columns - 1) / columns, int64_t{device_limits().multiprocessors} * 32);
    grid = {dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(columns * lanes))};
  } else {
    const bool many = outputs >= int64_t{device_limits().multiprocessors} * 32;  // a warp each will do
    lanes = power_of_two_from((length + width - 1) / width);
    if (lanes > warp_threads)
      lanes = many && length <= 4096 ? warp_threads
                                     : std::clamp<int64_t>(power_of_two_from(length / 16), warp_threads, 256);
    grid = grid_for_lanes(outputs, lanes);
  }

  // Where blocks are few, several share an output; each has work for all its threads.
  const int64_t wanted = int64_t{device_limits().multiprocessors} * 8 / grid.blocks.x;
  const int64_t worth = length / (lanes * 16);
  int64_t count = lanes >= 8 ? std::clamp<int64_t>(std::min(wanted, worth), 1, 1024) : 1;
  const int64_t each = ((length + count - 1) / count + width - 1) / width * width;
  count = each == 0 ? 1 : std::max<int64_t>(1, (length + each - 1) / each);
  grid.blocks.y = static_cast<unsigned>(count);

  bool packed = !by_columns && plan.reduced.dense() && length >= width &&
                reinterpret_cast<uintptr_t>(a.raw_data()) % alignof(Line<T, width>) == 0 &&
                (outputs == 1 || plan.kept.dims > 0);
  for (int d = 0; packed && d < plan.kept.dims; ++d) packed = plan.kept.strides[d][2] % width == 0;

  std::optional<Scratch> scratch;
  if (count > 1) scratch.emplace(outputs * count * static_cast<int64_t>(sizeof(Accumulator)), y.device());
  const Pieces<Accumulator> pieces{count, each, scratch ? scratch->as<Accumulator>() : nullptr};
  const auto run = [&](auto kernel, int64_t setting) {
    launch(name, stream, grid, kernel, op, plan.kept, plan.reduced, static_cast<int>(setting), packed, pieces,
           device_pointer<const T>(a));
  };
  if (by_columns)
    run(reduce_kernel<ColumnLanes, Op, T>, columns);
  else
    run(reduce_kernel<Lanes, Op, T>, lanes);
  if (count == 1) return;
  const int64_t joining = std::min<int64_t>(warp_threads, power_of_two_from(count));
  launch(name, stream, grid_for_lanes(outputs, joining), join_pieces_kernel<Op>, op, plan.kept,
         static_cast<int>(joining), pieces);
}

}  // namespace regard::cuda_backend
