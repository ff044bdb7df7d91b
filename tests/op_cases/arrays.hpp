// Naive operations on Arrays, for references: plain loops over f64.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "op_case.hpp"

namespace regard::op_cases {

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Calls f(index) for each element of `shape`, in row-major order.
template <class F>
void each_index(const Shape& shape, const F& f) {
  if (shape.numel() == 0) return;
  Shape index = Shape::filled(shape.dim(), 0);
  while (true) {
    f(index);
    int64_t d = shape.dim() - 1;
    for (; d >= 0; --d) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

/// The element at `index`, aligned at the last dimension; a size of 1 stands for any.
inline double at(const Array& x, const Shape& index) {
  int64_t place = 0;
  const int64_t lead = index.dim() - x.shape.dim();
  for (int64_t d = 0; d < x.shape.dim(); ++d) place = place * x.shape[d] + (x.shape[d] == 1 ? 0 : index[d + lead]);
  return x.values[static_cast<size_t>(place)];
}
inline double& ref(Array& x, const Shape& index) {
  int64_t place = 0;
  for (int64_t d = 0; d < x.shape.dim(); ++d) place = place * x.shape[d] + index[d];
  return x.values[static_cast<size_t>(place)];
}

/// An array whose element at `index` is f(index).
template <class F>
Array make(const Shape& shape, const F& f) {
  Array y{shape, {}};
  each_index(shape, [&](const Shape& index) { y.values.push_back(static_cast<double>(f(index))); });
  return y;
}
inline Array constant(const Shape& shape, double value) {
  return make(shape, [&](const Shape&) { return value; });
}

template <class F>
Array map(const Array& x, const F& f) {
  Array y{x.shape, {}};
  for (double value : x.values) y.values.push_back(static_cast<double>(f(value)));
  return y;
}

inline Shape broadcast(const Shape& a, const Shape& b) {
  Shape shape = Shape::filled(std::max(a.dim(), b.dim()), 1);
  for (int64_t i = 1; i <= shape.dim(); ++i) {
    const int64_t p = i <= a.dim() ? a[a.dim() - i] : 1, q = i <= b.dim() ? b[b.dim() - i] : 1;
    shape[shape.dim() - i] = p == 1 ? q : p;
  }
  return shape;
}

template <class F>
Array zip(const Array& a, const Array& b, const F& f) {
  return make(broadcast(a.shape, b.shape), [&](const Shape& i) { return f(at(a, i), at(b, i)); });
}

inline int64_t wrap(int64_t dim, int64_t dims) { return dim < 0 ? dim + std::max<int64_t>(dims, 1) : dim; }

/// f(numbers along `dims`, in row-major order) for each place of the other dimensions; no dims: all.
template <class F>
Array reduce(const Array& x, const std::vector<int64_t>& dims, bool keepdim, const F& f) {
  const int64_t n = x.shape.dim();
  std::vector<bool> gone(static_cast<size_t>(std::max<int64_t>(n, 1)), dims.empty());
  for (int64_t dim : dims) gone[static_cast<size_t>(wrap(dim, n))] = true;
  Shape kept = x.shape, result;
  for (int64_t d = 0; d < n; ++d) {
    if (gone[static_cast<size_t>(d)]) kept[d] = 1;
    if (!gone[static_cast<size_t>(d)] || keepdim) result.push_back(kept[d]);
  }
  Array y{result, {}};
  each_index(kept, [&](const Shape& place) {
    Shape inner = x.shape;
    for (int64_t d = 0; d < n; ++d)
      if (!gone[static_cast<size_t>(d)]) inner[d] = 1;
    std::vector<double> numbers;
    each_index(inner, [&](const Shape& i) {
      Shape index = place;
      for (int64_t d = 0; d < n; ++d)
        if (gone[static_cast<size_t>(d)]) index[d] = i[d];
      numbers.push_back(at(x, index));
    });
    y.values.push_back(static_cast<double>(f(numbers)));
  });
  return y;
}

inline double total(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum;
}

/// The same numbers seen as another shape.
inline Array seen_as(const Array& x, const Shape& shape) { return {shape, x.values}; }

}  // namespace regard::op_cases
