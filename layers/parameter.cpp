#include <regard/layers/parameter.hpp>

#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

Tensor OwnedTensor::own(const char* what, const Tensor& value) {
  check_defined(what, "value", value);
  NoGrad no_grad;
  return value.detach().clone();  // the caller may go on writing to what it gave
}

OwnedTensor::OwnedTensor(const OwnedTensor& other) {
  if (!other.defined()) return;
  NoGrad no_grad;
  tensor_ = other.tensor_.detach().clone();
  if (other.tensor_.requires_grad()) tensor_.set_requires_grad();
  if (other.tensor_.impl()->leaf && other.tensor_.impl()->leaf->listing != LeafState::Listing::plain)
    tensor_.impl()->leaf_state().listing = LeafState::Listing::unlisted_parameter;
}

void OwnedTensor::write(const char* what, const Tensor& value) {
  check_defined(what, "value", value);
  check<ShapeError>(value.shape() == shape(), what, "a value of shape ", value.shape(), " for one of shape ", shape());
  NoGrad no_grad;
  tensor_.copy_(value.to(device()));
}

void OwnedTensor::replace(const Tensor& elements) {
  TensorImpl& impl = *tensor_.impl();
  // A graph that saved the tensor must see that it changed.
  while (elements.version() <= tensor_.version()) elements.impl()->storage->bump_version();
  impl.storage = elements.impl()->storage;
  impl.dtype = elements.dtype();
  impl.strides = elements.strides();
  impl.offset = elements.storage_offset();
  tensor_.zero_grad();
}

void OwnedTensor::cast(DType dtype) {
  if (!defined() || this->dtype() == dtype || !is_floating(this->dtype())) return;
  NoGrad no_grad;
  replace(tensor_.detach().to(dtype).contiguous());
}

void OwnedTensor::move_to(Device device) {
  if (!defined() || this->device() == device) return;
  NoGrad no_grad;
  replace(tensor_.detach().to(device));
}

namespace {

// A parameter is a leaf: the graph behind a value would be cut.
void check_no_graph(const Tensor& value) {
  if (!value.is_leaf())
    fail<GraphError>("Parameter", "the value of shape ", value.shape(), " was computed with gradients, by '",
                     value.node()->name(), "': detach() it, or use it as a tensor of its own");
}

}  // namespace

Parameter::Parameter(const Tensor& value) {
  check_trainable("Parameter", "value", value);
  check_no_graph(value);
  tensor_ = own("Parameter", value);
  tensor_.set_requires_grad();
  tensor_.impl()->leaf_state().listing = LeafState::Listing::unlisted_parameter;
}

Parameter& Parameter::operator=(const Tensor& value) {
  if (value.impl() == tensor_.impl()) return *this;  // itself, or a bias that neither layer has
  check<ValueError>(value.defined(), "Parameter", "an undefined value is assigned",
                    tensor_.defined() ? " to one of shape " + regard::to_string(shape()) +
                                            ": the two layers differ (a bias on one side only?)"
                                      : std::string());
  check_no_graph(value);
  if (!tensor_.defined()) {
    check_trainable("Parameter", "value", value);
    NoGrad no_grad;
    tensor_ = value.detach().clone();
    tensor_.set_requires_grad();
    tensor_.impl()->leaf_state().listing = LeafState::Listing::unlisted_parameter;
  } else {
    write("Parameter", value);
  }
  return *this;
}

Buffer Buffer::computed(const Tensor& values) {
  check<DTypeError>(values.defined() && values.dtype() == DType::f64, "Buffer", "computed values must be f64");
  NoGrad no_grad;
  Buffer buffer(values.to(DType::f32));
  buffer.exact_ = values.detach();
  return buffer;
}

void Buffer::cast(DType dtype) {
  const bool exact = dtype == DType::f64 && this->dtype() == DType::f32 && exact_.defined() &&
                     equal(tensor_.to(cpu()), exact_.to(DType::f32));  // nothing else was loaded
  OwnedTensor::cast(dtype);
  if (exact) write("Buffer", exact_);
}

Buffer& Buffer::operator=(const Tensor& value) {
  if (value.impl() == tensor_.impl()) return *this;
  check_defined("Buffer", "value", value);
  if (!tensor_.defined()) {
    NoGrad no_grad;
    tensor_ = value.detach().clone();
  } else {
    write("Buffer", value.detach());
  }
  return *this;
}

}  // namespace regard
