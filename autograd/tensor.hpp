// Tensor: a handle on elements of one dtype with a shape, and on its place in the autograd graph.
#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <regard/autograd/device.hpp>
#include <regard/autograd/dtype.hpp>
#include <regard/autograd/error.hpp>
#include <regard/autograd/shape.hpp>
#include <regard/autograd/storage.hpp>

namespace regard {

class Node;
class Tensor;
struct TensorImpl;
using Tensors = std::vector<Tensor>;
using NodePtr = boost::intrusive_ptr<Node>;
using TensorImplPtr = boost::intrusive_ptr<TensorImpl>;

void intrusive_ptr_add_ref(Node* node);
void intrusive_ptr_release(Node* node);
inline void intrusive_ptr_add_ref(TensorImpl* impl);
inline void intrusive_ptr_release(TensorImpl* impl);

/// dtype and device of a new tensor: `zeros({2, 3}, DType::f64)`.
struct TensorOptions {
  DType dtype = DType::f32;
  Device device = {};
  constexpr TensorOptions() = default;
  constexpr TensorOptions(DType type) : dtype(type) {}      // NOLINT
  constexpr TensorOptions(Device where) : device(where) {}  // NOLINT
  constexpr TensorOptions(DType type, Device where) : dtype(type), device(where) {}
};

/// A half-open range of indices with a step, for `x[Range(1, 4)]` and `x.index({...})`. A negative bound counts
/// from the end; bounds are clamped to the dimension.
struct Range {
  int64_t start = 0;
  int64_t stop = INT64_MAX;
  int64_t step = 1;
  constexpr Range() = default;  ///< everything
  constexpr explicit Range(int64_t from, int64_t to = INT64_MAX, int64_t by = 1) : start(from), stop(to), step(by) {}
};

/// One entry of `x.index({...})`: a position (its dimension goes away) or a Range.
struct Index {
  bool is_range;
  int64_t position = 0;
  Range range;
  template <class Integer>
  requires std::is_integral_v<Integer>
  constexpr Index(Integer at) : is_range(false), position(static_cast<int64_t>(at)) {}  // NOLINT
  constexpr Index(Range of) : is_range(true), range(of) {}                              // NOLINT
};

/// Ends a hook's registration when asked to; dropping the handle keeps the hook.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> removal) : remove_(std::move(removal)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

/// Receives a gradient and may return another in its place (an undefined Tensor keeps it).
using GradHook = std::function<Tensor(const Tensor& grad)>;
/// Called with a leaf after a gradient was added to its `grad()`.
using AccumulateHook = std::function<void(const Tensor& leaf)>;

/// A tensor. Copies are handles on the same elements, as in PyTorch; `clone()` copies the elements. A
/// default-constructed one is undefined. Elements are row-major by default; views share storage through strides.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorImplPtr impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// `x[0] = y` would change a handle that is gone at once, and no element: write `x[0].copy_(y)` or `x[0].fill_(1)`.
  Tensor& operator=(const Tensor&) && = delete;

  // ---- What it is
  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const&;
  const Strides& strides() const&;
  Shape shape() && { return static_cast<const Tensor&>(*this).shape(); }  // of a temporary: its own
  Strides strides() && { return static_cast<const Tensor&>(*this).strides(); }
  int64_t dim() const { return shape().dim(); }
  int64_t size(int64_t dim) const;  ///< the size of one dimension; negative counts from the end
  int64_t numel() const { return shape().numel(); }
  DType dtype() const;
  Device device() const;
  int64_t storage_offset() const;  ///< in elements
  bool is_contiguous() const;      ///< dense and row-major
  bool shares_storage_with(const Tensor& other) const;
  uint32_t version() const;  ///< counts writes to the storage

  // ---- Elements
  /// The first element; T must be the dtype's C++ type, and the tensor on the CPU. Read with strides(). Writing
  /// through it does not bump the version.
  template <class T>
  T* data() const {
    check_access(dtype_of<T>());
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;  ///< the first element, untyped
  /// The only element, converted to T. ShapeError when there is not exactly one.
  template <class T>
  T item() const {
    return item_scalar().template to<T>();
  }
  Scalar item_scalar() const;
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;
  /// As a person reads it: nested brackets, elided when large, with shape and dtype.
  std::string to_string() const;

  // ---- Autograd
  bool requires_grad() const;
  bool is_leaf() const;
  /// Marks a leaf as one whose gradient is wanted; f32 or f64 only. Returns the tensor itself.
  Tensor set_requires_grad(bool requires_grad = true) const;
  Tensor grad() const;  ///< a leaf's gradient; undefined before backward() and after zero_grad()
  void set_grad(const Tensor& grad) const;
  void zero_grad() const;  ///< leaves the gradient undefined
  Tensor detach() const;   ///< shares the elements, has no graph
  /// Gradients of this single number, or of `gradient`-weighted outputs, added to every leaf's grad().
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// Calls `hook` with the whole gradient of this tensor, before it goes further.
  HookHandle register_hook(GradHook hook) const;
  /// Calls `hook` after a gradient was added to this leaf's grad().
  HookHandle register_post_accumulate_grad_hook(AccumulateHook hook) const;
  const NodePtr& node() const;  ///< what computed it; null for leaves

  // ---- In place: on tensors without a graph that need no gradient, and on leaves under NoGrad. What is written must
  // not need a gradient either (outside of NoGrad): it would be lost.
  const Tensor& add_(const Tensor& other, double alpha = 1) const;
  const Tensor& add_(Scalar other) const;
  const Tensor& sub_(const Tensor& other) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(Scalar other) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& div_(Scalar other) const;
  /// Casts and broadcasts; from another device, too, and to a GPU without waiting.
  const Tensor& copy_(const Tensor& source) const;
  const Tensor& fill_(Scalar value) const;
  const Tensor& zero_() const;

  // ---- Copies and casts
  Tensor clone() const;          ///< a dense copy, recorded
  Tensor to(DType dtype) const;  ///< itself where nothing changes
  Tensor to(Device device) const;
  Tensor contiguous() const;  ///< itself where it is already

  // ---- Views
  Tensor operator[](int64_t index) const;  ///< select along dimension 0
  Tensor operator[](Range range) const;    ///< slice along dimension 0
  Tensor index(std::initializer_list<Index> indices) const;
  Tensor view(const Shape& shape) const;
  Tensor reshape(const Shape& shape) const;
  Tensor flatten(int64_t start_dim = 0, int64_t end_dim = -1) const;
  Tensor permute(const Shape& dims) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor t() const;  ///< transpose of a matrix
  Tensor expand(const Shape& shape) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dim) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor slice(int64_t dim, int64_t start = 0, int64_t stop = INT64_MAX, int64_t step = 1) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensors split(int64_t split_size, int64_t dim = 0) const;
  Tensors chunk(int64_t chunks, int64_t dim = 0) const;
  Tensor flip(Dims dims) const;
  Tensor triu(int64_t diagonal = 0) const;
  Tensor tril(int64_t diagonal = 0) const;

  // ---- Elementwise
  Tensor neg() const;
  Tensor pow(Scalar exponent) const;
  Tensor pow(const Tensor& exponent) const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor abs() const;
  Tensor tanh() const;
  Tensor sigmoid() const;
  Tensor relu() const;
  Tensor erf() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor clamp(std::optional<double> min, std::optional<double> max = std::nullopt) const;
  Tensor masked_fill(const Tensor& mask, Scalar value) const;
  Tensor logical_not() const;

  // ---- Reductions: over all elements, or over `dims`
  Tensor sum() const;
  Tensor sum(Dims dims, Flag keepdim = false) const;
  Tensor mean() const;
  Tensor mean(Dims dims, Flag keepdim = false) const;
  Tensor var(Dims dims, Flag unbiased = true, Flag keepdim = false) const;
  Tensor var() const;
  Tensor max() const;
  std::pair<Tensor, Tensor> max(int64_t dim, Flag keepdim = false) const;
  Tensor min() const;
  std::pair<Tensor, Tensor> min(int64_t dim, Flag keepdim = false) const;
  Tensor amax(Dims dims, Flag keepdim = false) const;
  Tensor amin(Dims dims, Flag keepdim = false) const;
  Tensor argmax() const;
  Tensor argmax(int64_t dim, Flag keepdim = false) const;
  Tensor argmin() const;
  Tensor argmin(int64_t dim, Flag keepdim = false) const;
  Tensor logsumexp(Dims dims, Flag keepdim = false) const;
  Tensor any() const;
  Tensor any(Dims dims, Flag keepdim = false) const;
  Tensor all() const;
  Tensor all(Dims dims, Flag keepdim = false) const;
  Tensor norm() const;  ///< the Euclidean norm of all elements

  // ---- The rest
  Tensor matmul(const Tensor& other) const;
  Tensor softmax(int64_t dim) const;
  Tensor log_softmax(int64_t dim) const;
  Tensor gather(int64_t dim, const Tensor& index) const;
  Tensor scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor index_select(int64_t dim, const Tensor& index) const;

  TensorImpl* impl() const { return impl_.get(); }
  const TensorImplPtr& impl_ptr() const { return impl_; }

 private:
  void check_access(DType dtype) const;
  TensorImplPtr impl_;
};

/// What a leaf keeps beside its elements.
struct LeafState {
  /// Where a leaf stands with layers: see the warning about parameters that no parameters() call listed.
  enum class Listing : uint8_t { plain, unlisted_parameter, listed_parameter };
  Tensor grad;
  std::vector<std::pair<uint64_t, GradHook>> hooks;
  std::vector<std::pair<uint64_t, AccumulateHook>> accumulate_hooks;
  Listing listing = Listing::plain;
  bool stepped_in_backward = false;  // an optimizer steps it there, and frees its gradient
};

/// The state behind a Tensor handle. Users of the library have no need of it.
struct TensorImpl {
  std::atomic<uint32_t> references{0};
  DType dtype = DType::f32;
  bool requires_grad = false;
  uint32_t output_index = 0;  // which output of `node`
  StoragePtr storage;
  Shape shape;
  Strides strides;
  int64_t offset = 0;  // elements
  NodePtr node;
  std::unique_ptr<LeafState> leaf;

  LeafState& leaf_state() {
    if (!leaf) leaf = std::make_unique<LeafState>();
    return *leaf;
  }
};

void destroy(TensorImpl* impl);
inline void intrusive_ptr_add_ref(TensorImpl* impl) { impl->references.fetch_add(1, std::memory_order_relaxed); }
inline void intrusive_ptr_release(TensorImpl* impl) {
  // Nobody else can take a handle from the only one: a plain look spares most tensors a locked subtraction.
  if (impl->references.load(std::memory_order_acquire) == 1 ||
      impl->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
    destroy(impl);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// ---- Creation. Shapes to eight dimensions; dtype f32 unless given.
Tensor empty(const Shape& shape, TensorOptions options = {});  ///< elements not initialised
Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});
Tensor full(const Shape& shape, Scalar value);  ///< dtype of the value: f32, i64 or boolean
Tensor full(const Shape& shape, Scalar value, TensorOptions options);
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, Scalar value);
Tensor eye(int64_t rows, TensorOptions options = {});
Tensor eye(int64_t rows, int64_t columns, TensorOptions options = {});
/// `steps` numbers from start to stop, both included; f32 or f64.
Tensor linspace(double start, double stop, int64_t steps, TensorOptions options = {});
Tensor arange_scalar(Scalar start, Scalar stop, Scalar step, TensorOptions options);

/// start, start + step, ... below stop; i64 for integers, f32 where an argument is floating.
template <class A, class B, class C = int>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && std::is_arithmetic_v<C> Tensor arange(A start, B stop,
                                                                                                     C step = 1) {
  constexpr bool floating = std::is_floating_point_v<A> || std::is_floating_point_v<B> || std::is_floating_point_v<C>;
  return arange_scalar(start, stop, step, floating ? DType::f32 : DType::i64);
}
/// 0, 1, ... below stop.
template <class A>
requires std::is_arithmetic_v<A> Tensor arange(A stop) { return arange(A{0}, stop); }
template <class A>
requires std::is_arithmetic_v<A> Tensor arange(A stop, TensorOptions options) {
  return arange_scalar(A{0}, stop, 1, options);
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B> Tensor arange(A start, B stop, TensorOptions options) {
  return arange_scalar(start, stop, 1, options);
}
template <class A, class B, class C>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B> && std::is_arithmetic_v<C> Tensor
arange(A start, B stop, C step, TensorOptions options) {
  return arange_scalar(start, stop, step, options);
}

/// A tensor with a copy of `values` in row-major order; the shape's product must be their number.
/// `from_vector<float>({1, 2, 3, 4}, {2, 2})`
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape);
/// Numbers of another type become i64 where they are integers, f64 where not: labels in a `std::vector<int>`.
template <class T>
requires(std::is_arithmetic_v<T> && !is_element_type<T>) Tensor
    from_vector(const std::vector<T>& values, const Shape& shape) {
  using Element = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
  return from_vector<Element>(std::vector<Element>(values.begin(), values.end()), shape);
}
template <class T>
Tensor from_vector(const std::vector<T>& values) {
  return from_vector<T>(values, Shape{static_cast<int64_t>(values.size())});
}
/// One number as a tensor of no dimensions.
Tensor scalar_tensor(Scalar value);
Tensor scalar_tensor(Scalar value, TensorOptions options);

Tensor from_blob_untyped(void* data, DType dtype, const Shape& shape, const Strides& strides,
                         std::function<void()> release);
/// A tensor over memory that the caller keeps: it must outlive every tensor and graph that uses it, unless
/// `release` is given, which is called when the last one is gone.
template <class T>
Tensor from_blob(T* data, const Shape& shape, std::function<void()> release = {}) {
  return from_blob_untyped(data, dtype_of<T>(), shape, contiguous_strides(shape), std::move(release));
}
template <class T>
Tensor from_blob(T* data, const Shape& shape, const Strides& strides, std::function<void()> release = {}) {
  return from_blob_untyped(data, dtype_of<T>(), shape, strides, std::move(release));
}

// ---- For ops: tensors over an existing storage, and checks of arguments.
/// A new handle on x's storage with another shape, no graph: what view ops are made of.
Tensor make_view(const Tensor& x, const Shape& shape, const Strides& strides, int64_t offset);
/// `dim` counted from the front; IndexError naming op and shape when it is out of range. A tensor of no
/// dimensions accepts 0 and -1.
int64_t check_dim(const char* op, const Tensor& x, int64_t dim);
int64_t check_dim(const char* op, const Shape& shape, int64_t dim);
/// UndefinedTensor arguments: a ValueError naming op and argument.
void check_defined(const char* op, const char* argument, const Tensor& x);
/// Whether ops compute with elements of this dtype on the device: f32 and f64 anywhere, bf16 and f16 on a GPU, where
/// sums are kept in f32.
bool computes(DType dtype, Device device);
/// A dtype that ops compute with on x's device, else a DTypeError that says to().
void check_floating(const char* op, const char* argument, const Tensor& x);
/// What is trained, and its gradient: f32 or f64 on every device, else a DTypeError that says to().
void check_trainable(const char* op, const char* argument, const Tensor& x);
void check_integer(const char* op, const char* argument, const Tensor& x);
void check_same_device(const char* op, const Tensor& a, const Tensor& b);
/// In-place writes: a GraphError where the graph forbids them, a ValueError where elements alias.
void check_writable(const char* op, const Tensor& x);
/// Whether several elements may lie in one place, as in what expand() gives.
bool repeats_elements(const Tensor& x);

}  // namespace regard
