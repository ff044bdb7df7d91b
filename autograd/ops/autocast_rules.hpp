// What AutocastScope makes of each op: the lists, and what ops ask. For ops: programs use autocast.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <regard/autograd/autocast.hpp>
#include <regard/autograd/tensor.hpp>

namespace regard::autocast {

enum class Rule : uint8_t {
  narrow,  ///< f32 operands become the scope's dtype, and so does the other 16-bit one
  wide,    ///< 16-bit operands become f32
  widest   ///< a 16-bit operand becomes f32 beside one of another dtype
};

struct Entry {
  std::string_view op;
  Rule rule;
};

/// The lists of PyTorch's autocast on CUDA (its "autocast op reference"), as far as there is such an op; mean, var,
/// logsumexp and rms_norm beside their like. Ops that are not here compute in what they are given.
inline constexpr Entry rules[] = {
    {"matmul", Rule::narrow},
    {"linear", Rule::narrow},
    {"feed_forward", Rule::narrow},
    {"project_heads", Rule::narrow},
    {"scaled_dot_product_attention", Rule::narrow},

    {"layer_norm", Rule::wide},
    {"rms_norm", Rule::wide},
    {"softmax", Rule::wide},
    {"log_softmax", Rule::wide},
    {"logsumexp", Rule::wide},
    {"cross_entropy", Rule::wide},
    {"nll_loss", Rule::wide},
    {"mse_loss", Rule::wide},
    {"binary_cross_entropy_with_logits", Rule::wide},
    {"kl_div", Rule::wide},
    {"sum", Rule::wide},
    {"mean", Rule::wide},
    {"var", Rule::wide},
    {"norm", Rule::wide},
    {"exp", Rule::wide},
    {"log", Rule::wide},
    {"rsqrt", Rule::wide},
    {"reciprocal", Rule::wide},
    {"number / tensor", Rule::wide},
    {"pow", Rule::wide},

    {"add", Rule::widest},
    {"sub", Rule::widest},
    {"mul", Rule::widest},
    {"div", Rule::widest},
    {"maximum", Rule::widest},
    {"minimum", Rule::widest},
    {"comparison", Rule::widest},
    {"where", Rule::widest},
    {"cat", Rule::widest},
    {"stack", Rule::widest},
    {"scatter_add", Rule::widest},
    {"index_add", Rule::widest},
};

/// An op's name, which does not compile where the op is not in the list of this rule.
template <Rule rule>
struct Listed {
  consteval Listed(const char* name) {  // NOLINT(google-explicit-constructor)
    bool listed = false;
    for (const Entry& entry : rules) listed = listed || (entry.op == std::string_view(name) && entry.rule == rule);
    if (!listed) throw "this op is not in the list of autocast rules";
  }
};

/// Whether a scope holds on this thread.
extern constinit thread_local bool active;

inline bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Each of these is false outside of a scope, and false for what the following conversion gives, so that an op calls
// itself with that: `if (autocast::widens("exp", x)) return exp(autocast::wide(x));`. Undefined tensors count for
// nothing.

bool any_half_on_gpu(std::initializer_list<const Tensor*> tensors);
bool narrowable(std::initializer_list<const Tensor*> tensors);
bool different_on_gpu(const Tensor& a, const Tensor& b);

/// Whether the op is to compute in f32, and one of these is not: they go through wide().
template <class... T>
bool widens(Listed<Rule::wide>, const T&... tensors) {
  return active && any_half_on_gpu({&tensors...});
}
/// Whether the op is to compute in the scope's dtype, and one of these is of another: they go through narrow(). Not
/// where one is f64, or not on a GPU.
template <class... T>
bool narrows(Listed<Rule::narrow>, const T&... tensors) {
  return active && narrowable({&tensors...});
}
/// Whether one is a 16-bit tensor beside an f32 or another 16-bit one: they go through wide().
inline bool mixes(Listed<Rule::widest>, const Tensor& a, const Tensor& b) { return active && different_on_gpu(a, b); }

/// x in f32 where it is of 16 bits, recorded; else x itself.
Tensor wide(const Tensor& x);
/// x in the scope's dtype, recorded. Of a parameter the scope keeps it for its next use.
Tensor narrow(const Tensor& x);

/// Inside of it ops compute in what they are given, whatever scope there is around it. For gradients, and for ops that
/// are made of others.
class Pause {
 public:
  Pause() : former_(active) { active = false; }
  ~Pause() { active = former_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool former_;
};

class Converted;

/// While it lives, the scopes around it convert parameters anew; then they have what they had before. For a capture,
/// whose conversions are made by each replay, and which must make its own.
class FreshConversions {
 public:
  FreshConversions();
  ~FreshConversions();
  FreshConversions(const FreshConversions&) = delete;
  FreshConversions& operator=(const FreshConversions&) = delete;

 private:
  Frame* frame_;  // null outside of scopes
  std::shared_ptr<Converted> former_;
};

/// The precision of products that held before the outermost scope on this thread; without a scope, what holds.
MatmulPrecision outside();

/// A scope for what is computed once more: it shares no converted parameter with the scopes around it, and leaves the
/// precision of products as it is. `dtype` and `outside` are those of the first time.
class Replay {
 public:
  Replay(std::optional<DType> dtype, MatmulPrecision outside) : scope_(dtype, outside) {}

 private:
  AutocastScope scope_;
};

}  // namespace regard::autocast
