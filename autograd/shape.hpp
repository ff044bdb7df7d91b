// Shape and Strides: small inline lists of at most eight numbers, and the rules of broadcasting.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace regard {

/// Any integer but bool, for lists in braces: `zeros({rows.size(), 3})`.
struct Size {
  int64_t value;
  template <class Integer>
  requires(std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>) constexpr Size(Integer from)
      : value(static_cast<int64_t>(from)) {}  // NOLINT(google-explicit-constructor)
};

/// The sizes of a tensor's dimensions, outermost first; at most `Shape::max_dims` of them. `Shape{}` is the
/// shape of a single number. Trivially copyable.
class Shape {
 public:
  static constexpr int max_dims = 8;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<Size> sizes) {
    for (Size size : sizes) push_back(size.value);
  }
  explicit constexpr Shape(std::span<const int64_t> sizes) { assign(sizes.data(), static_cast<int64_t>(sizes.size())); }
  explicit Shape(const std::vector<int64_t>& sizes) : Shape(std::span<const int64_t>(sizes)) {}

  /// `dims` entries, each `value`.
  static constexpr Shape filled(int64_t dims, int64_t value) {
    Shape shape;
    if (dims < 0 || dims > max_dims) too_many(dims);
    shape.dims_ = static_cast<int32_t>(dims);
    for (int64_t i = 0; i < dims; ++i) shape.sizes_[i] = value;
    return shape;
  }

  constexpr int64_t dim() const { return dims_; }  ///< how many dimensions
  constexpr int64_t size() const { return dims_; }
  constexpr bool empty() const { return dims_ == 0; }
  constexpr int64_t& operator[](int64_t i) { return sizes_[i]; }
  constexpr int64_t operator[](int64_t i) const { return sizes_[i]; }
  constexpr int64_t back() const { return sizes_[dims_ - 1]; }
  constexpr const int64_t* begin() const { return sizes_.data(); }
  constexpr const int64_t* end() const { return sizes_.data() + dims_; }
  constexpr int64_t* begin() { return sizes_.data(); }
  constexpr int64_t* end() { return sizes_.data() + dims_; }

  constexpr void push_back(int64_t value) { insert(dims_, value); }
  constexpr void insert(int64_t at, int64_t value) {
    if (dims_ == max_dims) too_many(dims_ + 1);
    for (int64_t i = dims_; i > at; --i) sizes_[i] = sizes_[i - 1];
    sizes_[at] = value;
    ++dims_;
  }
  constexpr void erase(int64_t at) {
    for (int64_t i = at; i + 1 < dims_; ++i) sizes_[i] = sizes_[i + 1];
    sizes_[--dims_] = 0;
  }

  /// The number of elements: the product of the sizes, 1 where there are none.
  constexpr int64_t numel() const {
    int64_t product = 1;
    for (int64_t size : *this) product *= size;
    return product;
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    return a.dims_ == b.dims_ && std::equal(a.begin(), a.end(), b.begin());
  }

  std::vector<int64_t> to_vector() const { return {begin(), end()}; }

 private:
  constexpr void assign(const int64_t* sizes, int64_t count) {
    if (count > max_dims) too_many(count);
    dims_ = static_cast<int32_t>(count);
    for (int64_t i = 0; i < count; ++i) sizes_[i] = sizes[i];
  }
  [[noreturn]] static void too_many(int64_t count);  // throws ShapeError

  std::array<int64_t, max_dims> sizes_{};
  int32_t dims_ = 0;
};

/// Elements between neighbours along each dimension.
using Strides = Shape;

/// `[2, 3, 4]`
std::string to_string(const Shape& shape);
std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// The strides of a dense row-major tensor.
constexpr Strides contiguous_strides(const Shape& shape) {
  Strides strides = Shape::filled(shape.dim(), 1);
  int64_t stride = 1;
  for (int64_t i = shape.dim() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

/// Where the `index`-th element of a tensor stands, counted in row-major order.
constexpr Shape position_of(int64_t index, const Shape& shape) {
  Shape position = shape;
  for (int64_t d = shape.dim() - 1; d >= 0; index /= shape[d], --d) position[d] = index % shape[d];
  return position;
}

/// Whether `from` may be expanded to `to`: aligned at the last dimension, each size equal or 1.
constexpr bool broadcastable_to(const Shape& from, const Shape& to) {
  if (from.dim() > to.dim()) return false;
  for (int64_t i = 1; i <= from.dim(); ++i)
    if (from[from.dim() - i] != to[to.dim() - i] && from[from.dim() - i] != 1) return false;
  return true;
}

/// The common shape of an elementwise operation; a ShapeError that names `op` where there is none.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

/// A bool that no number becomes: `sum(x, 0, 1)` does not compile, where `sum(x, {0, 1})` was meant.
class Flag {
 public:
  template <class Bool>
  requires std::is_same_v<Bool, bool>
  constexpr Flag(Bool value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr operator bool() const { return value_; }

 private:
  bool value_;
};

/// Dimensions to reduce over: one (`-1`), several (`{0, -1}`), or all (`{}`).
class Dims {
 public:
  template <class Integer>
  requires(std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>) constexpr Dims(Integer dim)
      : dims_{static_cast<int64_t>(dim)} {}  // NOLINT(google-explicit-constructor)
  constexpr Dims(std::initializer_list<Size> dims) : dims_(dims) {}
  explicit constexpr Dims(const Shape& dims) : dims_(dims) {}
  Dims(bool) = delete;

  constexpr const Shape& list() const { return dims_; }

 private:
  Shape dims_;
};

}  // namespace regard
