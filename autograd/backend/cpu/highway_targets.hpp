// The instruction sets that SIMD kernels are compiled for: AVX2, AVX-512 and the portable one on x86, Highway's own
// choice elsewhere. Include before any of Highway's headers.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
