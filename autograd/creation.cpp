// Tensors from nothing: empty, zeros, full, arange, from_vector, from_blob and their like.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard {

namespace {

void check_shape(const char* op, const Shape& shape, DType dtype) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    check<ShapeError>(size >= 0, op, "shape ", shape, " has a negative size");
    check<ShapeError>(!__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) &&
                          elements < std::numeric_limits<int64_t>::max() / 16,
                      op, "shape ", shape, " has too many elements for a ", dtype, " tensor");
  }
}

Tensor allocate(const char* op, const Shape& shape, TensorOptions options) {
  check_shape(op, shape, options.dtype);
  auto* impl = new TensorImpl;
  Tensor tensor{TensorImplPtr(impl)};
  impl->dtype = options.dtype;
  impl->shape = shape;
  impl->strides = contiguous_strides(shape);
  impl->storage = Storage::allocate(shape.numel() * element_size(options.dtype), options.device);
  return tensor;
}

Tensor filled(const char* op, const Shape& shape, Scalar value, TensorOptions options) {
  Tensor tensor = allocate(op, shape, options);
  kernels(tensor).fill(tensor, value);
  return tensor;
}

TensorOptions options_of(const char* op, const Tensor& like) {
  check_defined(op, "like", like);
  return {like.dtype(), like.device()};
}

}  // namespace

Tensor empty(const Shape& shape, TensorOptions options) { return allocate("empty", shape, options); }
Tensor zeros(const Shape& shape, TensorOptions options) { return filled("zeros", shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return filled("ones", shape, 1, options); }
Tensor full(const Shape& shape, Scalar value) { return filled("full", shape, value, value.dtype()); }
Tensor full(const Shape& shape, Scalar value, TensorOptions options) { return filled("full", shape, value, options); }

Tensor empty_like(const Tensor& like) {
  const TensorOptions options = options_of("empty_like", like);  // checked before anything of it is read
  return allocate("empty_like", like.shape(), options);
}
Tensor zeros_like(const Tensor& like) {
  const TensorOptions options = options_of("zeros_like", like);
  return filled("zeros_like", like.shape(), 0, options);
}
Tensor ones_like(const Tensor& like) {
  const TensorOptions options = options_of("ones_like", like);
  return filled("ones_like", like.shape(), 1, options);
}
Tensor full_like(const Tensor& like, Scalar value) {
  const TensorOptions options = options_of("full_like", like);
  return filled("full_like", like.shape(), value, options);
}

Tensor eye(int64_t rows, int64_t columns, TensorOptions options) {
  Tensor tensor = filled("eye", {rows, columns}, 0, options);
  Tensor diagonal = make_view(tensor, {std::min(rows, columns)}, {columns + 1}, 0);
  kernels(tensor).fill(diagonal, 1);
  return tensor;
}
Tensor eye(int64_t rows, TensorOptions options) { return eye(rows, rows, options); }

Tensor linspace(double start, double stop, int64_t steps, TensorOptions options) {
  check<ValueError>(steps >= 0, "linspace", "steps is ", steps, ": it must not be negative");
  check<DTypeError>(options.dtype == DType::f32 || options.dtype == DType::f64, "linspace", "dtype ", options.dtype,
                    ": it must be f32 or f64");
  Tensor host = allocate("linspace", {steps}, options.dtype);
  double step = steps > 1 ? (stop - start) / static_cast<double>(steps - 1) : 0;
  visit_compute(options.dtype, [&]<class T>(T) {
    T* data = host.data<T>();
    for (int64_t i = 0; i < steps; ++i)  // from both ends, so that the last is `stop` itself
      data[i] = static_cast<T>(i < (steps + 1) / 2 ? start + step * static_cast<double>(i)
                                                   : stop - step * static_cast<double>(steps - 1 - i));
  });
  return host.to(options.device);
}

Tensor arange_scalar(Scalar start, Scalar stop, Scalar step, TensorOptions options) {
  check<DTypeError>(options.dtype != DType::boolean, "arange", "dtype bool: numbers are f32, f64, bf16, f16 or i64");
  check<ValueError>(step.to_double() != 0, "arange", "step is 0");
  int64_t count = 0;
  if (!start.is_floating() && !stop.is_floating() && !step.is_floating()) {
    int64_t span = 0, by = step.to_int();
    check<ValueError>(!__builtin_sub_overflow(stop.to_int(), start.to_int(), &span), "arange", "from ", start.to_int(),
                      " to ", stop.to_int(), ": too far apart for an i64 to count");
    if ((span > 0) == (by > 0) && span != 0) count = (span + (by > 0 ? -1 : 1)) / by + 1;
  } else {
    double steps = std::ceil((stop.to_double() - start.to_double()) / step.to_double());
    check<ValueError>(std::isfinite(steps) && steps < 1e15, "arange", "from ", start.to_double(), " to ",
                      stop.to_double(), " by ", step.to_double(), ": not a finite number of elements");
    count = std::max<int64_t>(0, static_cast<int64_t>(steps));
  }
  Tensor tensor = allocate("arange", {count}, options);
  kernels(tensor).arange(tensor, start, step);
  return tensor;
}

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape) {
  check_shape("from_vector", shape, dtype_of<T>());
  check<ShapeError>(shape.numel() == static_cast<int64_t>(values.size()), "from_vector", values.size(),
                    " values do not fill a tensor of shape ", shape, " (", shape.numel(), " elements)");
  Tensor tensor = allocate("from_vector", shape, dtype_of<T>());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}
template Tensor from_vector<float>(const std::vector<float>&, const Shape&);
template Tensor from_vector<double>(const std::vector<double>&, const Shape&);
template Tensor from_vector<int64_t>(const std::vector<int64_t>&, const Shape&);
template Tensor from_vector<bool>(const std::vector<bool>&, const Shape&);
template Tensor from_vector<bfloat16>(const std::vector<bfloat16>&, const Shape&);
template Tensor from_vector<float16>(const std::vector<float16>&, const Shape&);

Tensor scalar_tensor(Scalar value) { return full({}, value); }
Tensor scalar_tensor(Scalar value, TensorOptions options) { return full({}, value, options); }

Tensor from_blob_untyped(void* data, DType dtype, const Shape& shape, const Strides& strides,
                         std::function<void()> release) {
  check_shape("from_blob", shape, dtype);
  check<ShapeError>(strides.dim() == shape.dim(), "from_blob", "shape ", shape, " and strides ", strides,
                    " have different numbers of dimensions");
  check<ValueError>(data != nullptr || shape.numel() == 0, "from_blob", "the memory is null");
  int64_t reach = shape.numel() == 0 ? 0 : 1;
  for (int64_t i = 0; i < shape.dim(); ++i) {
    check<ShapeError>(strides[i] >= 0, "from_blob", "strides ", strides, " have a negative entry");
    if (reach) reach += (shape[i] - 1) * strides[i];
  }
  auto* impl = new TensorImpl;
  Tensor tensor{TensorImplPtr(impl)};
  impl->dtype = dtype;
  impl->shape = shape;
  impl->strides = strides;
  impl->storage = Storage::wrap(data, reach * element_size(dtype), std::move(release));
  return tensor;
}

}  // namespace regard
