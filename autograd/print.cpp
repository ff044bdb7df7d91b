// Tensors as a person reads them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

namespace {

constexpr int64_t kElideAbove = 1000;  // elements; larger tensors show the edges of each dimension
constexpr int64_t kEdge = 3;

// Which positions of a dimension are shown; -1 stands for the dots.
std::vector<int64_t> shown(int64_t size, bool elide) {
  std::vector<int64_t> list;
  if (!elide || size <= 2 * kEdge + 1) {
    for (int64_t i = 0; i < size; ++i) list.push_back(i);
    return list;
  }
  for (int64_t i = 0; i < kEdge; ++i) list.push_back(i);
  list.push_back(-1);
  for (int64_t i = size - kEdge; i < size; ++i) list.push_back(i);
  return list;
}

struct Format {
  bool integers = true;     // every finite value is a whole number
  bool scientific = false;  // values too far apart for fixed digits
};

std::string text_of(double value, DType dtype, const Format& format) {
  if (dtype == DType::boolean) return value != 0 ? "true" : "false";
  char buffer[40];
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const char* pattern = format.scientific ? "%.4e" : format.integers ? "%.0f." : "%.4f";
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

class Printer {
 public:
  explicit Printer(const Tensor& x) : x_(x), elide_(x.numel() > kElideAbove) {
    double largest = 0, smallest = INFINITY;
    each(0, x_.storage_offset(), [&](int64_t at) {
      double value = read(at);
      if (!std::isfinite(value)) return;
      if (value != std::floor(value)) format_.integers = false;
      if (value != 0) smallest = std::min(smallest, std::abs(value));
      largest = std::max(largest, std::abs(value));
    });
    format_.scientific = is_floating(x_.dtype()) && largest > 0 &&
                         (largest >= 1e6 || (!format_.integers && (smallest < 1e-4 || largest / smallest > 1e6)));
    each(0, x_.storage_offset(), [&](int64_t at) { width_ = std::max(width_, element(at).size()); });
  }

  std::string body() const { return part(0, x_.storage_offset()); }

 private:
  double read(int64_t at) const {
    const char* base = static_cast<const char*>(x_.raw_data()) - x_.storage_offset() * element_size(x_.dtype());
    return visit_dtype(x_.dtype(), [&]<class T>(T) -> double {
      T value = reinterpret_cast<const T*>(base)[at];
      if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
        return static_cast<float>(value);
      else
        return static_cast<double>(value);
    });
  }
  std::string element(int64_t at) const {
    if (x_.dtype() == DType::i64) {  // a double would round large ones
      const char* base = static_cast<const char*>(x_.raw_data()) - x_.storage_offset() * 8;
      return std::to_string(reinterpret_cast<const int64_t*>(base)[at]);
    }
    return text_of(read(at), x_.dtype(), format_);
  }
  template <class F>
  void each(int64_t dim, int64_t offset, const F& f) const {
    if (dim == x_.dim()) return f(offset);
    for (int64_t i : shown(x_.shape()[dim], elide_))
      if (i >= 0) each(dim + 1, offset + i * x_.strides()[dim], f);
  }
  std::string part(int64_t dim, int64_t offset) const {
    if (dim == x_.dim()) {
      std::string text = element(offset);
      return std::string(width_ - text.size(), ' ') + text;
    }
    bool last = dim + 1 == x_.dim();
    std::string separator = last ? ", "
                                 : ",\n" + std::string(static_cast<size_t>(x_.dim() - dim - 2), '\n') +
                                       std::string(static_cast<size_t>(dim + 1), ' ');
    std::string text = "[";
    bool first = true;
    for (int64_t i : shown(x_.shape()[dim], elide_)) {
      if (!first) text += separator;
      first = false;
      text += i < 0 ? "..." : part(dim + 1, offset + i * x_.strides()[dim]);
    }
    return text + "]";
  }

  const Tensor& x_;
  bool elide_;
  Format format_;
  size_t width_ = 0;
};

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "Tensor(undefined)";
  NoGrad no_grad;
  const Tensor readable = device() == cpu() ? *this : detach().to(cpu());
  std::string text = numel() == 0 ? "[]" : Printer(readable).body();
  text += text.find('\n') == std::string::npos ? "  " : "\n";
  text += "Tensor(" + regard::to_string(shape()) + ", " + regard::to_string(dtype());
  if (device() != Device{}) text += ", " + regard::to_string(device());
  if (requires_grad()) text += node() ? std::string(", from ") + node()->name() : ", requires_grad";
  return text + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << tensor.to_string(); }

}  // namespace regard
