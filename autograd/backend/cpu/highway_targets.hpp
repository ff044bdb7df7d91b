// The instruction sets that SIMD kernels are compiled for: AVX2, AVX-512 and the portable one on x86, Highway's own
// choice elsewhere, without those whose vectors have no size at compile time: kernels keep vectors in arrays and
// structs. Include before any of Highway's headers.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
