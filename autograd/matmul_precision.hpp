// How precisely products of f32 matrices are computed: in f32, or faster, with operands rounded to bf16 or, on a GPU,
// tf32.
#pragma once

#include <cstdint>

namespace regard {

/// f32: as ever. bf16: both operands are rounded to bf16 (8 bits of mantissa, the range of f32) when a product reads
/// them, the products of their elements are exact and summed in f32, and the result is f32. Everything outside of
/// products stays f32: weights (the master weights of mixed precision), gradients, optimizer state, norms, softmax,
/// losses; and no loss scaling is needed, since bf16 has the range of f32. tf32: the same with 11 bits of mantissa, on
/// GPUs that have it (NVIDIA's from Ampere on); on the CPU products are computed in f32.
enum class MatmulPrecision : uint8_t { f32, bf16, tf32 };

/// Sets the precision of products of f32 matrices, from now on and for the whole process; f32 at first. As PyTorch's
/// torch.set_float32_matmul_precision("medium") for bf16, "high" for tf32 and "highest" for f32. It is about matmul(),
/// linear() and what is composed of them, and their gradients; products in f64 and inside of fused attention are not
/// changed.
///
/// Rounding an operand's element to bf16 (to nearest, ties to even; infinity and NaN stay) errs by at most 2^-8 of it.
/// An element of a product of k terms a[p] b[p] so errs by at most (2^-7 + 2^-16) sum |a[p] b[p]|, beside what summing
/// in f32 adds, at most about k 2^-24 sum |a[p] b[p]|; where roundings are independent, the error's standard deviation
/// is about 0.6 2^-8 sqrt(sum a[p]^2 b[p]^2). Denormal numbers (below 1.2e-38) may count as 0 there. For tf32 it is an
/// eighth of that.
///
/// On a GPU it holds for all products of f32; with bf16 cuBLASLt may take tf32 where that is no slower. On the CPU bf16
/// needs a processor that multiplies in bf16 faster than in f32, at present one of AMD's with AVX-512, Zen 4 or later:
/// bf16_matmul_available(). On others, and where a product is too small or thin to gain by it (A [m, k] by B [k, n]
/// with k below 24, or with m or n below 16, or both below 32), the CPU computes products in f32, with the bits they
/// have without the setting. Sizes alone decide: results have the same bits for every number of threads.
void set_matmul_precision(MatmulPrecision precision);

/// What holds on this thread: the innermost MatmulPrecisionScope's, else what was set for the process.
MatmulPrecision matmul_precision();

/// Whether the CPU here computes products in bf16; where not, that setting leaves its products in f32.
bool bf16_matmul_available();

/// Sets the precision on this thread, until the end of the scope. Gradients are computed with the precision that held
/// when their op was recorded, wherever backward() is called: a forward pass in the scope is all it needs.
class MatmulPrecisionScope {
 public:
  explicit MatmulPrecisionScope(MatmulPrecision precision);
  ~MatmulPrecisionScope();
  MatmulPrecisionScope(const MatmulPrecisionScope&) = delete;
  MatmulPrecisionScope& operator=(const MatmulPrecisionScope&) = delete;

 private:
  int8_t former_;
};

}  // namespace regard
