// Mixed precision: matrix products and attention in 16 bits, what needs the range or the digits in f32.
#pragma once

#include <memory>
#include <optional>

#include <regard/autograd/dtype.hpp>
#include <regard/autograd/matmul_precision.hpp>

namespace regard {

namespace autocast {
struct Frame;
class Replay;
}  // namespace autocast

/// Inside of the scope, on this thread, ops on a GPU choose the dtype that they compute in. Weights, their gradients
/// and the optimizer's state stay f32 (the master weights of mixed precision), whatever the model:
///
///     {
///       AutocastScope scope(DType::bf16);
///       loss = cross_entropy(model(x), targets);
///     }
///     loss.backward();
///     optimizer.step();
///
/// - matmul(), linear(), feed_forward(), attention and its projections bring f32 operands to the scope's dtype, and
///   give results of it; sums are kept in f32. The conversion is recorded, so that gradients come back in f32. A
///   parameter that requires a gradient and is used several times is converted once, and again after it was written to.
/// - Norms, softmax(), losses, sums, means, variances, exp(), log(), pow() and their like bring 16-bit operands to f32,
///   and give f32.
/// - Ops of a 16-bit and an f32 tensor give f32, where they are a DTypeError outside of a scope.
/// - custom_op() is given its 16-bit operands in f32, and its function computes in what it is given.
/// - All others compute in the dtype of their operands. f64 is left alone, and so is what writes in place.
///
/// The lists are in ops/autocast_rules.hpp; they are those of PyTorch's autocast. Micikevicius et al., "Mixed precision
/// training", 2018.
///
/// Gradients are computed in the dtypes of the forward pass, wherever backward() is called. bf16 has the range of f32;
/// gradients in f16 need optim::GradScaler, since small ones are 0 there.
///
/// On the CPU, which does not compute in 16 bits, bf16 means MatmulPrecision::bf16: operands of products are rounded to
/// bf16 where that is faster (see matmul_precision.hpp), and everything stays f32. f16 means nothing there.
///
/// Scopes nest, and the innermost holds: `AutocastScope off(std::nullopt)` switches it off for a part. A dtype other
/// than bf16 and f16 is a DTypeError. Scopes end in the reverse order of their beginning: they are local variables.
class AutocastScope {
 public:
  explicit AutocastScope(std::optional<DType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  friend class autocast::Replay;
  AutocastScope(std::optional<DType> dtype, std::optional<MatmulPrecision> apart);
  std::unique_ptr<autocast::Frame> frame_;
};

/// The dtype of the innermost scope on this thread; none outside of scopes and where autocast is switched off.
std::optional<DType> autocast_dtype();

}  // namespace regard
