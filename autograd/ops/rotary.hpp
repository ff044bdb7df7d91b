// Behind rotary_positions: checks that layers share. Programs use ops.hpp.
#pragma once

#include <regard/autograd/ops.hpp>

namespace regard::detail {

/// A ValueError in `op`'s name where rows of `width` elements cannot be turned so. How many elements are turned.
int64_t check_rotary(const char* op, int64_t width, const RotaryOptions& options);

}  // namespace regard::detail
