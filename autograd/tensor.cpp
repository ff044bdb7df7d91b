#include <regard/autograd/tensor.hpp>

#include <algorithm>

#include <regard/autograd/backend/cuda_backend.hpp>
#include <regard/autograd/backend/kernels.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/ops.hpp>

namespace regard {

void destroy(TensorImpl* impl) { delete impl; }

namespace {

const TensorImpl& get(const char* what, const Tensor& x) {
  if (!x.impl()) [[unlikely]]
    fail<ValueError>(what, "the tensor is undefined: give it a value first, such as zeros({2, 3})");
  return *x.impl();
}

}  // namespace

// ---- What it is

const Shape& Tensor::shape() const& { return get("shape", *this).shape; }
const Strides& Tensor::strides() const& { return get("strides", *this).strides; }
int64_t Tensor::size(int64_t dim) const { return shape()[check_dim("size", *this, dim)]; }
DType Tensor::dtype() const { return get("dtype", *this).dtype; }
Device Tensor::device() const { return get("device", *this).storage->device(); }
int64_t Tensor::storage_offset() const { return get("storage_offset", *this).offset; }
uint32_t Tensor::version() const { return get("version", *this).storage->version(); }

bool Tensor::is_contiguous() const {
  const TensorImpl& impl = get("is_contiguous", *this);
  int64_t expected = 1;
  for (int64_t i = impl.shape.dim() - 1; i >= 0; --i) {
    if (impl.shape[i] == 1) continue;
    if (impl.shape[i] == 0) return true;
    if (impl.strides[i] != expected) return false;
    expected *= impl.shape[i];
  }
  return true;
}

bool Tensor::shares_storage_with(const Tensor& other) const {
  return get("shares_storage_with", *this).storage == get("shares_storage_with", other).storage;
}

// ---- Elements

void* Tensor::raw_data() const {
  const TensorImpl& impl = get("data", *this);
  return static_cast<char*>(impl.storage->data()) + impl.offset * element_size(impl.dtype);
}

void Tensor::check_access(DType wanted) const {
  const TensorImpl& impl = get("data", *this);
  check<DTypeError>(impl.dtype == wanted, "data", "the elements are ", impl.dtype, ", not ", wanted,
                    ": ask for their own type, or convert with to()");
  check<DeviceError>(impl.storage->device() == Device{}, "data", "the elements are on ", impl.storage->device(),
                     ": bring them to the CPU with to()");
}

Scalar Tensor::item_scalar() const {
  check<ShapeError>(numel() == 1, "item", "a tensor of shape ", shape(), " has ", numel(),
                    " elements; item() wants exactly one: index or reduce it first");
  if (device() != cpu()) {
    NoGrad no_grad;
    return detach().to(cpu()).item_scalar();
  }
  return visit_dtype(dtype(), [&]<class T>(T) -> Scalar {
    T value = *static_cast<const T*>(raw_data());
    if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
      return static_cast<float>(value);
    else
      return value;
  });
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  NoGrad no_grad;
  // A vector of bool has no addressable elements: it is copied one by one.
  Tensor dense = regard::to(detach(), dtype_of<T>()).to(cpu()).contiguous();
  const T* data = dense.data<T>();
  return std::vector<T>(data, data + dense.numel());
}
template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<int64_t> Tensor::to_vector<int64_t>() const;
template std::vector<bool> Tensor::to_vector<bool>() const;
template std::vector<bfloat16> Tensor::to_vector<bfloat16>() const;
template std::vector<float16> Tensor::to_vector<float16>() const;

// ---- Autograd

bool Tensor::requires_grad() const { return get("requires_grad", *this).requires_grad; }
bool Tensor::is_leaf() const { return get("is_leaf", *this).node == nullptr; }
const NodePtr& Tensor::node() const { return get("node", *this).node; }

Tensor Tensor::set_requires_grad(bool requires_grad) const {
  get("set_requires_grad", *this);
  check<GraphError>(requires_grad || is_leaf(), "set_requires_grad",
                    "a computed tensor cannot stop requiring a gradient: use detach()");
  if (requires_grad)
    check<DTypeError>(computes(dtype(), device()), "set_requires_grad", "a ", dtype(), " tensor on ", device(),
                      " has no gradient: f32 and f64 ones do, and on a GPU bf16 and f16; convert with to()");
  impl_->requires_grad = requires_grad;
  return *this;
}

Tensor Tensor::grad() const {
  const TensorImpl& impl = get("grad", *this);
  return impl.leaf ? impl.leaf->grad : Tensor();
}

void Tensor::set_grad(const Tensor& grad) const {
  get("set_grad", *this);
  if (grad.defined()) {
    check<ShapeError>(grad.shape() == shape(), "set_grad", "a gradient of shape ", grad.shape(),
                      " for a tensor of shape ", shape());
    check<DTypeError>(grad.dtype() == dtype(), "set_grad", "a gradient of dtype ", grad.dtype(),
                      " for a tensor of dtype ", dtype());
    check_same_device("set_grad", grad, *this);
  }
  impl_->leaf_state().grad = grad;
}

void Tensor::zero_grad() const {
  get("zero_grad", *this);
  if (impl_->leaf) impl_->leaf->grad = Tensor();
}

Tensor Tensor::detach() const { return make_view(*this, shape(), strides(), storage_offset()); }

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  GradOptions options;
  if (gradient.defined()) options.grad_outputs = {gradient};
  options.retain_graph = retain_graph;
  options.create_graph = create_graph;
  regard::backward({*this}, options);
}

namespace {

std::atomic<uint64_t> next_hook_id{1};

template <class Hooks>
HookHandle removal_of(const TensorImplPtr& leaf, Hooks LeafState::*list, uint64_t id) {
  return HookHandle([leaf, list, id] {
    auto& hooks = leaf->leaf_state().*list;
    std::erase_if(hooks, [id](const auto& entry) { return entry.first == id; });
  });
}

}  // namespace

HookHandle Tensor::register_hook(GradHook hook) const {
  check<ValueError>(hook != nullptr, "register_hook", "the hook is an empty function");
  check<GraphError>(requires_grad(), "register_hook",
                    "the tensor needs no gradient, so the hook would never be called: set_requires_grad() first");
  uint64_t id = next_hook_id.fetch_add(1);
  if (!is_leaf()) {
    NodePtr node = impl_->node;
    node->hooks.push_back({impl_->output_index, id, std::move(hook)});
    return HookHandle([node, id] { std::erase_if(node->hooks, [id](const auto& entry) { return entry.id == id; }); });
  }
  impl_->leaf_state().hooks.emplace_back(id, std::move(hook));
  return removal_of(impl_, &LeafState::hooks, id);
}

HookHandle Tensor::register_post_accumulate_grad_hook(AccumulateHook hook) const {
  check<ValueError>(hook != nullptr, "register_post_accumulate_grad_hook", "the hook is an empty function");
  check<GraphError>(requires_grad() && is_leaf(), "register_post_accumulate_grad_hook",
                    "only a leaf that requires a gradient accumulates one");
  uint64_t id = next_hook_id.fetch_add(1);
  impl_->leaf_state().accumulate_hooks.emplace_back(id, std::move(hook));
  return removal_of(impl_, &LeafState::accumulate_hooks, id);
}

// ---- In place

void check_writable(const char* op, const Tensor& x) {
  const TensorImpl& impl = get(op, x);
  if (impl.node)
    fail<GraphError>(op, "the tensor of shape ", impl.shape, " was computed by '", impl.node->name(),
                     "' and is part of a graph: writing in place would falsify its gradient; use the op that "
                     "returns a new tensor, or detach()");
  if (impl.requires_grad && grad_enabled())
    fail<GraphError>(op, "the tensor of shape ", impl.shape, " requires a gradient: write to it inside a NoGrad scope");
  check<ValueError>(!repeats_elements(x), op, "elements of the tensor of shape ", impl.shape, " and strides ",
                    impl.strides, " share memory (it was expanded): write to a clone() instead");
}

bool repeats_elements(const Tensor& x) {
  const TensorImpl& impl = *x.impl();
  // Where a stride is 0, or where strides are too small to reach past what lies inside.
  std::array<std::pair<int64_t, int64_t>, Shape::max_dims> dims;  // (stride, size), by rising stride
  size_t count = 0;
  for (int64_t i = 0; i < impl.shape.dim(); ++i) {
    if (impl.shape[i] == 0) return false;
    if (impl.shape[i] == 1) continue;
    size_t at = count++;
    for (; at > 0 && dims[at - 1].first > impl.strides[i]; --at) dims[at] = dims[at - 1];
    dims[at] = {impl.strides[i], impl.shape[i]};
  }
  int64_t reach = 1;  // elements that the inner dimensions span
  for (size_t i = 0; i < count; ++i) {
    if (dims[i].first < reach) return true;
    reach = dims[i].first * (dims[i].second - 1) + reach;
  }
  return false;
}

namespace {

// Writing in place records nothing: a source that needs a gradient would lose it without a word.
void check_keeps_graph(const char* op, const Tensor& source) {
  check<GraphError>(!source.requires_grad() || !grad_enabled(), op, "the tensor of shape ", source.shape(),
                    " that is read requires a gradient, which writing in place would lose: use the op that returns a "
                    "new tensor, or detach() it");
}

// `other` brought to x's shape and dtype for an in-place op, without a graph.
Tensor operand(const char* op, const Tensor& x, const Tensor& other) {
  check_defined(op, "other", other);
  check_same_device(op, x, other);
  check_keeps_graph(op, other);
  check<ShapeError>(broadcastable_to(other.shape(), x.shape()), op, "a tensor of shape ", other.shape(),
                    " does not broadcast to ", x.shape(), ", which is written in place");
  check<DTypeError>(other.dtype() == x.dtype() || !is_floating(other.dtype()), op, "a tensor of dtype ", other.dtype(),
                    " beside one of ", x.dtype(), ", which is written in place: convert it with to()");
  check<DTypeError>(other.dtype() == x.dtype() || is_floating(x.dtype()) || other.dtype() == DType::boolean, op,
                    "a tensor of dtype ", other.dtype(), " beside one of ", x.dtype(),
                    ", which is written in place: convert it with to()");
  Tensor source = regard::to(other.detach(), x.dtype());
  // Overlapping memory would be read after it was written: take a copy.
  if (source.shares_storage_with(x) && !(source.shape() == x.shape() && source.strides() == x.strides() &&
                                         source.storage_offset() == x.storage_offset()))
    source = source.clone();
  return source.shape() == x.shape() ? source : source.expand(x.shape());
}

void check_arithmetic(const char* op, const Tensor& x) {
  check<DTypeError>(computes(x.dtype(), x.device()) || x.dtype() == DType::i64, op, "a ", x.dtype(), " tensor on ",
                    x.device(), " has no arithmetic: convert it with to()");
}

void in_place(const char* name, BinaryOp op, const Tensor& x, const Tensor& other) {
  check_writable(name, x);
  check_arithmetic(name, x);
  Tensor source = operand(name, x, other);
  kernels(x).binary(op, x, x, source);
  x.impl()->storage->bump_version();
}

void in_place(const char* name, BinaryOp op, const Tensor& x, Scalar other) {
  check_writable(name, x);
  check_arithmetic(name, x);
  check<DTypeError>(is_floating(x.dtype()) || !other.is_floating(), name, "a floating number beside an ", x.dtype(),
                    " tensor, which is written in place: convert the tensor with to()");
  kernels(x).binary_scalar(op, x, x, other, false);
  x.impl()->storage->bump_version();
}

void check_divides(const Tensor& x) {
  check<DTypeError>(is_floating(x.dtype()), "div_", "an ", x.dtype(),
                    " tensor cannot hold a quotient: convert it with to()");
}

}  // namespace

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  if (alpha == 1) {
    in_place("add_", BinaryOp::add, *this, other);
    return *this;
  }
  check_writable("add_", *this);
  check_floating("add_", "self", *this);
  kernels(*this).axpy(*this, operand("add_", *this, other), alpha);
  impl_->storage->bump_version();
  return *this;
}
const Tensor& Tensor::add_(Scalar other) const { return in_place("add_", BinaryOp::add, *this, other), *this; }
const Tensor& Tensor::sub_(const Tensor& other) const { return in_place("sub_", BinaryOp::sub, *this, other), *this; }
const Tensor& Tensor::mul_(const Tensor& other) const { return in_place("mul_", BinaryOp::mul, *this, other), *this; }
const Tensor& Tensor::mul_(Scalar other) const { return in_place("mul_", BinaryOp::mul, *this, other), *this; }
const Tensor& Tensor::div_(const Tensor& other) const {
  check_divides(*this);
  return in_place("div_", BinaryOp::div, *this, other), *this;
}
const Tensor& Tensor::div_(Scalar other) const {
  check_divides(*this);
  return in_place("div_", BinaryOp::div, *this, other), *this;
}

const Tensor& Tensor::copy_(const Tensor& source) const {
  check_writable("copy_", *this);
  check_defined("copy_", "source", source);
  check_keeps_graph("copy_", source);
  check<ShapeError>(broadcastable_to(source.shape(), shape()), "copy_", "a source of shape ", source.shape(),
                    " does not broadcast to ", shape());
  NoGrad no_grad;
  Tensor from = source.detach();
  if (from.device() != device()) {
    // As it is where that will do; else brought here first.
    if (from.dtype() == dtype() && from.shape() == shape() && is_contiguous()) {
      from = from.contiguous();
      impl_->storage->bump_version();  // before: what the GPU found wrong is thrown when the bytes are there
      need_cuda("copy_", device().kind == Device::Kind::cuda ? device() : from.device())
          .copy("copy_", raw_data(), device(), from.raw_data(), from.device(), numel() * element_size(dtype()));
      return *this;
    }
    from = from.to(device());
  }
  if (from.shares_storage_with(*this)) from = from.clone();
  kernels(*this).copy(*this, from.shape() == shape() ? from : from.expand(shape()));
  impl_->storage->bump_version();
  return *this;
}

const Tensor& Tensor::fill_(Scalar value) const {
  check_writable("fill_", *this);
  kernels(*this).fill(*this, value);
  impl_->storage->bump_version();
  return *this;
}
const Tensor& Tensor::zero_() const { return fill_(0); }

// ---- For ops

Tensor make_view(const Tensor& x, const Shape& shape, const Strides& strides, int64_t offset) {
  const TensorImpl& from = get("view", x);
  auto* impl = new TensorImpl;
  impl->dtype = from.dtype;
  impl->storage = from.storage;
  impl->shape = shape;
  impl->strides = strides;
  impl->offset = offset;
  return Tensor(TensorImplPtr(impl));
}

int64_t check_dim(const char* op, const Shape& shape, int64_t dim) {
  int64_t dims = std::max<int64_t>(shape.dim(), 1);
  if (dim < -dims || dim >= dims)
    fail<IndexError>(op, "dimension ", dim, " is outside [", -dims, ", ", dims - 1, "] of a tensor of shape ", shape);
  return dim < 0 ? dim + dims : dim;
}
int64_t check_dim(const char* op, const Tensor& x, int64_t dim) { return check_dim(op, x.shape(), dim); }

void check_defined(const char* op, const char* argument, const Tensor& x) {
  check<ValueError>(x.defined(), op, "argument '", argument, "' is an undefined tensor: give it a value first");
}
bool computes(DType dtype, Device device) {
  if (dtype == DType::bf16 || dtype == DType::f16) return device.kind == Device::Kind::cuda;
  return is_floating(dtype);
}

void check_floating(const char* op, const char* argument, const Tensor& x) {
  check_defined(op, argument, x);
  check<DTypeError>(computes(x.dtype(), x.device()), op, "argument '", argument, "' is ", x.dtype(),
                    "; it computes in f32 or f64: convert with to(DType::f32)");
}
void check_trainable(const char* op, const char* argument, const Tensor& x) {
  check_defined(op, argument, x);
  check<DTypeError>(x.dtype() == DType::f32 || x.dtype() == DType::f64, op, "argument '", argument, "' is ", x.dtype(),
                    "; what is trained is f32 or f64: convert with to(DType::f32), and compute in 16 bits inside of an "
                    "AutocastScope");
}
void check_integer(const char* op, const char* argument, const Tensor& x) {
  check_defined(op, argument, x);
  check<DTypeError>(x.dtype() == DType::i64, op, "argument '", argument, "' is ", x.dtype(),
                    "; it must be i64: convert with to(DType::i64)");
}
void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  check<DeviceError>(a.device() == b.device(), op, "tensors on ", a.device(), " and ", b.device(),
                     ": bring both to one device with to()");
}

}  // namespace regard
