// Rotary positions. Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.
//
// The gradient of a rotation is the rotation back, so that every derivative is this one op.
#include <regard/autograd/ops/rotary.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>

namespace regard {

namespace {

constexpr const char* name = "rotary_positions";

/// Cosines, then sines, each [positions, pairs], of an f32 or f64: in memory, or in a tensor on a GPU.
struct Table {
  int64_t positions = 0;
  std::shared_ptr<void> memory;
  Tensor there;  // [2, positions, pairs]
};

Table make_table(double base, int64_t pairs, int64_t positions, DType dtype) {
  return visit_compute(dtype, [&]<class T>(T) {
    auto numbers = std::make_shared<std::vector<T>>(static_cast<size_t>(2 * positions * pairs));
    T *cosine = numbers->data(), *sine = cosine + positions * pairs;
    for (int64_t j = 0; j < pairs; ++j) {
      const double frequency = std::pow(base, -static_cast<double>(j) / static_cast<double>(pairs));
      for (int64_t t = 0; t < positions; ++t) {
        const double angle = static_cast<double>(t) * frequency;
        cosine[t * pairs + j] = static_cast<T>(std::cos(angle));
        sine[t * pairs + j] = static_cast<T>(std::sin(angle));
      }
    }
    return Table{positions, std::shared_ptr<void>(numbers, numbers->data()), {}};
  });
}

/// The cosines and sines of positions [offset, offset + count), each [count, pairs]. The table is kept for the next
/// call, on each device that calls, and grows by doubling.
std::pair<Tensor, Tensor> table_rows(double base, int64_t pairs, TensorOptions kind, int64_t offset, int64_t count) {
  using Key = std::tuple<double, int64_t, DType, Device::Kind, int>;
  const DType dtype = kind.dtype;
  const Device device = kind.device;
  static std::mutex mutex;
  static auto& tables = *new std::map<Key, Table>;  // kept to the end: other threads may still compute then
  Table found;
  {
    const std::lock_guard lock(mutex);
    Table& table = tables[Key(base, pairs, dtype, device.kind, device.index)];
    if (offset + count > table.positions) {
      Table larger = make_table(base, pairs, std::max({offset + count, 2 * table.positions, int64_t{64}}), dtype);
      if (device != cpu()) {
        const Shape shape{2, larger.positions, pairs};
        larger.there = from_blob_untyped(larger.memory.get(), dtype, shape, contiguous_strides(shape), {}).to(device);
        larger.memory.reset();
      }
      table = std::move(larger);
    }
    found = table;
  }
  const auto rows = [&](int64_t first) {
    const Shape shape{count, pairs};
    if (found.there.defined()) return make_view(found.there, shape, contiguous_strides(shape), first * pairs);
    auto* data = static_cast<char*>(found.memory.get()) + first * pairs * element_size(dtype);
    return from_blob_untyped(data, dtype, shape, contiguous_strides(shape), [kept = found.memory] {});
  };
  return {rows(offset), rows(found.positions + offset)};
}

/// An uninitialised tensor of x's shape whose dimensions lie in memory in x's order, the last one innermost: heads stay
/// split as they are.
Tensor empty_laid_as(const Tensor& x) {
  const int64_t dims = x.dim();
  Shape order = Shape::filled(dims, 0);
  for (int64_t d = 0; d < dims; ++d) order[d] = d;
  std::stable_sort(order.begin(), order.end() - 1,
                   [&](int64_t a, int64_t b) { return x.strides()[a] > x.strides()[b]; });
  Strides strides = Shape::filled(dims, 1);
  int64_t stride = 1;
  for (int64_t i = dims - 1; i >= 0; --i) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(x.shape()[order[i]], 1);
  }
  return make_view(empty(x.shape(), {x.dtype(), x.device()}), x.shape(), strides, 0);
}

Tensor rotated(const Tensor& x, int64_t offset, const RotaryOptions& options, bool back) {
  const int64_t width = options.width > 0 ? options.width : x.size(-1);
  Tensor y = empty_laid_as(x);
  const DType tables = element_size(x.dtype()) == 2 ? DType::f32 : x.dtype();  // 16 bits would turn by other angles
  const auto [cosines, sines] = table_rows(options.base, width / 2, {tables, x.device()}, offset, x.size(-2));
  kernels(x).rotate(y, x, cosines, sines, options.interleaved, back);
  return record(name, y, inputs(x), saved(), [offset, options, back](const Saved&, const Tensor& g) {
    return Grads{rotated(g, offset, options, !back)};
  });
}

}  // namespace

int64_t detail::check_rotary(const char* op, int64_t width, const RotaryOptions& options) {
  check<ValueError>(options.base > 0 && std::isfinite(options.base), op, "the base of rotary positions is ",
                    options.base, ", should be positive and finite");
  const int64_t turned = options.width != 0 ? options.width : width;
  check<ValueError>(turned > 0 && turned <= width && turned % 2 == 0, op, "rotary positions turn ", turned,
                    " of a row's ", width, " elements: expected an even number of them");
  return turned;
}

Tensor rotary_positions(const Tensor& x, int64_t offset, const RotaryOptions& options) {
  check_defined(name, "x", x);
  check_floating(name, "x", x);
  check<ShapeError>(x.dim() >= 2, name, "x ", x.shape(), ": expected [..., T, D]");
  check<ValueError>(offset >= 0, name, "offset is ", offset, ", should not be negative");
  detail::check_rotary(name, x.size(-1), options);
  return rotated(x, offset, options, false);
}

}  // namespace regard
