#include <regard/autograd/autocast.hpp>

#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>

#include <regard/autograd/error.hpp>
#include <regard/autograd/graph.hpp>
#include <regard/autograd/matmul_precision.hpp>
#include <regard/autograd/ops.hpp>
#include <regard/autograd/ops/autocast_rules.hpp>

namespace regard {

namespace autocast {

constinit thread_local bool active = false;

/// Parameters that were converted. Each is held, so that no other tensor can come to lie in its place.
class Converted {
 public:
  Tensor of(const Tensor& x, DType dtype) {
    // One that was made without recording has no gradient: it does not do where one is recorded.
    Entry& entry = entries_[{x.impl(), dtype, grad_enabled()}];
    const uint32_t version = x.version();
    if (!entry.converted.defined() || entry.version != version) {
      entry = {x, to(x, dtype), version};
      // Several graphs use it, each with a backward() of its own.
      if (entry.converted.node()) entry.converted.node()->stay();
    }
    return entry.converted;
  }

 private:
  struct Entry {
    Tensor source, converted;
    uint32_t version = 0;
  };
  std::map<std::tuple<const TensorImpl*, DType, bool>, Entry> entries_;
};

struct Frame {
  std::optional<DType> dtype;
  MatmulPrecision outside = MatmulPrecision::f32;  // what held before the outermost scope
  std::shared_ptr<Converted> converted;
  Frame* former = nullptr;
  bool former_active = false;
  std::optional<MatmulPrecisionScope> precision;
};

namespace {

thread_local Frame* innermost = nullptr;

bool on_gpu(const Tensor& x) { return x.device().kind == Device::Kind::cuda; }

}  // namespace

bool any_half_on_gpu(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* x : tensors)
    if (x->defined() && is_half(x->dtype()) && on_gpu(*x)) return true;
  return false;
}

bool narrowable(std::initializer_list<const Tensor*> tensors) {
  bool other = false;
  for (const Tensor* x : tensors) {
    if (!x->defined()) continue;
    const DType dtype = x->dtype();
    if (!on_gpu(*x) || (dtype != DType::f32 && !is_half(dtype))) return false;
    other = other || dtype != *innermost->dtype;
  }
  return other;
}

bool different_on_gpu(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.dtype() == b.dtype() || !on_gpu(a) || !on_gpu(b)) return false;
  const auto fits = [](const Tensor& x) { return x.dtype() == DType::f32 || is_half(x.dtype()); };
  return fits(a) && fits(b);
}

Tensor wide(const Tensor& x) { return x.defined() && is_half(x.dtype()) ? to(x, DType::f32) : x; }

FreshConversions::FreshConversions() : frame_(innermost) {
  if (frame_) former_ = std::exchange(frame_->converted, std::make_shared<Converted>());
}
FreshConversions::~FreshConversions() {
  if (frame_) frame_->converted = std::move(former_);
}

MatmulPrecision outside() { return innermost ? innermost->outside : matmul_precision(); }

Tensor narrow(const Tensor& x) {
  if (!x.defined()) return x;
  const DType dtype = *innermost->dtype;
  if (x.dtype() == dtype) return x;
  return x.is_leaf() && x.requires_grad() ? innermost->converted->of(x, dtype) : to(x, dtype);
}

}  // namespace autocast

AutocastScope::AutocastScope(std::optional<DType> dtype) : AutocastScope(dtype, std::nullopt) {}

// `apart` from the scopes around it: what it holds then is what held outside of them.
AutocastScope::AutocastScope(std::optional<DType> dtype, std::optional<MatmulPrecision> apart)
    : frame_(std::make_unique<autocast::Frame>()) {
  check<DTypeError>(!dtype || autocast::is_half(*dtype), "AutocastScope", dtype.value_or(DType::f32),
                    " is no 16-bit dtype: give DType::bf16 or DType::f16, or std::nullopt to switch autocast off");
  autocast::Frame& frame = *frame_;
  frame.dtype = dtype;
  frame.former = autocast::innermost;
  frame.former_active = autocast::active;
  const bool inside = frame.former != nullptr && !apart;
  frame.outside = apart ? *apart : inside ? frame.former->outside : matmul_precision();
  frame.converted = inside ? frame.former->converted : std::make_shared<autocast::Converted>();
  if (!apart) {  // else who computes once more has set the precision that held the first time
    if (dtype == DType::bf16)
      frame.precision.emplace(MatmulPrecision::bf16);
    else if (inside)
      frame.precision.emplace(frame.outside);
  }
  autocast::innermost = &frame;
  autocast::active = dtype.has_value();
}

AutocastScope::~AutocastScope() {
  autocast::innermost = frame_->former;
  autocast::active = frame_->former_active;
}

std::optional<DType> autocast_dtype() { return autocast::active ? autocast::innermost->dtype : std::nullopt; }

}  // namespace regard
