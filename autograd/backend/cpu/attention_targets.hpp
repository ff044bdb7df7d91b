// As highway_targets.hpp, without the instruction sets whose vectors have no size at compile time: attention's tiles
// hold vectors in structs.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
