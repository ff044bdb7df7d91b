#include <regard/autograd/shape.hpp>

#include <ostream>

#include <regard/autograd/error.hpp>

namespace regard {

void Shape::too_many(int64_t count) { fail<ShapeError>("Shape", count, " dimensions: a tensor has 0 to ", max_dims); }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int64_t i = 0; i < shape.dim(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const Shape& longer = a.dim() >= b.dim() ? a : b;
  const Shape& shorter = a.dim() >= b.dim() ? b : a;
  Shape result = longer;
  for (int64_t i = 1; i <= shorter.dim(); ++i) {
    int64_t& size = result[result.dim() - i];
    int64_t other = shorter[shorter.dim() - i];
    if (size == 1)
      size = other;
    else if (other != 1 && other != size)
      fail<ShapeError>(op, a, " and ", b, " do not broadcast: sizes ", size, " and ", other, " of dimension -", i,
                       " differ and neither is 1");
  }
  return result;
}

}  // namespace regard
