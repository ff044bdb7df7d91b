// The matrix product of one piece on one thread, of f32 operands that are rounded to bf16 while they are packed.
#pragma once

#include <cstdint>
#include <regard/autograd/backend/cpu/tiled_gemm.hpp>

namespace regard::cpu_backend {

/// Whether this processor has the instruction, AVX-512's VDPBF16PS, at a rate at which it gains anything: AMD's, from
/// Zen 4 on. False as well where Highway was told to do with less than AVX-512.
bool bf16_gemm_available();

/// Whether a product of these sizes gains by it, packing included: as measured, for every layout.
bool suits_bf16_gemm(int64_t m, int64_t n, int64_t k);

/// On the calling thread: the operands' elements are rounded to bf16, to nearest even (NaN and infinity stay what they
/// are), their products summed in f32, the odd element of a pair along k before the even one, in blocks that k alone
/// decides: a piece of a product has the bits of the whole. Denormal numbers, of f32 and of bf16, count as 0, in
/// operands and in sums. Only where bf16_gemm_available().
void bf16_gemm(const Product<float>& product);

}  // namespace regard::cpu_backend
