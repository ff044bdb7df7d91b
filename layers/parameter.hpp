// Parameter and Buffer: the tensors that a layer owns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <regard/autograd/tensor.hpp>

namespace regard {

/// A tensor that belongs to a layer and has a value of its own. Reads like a Tensor wherever one is wanted; methods
/// that are not listed here are those of `tensor()`. Assignment writes values into the memory it has, so that an
/// optimizer that holds it sees the change; a copy has memory of its own; a move keeps the memory. Parameter is
/// trained, Buffer is not.
class OwnedTensor {
 public:
  operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor)
  const Tensor& tensor() const { return tensor_; }

  bool defined() const { return tensor_.defined(); }
  const Shape& shape() const { return tensor_.shape(); }
  const Strides& strides() const { return tensor_.strides(); }
  int64_t dim() const { return tensor_.dim(); }
  int64_t size(int64_t dim) const { return tensor_.size(dim); }
  int64_t numel() const { return tensor_.numel(); }
  DType dtype() const { return tensor_.dtype(); }
  Device device() const { return tensor_.device(); }
  bool is_contiguous() const { return tensor_.is_contiguous(); }
  bool requires_grad() const { return tensor_.requires_grad(); }
  Tensor grad() const { return tensor_.grad(); }
  void zero_grad() const { tensor_.zero_grad(); }
  Tensor detach() const { return tensor_.detach(); }
  Tensor clone() const { return tensor_.clone(); }
  Tensor t() const { return tensor_.t(); }
  Tensor transpose(int64_t dim0, int64_t dim1) const { return tensor_.transpose(dim0, dim1); }
  Tensor view(const Shape& shape) const { return tensor_.view(shape); }
  Tensor reshape(const Shape& shape) const { return tensor_.reshape(shape); }
  Tensor flatten(int64_t start_dim = 0, int64_t end_dim = -1) const { return tensor_.flatten(start_dim, end_dim); }
  Tensor expand(const Shape& shape) const { return tensor_.expand(shape); }
  Tensor unsqueeze(int64_t dim) const { return tensor_.unsqueeze(dim); }
  Tensor to(DType dtype) const { return tensor_.to(dtype); }
  Tensor to(Device device) const { return tensor_.to(device); }
  Tensor abs() const { return tensor_.abs(); }
  Tensor sum() const { return tensor_.sum(); }
  Tensor sum(Dims dims, Flag keepdim = false) const { return tensor_.sum(dims, keepdim); }
  Tensor mean() const { return tensor_.mean(); }
  Tensor mean(Dims dims, Flag keepdim = false) const { return tensor_.mean(dims, keepdim); }
  Tensor norm() const { return tensor_.norm(); }
  Tensor matmul(const Tensor& other) const { return tensor_.matmul(other); }
  HookHandle register_hook(GradHook hook) const { return tensor_.register_hook(std::move(hook)); }
  Tensor operator[](int64_t index) const { return tensor_[index]; }
  Tensor operator[](Range range) const { return tensor_[range]; }
  template <class T>
  T* data() const {
    return tensor_.data<T>();
  }
  template <class T>
  T item() const {
    return tensor_.item<T>();
  }
  template <class T>
  std::vector<T> to_vector() const {
    return tensor_.to_vector<T>();
  }
  std::string to_string() const { return tensor_.to_string(); }

  /// Casts in place: every handle on the tensor, an optimizer's too, sees the new elements. The gradient is dropped.
  void cast(DType dtype);
  /// Moves in place, likewise.
  void move_to(Device device);
  /// Puts other elements, of its shape, behind every handle. The gradient is dropped.
  void replace(const Tensor& elements);

 protected:
  OwnedTensor() = default;
  OwnedTensor(const OwnedTensor& other);
  OwnedTensor(OwnedTensor&& other) noexcept = default;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  ~OwnedTensor() = default;
  /// A value of its own: a copy of the elements of `value`.
  static Tensor own(const char* what, const Tensor& value);
  void write(const char* what, const Tensor& value);

  Tensor tensor_;
};

/// A trained tensor of a layer: requires a gradient (unless told otherwise), f32 or f64.
class Parameter : public OwnedTensor {
 public:
  Parameter() = default;
  explicit Parameter(const Tensor& value);
  Parameter(const Parameter& other) = default;
  Parameter(Parameter&& other) noexcept = default;
  Parameter& operator=(const Parameter& other) { return *this = other.tensor_; }
  /// Writes values as copying does. One without a value (moved from, or never set) takes the other's memory, so that
  /// swapping layers loses no handle.
  Parameter& operator=(Parameter&& other) {  // NOLINT: may throw
    return tensor_.defined() ? *this = other.tensor_ : take(std::move(other));
  }
  /// Writes values, checked for shape first; a GraphError when `value` is part of a graph: detach() it.
  Parameter& operator=(const Tensor& value);
  /// A parameter that is not trained for now: `layer.weight.set_requires_grad(false)`.
  void set_requires_grad(bool requires_grad) { tensor_.set_requires_grad(requires_grad); }

 private:
  Parameter& take(Parameter&& other) noexcept {
    tensor_ = std::move(other.tensor_);
    return *this;
  }
};

/// A tensor of a layer that is kept and saved but not trained, such as a table of sines. Detaches what it is given.
class Buffer : public OwnedTensor {
 public:
  Buffer() = default;
  explicit Buffer(const Tensor& value) { tensor_ = own("Buffer", value.defined() ? value.detach() : value); }
  /// A buffer whose f64 `values` are computed, and kept in f32. Cast to f64 while it still holds them, it has them
  /// again in full, where another would have their rounding.
  static Buffer computed(const Tensor& values);
  Buffer(const Buffer& other) = default;
  Buffer(Buffer&& other) noexcept = default;
  Buffer& operator=(const Buffer& other) {
    *this = other.tensor_;
    exact_ = other.exact_;
    return *this;
  }
  Buffer& operator=(Buffer&& other) { return *this = other; }  // NOLINT
  Buffer& operator=(const Tensor& value);

  void cast(DType dtype);

 private:
  Tensor exact_;  // f64, and shared by copies: never written to; undefined where the values were not computed
};

namespace layers {
using regard::Buffer;
using regard::Parameter;
}  // namespace layers

}  // namespace regard
